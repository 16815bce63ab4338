"""A process that writes receipts into a homeserver's table, in every way there is to reserve ids.

Run with the database's URL, its own name, a path, the first number of its facts, and what to do: ``load``,
``trickle``, ``idle``, or be ``stuck``. Each fact has a number, which goes to the file at the path once its
commit has returned, synced. Its end is a kill.
"""

import os
import random
import sys
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from twisted.enterprise.adbapi import ConnectionPool
from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger, globalLogBeginner, textFileLogObserver

from synrepl.ids.generator import MultiWriterIdGenerator
from synrepl.ids.transactions import transact
from synrepl.ids.writer_session import WriterSession
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.storage.threads import ReactorThread
from tests.processes.loading import size

__all__ = ["INSERT", "STREAM", "WRITERS", "receipts_of"]

WRITERS: Final = ("A", "B", "C")
STREAM: Final = IdStream(
    name="receipts",
    sequence="receipts_sequence",
    tables=(IdTable(name="receipts_linearized"),),
    writers=WRITERS,
)
INSERT: Final = "INSERT INTO receipts_linearized VALUES (%s, %s, '!r:a', %s, '$e:a', '{}')"
JOBS: Final = 6
SLOW_SECONDS: Final = 0.2
AGAIN_SECONDS: Final = 0.05
PAUSES: Final = {"load": size(100, 20) / 1000, "trickle": 1.0}
"""By what it does: how long a job rests at most after each transaction, in seconds."""

reactor: Any = installed


class _Regret(Exception):
    """The transaction is to be rolled back."""


def receipts_of(number: int, token: int, writer: str) -> list[tuple[int, str, str]]:
    """What `INSERT` takes for the rows of the fact with this number; every tenth has three."""
    return [(token, writer, f"@~{number}~:a")] * (3 if number % 10 == 0 else 1)


class Load:
    """Several jobs at a time, each one transaction after the other."""

    _logger = Logger()

    def __init__(
        self, pool: ConnectionPool, ids: MultiWriterIdGenerator, path: str, first: int, *, pause: float
    ) -> None:
        self._pool = pool
        self._ids = ids
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._number = first
        self._chance = random.Random(first)
        self._pause = pause

    async def run(self) -> None:
        """One job, for ever. What fails is left: its facts may be there or not."""
        quick = [self._next, self._next_many, self._within, self._regretted]
        # Few are slow: each is alone then with its old ids, and whoever forgets those goes on without them.
        kinds = [*quick * 5, self._slow]
        while True:
            try:
                await self._chance.choice(kinds)()
            except _Regret:
                pass
            except Exception as error:
                self._logger.info("failed: {error!r}", error=error)
                await deferLater(reactor, AGAIN_SECONDS)
            await deferLater(reactor, self._chance.random() * self._pause)

    async def _next(self) -> None:
        (number,) = self._numbers(1)
        async with self._ids.next() as token:
            await self._pool.runInteraction(self._insert, [number], [token])
            self._committed([number])

    async def _next_many(self) -> None:
        numbers = self._numbers(self._chance.randint(2, 5))
        async with self._ids.next_many(len(numbers)) as tokens:
            await self._pool.runInteraction(self._insert, numbers, tokens)
            self._committed(numbers)

    async def _within(self, *, seconds: float = 0.0, is_regretted: bool = False) -> None:
        numbers = self._numbers(self._chance.randint(1, 3))

        def work(transaction: Any) -> None:
            with self._ids.within(transaction, len(numbers)) as tokens:
                self._insert(transaction, numbers, tokens)
                if seconds:
                    transaction.execute("SELECT pg_sleep(%s)", (seconds,))
                if is_regretted:
                    raise _Regret

        await transact(self._pool, work)
        self._committed(numbers)

    async def _regretted(self) -> None:
        if self._chance.random() < 0.5:
            await self._within(is_regretted=True)
        async with self._ids.next():
            raise _Regret

    async def _slow(self) -> None:
        await self._within(seconds=self._chance.random() * SLOW_SECONDS)

    def _numbers(self, count: int) -> list[int]:
        self._number += count
        return list(range(self._number - count, self._number))

    def _insert(self, cursor: Any, numbers: Sequence[int], tokens: Sequence[int]) -> None:
        for number, token in zip(numbers, tokens, strict=True):
            for row in receipts_of(number, token, self._ids.instance):
                cursor.execute(INSERT, row)

    def _committed(self, numbers: Sequence[int]) -> None:
        os.write(self._file, b"".join(b"%d\n" % number for number in numbers))
        os.fsync(self._file)


async def main(url: str, name: str, path: str, first: str, mode: str) -> None:
    """Write until killed."""
    pool = ConnectionPool("psycopg", url, cp_reactor=reactor, cp_min=1, cp_max=JOBS, cp_reconnect=True)
    ids = MultiWriterIdGenerator(pool, STREAM, instance=name, flavor="postgresql", clock=reactor)
    session = WriterSession(
        lambda: psycopg.connect(url, connect_timeout=5),
        [ids],
        instance=name,
        flavor="postgresql",
        clock=reactor,
        thread=ReactorThread(reactor, "session"),
    )
    await session.start()
    if mode == "stuck":
        await ids.next(owner="the stuck job").__aenter__()
    elif mode in PAUSES:
        load = Load(pool, ids, path, int(first), pause=PAUSES[mode])
        for _ in range(JOBS):
            Deferred.fromCoroutine(load.run())
    print("ready:", name, flush=True)


def _fail(failure: Any) -> None:
    print("cannot start:", failure.value, flush=True)
    reactor.stop()


if __name__ == "__main__":
    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stdout)], redirectStandardIO=False)
    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(main(*sys.argv[1:])).addErrback(_fail))
    reactor.run()
