"""The -wal of a log in SQLite: it is shortened, and told if another program prevents that."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from twisted.logger import LogEvent, Logger

from synrepl.base.tasks import Tasks
from synrepl.errors import StorageError
from synrepl.storage import sqlite
from synrepl.storage.checkpoints import LOOK_SECONDS, PATIENCE_SECONDS, Checkpoints
from synrepl.storage.engine import SQLEngine
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.storage.wal_locks import readers
from synrepl.testing.heap_clock import HeapClock
from tests.storage.builders import facts_after

READER: Final = """
import sqlite3, sys
reader = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None)
reader.execute("BEGIN")
reader.execute("SELECT count(*) FROM facts").fetchone()
print("reading", flush=True)
sys.stdin.readline()
"""
"""Another program that reads the database until it is told that it is enough."""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SQLEngine:
    """An open log whose -wal is long soon."""
    monkeypatch.setattr(sqlite, "LONG_WAL", 20_000)
    engine = SQLEngine(SQLiteDatabase(tmp_path / "log.db"))
    engine.open()
    return engine


def fill(engine: SQLEngine) -> None:
    last = None
    for number in range(1, 30):
        facts = facts_after(last, ("events", "w1", number - 1, number))
        engine.commit(facts, [])
        last = facts[-1]


def test_a_long_wal_is_shortened(engine: SQLEngine, tmp_path: Path) -> None:
    """After the reader has gone it kept its size until the daemon ended."""
    fill(engine)
    before = (tmp_path / "log.db-wal").stat().st_size

    assert engine.shorten_wal() is None

    assert before > 20_000
    assert 0 == (tmp_path / "log.db-wal").stat().st_size
    assert 29 == engine.head().serial
    engine.close()


def test_a_reader_of_another_program_prevents_it(engine: SQLEngine, tmp_path: Path) -> None:
    """It is not waited for: appends would wait as well. It is named, and its sizes are told apart."""
    words = [sys.executable, "-c", READER, str(tmp_path / "log.db")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert b"reading\n" == reader.stdout.readline()
        fill(engine)

        found = engine.shorten_wal()
        assert found is not None
        assert [str(reader.pid)] == [one.partition("process ")[2].strip(")") for one in found]
        check_sizes(engine, tmp_path)
        reader.communicate(b"enough\n")
    assert engine.shorten_wal() is None
    engine.close()


def test_an_own_read_prevents_it_and_is_no_other_program(engine: SQLEngine, tmp_path: Path) -> None:
    """A read of this process has the same locks."""
    reader = sqlite3.connect(f"file:{tmp_path / 'log.db'}?mode=ro", uri=True, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM facts").fetchone()
    fill(engine)

    assert frozenset() == engine.shorten_wal()
    reader.close()
    assert engine.shorten_wal() is None
    engine.close()


def check_sizes(engine: SQLEngine, tmp_path: Path) -> None:
    """The -wal is a part of the whole."""
    usage = engine.database.disk_usage()
    assert usage is not None
    assert (tmp_path / "log.db-wal").stat().st_size == usage["wal_bytes"] > 20_000
    assert usage["wal_bytes"] < usage["log_bytes"]


@pytest.mark.parametrize(
    ("line", "is_reader"),
    [
        ("1: POSIX  ADVISORY  READ {pid} {file} 124 124", True),
        ("1: POSIX  ADVISORY  READ {pid} {file} 128 128", False),
        ("1: POSIX  ADVISORY  WRITE {pid} {file} 124 124", False),
        ("1: -> POSIX  ADVISORY  READ {pid} {file} 124 124", False),
        ("1: FLOCK  ADVISORY  READ {pid} {file} 124 124", False),
        ("1: POSIX  ADVISORY  READ {pid} 00:00:1 124 124", False),
        ("1: POSIX  ADVISORY  READ -1 {file} 124 124", False),
        ("1: POSIX  ADVISORY  READ {pid} {file} 0 EOF", False),
        ("", False),
    ],
)
def test_readers_are_known_by_their_locks(tmp_path: Path, line: str, is_reader: bool) -> None:
    """By the byte of the -shm; a process of another container has no number here."""
    shm, locks = tmp_path / "log.db-shm", tmp_path / "locks"
    shm.write_bytes(b"")
    found = shm.stat()
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    locks.write_text(line.format(pid=2**22 + 1, file=file) + "\n")

    assert is_reader is (frozenset([f"a program (process {2**22 + 1})"]) == readers(shm, locks=locks))
    assert is_reader is bool(readers(shm, locks=locks))
    assert frozenset() == readers(tmp_path / "nothing", locks=locks)
    assert frozenset() == readers(shm, locks=tmp_path / "nothing")


def test_it_is_told_once_it_lasts() -> None:
    """A read of our own may prevent one look."""
    clock, told = HeapClock(), list[LogEvent]()
    answers: list[Iterable[str] | StorageError | None] = []

    async def shorten() -> frozenset[str] | None:
        answer = answers.pop(0) if answers else None
        if isinstance(answer, StorageError):
            raise answer
        return None if answer is None else frozenset(answer)

    checkpoints = Checkpoints(clock, Tasks(Logger()), shorten)
    checkpoints._logger = Logger(observer=told.append)  # type: ignore[misc,arg-type]
    checkpoints.start()

    def passes(*given: Iterable[str] | StorageError | None) -> float:
        answers.extend(given)
        clock.pump([LOOK_SECONDS] * len(given))
        return checkpoints.held_seconds

    assert 0 == passes([], None)
    assert 0 == passes(["b"], ["b", "a"])
    assert (
        passes(["c", "b", "a"], ["a"], StorageError(op="checkpoint", why="full"), ["a", "c"])
        >= PATIENCE_SECONDS
    )
    assert ["a"] == [event["reader"] for event in told]
    assert "a" == checkpoints.oldest_reader
    assert 0 == passes(None)
    assert "" == checkpoints.oldest_reader
    passes([], [], [], [])
    assert ["a", "another program"] == [event["reader"] for event in told]
    checkpoints.stop()
    assert [] == clock.getDelayedCalls()
