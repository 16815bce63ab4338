"""The file store: files on disk, named by their checksums, verified before they are served or kept.

::

    DIR/sha256/ab/cdef...   the file with checksum abcdef...
    DIR/incoming/           uploads in progress, deleted at a restart
    DIR/partial/            interrupted downloads, by checksum, to be resumed
    DIR/quarantine/         damaged files, for inspection

`Spool` receives a file, `StoredFile` reads one, `Scrub` verifies all in turn to find damage. All of it is
blocking, and belongs to one thread at a time: `DiskThread` runs it there.
"""

import copy
import errno
import hashlib
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Final, NoReturn, ParamSpec, TypeVar

from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from synrepl.base.interfaces import IThread
from synrepl.base.response_errors import ErrorResponse, OwnResponse
from synrepl.base.tasks import Tasks
from synrepl.errors import ReplicationError, StorageError
from synrepl.storage.private_files import make_directory, map_errors, sync_directory

P = ParamSpec("P")
T = TypeVar("T")

BLOCK: Final = 1024 * 1024
"""How many bytes are read at once."""

STEP: Final = 8 * BLOCK
"""How many bytes are hashed in one step. This delays other work of the thread some hundredths of a second."""

LEAST: Final = 4_096
"""Each file counts as at least this many bytes of a step, since opening a file takes time too."""

REMEMBERED: Final = 10_000
"""The number of recently verified files that are remembered."""

REMEMBER_SECONDS: Final = 60.0

_checksum: Final = re.compile("[0-9a-f]{64}", re.ASCII)
_rest: Final = re.compile("[0-9a-f]{62}", re.ASCII)
_prefixes: Final = [f"{number:02x}" for number in range(256)]

_Identity = tuple[int, int, int]


class ChecksumMismatch(OwnResponse, StorageError):
    """The received bytes are not those announced: `expected` and `found` are checksums."""

    def __init__(self, *, op: str, expected: str, found: str, why: str) -> None:
        super().__init__(op=op, why=why, retryable=True)
        self.expected = expected
        self.found = found

    def response(self) -> ErrorResponse:
        more = {"expected": self.expected, "found": self.found}
        return ErrorResponse("checksum_mismatch", f"{self.why}; nothing was kept", more=more)


class Damaged(StorageError):
    """A stored file is damaged. It is in quarantine and counts as missing, unless it has been replaced."""


