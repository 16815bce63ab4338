"""What is done until the process dies, what must be true then, and how it must end after a restart.

Each scenario can be run again from wherever it was cut off, as a client that was not answered asks again.
"""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import psycopg
from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.base.history import AppendKey, Lease
from synrepl.replication.retention import keys_of
from synrepl.storage.engine import SQLEngine
from synrepl.storage.log import Log
from synrepl.storage.postgres import PostgresDatabase
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.digest import verify
from synrepl.streams.table import StreamTable
from synrepl.testing.heap_clock import HeapClock
from tests.storage.builders import NOW

__all__ = ["POSTGRES", "Acknowledge", "Acknowledged", "Scenario", "done", "forget_schemas", "named"]

Acknowledged = tuple[str, Any]
"""What the process promised: what kind, and what."""

Acknowledge = Callable[[Acknowledged], None]

TABLE: Final = StreamTable.default()
POSTGRES: Final = "SYNREPL_CRASH_POSTGRES"
"""The URL of the database, in the environment."""


class Scenario:
    """Something to be done in the folder `place`. With `HAS_THREADS`, its libraries cannot be forked."""

    HAS_THREADS: ClassVar[bool] = False

    def __init__(self, position: str) -> None:
        self.position = Path(position)

    def prepare(self) -> None:
        """What is there before `run`, and is not looked at."""

    def run(self, acknowledge: Acknowledge) -> None:
        """All of it, or what is left of it."""
        raise NotImplementedError

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        """Raise AssertionError unless what was promised before the death is true after it."""
        raise NotImplementedError

    def state(self) -> Any:
        """What is there at the end of `run`, as JSON. The same every time."""
        raise NotImplementedError

    def forget(self) -> None:
        """Remove what is elsewhere than in the folder."""


def done(awaitable: Any) -> Any:
    """What came of it, at once."""
    results: list[Any] = []
    ensureDeferred(_awaited(awaitable)).addBoth(results.append)
    assert results, "it waits"
    if isinstance(results[0], Failure):
        results[0].raiseException()
    return results[0]


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


# -- the log -------------------------------------------------------------------------------------------------


