"""Every engine over storage of its own, for cases that all of them keep to."""

from synrepl.base.history import EpochStart
from synrepl.base.interfaces import Head
from synrepl.storage import postgres
from synrepl.storage.engine import SQLEngine
from synrepl.storage.postgres import PostgresDatabase
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.digest import chain
from synrepl.streams.facts import Fact
from tests.memory_engine import FaultyEngine
from tests.postgres import new_database
from tests.storage.builders import NOW, LogCase

__all__ = ["OverMemory", "OverPostgres", "OverSQLite", "fact_after", "lose"]


class OverMemory(LogCase):
    """The engine of tests and simulator."""

    def setUp(self) -> None:
        super().setUp()
        self.engine = FaultyEngine()

    def again(self) -> SQLEngine:
        """The engine of the next process."""
        return self.engine


class OverSQLite(LogCase):
    """The embedded default."""

    def setUp(self) -> None:
        super().setUp()
        self.path = self.directory() / "synrepl.db"

    def again(self) -> SQLEngine:
        """The engine of the next process."""
        engine = SQLEngine(SQLiteDatabase(self.path))
        self.addCleanup(engine.close)
        return engine


class OverPostgres(LogCase):
    """For who has one already."""

    def setUp(self) -> None:
        super().setUp()
        self.url = new_database()
        self.patch(postgres, "FIRST_PATIENCE", 0.2)

    def again(self) -> SQLEngine:
        """The engine of the next process."""
        engine = SQLEngine(PostgresDatabase(self.url))
        self.addCleanup(engine.close)
        return engine


def lose(engine: SQLEngine, stream: str, upto: int) -> Head:
    """The next epoch begins: what is beyond `upto` in this stream was lost where it came from."""
    head = engine.head()
    return engine.begin_epoch(
        EpochStart(head.epoch + 1, head.serial, head.digest, NOW * 1000, "lost", stream, upto)
    )


def fact_after(last: Fact | None, stream: str, token: int, rows: bytes, *, epoch: int = 1) -> Fact:
    """The fact that follows `last`, with these rows; of the writer w1, after the token before."""
    serial, digest = (last.serial, last.digest) if last else (0, "0" * 64)
    digest = chain(
        digest,
        serial=serial + 1,
        epoch=epoch,
        stream=stream,
        writer="w1",
        prev_token=token - 1,
        token=token,
        committed_at_ms=NOW * 1000,
        rows=rows,
    )
    return Fact(serial + 1, epoch, stream, "w1", token - 1, token, rows, NOW * 1000, digest)
