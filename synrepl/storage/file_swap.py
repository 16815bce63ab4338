"""One SQLite file in the place of another, in one step: whoever looks sees the one or the other."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from synrepl.errors import StorageError

__all__ = ["remove", "replace", "seal", "sync_directory", "telling"]

BESIDE: Final = ("-wal", "-shm", "-journal")
"""What SQLite has beside a file that is in use, by how the names end."""

PATIENCE: Final = 5.0
"""Seconds to wait for other programs that look into a file."""


def seal(path: Path) -> None:
    """Make the file whole without anything beside it, and sync it.

    Nobody of this process has it open. `StorageError`, or SQLite's own error, if another program has; the
    system's own, if it cannot be synced.
    """
    with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = FULL")
        mode = database.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
    left = [ending for ending in BESIDE if _beside(path, ending).exists()]
    if mode != "delete" or left:
        raise StorageError(
            op="adopt_staged",
            why=f"{path} is in use: {', '.join(left) or mode}",
            hint="end the program that reads it",
            retryable=True,
        )
    _sync(path)


def replace(fresh: Path, path: Path) -> None:
    """The step: from now on `path` is what `fresh` was."""
    fresh.replace(path)


def sync_directory(path: Path) -> None:
    """Make the names in the directory of this file survive a power cut."""
    _sync(path.parent)


def remove(path: Path) -> None:
    """The file, and what is beside it; there may be nothing. Nobody has it open.

    The file goes first: without what is beside it, it may not be whole.
    """
    for name in (path, *(_beside(path, ending) for ending in BESIDE)):
        name.unlink(missing_ok=True)
    sync_directory(path)


@contextmanager
def telling(op: str, path: Path) -> Iterator[None]:
    """Say `StorageError` where the system says something of its own."""
    try:
        yield
    except OSError as error:
        raise StorageError(op=op, why=f"{path}: {error.strerror}", retryable=True) from error


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
