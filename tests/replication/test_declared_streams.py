"""Declared streams on a log that takes its time."""

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from synrepl.errors import ConfigError
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.storage.log import Log
from synrepl.streams.declaration import Declaration
from synrepl.streams.declared import DaemonStreams, StreamBody
from synrepl.streams.table import StreamTable
from synrepl.testing.memory_engine import DelayedThread
from tests.memory_engine import FaultyEngine


class SimultaneousTests(SynchronousTestCase):
    """Declarations that arrive while another is being stored (seed 450122 of the replicas' simulation)."""

    def setUp(self) -> None:
        self.clock = Clock()
        writing, reading = (DelayedThread(self.clock, lambda: 0.1) for _ in range(2))
        self.log = Log(FaultyEngine(), writing, reading, self.clock, ephemeral=[], logger=Logger())
        started = Deferred.fromCoroutine(self.log.start())
        self.clock.pump([0.1] * 5)
        self.successResultOf(started)
        table = DaemonStreams(StreamTable.default())
        self.streams = DeclaredStreams(self.log, table, instance="master")
        self.log.subscribe(self.streams.committed)

    def declare_both(self, one: Declaration, other: Declaration) -> "list[Deferred[Any]]":
        """Declare both before either is stored."""
        asked = [Deferred.fromCoroutine(self.streams.declare(wanted)) for wanted in (one, other)]
        self.clock.pump([0.1] * 10)
        return asked

    def test_an_equal_one_is_stored_once(self) -> None:
        """The second one waits for the first, and is answered as a repetition."""
        declared = StreamBody("packages").declaration()
        first, second = self.declare_both(declared, declared)

        self.assertIs(True, self.successResultOf(first))
        self.assertIs(False, self.successResultOf(second))
        self.assertEqual(1, self.log.head.serial)

    def test_another_one_is_refused(self) -> None:
        """The first one counts."""
        first, second = self.declare_both(
            StreamBody("packages").declaration(), StreamBody("packages", key="name").declaration()
        )

        self.assertIs(True, self.successResultOf(first))
        self.failureResultOf(second, ConfigError)
        self.assertEqual(1, self.log.head.serial)