class LogScenario(Scenario):
    """Appends with keys by two writers, a lease, epochs, trimming, and a copy that takes the log's place."""

    APPENDS: Final = {
        "one": ("to_device", "w1", [["@a:hs"], ["@b:hs"]]),
        "two": ("push_rules", "w2", [["@a:hs"]]),
        "three": ("to_device", "w1", [["@c:hs"]]),
        "four": ("push_rules", "w2", [["@a:hs"], ["@b:hs"]]),
    }

    def __init__(self, position: str) -> None:
        super().__init__(position)
        self.found: Any = None

    def engine(self) -> SQLEngine:
        """The engine, not open."""
        raise NotImplementedError

    def run(self, acknowledge: Acknowledge) -> None:
        engine = self.engine()
        log = self._log(engine)
        done(log.start())
        self._append(log, acknowledge, "one", "two")
        done(log.keep_leases([Lease(uuid="u", name="reader", registered=True, serial=1, made_ms=1)]))
        acknowledge(("lease", "u"))
        if log.head.epoch < 2:
            done(log.epochs.begin_next("promoted"))
        acknowledge(("epoch", 2))
        self._append(log, acknowledge, "three")
        if log.head.epoch < 3:
            done(
                log.epochs.begin_next(
                    "lost", stream="push_rules", token=log.linear_position("push_rules") - 1
                )
            )
        acknowledge(("epoch", 3))
        self._append(log, acknowledge, "four")
        while log.head.trimmed_upto.serial < 3:
            done(log.trim(3, keys_of(TABLE), 2))
        acknowledge(("trimmed_upto", 3))
        engine.check()
        self._replace_by_a_copy(engine)
        acknowledge(("copied", None))
        self.found = self._described(engine)
        done(log.stop())

    def _append(self, log: Log, acknowledge: Acknowledge, *keys: str) -> None:
        for key in keys:
            stream, writer, facts = self.APPENDS[key]
            given = [TABLE[stream].canonical_fact([list[object](row)]) for row in facts]
            appended = done(log.append(stream, writer, given, key=key))
            acknowledge(("append", [key, msgspec.to_builtins(appended)]))

    @staticmethod
    def _replace_by_a_copy(engine: SQLEngine) -> None:
        """As a replica that joins anew does, with a log that is a copy of this one."""
        snapshot = engine.snapshot()
        facts, _ = engine.pages.facts(after=0, upto=snapshot.position.serial, limit=10**9)
        notes, leases = engine.notes.all(), engine.leases.all()
        engine.drop_staged()
        copy = engine.staging()
        copy.open()
        copy.commit(facts, [], upto=snapshot.position)
        copy.restore(snapshot)
        # As if it was of another log: what is noted beside this one must not be taken for its own.
        copy.notes.store({**notes, "history": "another"})
        copy.leases.store(leases)
        copy.close()
        engine.adopt_staged()

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        engine = self.engine()
        head = engine.open()
        engine.check()
        facts, upto = engine.pages.facts(after=0, upto=head.serial, limit=1000)
        trimmed_upto = head.trimmed_upto
        dense = [fact for fact in facts if fact.serial > trimmed_upto.serial]
        assert head.serial == upto
        assert [fact.serial for fact in dense] == list(range(trimmed_upto.serial + 1, head.serial + 1))
        assert verify(dense, trimmed_upto.digest) is None
        for what, told in acknowledged:
            if what == "append":
                key, appended = told
                receipt = engine.receipts.get(AppendKey(self.APPENDS[key][0], key))
                assert receipt is not None, f"the receipt of {key} is gone"
                assert msgspec.to_builtins(receipt.appended) == appended
                assert head.serial >= appended["first_serial"] + len(appended["tokens"]) - 1
            elif what == "lease":
                assert [told] == [lease.uuid for lease in engine.leases.all()]
            elif what == "epoch":
                assert head.epoch >= told
            elif what == "trimmed_upto":
                assert trimmed_upto.serial >= told
        # Whoever was not answered must not find half of what it asked for.
        for key, (_, _, rows) in self.APPENDS.items():
            receipt = engine.receipts.get(AppendKey(self.APPENDS[key][0], key))
            if receipt is not None:
                assert len(receipt.appended.tokens) == len(rows)
        engine.close()

    def state(self) -> Any:
        return [self.found, self.left()]

    def _described(self, engine: SQLEngine) -> Any:
        head = engine.head()
        facts, _ = engine.pages.facts(after=0, upto=head.serial, limit=1000)
        assert not engine.database.is_staged()
        return {
            "facts": [(fact.serial, fact.digest, fact.stream, fact.writer, fact.token) for fact in facts],
            "position": msgspec.to_builtins(head.position),
            "trimmed_upto": msgspec.to_builtins(head.trimmed_upto),
            "epoch_starts": [
                (epoch_start.epoch, epoch_start.serial, epoch_start.why) for epoch_start in head.epoch_starts
            ],
            "positions": sorted((*pair, token) for pair, token in head.positions.items()),
            "receipts": {
                key: msgspec.to_builtins(engine.receipts.get(AppendKey(stream, key)))
                for key, (stream, _, _) in self.APPENDS.items()
            },
            "leases": [lease.uuid for lease in engine.leases.all()],
            "notes": sorted(engine.notes.all()),
        }

    def left(self) -> list[str]:
        """What is beside the log."""
        return []

    @staticmethod
    def _log(engine: SQLEngine) -> Log:
        clock = HeapClock()
        clock.advance(NOW)
        thread = ImmediateThread()
        quiet: Any = lambda event: None  # noqa: E731  # an observer
        return Log(engine, thread, thread, clock, ephemeral=["typing"], logger=Logger(observer=quiet))


class SQLiteLog(LogScenario):
    """In a file."""

    def engine(self) -> SQLEngine:
        self.position.mkdir(parents=True, exist_ok=True)
        return SQLEngine(SQLiteDatabase(self.position / "synrepl.db"))

    def left(self) -> list[str]:
        return sorted(path.name for path in self.position.iterdir())


class PostgresLog(LogScenario):
    """On a server."""

    def engine(self) -> SQLEngine:
        return SQLEngine(PostgresDatabase(os.environ[POSTGRES]))

    def forget(self) -> None:
        forget_schemas()


def forget_schemas() -> None:
    """Empty the database."""
    with psycopg.connect(os.environ[POSTGRES], autocommit=True) as database:
        database.execute("SET client_min_messages = warning")
        database.execute("DROP SCHEMA IF EXISTS synrepl CASCADE")
        database.execute("DROP SCHEMA IF EXISTS synrepl_joining CASCADE")
        database.execute("DROP SCHEMA public CASCADE")
        database.execute("CREATE SCHEMA public")


def named(scenario: str, position: str) -> Scenario:
    """The scenario of this place, ``module:class``, in this folder."""
    module, _, name = scenario.partition(":")
    made: Scenario = getattr(import_module(module), name)(position)
    return made
