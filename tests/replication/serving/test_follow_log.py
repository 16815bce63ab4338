"""Who subscribes a publisher to its log: whoever makes it; `synrepl.serve` for users of the library."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import Logger

from synrepl import Metrics, Publisher, StreamTable, serve
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.testing.memory_engine import MemoryEngine
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.dialect import CURRENT

TABLE = StreamTable.default()
ROW = b'[["@ada:hs"]]'


class Setup:
    """A publisher as a user of the library makes it, on a log with one fact."""

    def __init__(self) -> None:
        self.clock: Any = MemoryReactorClock()
        self.log = Log(
            MemoryEngine(), ImmediateThread(), ImmediateThread(), self.clock, ephemeral=[], logger=Logger()
        )
        Deferred.fromCoroutine(self.log.start())
        self.metrics = Metrics(CollectorRegistry())
        self.publisher = Publisher(self.log, TABLE, self.clock, self.metrics, instance="master")
        self.append()

    def append(self) -> None:
        self.log.append("push_rules", "master", [ROW])
        self.clock.advance(0.1)

    def follower(self) -> StringTransport:
        factory = PublisherFactory(
            self.publisher, server_name="hs", dialect=CURRENT, clock=self.clock, metrics=self.metrics
        )
        protocol, transport = factory.buildProtocol(None), StringTransport()
        protocol.makeConnection(transport)
        protocol.dataReceived(b"REPLICATE\n")
        self.clock.advance(0.1)
        transport.clear()
        return transport


def test_a_served_publisher_sends_what_is_committed() -> None:
    """Served twice, at two ports, it sends each fact once."""
    setup = Setup()
    for port in (9092, 9093):
        serve(setup.clock, f"tcp:{port}:interface=127.0.0.1", setup.publisher, server_name="hs")
    follower = setup.follower()
    setup.append()

    assert [b'RDATA push_rules master 2 ["@ada:hs"]'] == follower.value().splitlines()


def test_facts_from_before_are_read_from_the_log() -> None:
    """The ring begins where the log ends when the publisher begins to follow it."""
    setup = Setup()
    setup.publisher.follow_log()

    assert 1 == setup.publisher.ring.serial


def test_a_publisher_that_follows_no_log_takes_no_followers() -> None:
    """They would wait for ever."""
    setup = Setup()

    with pytest.raises(RuntimeError, match="follow_log"):
        setup.follower()
