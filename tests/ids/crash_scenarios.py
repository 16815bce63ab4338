"""Ids reserved, written and rolled back until the process dies."""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final

import psycopg

from synrepl.ids.generator import MultiWriterIdGenerator
from synrepl.ids.transactions import transact
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.testing.heap_clock import HeapClock
from tests.crash.scenarios import POSTGRES, Acknowledge, Acknowledged, Scenario, done, forget_schemas
from tests.storage.id_tables.databases import DirectPool


class IdScenario(Scenario):
    """Rows with ids by two writers, some of them rolled back."""

    FLAVOR: Any = "sqlite"
    MARK = "?"
    BODIES: Final = {"w1": ["a", "b", "c"], "w2": ["d", "e"]}

    def connect(self) -> Any:
        """A connection to the database."""
        self.position.mkdir(parents=True, exist_ok=True)
        return sqlite3.connect(self.position / "ids.db", timeout=5)

    def run(self, acknowledge: Acknowledge) -> None:
        with closing(self.connect()) as connection:
            pool = DirectPool(connection)
            done(pool.runInteraction(self._create))
            for writer, bodies in self.BODIES.items():
                generator = self._generator(pool, writer)
                done(generator.start())
                for body in bodies:
                    if body not in done(pool.runInteraction(self._bodies)):
                        try:
                            done(transact(pool, partial(self._fail, generator=generator)))
                        except ZeroDivisionError:
                            pass
                        token = done(transact(pool, partial(self._insert, generator=generator, body=body)))
                        acknowledge(("id", [body, token]))
                done(pool.runInteraction(generator.store_position))
                acknowledge(("position", [writer, generator.minimal_token]))

    def _generator(self, pool: DirectPool, writer: str) -> MultiWriterIdGenerator:
        stream = IdStream(
            name="things", sequence="things_sequence", tables=(IdTable(name="things"),), writers=("w1", "w2")
        )
        return MultiWriterIdGenerator(pool, stream, instance=writer, flavor=self.FLAVOR, clock=HeapClock())

    def _create(self, cursor: Any) -> None:
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS things (stream_id BIGINT NOT NULL, instance_name TEXT, body TEXT)"
        )
        IdDatabase(self._generator(None, "w1").stream, self.FLAVOR).create(cursor)  # type: ignore[arg-type]

    def _bodies(self, cursor: Any) -> dict[str, int]:
        cursor.execute("SELECT body, stream_id FROM things")
        return dict(cursor.fetchall())

    def _insert(self, cursor: Any, generator: MultiWriterIdGenerator, body: str) -> int:
        with generator.within(cursor, 1) as (token,):
            values = f"VALUES ({self.MARK}, {self.MARK}, {self.MARK})"
            cursor.execute(f"INSERT INTO things {values}", (token, generator.instance, body))
        return int(token)

    @staticmethod
    def _fail(cursor: Any, generator: MultiWriterIdGenerator) -> None:
        with generator.within(cursor, 2):
            raise ZeroDivisionError

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        with closing(self.connect()) as connection:
            pool = DirectPool(connection)
            done(pool.runInteraction(self._create))
            found = done(pool.runInteraction(self._bodies))
            assert len(set(found.values())) == len(found), "an id was given twice"
            highest = max(found.values(), default=1)
            for what, told in acknowledged:
                name, token = told
                if what == "id":
                    assert found[name] == token
                highest = max(highest, token)
            generator = self._generator(pool, "w1")
            done(generator.start())
            assert done(transact(pool, partial(self._insert, generator=generator, body="next"))) > highest
            done(pool.runInteraction(self._remove_next))

    def _remove_next(self, cursor: Any) -> None:
        cursor.execute("DELETE FROM things WHERE body = 'next'")

    def state(self) -> Any:
        with closing(self.connect()) as connection:
            found = done(DirectPool(connection).runInteraction(self._bodies))
        assert len(set(found.values())) == len(found)
        return sorted(found)


class PostgresIds(IdScenario):
    """On a server."""

    FLAVOR = "postgresql"
    MARK = "%s"

    def connect(self) -> Any:
        return psycopg.connect(os.environ[POSTGRES])

    def forget(self) -> None:
        forget_schemas()
