"""One process at a time: locks that the system takes back when their holder dies, however it dies."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from synrepl.errors import StorageError
from synrepl.storage.private_files import make_private

__all__ = ["DatabaseFile", "FileLock"]

Identity = tuple[int, int]
"""Device and inode: what a file is, by whatever name it was reached."""

_held: set[Identity] = set()
"""The databases that this process holds."""

_held_lock = Lock()


class FileLock:
    """An exclusive lock on a file, which holds the process id of whoever has it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take it, or fail at once with a `StorageError` that says which process has it."""
        with _telling(self._path, "check that the directory can be written by this user"):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _is_locked(descriptor, self._path):
                holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
                raise StorageError(
                    op="open",
                    why=f"process {holder} has {self._path}",
                    hint="end it, or name another database",
                )
            with _telling(self._path, "the disk may be full", retryable=True):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                make_private(self._path)
        except StorageError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give it back. The file stays: removing it would let two processes lock two files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class DatabaseFile:
    """The file of an SQLite database, held by one process at a time, whatever path leads to it.

    The lock is on the file itself (flock), so that a symbolic link, a bind mount and a relative path all meet
    the same lock. `<path>.lock`, unless `note` is False, tells people which process has it.

    SQLite locks the file with POSIX locks, which a process loses as soon as it closes any descriptor of the
    file. Therefore `release` comes after SQLite has closed it, and a file that this process holds is not
    opened a second time.
    """

    def __init__(self, path: str | os.PathLike[str], *, note: bool = True) -> None:
        self._given = Path(path)
        self._has_note = note
        self._note: FileLock | None = None
        self._descriptor: int | None = None
        self._identity: Identity | None = None
        # By paths as texts: they are looked at after each commit.
        self._watched: dict[str, Identity] = {}

    @property
    def path(self) -> Path:
        """Where the file is. SQLite keeps its ``-wal`` there, not beside a link to the file."""
        return Path(os.path.realpath(self._given)) if self._given.is_symlink() else self._given

    def acquire(self) -> None:
        """Make the file if it is missing, for this user alone, and take it.

        Raises `StorageError` at once if another process has it, or if it has several names.
        """
        path = self.path
        if self._has_note:
            note = FileLock(path.with_name(f"{path.name}.lock"))
            note.acquire()
            self._note = note
        try:
            self._take(path)
            self._make_private(path)
        except BaseException:
            self.release()
            raise
        assert self._identity is not None
        # Absolute: the process may change its directory.
        self._watched = {str(path.absolute()): self._identity}

    def _take(self, path: Path) -> None:
        with _held_lock:
            while self._descriptor is None:
                before = _stat(path)
                if before is not None and _identity(before) in _held:
                    raise _in_use(path, f"this process ({os.getpid()})")
                if before is not None and before.st_nlink > 1:
                    raise StorageError(
                        op="open",
                        why=f"{path} is one file with {before.st_nlink} names (hard links), and each name has"
                        " a write-ahead log of its own",
                        hint=f"keep one of the names: find / -xdev -samefile {path.absolute()} lists them;"
                        " make copies with sqlite3's .backup",
                    )
                with _telling(path, "check that the file and its directory can be written by this user"):
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    if not _is_locked(descriptor, path):
                        raise _in_use(path, "another process")
                    # It may have been replaced between opening and locking it.
                    identity, after = _identity(os.fstat(descriptor)), _stat(path)
                    if after is not None and _identity(after) == identity:
                        self._descriptor, self._identity = descriptor, identity
                        _held.add(identity)
                finally:
                    if self._descriptor is None:
                        os.close(descriptor)

    @staticmethod
    def _make_private(path: Path) -> None:
        for ending in ("", "-wal", "-shm"):
            make_private(path.with_name(path.name + ending))

    def missing(self) -> str:
        """What is not at its path any more, deleted or replaced since it was opened; empty if nothing is.

        The write-ahead log beside the file counts as a part of it from when it is first seen.
        """
        watched = self._watched
        if len(watched) == 1:
            (path,) = watched
            wal = f"{path}-wal"
            found = _stat(wal)
            if found is not None:
                # Not changed in place: two threads look at it.
                watched = self._watched = {**watched, wal: _identity(found)}
        for path, identity in watched.items():
            found = _stat(path)
            if found is None or (found.st_dev, found.st_ino) != identity:
                return path
        return ""

    def forget_wal(self) -> None:
        """SQLite has closed the file: the next write-ahead log is another one."""
        self._watched = dict(list(self._watched.items())[:1])

    def become(self, staged: "DatabaseFile") -> None:
        """The file held by `staged` has been moved to this one's path: hold that one from now on."""
        path = next(iter(self._watched))
        self._let_go_of_file()
        self._descriptor, self._identity = staged._descriptor, staged._identity
        staged._descriptor = staged._identity = None
        assert self._identity is not None
        self._watched = {path: self._identity}

    def release(self) -> None:
        """Give it back. Harmless when repeated."""
        self._watched = {}
        self._let_go_of_file()
        if self._note is not None:
            self._note.release()
            self._note = None

    def _let_go_of_file(self) -> None:
        with _held_lock:
            if self._descriptor is not None:
                assert self._identity is not None
                _held.discard(self._identity)
                os.close(self._descriptor)
        self._descriptor = self._identity = None


def _in_use(path: Path, by: str) -> StorageError:
    return StorageError(
        op="open",
        why=f"{by} has {path} open, perhaps by another path",
        hint="end it, or name another database",
    )


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _stat(path: Path | str) -> os.stat_result | None:
    """What is there; None if nothing is."""
    try:
        return os.stat(path)  # noqa: PTH116  # a Path takes as long again
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(op="open", why=f"{path}: {error.strerror}", retryable=True) from error


def _is_locked(descriptor: int, path: Path) -> bool:
    """Lock it now; False if another process has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise StorageError(
            op="open",
            why=f"{path} cannot be locked: {error.strerror}",
            hint="keep the database on a local file system",
        ) from error
    return True


@contextmanager
def _telling(path: Path, hint: str, *, retryable: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            op="open", why=f"{path}: {error.strerror}", hint=hint, retryable=retryable
        ) from error
