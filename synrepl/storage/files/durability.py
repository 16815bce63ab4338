"""Directories and files that are still there after a power cut."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from synrepl.errors import StorageError
from synrepl.ports.files import DiskFull
from synrepl.storage.private_files import sync_directory

__all__ = ["make_directory", "telling"]

FULL: Final = {errno.ENOSPC, errno.EDQUOT}
RETRYABLE: Final = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN}


@contextmanager
def telling(op: str) -> Iterator[None]:
    """What the system refuses in this block is a `StorageError`, a full disk `DiskFull`."""
    try:
        yield
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        if error.errno in FULL:
            raise DiskFull(op=op, why=why, hint="free some space", retryable=True) from error
        raise StorageError(
            op=op,
            why=why,
            hint="look at the system's log" if error.errno == errno.EIO else "",
            retryable=error.errno in RETRYABLE,
        ) from error


def make_directory(path: Path) -> None:
    """Make it, and what is missing above it, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path.parent)
