"""Verification of stored files: of one before it is served, and of all in turn to find damage on disk."""

import errno
import hashlib
import os
from collections.abc import Callable
from typing import Final, NoReturn

from synrepl.errors import StorageError
from synrepl.storage.private_files import map_errors

__all__ = ["Damaged", "FileCheck", "Scrub", "StoredFile"]

BLOCK: Final = 1024 * 1024


class Damaged(StorageError):
    """A stored file was damaged; it is in quarantine now, and counts as missing."""


class StoredFile:
    """A verified file with an open descriptor, which this object closes. Blocking."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor: int | None = descriptor
        self.size = size

    def read(self, offset: int, count: int) -> bytes:
        """Read `count` bytes from `offset` on; fewer only at the end of the file."""
        if self._descriptor is None:
            raise StorageError(op="read a file", why="it is closed")
        parts = []
        count = min(count, self.size - offset)
        with map_errors("read a file"):
            while count > 0:
                data = os.pread(self._descriptor, count, offset)
                if not data:
                    raise StorageError(op="read a file", why="the file was truncated while it was read")
                parts.append(data)
                offset += len(data)
                count -= len(data)
        return b"".join(parts)

    def again(self) -> "StoredFile":
        """A second handle of the file, to be closed separately."""
        if self._descriptor is None:
            raise StorageError(op="read a file", why="it is closed")
        with map_errors("read a file"):
            return StoredFile(os.dup(self._descriptor), self.size)

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class FileCheck:
    """The verification of the file at `descriptor` before it is served. Blocking.

    With `is_known` the file was verified recently and is not read again. `good` or `bad` is called with its
    status.
    """

    def __init__(
        self,
        descriptor: int,
        sha256: str,
        *,
        is_known: bool,
        good: Callable[[os.stat_result], None],
        bad: Callable[[os.stat_result], None],
    ) -> None:
        self._descriptor: int | None = descriptor
        self._sha256 = sha256
        self._is_known = is_known
        self._good = good
        self._bad = bad
        self._hash = hashlib.sha256()
        # Taken before the first byte, so that a change during the check is noticed afterwards.
        self._stat = os.fstat(descriptor)
        self.size = self._stat.st_size

    def step(self, count: int) -> StoredFile | None:
        """Verify up to `count` more bytes. Returns the open file once all are right."""
        if self._descriptor is None:
            raise StorageError(op="check a file", why="it is closed")
        if not self._is_known:
            while count > 0:
                data = self._read(min(BLOCK, count))
                if not data:
                    break
                self._hash.update(data)
                count -= len(data)
            else:
                return None
            found = self._hash.hexdigest()
            if found != self._sha256:
                self._reject(f"its bytes have checksum {found}")
            self._good(self._stat)
        descriptor, self._descriptor = self._descriptor, None
        return StoredFile(descriptor, self._stat.st_size)

    def close(self) -> None:
        """Close the file, unless `step` has given it out."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _read(self, count: int) -> bytes:
        assert self._descriptor is not None
        try:
            return os.read(self._descriptor, count)
        except OSError as error:
            if error.errno == errno.EIO:
                self._reject("the disk cannot read it")
            with map_errors("check a file"):
                raise

    def _reject(self, why: str) -> NoReturn:
        self._bad(self._stat)
        self.close()
        why = f"{self._sha256} is damaged: {why}"
        raise Damaged(op="check a file", why=why, hint="it was moved to quarantine")


LEAST: Final = 4_096
"""The number of bytes that a file counts for at least."""


class Scrub:
    """The slow verification of all files, in the order of their checksums. Blocking.

    `after` gives the next checksums after one, `check` starts verifying a file.
    """

    def __init__(
        self, position: str, after: Callable[[str], list[str]], check: Callable[[str], FileCheck | None]
    ) -> None:
        self.position = position
        self._after = after
        self._check = check
        self._ahead: list[str] = []
        self._checking: FileCheck | None = None

    def step(self, count: int) -> tuple[list[str], bool]:
        """Verify about `count` more bytes. Returns the damaged files, and whether the round is complete."""
        bad: list[str] = []
        while count > 0:
            if not self._ahead:
                self._ahead = self._after(self.position)[::-1]
                if not self._ahead:
                    self.position = ""
                    return bad, True
            sha256 = self._ahead[-1]
            if self._checking is None:
                self._checking = self._check(sha256)
            if self._checking is not None:
                size = min(count, 1024 * 1024)
                count -= max(LEAST, min(size, self._checking.size))
                try:
                    good = self._checking.step(size)
                except Damaged:
                    bad.append(sha256)
                else:
                    if good is None:
                        continue
                    good.close()
            self._checking = None
            self.position = self._ahead.pop()
        return bad, False

    def close(self) -> None:
        """Close the file that is being verified."""
        if self._checking is not None:
            self._checking.close()
            self._checking = None
