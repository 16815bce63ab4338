"""A write-ahead log that is damaged, told from one that a kill or a power cut has left.

SQLite takes both for the end of the log: it drops everything from the first frame on that is not right.
"""

import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from synrepl.errors import StorageError
from synrepl.storage.engine import SQLEngine
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.storage.wal_check import MAGIC, _add, find_damage
from tests.storage.builders import facts_after

HEADER, FRAME = 32, 24 + 4096
OLD = b"o" * 512
"""What was in a sector before."""


@pytest.fixture
def wal(tmp_path: Path) -> bytearray:
    """Six commits of two or three frames each, as a killed process leaves them."""
    return bytearray(written(tmp_path / "a.db", 6))


def written(path: Path, commits: int, *, before: int = 0) -> bytes:
    """The log of so many commits, after others that a checkpoint has moved into the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE t (x)")
        for _ in range(before):
            database.execute("INSERT INTO t VALUES (randomblob(5000))")
        database.execute("PRAGMA wal_checkpoint(FULL)")
        for _ in range(commits):
            database.execute("INSERT INTO t VALUES (randomblob(5000))")
        return path.with_name(f"{path.name}-wal").read_bytes()


def found(folder: Path, wal: bytes) -> str:
    """What is found of these bytes."""
    path = folder / "found-wal"
    path.write_bytes(wal)
    return find_damage(path)


def frames(wal: bytes | bytearray) -> int:
    return (len(wal) - HEADER) // FRAME


def commits(wal: bytes | bytearray) -> list[int]:
    """The frames that end a commit."""
    ends = (HEADER + number * FRAME + 4 for number in range(frames(wal)))
    return [number for number, at in enumerate(ends) if wal[at : at + 4] != bytes(4)]


def place(wal: bytes | bytearray, number: int, at: int = 0) -> int:
    """Where a byte of a frame is."""
    return HEADER + number * FRAME + at


@pytest.mark.parametrize("at", [*range(0, 24, 3), 24, 2_000, FRAME - 1])
@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_before_a_later_commit_is_found(
    tmp_path: Path, wal: bytearray, at: int, bit: int
) -> None:
    """Whatever it is in: the later commit was begun when this one was on the disk."""
    for number in range(commits(wal)[-2]):
        changed = bytearray(wal)
        changed[place(wal, number, at)] ^= 1 << bit

        assert f"frame {number + 1} of {frames(wal)} is damaged" in found(tmp_path, bytes(changed))


def test_the_end_of_a_commit_is_not_believed_of_the_frame_that_is_not_right(
    tmp_path: Path, wal: bytearray
) -> None:
    """Its head may be of two sectors, one of which an earlier round has left there."""
    first = commits(wal)[-2] + 1
    wal[place(wal, first, 4) : place(wal, first, 8)] = b"\0\0\0\7"

    assert commits(wal)[-1] > first
    assert "" == found(tmp_path, bytes(wal))


@pytest.mark.parametrize("at", range(32))
def test_a_flipped_bit_in_the_header_is_found(tmp_path: Path, wal: bytearray, at: int) -> None:
    """SQLite would take the whole log for an empty one."""
    wal[at] ^= 4

    assert "its header is damaged" in found(tmp_path, bytes(wal))


CUTS: dict[str, Callable[[bytearray], bytes]] = {
    "whole": bytes,
    "empty": lambda wal: b"",
    "a part of the header": lambda wal: bytes(wal[:20]),
    "the header": lambda wal: bytes(wal[:HEADER]),
    "a header that never got there": lambda wal: bytes(4096),
    "without the end of the last frame": lambda wal: bytes(wal[:-100]),
    "without the last frame": lambda wal: bytes(wal[:-FRAME]),
    "half of the last commit": lambda wal: bytes(wal[: place(wal, commits(wal)[-2] + 2)]),
    "the last commit without its first frame": lambda wal: bytes(
        wal[: place(wal, commits(wal)[-2] + 1)] + bytes(FRAME) + wal[place(wal, commits(wal)[-2] + 2) :]
    ),
    "the last commit without a sector": lambda wal: bytes(
        wal[: place(wal, commits(wal)[-2] + 1, 512)] + OLD + wal[place(wal, commits(wal)[-2] + 1, 1024) :]
    ),
    "no commit but one without a sector": lambda wal: bytes(
        wal[: place(wal, 0, 512)] + OLD + wal[place(wal, 0, 1024) : place(wal, commits(wal)[0] + 1)]
    ),
}


@pytest.mark.parametrize("name", CUTS)
def test_what_a_power_cut_leaves_is_no_damage(tmp_path: Path, wal: bytearray, name: str) -> None:
    """The last commit was not acknowledged, and may be there in part."""
    assert "" == found(tmp_path, CUTS[name](wal))


def test_frames_of_an_earlier_round_are_no_damage(tmp_path: Path) -> None:
    """After a checkpoint SQLite begins at the start of the file again, with other salts."""
    wal = written(tmp_path / "b.db", 2, before=20)

    assert commits(wal)[2:], "frames of before are behind the new ones"
    assert "" == found(tmp_path, wal)


def test_a_commit_that_was_cut_behind_others_that_came_later_is_no_damage(
    tmp_path: Path, wal: bytearray
) -> None:
    """A power cut, a start that goes on from there, and another power cut: two commits in part."""
    first, last = commits(wal)[-2] + 1, commits(wal)[-1]
    later = bytearray(wal)
    # The later commit has other bytes in the first frame, and this one never got to the disk in whole.
    later[place(wal, first, 8 + 8)] ^= 0xFF
    later[place(wal, first, 512) : place(wal, first, 1024)] = OLD

    assert last > first
    assert "" == found(tmp_path, bytes(later))


def test_a_last_frame_that_is_written_again_to_fill_a_sector_is_no_later_commit(
    tmp_path: Path, wal: bytearray
) -> None:
    """SQLite does so, before the sync, where a disk may change the bytes beside those that it writes."""
    first, last = commits(wal)[-2] + 1, commits(wal)[-1]
    end = bytes(wal[place(wal, last) : place(wal, last + 1)])
    before = struct.unpack_from(">2I", end, 16)
    order = MAGIC[struct.unpack_from(">I", wal)[0]]
    again = _add(end[24:], _add(end[:8], before, order), order)
    wal += end[:16] + struct.pack(">2I", *again) + end[24:]
    whole = bytes(wal)
    wal[place(wal, first, 512) : place(wal, first, 1024)] = OLD

    assert "" == found(tmp_path, whole)
    assert "" == found(tmp_path, bytes(wal))


def test_a_log_whose_wal_is_damaged_is_not_opened_and_stays_as_it_is(tmp_path: Path) -> None:
    """SQLite would drop acknowledged facts, and delete what is left of them when it closes the file."""
    path = tmp_path / "synrepl.db"
    engine = SQLEngine(SQLiteDatabase(path))
    engine.open()
    for fact in facts_after(None, *(("events", "w1", n, n + 1) for n in range(20))):
        engine.commit([fact], [])
    killed = {one.name: one.read_bytes() for one in tmp_path.iterdir() if not one.name.endswith("-shm")}
    engine.close()
    for name, data in killed.items():
        (tmp_path / name).write_bytes(data)
    wal = tmp_path / "synrepl.db-wal"
    changed = bytearray(killed[wal.name])
    changed[len(changed) // 2] ^= 1
    wal.write_bytes(changed)

    for _ in range(2):
        with pytest.raises(StorageError, match=r"synrepl.db-wal: frame \d+ of \d+ is damaged") as refused:
            SQLEngine(SQLiteDatabase(path)).open()

    assert "restore" in str(refused.value)
    assert bytes(changed) == wal.read_bytes()
    wal.write_bytes(killed[wal.name])
    assert 20 == SQLEngine(SQLiteDatabase(path)).open().serial
