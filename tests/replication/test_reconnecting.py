"""`ReconnectingClientFactory` of Twisted decides about the pauses, and `AddressList` about the address."""

import random
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.protocol import Factory, ReconnectingClientFactory
from twisted.internet.testing import StringTransport

from synrepl.base.metrics import Metrics
from synrepl.replication.follower.follower import Follower
from synrepl.streams.table import StreamTable
from synrepl.testing import MemoryEndpoint, Network
from synrepl.testing.heap_clock import HeapClock
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire.dialect import CURRENT
from tests.raw_peer import RawPeer, raw_server

TABLE = StreamTable.default()


class Attempts:
    """A follower whose servers are away, unless they are made; notes when it tries which address."""

    def __init__(self, *addresses: str, **attributes: float) -> None:
        self.clock = HeapClock()
        self.network = Network(self.clock)
        self.tried: list[tuple[float, str]] = []
        follower = Follower(instance="worker", clock=self.clock)
        follower.on(TABLE["push_rules"])(lambda updates: None)
        self.factory = FollowerFactory(
            follower,
            dialect=CURRENT,
            expected_server=None,
            clock=self.clock,
            metrics=Metrics(CollectorRegistry()),
            on_attempt=lambda address: self.tried.append((round(self.clock.seconds(), 2), address)),
        )
        self.factory.jitter = 0.0
        for name, value in attributes.items():
            setattr(self.factory, name, value)
        self.addresses = addresses or ("a",)

    def start(self) -> None:
        self.factory.connect({one: MemoryEndpoint(self.network, "worker", one) for one in self.addresses})

    def pauses(self, seconds: float) -> list[float]:
        """The seconds between two attempts, in this time."""
        self.wait(seconds)
        times = [at for at, _ in self.tried]
        return [round(later - at, 1) for at, later in pairwise(times)]

    def wait(self, seconds: float) -> None:
        self.clock.pump([0.01] * round(seconds * 100))


def test_the_pauses_are_those_of_twisted() -> None:
    """From 0.4 s on each is `factor` times the one before, and none is an hour: at most 10 s."""
    attempts = Attempts()
    attempts.start()

    assert [0.4, 1.1, 3.0, 8.0, 10.0, 10.0] == attempts.pauses(33)
    assert ReconnectingClientFactory.factor == attempts.factory.factor
    assert ReconnectingClientFactory.jitter == FollowerFactory.jitter


def test_a_factory_can_be_set_as_any_of_twisted() -> None:
    """Its attributes are Twisted's, and so is what they mean."""
    attempts = Attempts(initialDelay=1.0, delay=1.0, factor=2.0, maxDelay=3.0)
    attempts.start()

    assert [1.0, 2.0, 3.0, 3.0] == attempts.pauses(9.5)


def test_jitter_sets_followers_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were disconnected together do not all come back in the same moment."""
    monkeypatch.setattr(random, "normalvariate", random.Random(20261128).normalvariate)
    attempts = [Attempts(jitter=ReconnectingClientFactory.jitter) for _ in range(5)]
    for one in attempts:
        one.start()
        one.wait(33)

    assert len({tuple(one.tried) for one in attempts}) > 1


def test_there_is_no_pause_within_a_round_of_addresses() -> None:
    """And one of Twisted's before the next round."""
    attempts = Attempts("a", "b", "c")
    attempts.start()
    pauses = attempts.pauses(5)

    assert ["a", "b", "c", "a", "b", "c", "a"] == [address for _, address in attempts.tried[:7]]
    assert [0.0, 0.0, 0.4, 0.0, 0.0, 1.1] == pauses[:6]


