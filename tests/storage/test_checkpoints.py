"""The -wal of a log in SQLite: it is shortened, and told if another program prevents that."""

import sqlite3
from pathlib import Path

import pytest
from twisted.logger import LogEvent, Logger

from synrepl.errors import StorageError
from synrepl.ports.tasks import Tasks
from synrepl.storage import sqlite
from synrepl.storage.checkpoints import LOOK_SECONDS, PATIENCE_SECONDS, Checkpoints
from synrepl.storage.engine import SQLEngine
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.testing.heap_clock import HeapClock
from tests.storage.builders import facts_after


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

    assert engine.shorten_wal()

    assert before > 20_000
    assert 0 == (tmp_path / "log.db-wal").stat().st_size
    assert 29 == engine.head().serial
    engine.close()


def test_a_reader_of_another_program_prevents_it(engine: SQLEngine, tmp_path: Path) -> None:
    """It is not waited for: appends would wait as well. Its sizes are told apart."""
    reader = sqlite3.connect(f"file:{tmp_path / 'log.db'}?mode=ro", uri=True, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM facts").fetchone()
    fill(engine)

    assert not engine.shorten_wal()
    usage = engine.database.disk_usage()
    assert usage is not None
    assert (tmp_path / "log.db-wal").stat().st_size == usage["wal_bytes"] > 20_000
    assert usage["wal_bytes"] < usage["log_bytes"]

    reader.close()
    assert engine.shorten_wal()
    engine.close()


def test_it_is_told_once_it_lasts() -> None:
    """A read of our own may prevent one look."""
    clock, told = HeapClock(), list[LogEvent]()
    answers: list[bool | StorageError] = []

    async def shorten() -> bool:
        answer = answers.pop(0) if answers else True
        if isinstance(answer, StorageError):
            raise answer
        return answer

    checkpoints = Checkpoints(clock, Tasks(Logger()), shorten)
    checkpoints._logger = Logger(observer=told.append)  # type: ignore[misc,arg-type]
    checkpoints.start()

    def passes(*given: bool | StorageError) -> float:
        answers.extend(given)
        clock.pump([LOOK_SECONDS] * len(given))
        return checkpoints.prevented_seconds

    assert 0 == passes(False, True)
    assert 0 == passes(False, False)
    assert passes(False, False, StorageError(op="checkpoint", why="full"), False) >= PATIENCE_SECONDS
    assert 1 == len(told)
    assert 0 == passes(True)
    checkpoints.stop()
    assert [] == clock.getDelayedCalls()
