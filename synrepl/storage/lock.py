"""One process at a time: a lock that the system takes back when its holder dies, however it dies."""

import fcntl
import os
from pathlib import Path

from synrepl.errors import StorageError

__all__ = ["FileLock"]


class FileLock:
    """An exclusive lock on a file, which holds the process id of whoever has it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take it, or fail at once with a `StorageError` that says which process has it."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(
                op="open",
                why=f"{self._path}: {error.strerror}",
                hint="check that the directory can be written by this user",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StorageError(
                op="open", why=f"process {holder} has {self._path}", hint="end it, or name another database"
            ) from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise StorageError(
                op="open", why=f"{self._path}: {error.strerror}", hint="the disk may be full", retryable=True
            ) from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Give it back. The file stays: removing it would let two processes lock two files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
