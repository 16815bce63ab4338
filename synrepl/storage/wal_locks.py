"""The programs that read a SQLite database now, from the locks that Linux lists.

The files of the database are never opened for it: when a process closes one, its own locks on it end.
"""

import os
from pathlib import Path
from typing import Final

from synrepl.wire.text import printable

LOCKS: Final = Path("/proc/locks")

READ_LOCKS: Final = range(123, 128)
"""The bytes of the ``-shm`` that readers lock (sqlite.org/walformat.html)."""


def readers(shm: Path, *, locks: Path = LOCKS) -> frozenset[str]:
    """The other programs with a read transaction, as ``sqlite3 (process 4711)``.

    Empty if there are none, and where the system does not say: without ``/proc``, or of another container.
    """
    try:
        found = shm.stat()
        lines = locks.read_text().splitlines()
    except OSError:
        return frozenset()
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    processes = {pid for line in lines if (pid := _reader(line.split(), file)) is not None}
    return frozenset(f"{_name(pid)} (process {pid})" for pid in processes - {os.getpid()})


def _reader(words: list[str], file: str) -> int | None:
    """The process of a line such as ``7: POSIX  ADVISORY  READ 4711 08:01:1234 124 124``."""
    if len(words) != 8 or (words[1], words[3], words[5]) != ("POSIX", "READ", file):
        return None
    _, _, _, _, pid, _, first, last = words
    if int(first) not in READ_LOCKS or int(last) not in READ_LOCKS or int(pid) <= 0:
        return None
    return int(pid)


def _name(pid: int) -> str:
    try:
        return printable(Path(f"/proc/{pid}/comm").read_text().strip())
    except OSError:
        return "a program"
