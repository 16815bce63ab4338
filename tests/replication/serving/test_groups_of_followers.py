"""Followers at the same place share the look-up of what is next; each gets its own, once and in order."""

import random
from typing import Any
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import Logger

from synrepl.base.metrics import Metrics
from synrepl.replication.serving.publisher import PUMP_SECONDS, Publisher
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.table import StreamTable
from synrepl.testing.memory_engine import MemoryEngine
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.commands import RemoteServerUp
from synrepl.wire.dialect import CURRENT, LEGACY, Dialect

ROWS = {
    "events": b'[["state",["!r","m.room.topic","","$e"]]]',
    "push_rules": b'[["@a:hs"]]',
    "typing": b'[["!r",["@a:hs"]]]',
}


class Transport(StringTransport):
    """Its buffer is full after each write, if a test says so."""

    is_full = False

    def write(self, data: bytes) -> None:
        super().write(data)
        if self.is_full:
            assert self.producer is not None
            self.producer.pauseProducing()


class Setup:
    """A publisher, and followers that are not read from unless a test does."""

    def __init__(self, *dialects: Dialect, ring_bytes: int = 8 * 1024 * 1024) -> None:
        self.clock = Clock()
        engine, thread = MemoryEngine(), ImmediateThread()
        self.log = Log(engine, thread, thread, self.clock, ephemeral=["typing"], logger=Logger())
        Deferred.fromCoroutine(self.log.start())
        metrics = Metrics(CollectorRegistry())
        self.publisher = Publisher(
            self.log, StreamTable.default(), self.clock, metrics, instance="master", ring_bytes=ring_bytes
        )
        self.publisher.follow_log()
        self.transports: list[Any] = []
        for dialect in dialects:
            factory = PublisherFactory(
                self.publisher, server_name="hs", dialect=dialect, clock=self.clock, metrics=metrics
            )
            protocol, transport = factory.buildProtocol(None), Transport()
            protocol.makeConnection(transport)
            protocol.dataReceived(b"REPLICATE ALL NOW\n" if dialect is LEGACY else b"REPLICATE\n")
            self.transports.append(transport)
        self.pass_()
        for transport in self.transports:
            transport.clear()

    def append(self, *streams: str) -> None:
        for stream in streams:
            self.log.append(stream, "master", [ROWS[stream]])

    def pass_(self, seconds: float = 2 * PUMP_SECONDS) -> None:
        self.clock.advance(seconds)

    def hears(self, follower: int) -> list[str]:
        """What was sent to this follower, except PING; of facts the stream and token."""
        lines = self.transports[follower].value().decode().splitlines()
        words = [line.split(" ") for line in lines if not line.startswith("PING ")]
        return [
            f"{one[1]} {next(filter(str.isdigit, one))}" if one[0] == "RDATA" else one[0]
            for one in words
            if one[0] != "POSITION"
        ]


def test_a_follower_that_a_command_put_ahead_gets_no_fact_twice() -> None:
    """It has got the facts that the others wait for, and is elsewhere when these are sent."""
    setup = Setup(CURRENT, CURRENT, CURRENT)
    setup.append("push_rules")
    setup.append("push_rules")  # this one waits, as the first was just sent
    sender = setup.publisher.followers[1].sender
    assert sender is not None
    sender.send_command(RemoteServerUp(server="far.hs"))
    setup.append("push_rules")
    setup.pass_()

    facts = ["push_rules 1", "push_rules 2", "push_rules 3"]
    assert facts == setup.hears(0) == setup.hears(2)
    assert [facts[0], "REMOTE_SERVER_UP", *facts[1:]] == setup.hears(1)


def test_a_follower_that_is_paused_in_the_write_goes_on_behind_it() -> None:
    """Its transport's buffer is full with what it was just given."""
    setup = Setup(CURRENT, CURRENT)
    setup.transports[0].is_full = True
    for _ in range(3):
        setup.append("push_rules")
        setup.pass_()
    paused, setup.transports[0].is_full = setup.hears(0), False
    setup.transports[0].producer.resumeProducing()

    assert ["push_rules 1"] == paused
    assert ["push_rules 1", "push_rules 2", "push_rules 3"] == setup.hears(0) == setup.hears(1)


def test_a_fact_that_one_release_cannot_be_told_ends_its_followers_alone() -> None:
    """Those behind them in the list got nothing more, until the fact had left the ring."""
    setup = Setup(LEGACY, CURRENT)
    sender = setup.publisher.followers[0].sender
    assert sender is not None
    with patch.object(sender.encoder.release_encoder, "lines", side_effect=ZeroDivisionError):
        setup.append("push_rules", "push_rules")
        setup.pass_()

    assert ["push_rules 1", "push_rules 2"] == setup.hears(1)
    assert [True, False] == [transport.disconnecting for transport in setup.transports]


@pytest.mark.parametrize("seed", range(20))
def test_each_follower_gets_all_of_its_facts_in_order(seed: int) -> None:
    """Whoever was paused, left behind by the ring, or told something in between."""
    rng = random.Random(seed)
    setup = Setup(CURRENT, CURRENT, LEGACY, CURRENT, LEGACY, ring_bytes=rng.choice([1, 3_000, 10**6]))
    paused: set[int] = set()
    for _ in range(300):
        follower = rng.randrange(5)
        match rng.randrange(6):
            case 0 if follower in paused:
                paused.remove(follower)
                setup.transports[follower].producer.resumeProducing()
            case 0:
                paused.add(follower)
                setup.transports[follower].producer.pauseProducing()
            case 1:
                sender = setup.publisher.followers[follower].sender
                assert sender is not None
                sender.send_positions()
            case 2:
                setup.pass_(rng.choice([0.0, PUMP_SECONDS / 2, PUMP_SECONDS]))
            case _:
                setup.append(*rng.choices(["push_rules", "typing", "events"], k=rng.randrange(1, 4)))
    for follower in paused:
        setup.transports[follower].producer.resumeProducing()
    setup.pass_()

    for follower in range(5):
        for stream in ("push_rules", "events"):
            heard = [line for line in setup.hears(follower) if line.startswith(f"{stream} ")]
            upto = setup.log.positions(stream)["master"]
            assert [f"{stream} {token}" for token in range(1, upto + 1)] == heard
        typing = [int(line.split()[1]) for line in setup.hears(follower) if line.startswith("typing ")]
        assert sorted(set(typing)) == typing
        assert typing[-1] == setup.log.positions("typing")["master"]
