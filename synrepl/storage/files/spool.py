"""Bytes that are coming in: on the disk, counted and hashed, and not yet kept."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from synrepl.errors import StorageError
from synrepl.ports.files import ChecksumMismatch
from synrepl.storage.files.durability import telling

__all__ = ["Spool"]

BLOCK: Final = 1024 * 1024

Keep = Callable[[Path, str, int], bool]


class Spool:
    """An `ISpool` over the file at `path`, made unless it is there. `keep` takes the whole file over.

    Bytes that an earlier life left there count once they were hashed (`rehash`).
    """

    def __init__(self, path: Path, keep: Keep) -> None:
        self._path = path
        self._keep = keep
        self._hash = hashlib.sha256()
        self._length = 0
        with telling("receive"):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._unread = os.fstat(self._descriptor).st_size
        self._is_over = False

    @property
    def length(self) -> int:
        """How many bytes are here."""
        return self._length

    def rehash(self, count: int) -> bool:
        """Read up to `count` bytes of what is there; whether all of them are read."""
        self._check()
        with telling("receive"):
            while self._unread > 0 and count > 0:
                data = os.pread(self._descriptor, min(BLOCK, self._unread, count), self._length)
                if not data:
                    self._unread = 0
                self._take(data)
                self._unread -= min(len(data), self._unread)
                count -= len(data)
        return self._unread == 0

    def append(self, data: bytes) -> None:
        """Add these."""
        self._check()
        assert not self._unread, "what is there was not hashed"
        rest = memoryview(data)
        with telling("receive"):
            while rest:
                written = os.pwrite(self._descriptor, rest, self._length)
                # At once: if there is no room for the rest, this much can still be gone on from.
                self._take(rest[:written])
                rest = rest[written:]

    def commit(self, sha256: str, size: int | None = None) -> bool:
        """Keep them, if these are their checksum and size; whether they are new."""
        self._check()
        found = self._hash.hexdigest()
        if self._unread or found != sha256:
            self.abort()
            why = f"{self._length} bytes came with checksum {found}, not {sha256}"
            raise ChecksumMismatch(op="receive", expected=sha256, found=found, why=why)
        if size is not None and size != self._length:
            self.abort()
            why = f"{self._length} bytes came, not {size}; their checksum {sha256} is right"
            raise ChecksumMismatch(op="receive", expected=str(size), found=str(self._length), why=why)
        try:
            with telling("receive"):
                os.fsync(self._descriptor)
                is_new = self._keep(self._path, sha256, self._length)
        except StorageError:
            self.abort()
            raise
        self.close()
        return is_new

    def abort(self) -> None:
        """Keep nothing."""
        if not self._is_over:
            self.close()
            with telling("receive"):
                self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave what is here for another time."""
        if not self._is_over:
            self._is_over = True
            with telling("receive"):
                os.close(self._descriptor)

    def _take(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._length += len(data)

    def _check(self) -> None:
        if self._is_over:
            raise StorageError(op="receive", why="it is over with these bytes")
