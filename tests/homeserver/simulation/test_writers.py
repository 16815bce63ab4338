"""Writers over one database and a daemon that follows their table, through seeded bad luck.

The promises: what is committed arrives at the log once, each writer's in the order of ids, and so never
before an id of that writer that was unfinished then; nothing arrives below the lowest position in the log;
what dies holds nobody up for ever.
"""

import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from synrepl.errors import StorageError
from synrepl.homeserver.tables.layout import table_streams
from synrepl.homeserver.tables.source import TableSource
from synrepl.ids.generator import MultiWriterIdGenerator
from synrepl.ids.transactions import transact
from synrepl.ids.writer_session import WriterSession
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.table import StreamTable
from synrepl.testing.heap_clock import HeapClock
from tests.memory_engine import FaultyEngine
from tests.simulation.seeds import seeds

STEP = 0.05
QUIET = Logger(observer=lambda event: None)  # type: ignore[arg-type]  # nobody reads it here

STREAM = IdStream(
    name="to_device",
    sequence="to_device_sequence",
    tables=(IdTable(name="inbox"),),
    writers=("A", "B", "C"),
)
TABLE = {
    "stream": "to_device",
    "table": "inbox",
    "row": ["entity"],
    "sequence": "to_device_sequence",
    "writers": list(STREAM.writers),
    "start": "earliest",
}


class _Connection:
    """A connection to a database that may go away."""

    def __init__(self, world: "_World") -> None:
        world.check_there()
        self._world = world
        self._real = sqlite3.connect(world.path, timeout=0)
        self._real.execute("PRAGMA synchronous = OFF")
        self._made_in = world.outages

    def cursor(self) -> sqlite3.Cursor:
        self._check()
        return self._real.cursor()

    def commit(self) -> None:
        self._check()
        self._real.commit()

    def rollback(self) -> None:
        self._real.rollback()

    def close(self) -> None:
        self._real.close()

    def _check(self) -> None:
        self._world.check_there()
        if self._made_in != self._world.outages:
            self._real.rollback()
            raise sqlite3.OperationalError("the connection was lost")


class _Pool:
    """Transactions one at a time, each on a connection of its own."""

    def __init__(self, world: "_World") -> None:
        self._world = world

    async def runInteraction(self, work: Callable[..., Any], /, *args: Any) -> Any:
        connection = _Connection(self._world)
        try:
            result = work(connection.cursor(), *args)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()
        return result


class _Writer:
    """One life of a writer, from its start to its kill."""

    def __init__(self, world: "_World", name: str) -> None:
        self.name = name
        self.is_dead = False
        self._world = world
        self.generator = MultiWriterIdGenerator(
            _Pool(world), STREAM, instance=name, flavor="sqlite", clock=world.clock
        )
        self.session = WriterSession(
            lambda: _Connection(world),
            [self.generator],
            instance=name,
            flavor="sqlite",
            clock=world.clock,
            thread=ImmediateThread(),
        )
        self.session._logger = self.generator._logger = QUIET
        self._under_way: list[Deferred[Any]] = [self._owned(self.session.start())]

    def _owned(self, work: Any) -> "Deferred[Any]":
        done = ensureDeferred(work)
        done.addErrback(lambda failure: failure.trap(StorageError, sqlite3.Error, CancelledError, KeyError))
        return done

    def write(self) -> None:
        """Begin to write something, in one of the ways that there are."""
        if not self.is_dead and self.session.is_held:
            self._under_way = [done for done in self._under_way if not done.called]
            self._under_way.append(self._owned(self._world.chance.choice([self._slowly, self._within])()))

    async def _slowly(self) -> None:
        chance = self._world.chance
        async with self.generator.next_many(chance.randint(1, 3)) as tokens:
            await deferLater(self._world.clock, chance.expovariate(2))
            if chance.random() < 0.2:
                raise KeyError
            if not self.is_dead:
                await _Pool(self._world).runInteraction(self._insert, tokens)
            await deferLater(self._world.clock, chance.random() / 4)

    async def _within(self) -> None:
        chance = self._world.chance

        def work(transaction: Any) -> None:
            with self.generator.within(transaction, chance.randint(1, 3)) as tokens:
                self._insert(transaction, tokens)
            if chance.random() < 0.2:
                raise KeyError

        await transact(_Pool(self._world), work)

    def _insert(self, cursor: Any, tokens: Any) -> None:
        for token in tokens:
            for row in range(self._world.chance.randint(1, 3)):
                cursor.execute(
                    "INSERT INTO inbox VALUES (?, ?, ?)", (token, self.name, f"@{self.name}{row}:{token}")
                )

    def kill(self) -> None:
        """As SIGKILL does: nothing more comes of it, and the system takes back its name."""
        self.is_dead = True
        self.session._is_stopped = True
        self.session._timer.stop()
        for done in self._under_way:
            done.cancel()
        self.session._close()


