"""A wall clock that somebody sets, for daemons of their own program."""

import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["CLOCKED", "WallClock"]

CLOCKED: Final = (
    "-c",
    """
import mmap, os, struct, time
with open(os.environ["SET_CLOCK"], "rb") as file:
    added = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
real = time.time
time.time = lambda: real() + struct.unpack("q", added[:8])[0]
from twisted.scripts.twistd import run
run()
""",
    "--nodaemon",
    "--pidfile=",
    "synrepl",
)
"""twistd, whose wall clock can be set by a file."""


class WallClock:
    """The clock of the daemons that start with the program `CLOCKED` after this was made.

    `set_variable` sets a variable of their environment.
    """

    def __init__(self, path: Path, set_variable: Callable[[str, str], None] = os.environ.__setitem__) -> None:
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._added = mmap.mmap(file.fileno(), 8)
        set_variable("SET_CLOCK", str(path))

    def set(self, seconds: int) -> None:
        """Set it so many seconds ahead of the right time."""
        self._added[:8] = struct.pack("q", seconds)
