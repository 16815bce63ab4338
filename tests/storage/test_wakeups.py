"""Being woken by a real PostgreSQL, on a real reactor."""

from typing import Any

import psycopg
from twisted.internet.task import deferLater
from twisted.logger import LogEvent, Logger
from twisted.trial.unittest import SynchronousTestCase

from synrepl.storage.threads import ReactorThread
from synrepl.storage.wakeups import Wakeups
from synrepl.testing.postgres import PostgresServer
from tests.postgres import shared_server
from tests.storage.reactors import eventually, in_reactor

CHANNEL = 'synrepl "things"'


class WakeupTests(SynchronousTestCase):
    """`woken` counts."""

    def setUp(self) -> None:
        self.woken = 0
        self.told: list[LogEvent] = []

    def wakeups(self, reactor: Any, url: str, poll_seconds: float = 1000) -> Wakeups:
        def wake() -> None:
            self.woken += 1

        wakeups = Wakeups(
            reactor,
            url,
            CHANNEL,
            wake,
            poll_seconds,
            jitter=lambda: 0.0,
            logger=Logger(observer=self.told.append),  # type: ignore[arg-type]
        )
        wakeups.start()
        return wakeups

    def notify(self, url: str, times: int = 1) -> None:
        with psycopg.connect(url) as database:
            for number in range(times):
                database.execute("SELECT pg_notify(%s, %s)", (CHANNEL, str(number)))

    def test_many_notifications_of_one_transaction_wake_once(self) -> None:
        """Whoever wakes looks for all that is new; being told a thousand times helps nobody."""
        url = shared_server().new_database()

        async def story(reactor: Any) -> None:
            wakeups = self.wakeups(reactor, url)
            await eventually(reactor, lambda: self.woken == 1, "the connection wakes")
            self.notify(url, times=100)
            await eventually(reactor, lambda: self.woken == 2, "a notification wakes")
            await deferLater(reactor, 0.05)
            self.assertEqual(2, self.woken)
            self.notify(url)
            await eventually(reactor, lambda: self.woken == 3, "so does the next one")
            await wakeups.stop()
            self.notify(url)
            await deferLater(reactor, 0.05)

        in_reactor(story)

        self.assertEqual(3, self.woken)
        self.assertEqual(
            [(0,)],
            shared_server().execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'synrepl-wakeups%'"
            ),
        )

    def test_a_connection_that_is_killed_is_made_again(self) -> None:
        """And wakes at once: something may have been missed."""
        url = shared_server().new_database()

        async def story(reactor: Any) -> None:
            wakeups = self.wakeups(reactor, url)
            for count in (1, 2, 3):
                await eventually(reactor, lambda count=count: self.woken == count, "the connection wakes")  # type: ignore[misc]
                shared_server().execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name LIKE 'synrepl-wakeups%'"
                )
            await eventually(reactor, lambda: self.woken == 4, "the last one wakes")
            self.notify(url)
            await eventually(reactor, lambda: self.woken == 5, "and listens")
            await wakeups.stop()

        in_reactor(story)

        self.assertEqual({"warn"}, {event["log_level"].name for event in self.told})

    def test_a_server_that_is_away_is_polled_for_and_found_again(self) -> None:
        """Polling does not depend on a connection; the log is told once, not for each attempt."""
        with PostgresServer() as server:
            url = server.new_database()
            server.stop()

            async def story(reactor: Any) -> None:
                thread = ReactorThread(reactor, "the server")
                wakeups = self.wakeups(reactor, url, poll_seconds=0.02)
                await eventually(reactor, lambda: self.woken >= 20, "polling wakes")
                self.assertFalse(wakeups.is_connected)
                self.assertEqual(1, len(self.told))
                await thread.run(server.start)
                await eventually(reactor, lambda: wakeups.is_connected, "it connects by itself")
                await thread.run(server.kill)
                await eventually(
                    reactor, lambda: not wakeups.is_connected, "it sees that the server has gone"
                )
                woken = self.woken
                await eventually(reactor, lambda: self.woken > woken + 3, "and polls on")
                await wakeups.stop()
                await thread.stop()

            in_reactor(story)

    def test_stopping_while_it_connects_leaves_nothing(self) -> None:
        """A connection that arrives after the end must not stay open."""
        url = shared_server().new_database()

        async def story(reactor: Any) -> None:
            wakeups = self.wakeups(reactor, url)
            await wakeups.stop()
            await wakeups.stop()

        in_reactor(story)

        self.assertEqual(0, self.woken)

    def test_a_failure_of_who_is_woken_does_not_end_the_waking(self) -> None:
        """It is the caller's fault, and its log line."""
        url = shared_server().new_database()

        async def story(reactor: Any) -> None:
            def wake() -> None:
                self.woken += 1
                raise ValueError("half awake")

            wakeups = Wakeups(
                reactor,
                url,
                CHANNEL,
                wake,
                0.01,
                logger=Logger(observer=self.told.append),  # type: ignore[arg-type]
            )
            wakeups.start()
            await eventually(reactor, lambda: self.woken > 3, "it goes on")
            await wakeups.stop()

        in_reactor(story)

        self.assertEqual({"critical"}, {event["log_level"].name for event in self.told})
