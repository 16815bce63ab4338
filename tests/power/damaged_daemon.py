"""A daemon whose log has a flipped bit."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from synrepl.storage.continuity import CHECKED_AT_OPEN
from tests.processes.loading import made_rows
from tests.service.processes import PATIENCE_SECONDS, Daemon
from tests.upgrades.freeze import post
from tests.upgrades.frozen import Release

FACTS: Final = CHECKED_AT_OPEN + 300
DAMAGED: Final = 102
"""The serial. The last facts are looked at when the log is opened."""

WRITTEN, FLIPPED = b"~102~", b"~103~"
TOLD: Final = f"serial {DAMAGED} is damaged"
CLOSED: Final = "the log cannot be read now; try again later"


def flip(path: Path) -> None:
    """Flip one bit of a row, in the file as it is: another one would be a copy."""
    with path.open("r+b") as file:
        data = file.read()
        assert data.count(WRITTEN) == 1
        file.seek(data.index(WRITTEN))
        file.write(FLIPPED)


@contextmanager
def damaged_daemon(home: Path) -> Iterator[Daemon]:
    """The daemon, whose log had one bit flipped while it was stopped."""
    with Release().daemon(home) as daemon:
        for first in range(1, FACTS, 100):
            post(daemon.url, "receipts", [made_rows("receipts", one) for one in range(first, first + 100)])
        daemon.terminate()
    flip(home / "synrepl.db")
    with Release().daemon(home) as daemon:
        yield daemon


def read(url: str) -> bytes:
    """What is served there, up to where it ends or is cut off."""
    found = b""
    with suppress(HTTPException, OSError), urlopen(url, timeout=PATIENCE_SECONDS) as response:
        while more := response.read1():
            found += more
    return found
