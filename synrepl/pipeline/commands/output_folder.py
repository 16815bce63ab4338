"""Who may read what a job of the pipeline writes: archives hold every fact, as the log does."""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

OTHERS_READ: Final = 0o055
"""The bits of a folder's mode by which its group and others read it."""

CLOCK_SECONDS: Final = 1.0
"""The clock of a file system may be this much behind."""


@contextmanager
def output_folder(location: str) -> Iterator[None]:
    """Make files of a job as private as the folder that it writes to.

    In a new folder they are readable by their owner only (0600, folders 0700), as the log is. In one that
    exists they have its group, and who may read the folder may read them. A `location` on another machine has
    its own rules. It is the umask of this process and those that it starts: executors elsewhere have theirs.
    """
    folder = _local(location)
    if folder is None:
        yield
        return
    found = folder.stat() if folder.is_dir() else None
    shared = 0 if found is None else found.st_mode & OTHERS_READ
    began = time.time() - CLOCK_SECONDS
    before = os.umask(0o077 & ~shared)
    try:
        yield
    finally:
        os.umask(before)
        # In a folder with the setgid bit the system does it.
        if found is not None and not found.st_mode & stat.S_ISGID and found.st_gid != os.getegid():
            _give(folder, found.st_gid, since=began)


def _local(location: str) -> Path | None:
    """Return the path of a location on this machine."""
    scheme, separator, _ = location.partition("://")
    if not separator:
        return Path(location)
    return Path(unquote(urlsplit(location).path)) if scheme == "file" else None


def _give(folder: Path, group: int, *, since: float) -> None:
    """Give the group what this user has made in the folder, as far as he is a member."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            with suppress(OSError):
                found = path.lstat()
                if found.st_ctime >= since and found.st_uid == os.geteuid() and found.st_gid != group:
                    os.chown(path, -1, group, follow_symlinks=False)
