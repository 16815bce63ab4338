"""Reserves and finishes ids on a database, through a pool of connections, and prints ids per second.

python -m scripts.bench_parts.id_writers --url URL [--seconds S]
"""

import argparse
import sqlite3
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from twisted.enterprise.adbapi import ConnectionPool
from twisted.internet.defer import Deferred, gatherResults

from scripts.bench_parts.children import print_and_stop, reactor
from synrepl.ids.generator import MultiWriterIdGenerator
from synrepl.ids.transactions import transact
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.storage.sql import Flavor
from synrepl.storage.worker_database import ICursor

CONCURRENT: Final = 8
TABLE: Final = "CREATE TABLE things (stream_id BIGINT PRIMARY KEY, instance_name TEXT)"
STREAM: Final = IdStream(
    name="things", sequence="things_sequence", tables=(IdTable(name="things"),), writers=("bench",)
)


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    reactor.callWhenRunning(
        lambda: Deferred.fromCoroutine(_run(options.url, options.seconds)).addBoth(print_and_stop)
    )
    reactor.run()


async def _run(url: str, seconds: float) -> dict[str, float]:
    flavor: Flavor = "sqlite" if url.startswith("sqlite:") else "postgresql"

    def pool(connections: int) -> ConnectionPool:
        options: dict[str, Any] = {"cp_min": connections, "cp_max": connections, "cp_reactor": reactor}
        if flavor == "sqlite":
            path = url.partition(":")[2]
            return ConnectionPool("sqlite3", path, cp_openfun=_prepare, check_same_thread=False, **options)
        return ConnectionPool("psycopg", url, **options)

    one = pool(1)
    await one.runInteraction(IdDatabase(STREAM, flavor).create)
    await one.runInteraction(lambda cursor: cursor.execute(TABLE))
    ids = MultiWriterIdGenerator(one, STREAM, instance="bench", flavor=flavor, clock=reactor)
    await ids.start()
    found = {
        "bare_per_second": await _rate(partial(_bare, one, flavor), seconds),
        "within_1_per_second": await _rate(partial(_within, one, ids, 1), seconds),
        "within_20_per_second": 20 * await _rate(partial(_within, one, ids, 20), seconds),
    }
    one.close()
    if flavor == "postgresql":
        several = pool(CONCURRENT)
        ids = MultiWriterIdGenerator(several, STREAM, instance="bench", flavor=flavor, clock=reactor)
        await ids.start()
        found["next_per_second"] = await _rate(partial(_next, several, ids), seconds, CONCURRENT)
        several.close()
    return found


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


async def _rate(work: Callable[[], Awaitable[object]], seconds: float, concurrent: int = 1) -> float:
    """Return how many times a second `work` is done, by so many concurrent loops."""
    done = 0
    started = time.monotonic()

    async def repeat() -> None:
        nonlocal done
        while time.monotonic() < started + seconds:
            await work()
            done += 1

    await gatherResults([Deferred.fromCoroutine(repeat()) for _ in range(concurrent)])
    return done / (time.monotonic() - started)


async def _bare(pool: ConnectionPool, flavor: Flavor) -> None:
    """Take a number of the sequence, insert a row with it, and commit, without a generator."""
    ask = "SELECT nextval('things_sequence')"
    if flavor == "sqlite":
        ask = "UPDATE synrepl_sequences SET value = value + 1 RETURNING value"

    def work(cursor: Any) -> None:
        cursor.execute(ask)
        _insert(cursor, flavor, cursor.fetchone()[0])

    await pool.runInteraction(work)


async def _within(pool: ConnectionPool, ids: MultiWriterIdGenerator, count: int) -> None:
    def work(transaction: Any) -> None:
        with ids.within(transaction, count) as tokens:
            _insert(transaction, ids.database.flavor, tokens[-1])

    await transact(pool, work)


async def _next(pool: ConnectionPool, ids: MultiWriterIdGenerator) -> None:
    async with ids.next() as token:
        await transact(pool, lambda cursor: _insert(cursor, ids.database.flavor, token))


def _insert(cursor: ICursor, flavor: Flavor, token: int) -> None:
    mark = "?" if flavor == "sqlite" else "%s"
    cursor.execute(f"INSERT INTO things VALUES ({mark}, 'bench')", (token,))


if __name__ == "__main__":
    main()
