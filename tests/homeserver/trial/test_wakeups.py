"""Being woken by a real PostgreSQL, on the real reactor."""

from collections.abc import Callable
from typing import Any

import psycopg
from twisted.internet import reactor
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import LogEvent, Logger
from twisted.trial.unittest import TestCase

from synrepl.homeserver.tables import wakeups as wakeups_module
from synrepl.homeserver.tables.wakeups import Wakeups
from synrepl.storage.threads import ReactorThread
from tests.postgres import shared_server
from tests.servers.postgres import PostgresServer
from tests.trial.waiting import Counter, eventually

CHANNEL = 'synrepl "things"'


class WakeupTests(TestCase):
    """`woken` counts."""

    timeout = 60.0

    def setUp(self) -> None:
        self.clock: Any = reactor
        self.woken = Counter()
        self.told: list[LogEvent] = []

    def wakeups(
        self, url: str, *, poll_seconds: float = 1000, on_wake: Callable[[], None] | None = None
    ) -> Wakeups:
        """Started, and stopped at the end of the test."""
        wakeups = Wakeups(
            reactor,
            url,
            CHANNEL,
            on_wake or self.woken.add,
            poll_seconds,
            jitter=lambda: 0.0,
            logger=Logger(observer=self.told.append),  # type: ignore[arg-type]
        )
        self.addCleanup(lambda: ensureDeferred(wakeups.stop()))
        wakeups.start()
        return wakeups

    def notify(self, url: str, times: int = 1) -> None:
        """In one transaction."""
        with psycopg.connect(url) as database:
            for number in range(times):
                database.execute("SELECT pg_notify(%s, %s)", (CHANNEL, str(number)))

    def connections(self) -> int:
        """How many connections the server has that listen."""
        statement = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'synrepl-wakeups%'"
        count: int = shared_server().execute(statement)[0][0]
        return count

    def cut(self) -> None:
        """End all connections that listen."""
        shared_server().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'synrepl-wakeups%'"
        )

    async def test_many_notifications_of_one_transaction_wake_once(self) -> None:
        """Whoever wakes looks for all that is new; being told a thousand times helps nobody."""
        url = shared_server().new_database()
        wakeups = self.wakeups(url)
        await self.woken.reaches(1)

        self.notify(url, times=100)
        await self.woken.reaches(2)
        await deferLater(self.clock, 0.05)
        self.assertEqual(2, self.woken.count)
        self.notify(url)
        await self.woken.reaches(3)
        await wakeups.stop()
        self.notify(url)
        await deferLater(self.clock, 0.05)
        await eventually(lambda: self.connections() == 0, "its connection is closed")

        self.assertEqual(3, self.woken.count)

    async def test_a_connection_that_is_killed_is_made_again(self) -> None:
        """And wakes at once: something may have been missed."""
        url = shared_server().new_database()
        self.wakeups(url)

        for count in (1, 2, 3):
            await self.woken.reaches(count)
            self.cut()
        await self.woken.reaches(4)
        self.notify(url)
        await self.woken.reaches(5)

        self.assertEqual({"warn"}, {event["log_level"].name for event in self.told})

    async def test_a_connection_that_lasted_is_made_again_without_a_growing_delay(self) -> None:
        """A server that restarts once a week is not one that is away."""
        self.patch(wakeups_module, "STEADY_SECONDS", 0.0)
        wakeups = self.wakeups(shared_server().new_database())

        for count in (1, 2, 3):
            await self.woken.reaches(count)
            self.cut()
        await self.woken.reaches(4)

        self.assertEqual(1, wakeups._backoff.failures)

    async def test_a_server_that_is_away_is_polled_for_and_found_again(self) -> None:
        """Polling does not depend on a connection; the log is told once, not for each attempt."""
        server = PostgresServer()
        self.addCleanup(server.remove)
        server.start()
        url = server.new_database()
        server.stop()
        thread = ReactorThread(reactor, "the server")
        self.addCleanup(lambda: ensureDeferred(thread.stop()))
        wakeups = self.wakeups(url, poll_seconds=0.02)

        await self.woken.reaches(20)
        self.assertIsNone(wakeups._socket)
        self.assertEqual(1, len(self.told))
        await thread.run(server.start)
        await eventually(lambda: wakeups._socket is not None, "it connects by itself")
        await thread.run(server.kill)
        await eventually(lambda: wakeups._socket is None, "it sees that the server has gone")
        await self.woken.reaches(self.woken.count + 4)

    async def test_stopping_while_it_connects_leaves_nothing(self) -> None:
        """A connection that arrives after the end must not stay open."""
        wakeups = self.wakeups(shared_server().new_database())

        await wakeups.stop()
        await wakeups.stop()

        self.assertEqual(0, self.woken.count)

    async def test_a_failure_of_who_is_woken_does_not_end_the_waking(self) -> None:
        """It is the caller's fault, and its log line."""

        def wake() -> None:
            self.woken.add()
            raise ValueError("half awake")

        wakeups = self.wakeups(shared_server().new_database(), poll_seconds=0.01, on_wake=wake)
        await self.woken.reaches(4)
        await wakeups.stop()

        self.assertEqual({"critical"}, {event["log_level"].name for event in self.told})
