"""The causes of SQLite's errors, as operators read them."""

import errno
import os
import resource
import sqlite3
from pathlib import Path
from unittest import mock

import pytest

from synrepl.errors import StorageError
from synrepl.storage import sqlite_errors
from synrepl.storage.private_files import DiskFull
from synrepl.storage.sqlite_errors import map_sqlite_errors


def failed(code: str, text: str = "disk I/O error") -> sqlite3.OperationalError:
    """An error as SQLite raises it."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorname = code
    return error


def mapped(error: Exception, path: Path) -> StorageError:
    with pytest.raises(StorageError) as caught, map_sqlite_errors("commit", "x.db", path=path, full=DiskFull):
        raise error
    return caught.value


@pytest.mark.parametrize(
    "error",
    [failed("SQLITE_IOERR_NOMEM"), failed("SQLITE_IOERR_SHMMAP"), failed("SQLITE_NOMEM"), MemoryError()],
    ids=lambda error: getattr(error, "sqlite_errorname", "MemoryError"),
)
def test_a_lack_of_memory_is_not_called_a_failed_disk(error: Exception, tmp_path: Path) -> None:
    told = mapped(error, tmp_path / "x.db")

    assert str(told).startswith("commit failed: x.db: out of memory (give the daemon more memory")
    assert told.retryable


@pytest.mark.parametrize(
    ("number", "text", "kind"),
    [
        (errno.EDQUOT, "disk quota of this user is used up", DiskFull),
        (errno.ENOSPC, "the disk is full", DiskFull),
        (errno.EMFILE, "no file descriptors left", StorageError),
        (errno.ENOMEM, "give the daemon more memory", StorageError),
        (errno.EIO, "the disk failed", StorageError),
    ],
)
@pytest.mark.parametrize("code", ["SQLITE_IOERR_WRITE", "SQLITE_CANTOPEN"])
def test_the_cause_of_a_failed_call_is_found(
    code: str, number: int, text: str, kind: type[StorageError], tmp_path: Path
) -> None:
    """SQLite keeps the number of the system's error to itself."""
    with mock.patch.object(sqlite_errors, "TemporaryFile", side_effect=OSError(number, os.strerror(number))):
        told = mapped(failed(code), tmp_path / "x.db")

    assert text in told.hint
    assert os.strerror(number) in told.why
    assert type(told) is kind
    assert told.retryable


def test_the_limit_of_a_files_size_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.with_name("x.db-wal").write_bytes(bytes(1_000_000))
    with mock.patch.object(resource, "getrlimit", return_value=(1_000_000, -1)):
        told = mapped(failed("SQLITE_IOERR_WRITE"), path)

    assert "File too large (a file has reached the size limit of this process" in str(told)


def test_a_text_that_is_not_utf_8_is_damage(tmp_path: Path) -> None:
    """Nobody writes such a text: a bit of it has flipped."""
    connection = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("SELECT CAST(x'41FF' AS TEXT) AS name").fetchall()

    told = mapped(caught.value, tmp_path / "x.db")

    assert told.hint == sqlite_errors.HINTS["SQLITE_CORRUPT"]
    assert not told.retryable


def test_a_cause_that_is_not_found_is_not_invented(tmp_path: Path) -> None:
    told = mapped(failed("SQLITE_IOERR_FSYNC"), tmp_path / "x.db")

    assert told.hint == "the disk failed, or the system lacks memory; check the system's log"
    assert [] == list(tmp_path.iterdir())
