"""Verification of stored files: of one before it is served, and of all in turn to find damage on disk."""

import copy
import errno
import hashlib
import os
from collections.abc import Callable
from typing import Final, NoReturn

from synrepl.errors import StorageError
from synrepl.storage.private_files import map_errors

BLOCK: Final = 1024 * 1024


class Damaged(StorageError):
    """A stored file is damaged. It is in quarantine and counts as missing, unless it has been replaced."""


class StoredFile:
    """A stored file with an open descriptor. Blocking.

    `verify` compares the bytes with the checksum, and then calls `good` or `bad` with the `stat_result` of
    the file; a file that the disk cannot read is bad too. If `is_verified`, `verify` does nothing.
    """

    def __init__(
        self,
        descriptor: int,
        sha256: str,
        *,
        is_verified: bool,
        good: Callable[[os.stat_result], None],
        bad: Callable[[os.stat_result], None],
    ) -> None:
        self._descriptor: int | None = descriptor
        self._sha256 = sha256
        self._is_verified = is_verified
        self._good = good
        self._bad = bad
        self._hash = hashlib.sha256()
        # Taken before the first byte, so that a change during the check is noticed afterwards.
        self._stat = os.fstat(descriptor)
        self.size = self._stat.st_size

    def verify(self, count: int) -> bool:
        """Verify up to `count` more bytes. True once all are verified. Raises `Damaged` or `StorageError`."""
        if self._is_verified:
            return True
        descriptor = self._open_descriptor("check a file")
        while count > 0:
            data = self._read_next(descriptor, min(BLOCK, count))
            if not data:
                break
            self._hash.update(data)
            count -= len(data)
        else:
            return False
        found = self._hash.hexdigest()
        if found != self._sha256:
            self._reject(f"its bytes have checksum {found}")
        self._good(self._stat)
        self._is_verified = True
        return True

    def read(self, offset: int, count: int) -> bytes:
        """Read `count` bytes from `offset` on; fewer only at the end of the file. Raises `StorageError`."""
        descriptor = self._open_descriptor("read a file")
        parts = []
        count = min(count, self.size - offset)
        with map_errors("read a file"):
            while count > 0:
                data = os.pread(descriptor, count, offset)
                if not data:
                    raise StorageError(op="read a file", why=f"{self._sha256} was truncated on disk")
                parts.append(data)
                offset += len(data)
                count -= len(data)
        return b"".join(parts)

    def again(self) -> "StoredFile":
        """A second handle of the verified file, to be closed separately."""
        again = copy.copy(self)
        with map_errors("read a file"):
            again._descriptor = os.dup(self._open_descriptor("read a file"))
        return again

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open_descriptor(self, op: str) -> int:
        if self._descriptor is None:
            raise StorageError(op=op, why=f"{self._sha256} is closed already")
        return self._descriptor

    def _read_next(self, descriptor: int, count: int) -> bytes:
        try:
            return os.read(descriptor, count)
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
"""Each file counts as at least this many bytes of a step, since opening a file takes time too."""


class Scrub:
    """The slow verification of all files, in the order of their checksums. Blocking.

    `position` is the last checked checksum, empty before the first. `after` returns the next checksums after
    a position. `open_file` opens a file, to be verified now in any case, or returns None if it is gone.
    """

    def __init__(
        self, position: str, after: Callable[[str], list[str]], open_file: Callable[[str], StoredFile | None]
    ) -> None:
        self.position = position
        self._after = after
        self._open_file = open_file
        self._ahead: list[str] = []
        self._file: StoredFile | None = None

    def step(self, count: int) -> tuple[list[str], bool]:
        """Verify about `count` more bytes. Returns damaged checksums, and whether the round is complete."""
        bad: list[str] = []
        while count > 0:
            if not self._ahead:
                self._ahead = self._after(self.position)[::-1]
                if not self._ahead:
                    self.position = ""
                    return bad, True
            sha256 = self._ahead[-1]
            self._file = self._file or self._open_file(sha256)
            if self._file is not None:
                size = min(count, BLOCK)
                count -= max(LEAST, min(size, self._file.size))
                try:
                    if not self._file.verify(size):
                        continue
                except Damaged:
                    bad.append(sha256)
            self.close()
            self.position = self._ahead.pop()
        return bad, False

    def close(self) -> None:
        """Close the file that is being verified."""
        if self._file is not None:
            self._file.close()
            self._file = None