def test_the_first_position_resets_the_delay() -> None:
    """A server that accepts, greets and drops each connection is not hammered."""
    attempts = Attempts()
    servers = raw_server(attempts.network, "a")
    attempts.start()
    attempts.wait(0.05)

    def dropped(*lines: str) -> float:
        """The pause after a connection in which the server has said these lines."""
        before = len(servers)
        servers[-1].says(*lines)
        attempts.wait(0.05)
        servers[-1].drop()
        at = attempts.clock.seconds()
        while len(servers) == before:
            attempts.wait(0.01)
        return round(attempts.clock.seconds() - at, 1)

    connected = [dropped("SERVER hs"), dropped("SERVER hs"), dropped("SERVER hs")]
    positioned = [dropped("SERVER hs", "POSITION push_rules master 1 1"), dropped("SERVER hs")]

    assert [0.4, 1.1, 3.0] == connected
    assert [0.4, 1.1] == positioned


@pytest.mark.parametrize("addresses", [("a",), ("a", "b")])
@pytest.mark.parametrize("seconds", [0.0, 0.2, 2.0])
def test_stop_ends_all_attempts(addresses: tuple[str, ...], seconds: float) -> None:
    """Whether it waits for the next round or for an attempt."""
    attempts = Attempts(*addresses)
    attempts.start()
    attempts.wait(seconds)

    attempts.factory.stop()
    before = list(attempts.tried)
    attempts.wait(60)

    assert before == attempts.tried
    assert [] == attempts.clock.getDelayedCalls()


def test_a_position_after_stop_does_not_begin_again() -> None:
    """Twisted's `resetDelay` switches reconnecting on; the first POSITION may be applied after `stop`."""
    attempts = Attempts()
    servers: list[RawPeer] = raw_server(attempts.network, "a")
    attempts.start()
    attempts.wait(0.05)

    attempts.factory.stop()
    attempts.factory.resetDelay()
    attempts.wait(60)

    assert 1 == len(servers)


class Handshaking:
    """As an endpoint with TLS: it makes the protocol, which is connected after the handshake, or never."""

    def __init__(self) -> None:
        self.protocols: list[Any] = []
        self.given_up: list[Any] = []

    def connect(self, factory: Factory) -> Any:
        protocol = factory.buildProtocol(None)
        self.protocols.append(protocol)
        return Deferred(lambda _: self.given_up.append(protocol))


def handshaking() -> tuple[Attempts, Handshaking]:
    """A follower whose first server accepts, and says no word of TLS."""
    attempts, silent = Attempts("silent", "b"), Handshaking()
    attempts.factory.connect(
        {"silent": silent, "b": MemoryEndpoint(attempts.network, "worker", "b")}  # type: ignore[dict-item]
    )
    return attempts, silent


def test_a_server_that_does_not_complete_the_handshake_is_left() -> None:
    """After the time that each of several addresses has to greet, and not after that of the handshake."""
    attempts, silent = handshaking()
    servers = raw_server(attempts.network, "b")
    attempts.wait(4)

    assert [(0.0, "silent"), (3.01, "b")] == attempts.tried
    assert silent.protocols == silent.given_up
    assert servers[0].is_connected
    attempts.factory.stop()


def test_stop_gives_up_a_handshake() -> None:
    """There is no connection to close yet."""
    attempts, silent = handshaking()
    attempts.wait(1)

    attempts.factory.stop()
    attempts.wait(60)

    assert silent.protocols == silent.given_up
    assert [(0.0, "silent")] == attempts.tried
    assert [] == attempts.clock.getDelayedCalls()


def test_a_connection_that_was_given_up_before_it_was_made_is_aborted() -> None:
    """Its session has ended: it would read nothing, send nothing and have no timeout, and stay for good."""
    attempts = Attempts()
    attempts.start()
    protocol = attempts.factory.buildProtocol(None)
    transport = StringTransport()

    protocol.abort()
    protocol.makeConnection(transport)

    assert transport.disconnecting
    assert b"" == transport.value()
    assert not attempts.factory.follower.is_connected


def test_a_connector_that_fails_at_once_does_not_recurse() -> None:
    """A round of many addresses that cannot be tried at all."""
    attempts = Attempts(*map(str, range(500)))

    class Failing:
        def connect(self, factory: Factory) -> Any:
            return fail(Refused())

    attempts.factory.connect({one: Failing() for one in attempts.addresses})  # type: ignore[misc]
    attempts.wait(6)

    assert len(attempts.tried) >= 500
    attempts.factory.stop()