class _World:
    """A database, three writers, a daemon, and chance."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self.clock = HeapClock()
        self.path = directory / "homeserver.db"
        self.is_away = False
        self.outages = 0
        with sqlite3.connect(self.path) as database:
            IdDatabase(STREAM, "sqlite").create(database.cursor())
            database.execute("CREATE TABLE inbox (stream_id BIGINT, instance_name TEXT, entity TEXT)")
        self.engine = FaultyEngine()
        self.writers = {name: _Writer(self, name) for name in STREAM.writers}
        self._start_daemon()

    def check_there(self) -> None:
        if self.is_away:
            raise sqlite3.OperationalError("the database is away")

    # -- what happens --------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(400):
            for writer in self.writers.values():
                if self.chance.random() < 0.3:
                    writer.write()
            for chance, happen in (
                (0.01, self._restart_writer),
                (0.005, self._restart_daemon),
                (0.006, self._outage),
                (0.1, self.source.wake),
            ):
                if self.chance.random() < chance:
                    happen()
            self.clock.advance(STEP)
        self.is_away = False
        for name, writer in self.writers.items():
            if writer.session.refusal or not writer.session.is_held:
                writer.kill()
                self.writers[name] = _Writer(self, name)
        self.clock.pump([STEP] * 800)
        self.check()

    def _restart_writer(self) -> None:
        name = self.chance.choice(STREAM.writers)
        self.writers[name].kill()
        self.clock.advance(self.chance.choice([0, 0, 1, 8]))
        self.writers[name] = _Writer(self, name)

    def _start_daemon(self) -> None:
        self.log = Log(
            self.engine,
            ImmediateThread(),
            ImmediateThread(),
            self.clock,
            ephemeral=[],
            assigned=["to_device"],
            logger=QUIET,
        )
        ensureDeferred(self.log.start())
        self.source = TableSource(
            lambda: _Connection(self),
            table_streams([TABLE], default_writer="master"),
            flavor="sqlite",
            log=self.log,
            table=StreamTable.default(),
            clock=self.clock,
            thread=ImmediateThread(),
        )
        self.source._logger = QUIET
        self.source.start()

    def _restart_daemon(self) -> None:
        ensureDeferred(self.source.stop())
        self.engine.crash()
        self._start_daemon()

    def _outage(self) -> None:
        self.is_away = True
        self.outages += 1
        self.clock.callLater(self.chance.choice([0.2, 2, 9]), self._end_outage)

    def _end_outage(self) -> None:
        self.is_away = False

    # -- the promises --------------------------------------------------------------------------------------

    def check(self) -> None:
        with sqlite3.connect(self.path) as database:
            rows = database.execute("SELECT stream_id, instance_name, count(*) FROM inbox GROUP BY 1, 2")
            committed = sorted(rows)
        facts = [fact for fact in self.engine.facts if fact.rows != b"[]"]
        arrived = [(fact.token, fact.writer, fact.rows.count(b"@")) for fact in facts]
        assert sorted(arrived) == committed, "lost, doubled or parted"
        assert len({token for token, _, _ in committed}) == len(committed), "an id was given twice"
        last: dict[str, int] = {}
        for fact in self.engine.facts:
            assert fact.prev_token == last.get(fact.writer, 0)
            assert fact.token > min(last.values(), default=0) or fact.rows == b"[]", (
                "below the linear position"
            )
            last[fact.writer] = fact.token
        highest = max((token for token, _, _ in committed), default=1)
        for name, writer in self.writers.items():
            assert writer.generator.persisted_upto >= highest, f"{name} is held up: {self._why()}"
            assert writer.generator.unfinished() == []
        assert min(self.log.positions("to_device").values(), default=highest) >= highest

    def _why(self) -> str:
        return str({name: writer.generator.positions() for name, writer in self.writers.items()})


@pytest.mark.parametrize("seed", seeds("writers"))
def test_bad_luck(seed: int) -> None:
    """Kills, outages, rollbacks and slow transactions, in any order."""
    directory = Path(tempfile.mkdtemp(prefix="synrepl-writers-"))
    try:
        _World(seed, directory).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
