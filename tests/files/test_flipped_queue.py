"""A flipped bit in the queue of files: it is put aside and made anew, and gives no name to another file."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from synrepl.errors import StorageError
from synrepl.files.names import SUM_TABLE, FileQueue, LogProgress, NamedFile
from tests.files.builders import NOW, checksum

NAMES = [NamedFile(f"media/{n}", checksum(str(n % 30).encode()), n, n + 1) for n in range(40)]
STORED = {checksum(str(n).encode()) for n in range(10, 40)}
END = LogProgress(len(NAMES), "digest")


def queue_in(folder: Path) -> FileQueue:
    """The queue of a folder, where some files are stored, and some of these have no name."""
    return FileQueue(folder, has=STORED.__contains__, seconds=lambda: float(NOW))


def catch_up(queue: FileQueue) -> None:
    """Read on in the log, and look at what is stored, as a start does."""
    seen = queue.open().serial
    for row in NAMES[seen:]:
        queue.note([row], LogProgress(row.serial, "digest"))
    queue.settle(sorted(STORED))


def served(queue: FileQueue) -> list[Any]:
    """All that the queue says."""
    return [
        queue.open(),
        queue.names_after("", 100),
        queue.missing(),
        queue.due(100),
        queue.garbage(0, 100),
        queue.summary(100),
        [queue.name_of(sha256) for sha256 in sorted(STORED)],
        [queue.find(row.name) for row in NAMES],
    ]


def is_damaged(folder: Path) -> bool:
    """Whether a queue was put aside."""
    return (folder / "queue.db.bad").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a queue that is closed."""
    queue = queue_in(tmp_path)
    catch_up(queue)
    queue.mark_failed(queue.due(1)[0][0].sha256, "it is away")
    queue.note([NAMES[-1]], END)
    queue.close()
    return tmp_path


def test_a_whole_queue_is_taken_as_it_is(folder: Path) -> None:
    """Each change has moved the sum."""
    queue = queue_in(folder)

    assert END == queue.open()
    assert 1 == queue.summary(9).failing_count
    queue.close()
    assert not is_damaged(folder)


@pytest.mark.parametrize("start", range(7))
def test_no_flipped_bit_is_served(folder: Path, start: int) -> None:
    """It is refused, or all is as the log and the disk have it."""
    queue = queue_in(folder)
    queue.reset()
    catch_up(queue)
    expected = served(queue)
    queue.close()
    path = folder / "queue.db"
    whole = path.read_bytes()
    rebuilt = 0
    for at in range(start * 97, len(whole), 7 * 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        queue = queue_in(folder)
        try:
            catch_up(queue)
            assert expected == served(queue)
        except StorageError:
            pass
        finally:
            queue.close()
        rebuilt += is_damaged(folder)
        for left in folder.glob("queue.db*"):
            left.unlink()
    assert rebuilt


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE names SET sha256 = upper(sha256) WHERE serial = 7",
        "UPDATE names SET serial = 8 WHERE serial = 7",
        "DELETE FROM names WHERE serial = 7",
        "UPDATE wanted SET is_queued = 0 WHERE tries = 0",
        "UPDATE unnamed SET since_ms = 0",
        "UPDATE notes SET value = '39 digest'",
        "UPDATE notes SET value = CAST(value AS BLOB)",
        "UPDATE names SET name = CAST(x'ff' AS TEXT) WHERE serial = 7",
        "UPDATE sums SET sum = sum + 1",
        "DELETE FROM sums",
        "PRAGMA user_version = 0",
    ],
)
def test_a_queue_that_was_changed_by_nobody_is_made_anew(folder: Path, change: str) -> None:
    """As by the disk; a release that knows no sum changes it likewise, and then the log is read again."""
    with sqlite3.connect(folder / "queue.db") as database:
        assert database.execute(change).rowcount
    database.close()
    queue = queue_in(folder)

    assert LogProgress() == queue.open()
    assert is_damaged(folder)
    queue.close()


def test_a_queue_is_checked_again_while_it_is_open(folder: Path) -> None:
    """Before files are deleted that have no name in it."""
    queue = queue_in(folder)
    queue.check()
    queue.note([NAMES[-1]], END)
    queue.check()
    with sqlite3.connect(folder / "queue.db") as database:
        database.execute("DELETE FROM names WHERE serial = 7")
    database.close()

    with pytest.raises(StorageError, match=r"queue\.db is damaged: its rows have another sum \(restart"):
        queue.check()
    queue.close()


def test_a_queue_of_an_earlier_release_is_taken_as_it_is(folder: Path) -> None:
    """It has no sum; from then on it has one."""
    with sqlite3.connect(folder / "queue.db") as database:
        database.execute("DROP TABLE sums")
    database.close()
    for _ in range(2):
        queue = queue_in(folder)
        assert END == queue.open()
        queue.note([NAMES[-1]], END)
        queue.close()

    assert not is_damaged(folder)
    with sqlite3.connect(folder / "queue.db") as database:
        assert [(SUM_TABLE,)] == database.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'sums'"
        ).fetchall()
    database.close()
