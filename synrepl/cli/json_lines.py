"""JSON lines on standard output."""

import os
import stat
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from synrepl.wire import jsontext


class OutputClosed(Exception):
    """Standard output was closed by its reader."""


class JsonLines:
    """A buffer of JSON lines. `flush` writes them, by default to standard output."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._waiting: list[bytes] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, line: Mapping[str, Any]) -> None:
        """Add an object as a line."""
        self._waiting.append(jsontext.dumps(line))

    def flush(self) -> None:
        """Write the buffered lines. Raises `OutputClosed` if the reader has closed the output."""
        if not self._waiting:
            return
        self._waiting.append(b"")
        data, self._waiting = b"\n".join(self._waiting), []
        try:
            self._stream.write(data)
            self._stream.flush()
        except BrokenPipeError:
            # Python flushes standard output again at exit; /dev/null keeps that from failing.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise OutputClosed from None

    def sync(self) -> None:
        """Make what was written durable, if the output is a file. Raises `OSError`."""
        descriptor = self._stream.fileno()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fsync(descriptor)
