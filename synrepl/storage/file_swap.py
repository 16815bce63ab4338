"""Replacing one SQLite file by another in one step."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from synrepl.errors import StorageError
from synrepl.storage.private_files import sync_directory

__all__ = ["remove", "replace", "seal", "sync_directory"]

BESIDE: Final = ("-wal", "-shm", "-journal")
"""The suffixes of the files that SQLite keeps next to a file in use."""

PATIENCE: Final = 5.0
"""How long to wait for other programs that read a file, in seconds."""


def seal(path: Path) -> None:
    """Sync the file and make it independent of files next to it.

    This process must not have it open. Raises `StorageError` or an SQLite error if another program has it
    open, and `OSError` if it cannot be synced.
    """
    with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = FULL")
        mode = database.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
    left = [ending for ending in BESIDE if _beside(path, ending).exists()]
    if mode != "delete" or left:
        raise StorageError(
            op="adopt_staged",
            why=f"another program uses {path}: it has {' and '.join(left) or 'journal mode ' + mode}",
            hint="stop that program",
            retryable=True,
        )
    _sync(path)


def replace(fresh: Path, path: Path) -> None:
    """Move `fresh` to `path` in one step."""
    fresh.replace(path)


def remove(path: Path) -> None:
    """Delete the file, if there is one, and SQLite's files next to it. No process may have it open.

    The file goes first: it may be incomplete without the others.
    """
    for name in (path, *(_beside(path, ending) for ending in BESIDE)):
        name.unlink(missing_ok=True)
    sync_directory(path.parent)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
