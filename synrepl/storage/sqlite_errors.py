"""SQLite's errors as `StorageError`, with their causes as far as they can be found.

Of a failed system call SQLite reports only which one it was: "disk I/O error" may be a dead disk, a used-up
quota, a limit of this process, or a lack of memory. Therefore the cause is looked for after such an error.
"""

import errno
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final, NamedTuple

from synrepl.errors import StorageError
from synrepl.storage.append_errors import InvalidValue
from synrepl.storage.private_files import FULL
from synrepl.storage.private_files import HINTS as SYSTEM_HINTS
from synrepl.storage.sql import DAMAGED

HINTS: Final = {
    "SQLITE_BUSY": "another program holds the database; stop it",
    "SQLITE_CANTOPEN": "check that the file and its directory can be written by this user",
    "SQLITE_CORRUPT": DAMAGED.format(database="file"),
    "SQLITE_FULL": SYSTEM_HINTS[errno.ENOSPC],
    "SQLITE_IOERR": "the disk failed, or the system lacks memory; check the system's log",
    "SQLITE_NOMEM": SYSTEM_HINTS[errno.ENOMEM],
    "SQLITE_NOTADB": "this file is no SQLite database; choose another one",
    "SQLITE_READONLY": "check that the file and its directory can be written by this user",
}
"""What the operator can do, by the name of SQLite's error."""

RETRYABLE: Final = {"SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOMEM"}

NOT_UTF_8: Final = "Could not decode to UTF-8"
"""How the error of a stored text that is not UTF-8 begins, which has no name. Nobody writes such a text."""

MEMORY: Final = {"SQLITE_IOERR_NOMEM", "SQLITE_IOERR_SHMMAP"}
"""Extended codes of a failed allocation, or mapping, of memory."""

PROBE_BYTES: Final = 64 * 1024


class Cause(NamedTuple):
    """What went wrong and what the operator can do; `is_full` if the disk or the quota is."""

    why: str
    hint: str
    is_retryable: bool
    is_full: bool = False


@contextmanager
def map_sqlite_errors(
    op: str,
    name: str,
    stream: str = "",
    path: Path | None = None,
    full: type[StorageError] = StorageError,
) -> Iterator[None]:
    """Raise SQLite's errors as `StorageError`, a full disk as `full`.

    `name` is the database's, `path` its file (None: it is in memory).
    """
    try:
        yield
    except OverflowError as error:
        # Python's integers are unbounded, and peers may send any.
        raise InvalidValue(op=op, why="a number has more than 64 bits", stream=stream) from error
    except UnicodeEncodeError as error:
        raise InvalidValue(op=op, why="a text has a lone surrogate", stream=stream) from error
    except (sqlite3.Error, MemoryError) as error:
        cause = find_cause(error, path)
        raise (full if cause.is_full else StorageError)(
            op=op,
            why=f"{name}: {cause.why}",
            hint=cause.hint,
            stream=stream,
            retryable=cause.is_retryable,
        ) from error


def find_cause(error: sqlite3.Error | MemoryError, path: Path | None) -> Cause:
    """Find the cause of an error of SQLite, in the database at `path`.

    After a failed system call this process writes a small unnamed file next to the database, whose error says
    more.
    """
    code = "SQLITE_NOMEM" if isinstance(error, MemoryError) else getattr(error, "sqlite_errorname", "")
    if code in MEMORY:
        code = "SQLITE_NOMEM"
    if str(error).startswith(NOT_UTF_8):
        code = "SQLITE_CORRUPT"
    base = "_".join(code.split("_")[:2])
    if base == "SQLITE_NOMEM":
        return Cause("out of memory", HINTS[base], is_retryable=True)
    if path is not None and base in ("SQLITE_IOERR", "SQLITE_CANTOPEN"):
        found = _file_size_error(path) if code == "SQLITE_IOERR_WRITE" else None
        found = found or _probe(path.parent)
        if found is not None and found.errno in SYSTEM_HINTS:
            why = f"{error}: {os.strerror(found.errno)}"
            return Cause(why, SYSTEM_HINTS[found.errno], is_retryable=True, is_full=found.errno in FULL)
    return Cause(str(error), HINTS.get(base, ""), base in RETRYABLE, is_full=base == "SQLITE_FULL")


def _file_size_error(path: Path) -> OSError | None:
    """The error of a file that has grown to the limit of this process; None if none has."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return None
    for ending in ("", "-wal"):
        try:
            size = path.with_name(path.name + ending).stat().st_size
        except OSError:
            continue
        if size + PROBE_BYTES > limit:
            return OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return None


def _probe(directory: Path) -> OSError | None:
    """The error of writing a small file in this directory; None if that works.

    The database itself must not be opened for this: closing it would drop SQLite's locks.
    """
    try:
        with TemporaryFile(dir=directory, buffering=0) as file:
            file.write(bytes(PROBE_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None
