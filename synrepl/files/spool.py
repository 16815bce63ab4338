"""Spools: incoming bytes on disk, counted and hashed, and not stored yet."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from synrepl.errors import StorageError
from synrepl.storage.private_files import map_errors

BLOCK: Final = 1024 * 1024

Store = Callable[[Path, str, int], bool]


class ChecksumMismatch(StorageError):
    """The received bytes are not those announced: `expected` and `found` are checksums."""

    def __init__(self, *, op: str, expected: str, found: str, why: str) -> None:
        super().__init__(op=op, why=why, retryable=True)
        self.expected = expected
        self.found = found


class Spool:
    """Incoming bytes, on disk but not stored yet. Blocking; one thread at a time.

    They are in the file at `path`, which is created if it is missing. `store` moves the complete file to its
    place, and returns whether it is new. `length` counts the received bytes; those left by an earlier
    download count once they are hashed.
    """

    def __init__(self, path: Path, store: Store) -> None:
        self._path = path
        self._store = store
        self._hash = hashlib.sha256()
        self.length = 0
        with map_errors("receive a file"):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._unread = os.fstat(self._descriptor).st_size
        self._is_finished = False

    def rehash(self, count: int) -> bool:
        """Hash up to `count` of the bytes left by an earlier download. Returns whether all are hashed."""
        self._check()
        with map_errors("receive a file"):
            while self._unread > 0 and count > 0:
                data = os.pread(self._descriptor, min(BLOCK, self._unread, count), self.length)
                if not data:
                    self._unread = 0
                self._add(data)
                self._unread -= min(len(data), self._unread)
                count -= len(data)
        return self._unread == 0

    def append(self, data: bytes) -> None:
        """Append bytes."""
        self._check()
        assert not self._unread, "the bytes of an earlier download are not hashed yet"
        rest = memoryview(data)
        with map_errors("receive a file"):
            while rest:
                written = os.pwrite(self._descriptor, rest, self.length)
                # At once: if the disk is full for the rest, the download can be resumed from here.
                self._add(rest[:written])
                rest = rest[written:]

    def commit(self, sha256: str) -> bool:
        """Store the file; return whether it is new.

        Raises `ChecksumMismatch`, or another `StorageError`; the received bytes are then deleted.
        """
        self._check()
        found = self._hash.hexdigest()
        if self._unread or found != sha256:
            self.abort()
            why = f"received {self.length} bytes with checksum {found}, not {sha256}"
            raise ChecksumMismatch(op="receive a file", expected=sha256, found=found, why=why)
        try:
            with map_errors("receive a file"):
                os.fsync(self._descriptor)
                is_new = self._store(self._path, sha256, self.length)
        except StorageError:
            self.abort()
            raise
        self.close()
        return is_new

    def abort(self) -> None:
        """Delete the received bytes, unless the spool is closed."""
        if not self._is_finished:
            self.close()
            with map_errors("receive a file"):
                self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file. Its bytes stay, so that the download can be resumed."""
        if not self._is_finished:
            self._is_finished = True
            with map_errors("receive a file"):
                os.close(self._descriptor)

    def _add(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self.length += len(data)

    def _check(self) -> None:
        if self._is_finished:
            raise StorageError(op="receive a file", why="this upload or download has ended")
