"""Files that only their owner may read: they hold a homeserver's data."""

import os
from pathlib import Path
from typing import BinaryIO

from twisted.logger import Logger

__all__ = ["create_private", "make_private", "replace_private", "sync_directory"]

_log = Logger(namespace="synrepl.storage")


def create_private(path: Path) -> BinaryIO:
    """Open a file for writing, empty, with mode 0600 whatever the umask is. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb")


def replace_private(path: Path, data: bytes) -> None:
    """Put this in place of a file, whole and through a power cut, with mode 0600. Raises `OSError`."""
    fresh = path.with_name(f".{path.name}.new")
    with create_private(fresh) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Returns when the names in it are as durable as files that were synced."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private(path: Path) -> None:
    """Take a file away from the group and from others, if it is there and ours, and say so.

    A file of another user stays as it is: that is the operator's own choice. Raises `OSError`.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        path.chmod(0o600)
        _log.info(
            "{path} is private now: its mode was {mode:04o}, and is 0600",
            path=str(path),
            mode=found.st_mode & 0o7777,
        )
