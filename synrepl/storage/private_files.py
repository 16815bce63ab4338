"""Durable files that only their owner can read (they contain a homeserver's data), and errors of the disk."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from twisted.logger import Logger

from synrepl.errors import StorageError

_logger = Logger(namespace="synrepl.storage")


class DiskFull(StorageError):
    """The disk is full, or the user's quota is used up: the write failed."""


def create_private(path: Path) -> BinaryIO:
    """Open a file for writing, empty and with mode 0600 whatever the umask. Raises `OSError`.

    A symbolic link at the path is not followed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb")


def replace_private(path: Path, data: bytes) -> None:
    """Replace a file durably, as a whole, with mode 0600. Raises `OSError`."""
    fresh = path.with_name(f".{path.name}.new")
    with create_private(fresh) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Sync a directory: the names in it become durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_link(path: Path) -> None:
    """Raise `StorageError` if the file is a symbolic link.

    Whoever may write to the directory could choose the file that is overwritten, or made private.
    """
    if path.is_symlink():
        raise StorageError(
            op="open",
            why=f"{path} is a symbolic link",
            hint="remove it; a database may be a link, but the files next to it are not followed elsewhere",
            tried=False,
        )


def make_private(path: Path) -> None:
    """Set mode 0600 on an existing file of this user, and log the change.

    A file of another user is left alone: that is the operator's choice. Raises `OSError`.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        path.chmod(0o600)
        _logger.info(
            "changed the mode of {path} from {mode:04o} to 0600: other users had access",
            path=str(path),
            mode=found.st_mode & 0o7777,
        )


FULL: Final = {errno.ENOSPC, errno.EDQUOT}
RETRYABLE: Final = {
    *(errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG, errno.EINTR, errno.EAGAIN)
}

HINTS: Final = {
    errno.EDQUOT: "the disk quota of this user is used up; free some space, or raise the quota",
    errno.EFBIG: "a file has reached the size limit of this process; raise it (ulimit -f, LimitFSIZE)",
    errno.EIO: "the disk failed; check the system's log",
    errno.ELOOP: "a symbolic link is not followed here; remove it",
    errno.EMFILE: "this process has no file descriptors left; raise its limit (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "the system has no file descriptors left; close some programs, or raise fs.file-max",
    errno.ENOMEM: "give the daemon more memory (ulimit -v, MemoryMax), or reduce --max-body-bytes",
    errno.ENOSPC: "the disk is full; free some space",
    errno.EROFS: "the file system is mounted read-only; check the system's log",
}
"""What the operator can do, by the number of a system's error."""


@contextmanager
def map_errors(op: str) -> Iterator[None]:
    """Raise the system's errors as `StorageError`, and a full disk as `DiskFull`."""
    try:
        yield
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        hint = HINTS.get(error.errno or 0, "")
        if error.errno in FULL:
            raise DiskFull(op=op, why=why, hint=hint, retryable=True) from error
        raise StorageError(op=op, why=why, hint=hint, retryable=error.errno in RETRYABLE) from error


@contextmanager
def map_path_errors(op: str, path: Path, hint: str = "", *, retryable: bool = True) -> Iterator[None]:
    """Raise the system's errors, also a full disk, as `StorageError`; the message names `path`.

    `hint` is for errors that have none in `HINTS`.
    """
    try:
        yield
    except OSError as error:
        why = f"{path}: {error.strerror}"
        hint = HINTS.get(error.errno or 0, hint)
        raise StorageError(op=op, why=why, hint=hint, retryable=retryable) from error


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path.parent)
