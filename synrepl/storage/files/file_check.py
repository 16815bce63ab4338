"""Looking through a file before anybody gets a byte of it."""

import errno
import hashlib
import os
from collections.abc import Callable
from typing import Final, NoReturn

from synrepl.errors import StorageError
from synrepl.ports.files import Damaged
from synrepl.storage.files.durability import telling

__all__ = ["FileCheck", "StoredFile"]

BLOCK: Final = 1024 * 1024


class StoredFile:
    """An `IStoredFile`: a file that was found good, under an open descriptor that is ours to close."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor: int | None = descriptor
        self.size = size

    def read(self, offset: int, count: int) -> bytes:
        """So many bytes from there on, no fewer unless the file ends."""
        if self._descriptor is None:
            raise StorageError(op="read a file", why="it is closed")
        parts = []
        count = min(count, self.size - offset)
        with telling("read a file"):
            while count > 0:
                data = os.pread(self._descriptor, count, offset)
                if not data:
                    raise StorageError(op="read a file", why="it was cut short while it was read")
                parts.append(data)
                offset += len(data)
                count -= len(data)
        return b"".join(parts)

    def again(self) -> "StoredFile":
        """The same file, to be closed by somebody else."""
        if self._descriptor is None:
            raise StorageError(op="read a file", why="it is closed")
        with telling("read a file"):
            return StoredFile(os.dup(self._descriptor), self.size)

    def close(self) -> None:
        """Let go."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class FileCheck:
    """An `IChecking`, of the file under `descriptor`.

    `is_known` says that it was looked through a short while ago. `good` or `bad` is called with what the
    system says about the file.
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
        # As of before the first byte: whoever changes the file meanwhile must not be believed afterwards.
        self._stat = os.fstat(descriptor)
        self.size = self._stat.st_size

    def step(self, count: int) -> StoredFile | None:
        """Look at up to `count` more bytes: the open file once all are good."""
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
                self._condemn(f"its bytes have checksum {found}")
            self._good(self._stat)
        descriptor, self._descriptor = self._descriptor, None
        return StoredFile(descriptor, self._stat.st_size)

    def close(self) -> None:
        """Let go, unless the open file was handed out."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _read(self, count: int) -> bytes:
        assert self._descriptor is not None
        try:
            return os.read(self._descriptor, count)
        except OSError as error:
            if error.errno == errno.EIO:
                self._condemn("the disk cannot read it")
            with telling("check a file"):
                raise

    def _condemn(self, why: str) -> NoReturn:
        self._bad(self._stat)
        self.close()
        why = f"{self._sha256} is damaged: {why}"
        raise Damaged(op="check a file", why=why, hint="it was put into quarantine")
