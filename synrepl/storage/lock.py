"""Locks for one process at a time, which the system releases when their holder dies for any reason."""

import errno
import fcntl
import os
from pathlib import Path
from threading import Lock
from typing import Final

from synrepl.errors import StorageError
from synrepl.storage.private_files import make_private, map_path_errors, refuse_link

Identity = tuple[int, int]
"""Device and inode: the identity of a file under any name."""

NOT_WRITABLE: Final = "check that the file and its directory can be written by this user"

_locked_files: set[Identity] = set()
"""The database files that this process holds."""

_locked_files_lock = Lock()


class FileLock:
    """An exclusive lock on a file, which contains the process id of the holder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock. Raises `StorageError` naming the holder if another process has it."""
        hint = "check that the directory can be written by this user"
        with map_path_errors("open", self._path, hint, retryable=False):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not _is_locked(descriptor, self._path):
                holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
                raise StorageError(
                    op="open",
                    why=f"process {holder} uses {self._path}",
                    hint="stop it, or choose another path",
                )
            with map_path_errors("open", self._path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                make_private(self._path)
        except StorageError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock. The file stays: without it two processes could lock two files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class DatabaseFile:
    """The file of an SQLite database, held by one process at a time, under any path.

    The lock is on the file itself (flock), so that a symbolic link, a bind mount and a relative path lead to
    the same lock. Unless `note` is False, `<path>.lock` tells operators which process has it.

    SQLite uses POSIX locks, which a process loses as soon as it closes any descriptor of the file. Therefore
    `release` comes after SQLite has closed the file, and a file that this process holds is not opened again.
    """

    def __init__(self, path: str | os.PathLike[str], *, note: bool = True) -> None:
        self._given = Path(path)
        self._has_note = note
        self._note: FileLock | None = None
        self._descriptor: int | None = None
        self._identity: Identity | None = None
        # Strings rather than paths: they are used after each commit.
        self._watched: dict[str, Identity] = {}

    @property
    def path(self) -> Path:
        """The path, resolved if it is a link: SQLite keeps the ``-wal`` next to the file, not the link."""
        return Path(os.path.realpath(self._given)) if self._given.is_symlink() else self._given

    def acquire(self) -> None:
        """Create the file if it is missing, with mode 0600, and lock it.

        Raises `StorageError` at once if this or another process has it, if it has several names, or if a file
        next to it is a symbolic link.
        """
        path = self.path
        for ending in (".lock", "-wal", "-shm", "-journal"):
            refuse_link(path.with_name(path.name + ending))
        if self._has_note:
            note = FileLock(path.with_name(f"{path.name}.lock"))
            note.acquire()
            self._note = note
        try:
            self._lock_file(path)
            for ending in ("", "-wal", "-shm"):
                make_private(path.with_name(path.name + ending))
        except BaseException:
            self.release()
            raise
        assert self._identity is not None
        # Absolute: the process may change its directory.
        self._watched = {str(path.absolute()): self._identity}

    def _lock_file(self, path: Path) -> None:
        with _locked_files_lock:
            while self._descriptor is None:
                before = _stat(path)
                if before is not None and _identity(before) in _locked_files:
                    raise _in_use(path, f"this process ({os.getpid()})")
                if before is not None and before.st_nlink > 1:
                    raise StorageError(
                        op="open",
                        why=f"{path} is one file with {before.st_nlink} names (hard links), and each name has"
                        " its own write-ahead log",
                        hint=f"keep one of the names: find / -xdev -samefile {path.absolute()} lists them;"
                        " make copies with sqlite3's .backup",
                    )
                with map_path_errors("open", path, NOT_WRITABLE, retryable=False):
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    if not _is_locked(descriptor, path):
                        raise _in_use(path, "another process")
                    # The file may have been replaced between opening and locking it.
                    identity, after = _identity(os.fstat(descriptor)), _stat(path)
                    if after is not None and _identity(after) == identity:
                        self._descriptor, self._identity = descriptor, identity
                        _locked_files.add(identity)
                finally:
                    if self._descriptor is None:
                        os.close(descriptor)

    @property
    def inode(self) -> str:
        """The number of the file that is held, on its file system."""
        assert self._identity is not None
        return str(self._identity[1])

    @property
    def is_in_place(self) -> bool:
        """Whether the file is still at its path."""
        found = _stat(self.path)
        return found is not None and _identity(found) == self._identity

    def missing(self) -> str:
        """The file that was deleted or replaced at its path since it was opened; empty if there is none.

        The write-ahead log is checked too, from when it is first seen.
        """
        watched = self._watched
        if len(watched) == 1:
            (path,) = watched
            wal = f"{path}-wal"
            found = _stat(wal)
            if found is not None:
                # Replaced rather than changed: two threads read it.
                watched = self._watched = {**watched, wal: _identity(found)}
        for path, identity in watched.items():
            found = _stat(path)
            if found is None or (found.st_dev, found.st_ino) != identity:
                return path
        return ""

    def forget_wal(self) -> None:
        """Forget the write-ahead log's identity: SQLite has closed the file and creates a new one."""
        self._watched = dict(list(self._watched.items())[:1])

    def take_over(self, staged: "DatabaseFile") -> None:
        """Take over the file of `staged`, which has been moved to this path."""
        path = next(iter(self._watched))
        self._close_file()
        self._descriptor, self._identity = staged._descriptor, staged._identity
        staged._descriptor = staged._identity = None
        assert self._identity is not None
        self._watched = {path: self._identity}

    def release(self) -> None:
        """Release the file. Idempotent."""
        self._watched = {}
        self._close_file()
        if self._note is not None:
            self._note.release()
            self._note = None

    def _close_file(self) -> None:
        with _locked_files_lock:
            if self._descriptor is not None:
                assert self._identity is not None
                _locked_files.discard(self._identity)
                os.close(self._descriptor)
        self._descriptor = self._identity = None


def _in_use(path: Path, by: str) -> StorageError:
    return StorageError(
        op="open",
        why=f"{by} has opened {path}, perhaps by another path",
        hint="close it there, or choose another database",
    )


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _stat(path: Path | str) -> os.stat_result | None:
    """The status of the file; None if it does not exist."""
    try:
        return os.stat(path)  # noqa: PTH116  # a Path takes as long again
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(op="open", why=f"{path}: {error.strerror}", retryable=True) from error


def _is_locked(descriptor: int, path: Path) -> bool:
    """Try to lock the file; False if another process has the lock."""
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