class _HashedFile:
    """An open file whose first `length` bytes are hashed; `ended` says why it cannot be used once closed."""

    def __init__(self, descriptor: int, ended: str) -> None:
        self._descriptor: int | None = descriptor
        self._ended = ended
        self._hash = hashlib.sha256()
        # Taken before the first byte, so that a change during the check is noticed afterwards.
        self._stat = os.fstat(descriptor)
        self._is_hashed = not self._stat.st_size
        self.length = 0

    def _hash_more(self, op: str, count: int) -> bool:
        """Hash up to `count` more bytes. Returns whether all are hashed."""
        descriptor = self._open_descriptor(op)
        while count > 0 and not self._is_hashed:
            data = self._read_block(op, descriptor, min(BLOCK, count))
            self._add(data)
            count -= len(data)
            self._is_hashed = not data
        return self._is_hashed

    def _read_block(self, op: str, descriptor: int, count: int) -> bytes:
        with map_errors(op):
            return os.pread(descriptor, count, self.length)

    def _add(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self.length += len(data)

    def _open_descriptor(self, op: str) -> int:
        if self._descriptor is None:
            raise StorageError(op=op, why=self._ended)
        return self._descriptor

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with map_errors("close a file"):
                os.close(descriptor)


class Spool(_HashedFile):
    """Incoming bytes, on disk but not stored yet.

    They are in the file at `path`, which is created if it is missing. `store` moves the complete file to its
    place, and returns whether it is new. `length` counts the received bytes; those left by an earlier
    download count once they are hashed. `close` keeps them, so that the download can be resumed.
    """

    def __init__(self, path: Path, store: Callable[[Path, str, int], bool]) -> None:
        self._path = path
        self._store = store
        with map_errors("receive a file"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            super().__init__(descriptor, "this upload or download has ended")

    def rehash(self, count: int) -> bool:
        """Hash up to `count` of the bytes left by an earlier download. Returns whether all are hashed."""
        return self._hash_more("receive a file", count)

    def append(self, data: bytes) -> None:
        """Append bytes."""
        descriptor = self._open_descriptor("receive a file")
        assert self._is_hashed, "the bytes of an earlier download are not hashed yet"
        rest = memoryview(data)
        with map_errors("receive a file"):
            while rest:
                written = os.pwrite(descriptor, rest, self.length)
                # At once: if the disk is full for the rest, the download can be resumed from here.
                self._add(rest[:written])
                rest = rest[written:]

    def commit(self, sha256: str) -> bool:
        """Store the file; return whether it is new.

        Raises `ChecksumMismatch`, or another `StorageError`; the received bytes are then deleted.
        """
        descriptor = self._open_descriptor("receive a file")
        found = self._hash.hexdigest()
        if not self._is_hashed or found != sha256:
            self.abort()
            why = f"received {self.length} bytes with checksum {found}, not {sha256}"
            raise ChecksumMismatch(op="receive a file", expected=sha256, found=found, why=why)
        try:
            with map_errors("receive a file"):
                os.fsync(descriptor)
                is_new = self._store(self._path, sha256, self.length)
        except StorageError:
            self.abort()
            raise
        self.close()
        return is_new

    def abort(self) -> None:
        """Delete the received bytes, unless the spool is closed."""
        if self._descriptor is not None:
            self.close()
            with map_errors("receive a file"):
                self._path.unlink(missing_ok=True)


class StoredFile(_HashedFile):
    """A stored file with an open descriptor.

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
        super().__init__(descriptor, f"{sha256} is closed already")
        self._sha256 = sha256
        self._is_verified = is_verified
        self._good = good
        self._bad = bad
        self.size = self._stat.st_size

    def verify(self, count: int) -> bool:
        """Verify up to `count` more bytes. True once all are verified. Raises `Damaged` or `StorageError`."""
        if not self._is_verified and self._hash_more("check a file", count):
            found = self._hash.hexdigest()
            if found != self._sha256:
                self._reject(f"its bytes have checksum {found}")
            self._good(self._stat)
            self._is_verified = True
        return self._is_verified

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

    def _read_block(self, op: str, descriptor: int, count: int) -> bytes:
        try:
            return super()._read_block(op, descriptor, count)
        except StorageError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO:
                self._reject("the disk cannot read it")
            raise

    def _reject(self, why: str) -> NoReturn:
        self._bad(self._stat)
        self.close()
        why = f"{self._sha256} is damaged: {why}"
        raise Damaged(op="check a file", why=why, hint="it was moved to quarantine")


class FileStore:
    """Files by their checksum, in `directory`, which is created for the first file.

    `seconds` is a clock. A verified file is trusted for a minute, unless it changes.
    """

    def __init__(self, directory: str | os.PathLike[str], *, seconds: Callable[[], float]) -> None:
        self.directory = Path(directory)
        self.quarantined = 0
        self.seconds = seconds
        self._files = self.directory / "sha256"
        self._incoming = self.directory / "incoming"
        self._partial = self.directory / "partial"
        self._quarantine = self.directory / "quarantine"
        self._good: dict[str, tuple[float, _Identity]] = {}
        self._counted: dict[str, tuple[int, int]] = {}

    @property
    def stored(self) -> int:
        """The number of stored files, as far as they are counted."""
        return sum(count for count, _ in list(self._counted.values()))

    @property
    def stored_bytes(self) -> int:
        """The size of the counted files, in bytes."""
        return sum(size for _, size in list(self._counted.values()))

    def sweep(self, keep: Callable[[str], bool]) -> int:
        """Delete unfinished uploads, and partial downloads that are not to be kept. Returns how many."""
        with map_errors("delete unfinished files"):
            uploads = _list(self._incoming)
            for path in uploads:
                path.unlink()
            self.quarantined = len(_list(self._quarantine))
        return len(uploads) + self.sweep_downloads(keep)

    def sweep_downloads(self, keep: Callable[[str], bool]) -> int:
        """Delete partial downloads that are not to be kept. Returns how many."""
        with map_errors("delete unfinished files"):
            unused = [path for path in _list(self._partial) if not keep(path.name)]
            for path in unused:
                path.unlink(missing_ok=True)
        return len(unused)

    def count(self) -> list[str] | None:
        """Count the next part of the files, and give their checksums; None when all are counted."""
        prefix = next((prefix for prefix in _prefixes if prefix not in self._counted), None)
        if prefix is None:
            return None
        sizes: dict[str, int] = {}
        with map_errors("count files"):
            if self._files.is_dir():
                for path in _list(self._files / prefix):
                    if _rest.fullmatch(path.name):
                        sizes[prefix + path.name] = path.stat().st_size
            else:
                self._counted.update((other, (0, 0)) for other in _prefixes if other not in self._counted)
        self._counted[prefix] = len(sizes), sum(sizes.values())
        return list(sizes)

    def restart_count(self) -> None:
        """Forget the counts, so that `count` starts again."""
        self._counted.clear()

    def receive(self) -> Spool:
        """Start an upload whose checksum comes at its end."""
        with map_errors("receive a file"):
            make_directory(self._incoming)
        return Spool(self._incoming / token_hex(16), self._store)

    def resume(self, sha256: str, size: int) -> Spool:
        """Start or resume a download of the file with this checksum.

        Bytes of an earlier download are deleted if they are more than `size`.
        """
        _check(sha256)
        path = self._partial / sha256
        with map_errors("receive a file"):
            make_directory(self._partial)
            if path.exists() and path.stat().st_size > size:
                path.unlink()
        return Spool(path, self._store)

    def _store(self, path: Path, sha256: str, size: int) -> bool:
        target = self._path(sha256)
        make_directory(target.parent)
        try:
            before = target.stat().st_size
        except FileNotFoundError:
            before = None
        # An existing file may be damaged, so it is replaced.
        path.replace(target)
        sync_directory(target.parent)
        self._adjust_count(sha256, 0 if before is not None else 1, size - (before or 0))
        self._remember(sha256, target.stat())
        return before is None

    def has(self, sha256: str) -> bool:
        """Whether the file is stored and not known to be damaged."""
        return self._path(sha256).is_file()

    def open(self, sha256: str) -> StoredFile | None:
        """Open a file, which is to be verified before it is read; None if it is not stored."""
        with map_errors("check a file"):
            try:
                descriptor = os.open(self._path(sha256), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        until, identity = self._good.get(sha256, (0.0, None))
        return StoredFile(
            descriptor,
            sha256,
            is_verified=self.seconds() < until and identity == _identity(os.fstat(descriptor)),
            good=partial(self._remember, sha256),
            bad=partial(self._quarantine_file, sha256),
        )

    def open_unverified(self, sha256: str) -> StoredFile | None:
        """Open a file as `open` does, to be verified in any case."""
        self._good.pop(sha256, None)
        return self.open(sha256)

    def after(self, position: str) -> list[str]:
        """The next checksums after this one, up to the end of their directory."""
        with map_errors("list stored files"):
            for prefix in _prefixes if self._files.is_dir() else ():
                if prefix >= position[:2]:
                    names = (prefix + path.name for path in _list(self._files / prefix))
                    found = sorted(name for name in names if name > position and _checksum.fullmatch(name))
                    if found:
                        return found
        return []

    def scrub(self, position: str = "") -> "Scrub":
        """Start verifying all files after this checksum."""
        return Scrub(self, position)

    def remove(self, sha256: str) -> None:
        """Delete a file, if it is stored."""
        path = self._path(sha256)
        with map_errors("remove a file"):
            try:
                size = path.stat().st_size
                path.unlink()
            except FileNotFoundError:
                return
        self._good.pop(sha256, None)
        self._adjust_count(sha256, -1, -size)

    def _remember(self, sha256: str, stat: os.stat_result) -> None:
        self._good.pop(sha256, None)
        while len(self._good) >= REMEMBERED:
            del self._good[next(iter(self._good))]
        self._good[sha256] = self.seconds() + REMEMBER_SECONDS, _identity(stat)

    def _quarantine_file(self, sha256: str, stat: os.stat_result) -> None:
        """Move a damaged file to quarantine, unless it has been replaced meanwhile."""
        path = self._path(sha256)
        self._good.pop(sha256, None)
        with map_errors("put into quarantine"):
            try:
                now = path.stat()
            except FileNotFoundError:
                return
            if now.st_ino != stat.st_ino:
                return
            make_directory(self._quarantine)
            path.replace(self._quarantine / sha256)
            sync_directory(path.parent)
            self.quarantined = len(_list(self._quarantine))
        self._adjust_count(sha256, -1, -now.st_size)

    def _adjust_count(self, sha256: str, count: int, size: int) -> None:
        # A directory that is not counted yet will be counted later.
        counted = self._counted.get(sha256[:2])
        if counted is not None:
            self._counted[sha256[:2]] = counted[0] + count, counted[1] + size

    def _path(self, sha256: str) -> Path:
        _check(sha256)
        return self._files / sha256[:2] / sha256[2:]


class Scrub:
    """The slow verification of all files, in the order of their checksums.

    `position` is the last checked checksum, empty before the first.
    """

    def __init__(self, store: FileStore, position: str) -> None:
        self.position = position
        self._store = store
        self._ahead: list[str] = []
        self._file: StoredFile | None = None

    def step(self, count: int) -> tuple[list[str], bool]:
        """Verify about `count` more bytes. Returns damaged checksums, and whether the round is complete."""
        bad: list[str] = []
        while count > 0:
            if not self._ahead:
                self._ahead = self._store.after(self.position)[::-1]
                if not self._ahead:
                    self.position = ""
                    return bad, True
            sha256 = self._ahead[-1]
            self._file = self._file or self._store.open_unverified(sha256)
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


class DiskThread:
    """Runs blocking work with files in a thread, and stops the `tasks` that wait for it."""

    def __init__(self, thread: IThread, logger: Logger) -> None:
        self._thread = thread
        self._logger = logger
        self.tasks = Tasks(logger, "files")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in the thread, and return its result."""
        return await self._thread.run(partial(work, *args, **kwargs))

    async def acquire(self, work: Callable[[], T], release: Callable[[T], object]) -> T:
        """Like `run`; but if the caller is cancelled, the result of `work` is passed to `release`."""
        results: list[T] = []
        try:
            await self._thread.run(lambda: results.append(work()))
        except CancelledError:
            self.run_later(lambda: [release(one) for one in results])
            raise
        return results[0]

    def run_later(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `work` in the thread after all earlier work; do not wait for the result. Logs failures."""
        self.tasks.start(self._run_later(partial(work, *args, **kwargs)), "releasing")

    async def _run_later(self, work: Callable[[], object]) -> None:
        try:
            await self._thread.run(work)
        except ReplicationError as error:
            self._logger.warn("files: {why}", why=error)

    async def stop(self) -> None:
        """Do all work that was given, then stop the thread."""
        await self._thread.stop()


def _check(sha256: str) -> None:
    # Checked, since it becomes part of a path.
    if not _checksum.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256 checksum of 64 lowercase hexadecimal digits")


def _identity(stat: os.stat_result) -> _Identity:
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _list(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
