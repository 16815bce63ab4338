"""Durable directories, and the mapping of the system's errors."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from synrepl.errors import StorageError
from synrepl.ports.files import DiskFull
from synrepl.storage.private_files import sync_directory

__all__ = ["make_directory", "map_errors"]

FULL: Final = {errno.ENOSPC, errno.EDQUOT}
RETRYABLE: Final = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN}


@contextmanager
def map_errors(op: str) -> Iterator[None]:
    """Raise the system's errors as `StorageError`, and a full disk as `DiskFull`."""
    try:
        yield
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        if error.errno in FULL:
            raise DiskFull(op=op, why=why, hint="free some space", retryable=True) from error
        raise StorageError(
            op=op,
            why=why,
            hint="check the system's log" if error.errno == errno.EIO else "",
            retryable=error.errno in RETRYABLE,
        ) from error


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path.parent)
