"""A log over a PostgreSQL that goes and comes back, on the real reactor with real threads."""

import random
from collections.abc import Callable
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred, gatherResults
from twisted.internet.task import deferLater
from twisted.logger import LogEvent, Logger
from twisted.trial.unittest import TestCase

from synrepl.base.history import Appended
from synrepl.errors import StorageError
from synrepl.storage import postgres
from synrepl.storage.engine import SQLEngine
from synrepl.storage.log import Log
from synrepl.storage.postgres import PostgresDatabase
from synrepl.storage.threads import ReactorThread
from synrepl.streams.digest import EMPTY, verify
from tests.postgres import kept_facts
from tests.servers.postgres import PostgresServer
from tests.storage.builders import rows
from tests.trial.waiting import Counter


class OutageTests(TestCase):
    """The server goes, again and again, under a log in use."""

    timeout = 60.0

    async def setUp(self) -> None:  # type: ignore[override]
        self.patch(postgres, "FIRST_PATIENCE", 0.2)
        self.clock: Any = reactor
        self.told: list[LogEvent] = []
        self.server = PostgresServer()
        self.addCleanup(self.server.remove)
        self.server.start()
        self.url = self.server.new_database()
        self.helper = ReactorThread(reactor, "server")
        self.addCleanup(lambda: ensureDeferred(self.helper.stop()))
        self.log = Log(
            SQLEngine(PostgresDatabase(self.url)),
            ReactorThread(reactor, "writing"),
            ReactorThread(reactor, "reading"),
            self.clock,
            ephemeral=[],
            logger=Logger(observer=self.told.append),  # type: ignore[arg-type]
        )
        await self.log.start()
        self.addCleanup(lambda: ensureDeferred(self.log.stop()))

    async def test_nothing_acknowledged_is_lost_or_doubled_and_appends_come_back_by_themselves(self) -> None:
        """This is all that a client can ask of a log: one answer, one fact."""
        answers: dict[str, Appended] = {}
        answered = Counter()
        once: list[tuple[bytes, int]] = []
        errors: list[StorageError] = []
        shown: list[int] = []
        is_over = False
        self.log.subscribe(lambda facts: shown.extend(fact.serial for fact in facts))

        async def insist(writer: str) -> None:
            """With a key, until it is answered."""
            number = 0
            while not is_over:
                number += 1
                key = f"{writer}-{number}"
                while key not in answers:
                    try:
                        answers[key] = await self.log.append("events", writer, [rows(key)], key=key)
                    except StorageError as error:
                        errors.append(error)
                        await deferLater(self.clock, 0.01)
                answered.add()

        async def try_once() -> None:
            """Without one, and without trying again."""
            number = 0
            while not is_over:
                number += 1
                try:
                    answer = await self.log.append("events", "once", [rows(number)])
                    assert answer.first_serial is not None
                    once.append((rows(number), answer.first_serial))
                except StorageError as error:
                    errors.append(error)
                    await deferLater(self.clock, 0.01)

        writers = [insist(f"w{number}") for number in range(4)] + [try_once()]
        running = [Deferred.fromCoroutine(writer) for writer in writers]
        server = self.server
        ends: list[Callable[[], None]] = [
            server.kill,
            server.stop,
            server.kill,
            lambda: server.stop("immediate"),
        ]
        chance = random.Random(20261129)
        for end in ends:
            await answered.reaches(answered.count + 40)
            await deferLater(self.clock, chance.random() * 0.05)
            await self.helper.run(end)
            await deferLater(self.clock, 0.05)
            await self.helper.run(server.start)
        await answered.reaches(answered.count + 40)
        is_over = True
        await gatherResults(running)
        facts = kept_facts(self.url)

        self.assertEqual((True, ""), self.log.healthy)
        self.assertIsNone(verify(facts, EMPTY))
        self.assertEqual(list(range(1, len(facts) + 1)), [fact.serial for fact in facts])
        self.assertEqual(list(range(1, len(facts) + 1)), shown)
        self.assertEqual(
            sorted(rows(key) for key in answers), sorted(f.rows for f in facts if f.writer != "once")
        )
        for key, answer in answers.items():
            assert answer.first_serial is not None
            self.assertEqual(rows(key), facts[answer.first_serial - 1].rows)
        for content, serial in once:
            self.assertEqual(content, facts[serial - 1].rows)
        self.assertGreater(len(errors), 0)
        self.assertEqual({True}, {error.retryable for error in errors})
