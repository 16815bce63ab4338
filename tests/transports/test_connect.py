"""What `synrepl.connect` and `Follower` refuse, and what a log says of connections that cannot work."""

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import formatEvent, globalLogPublisher
from twisted.python.failure import Failure

import synrepl
from synrepl.base.limited_logger import MAX_LOGGED, REPEAT_SECONDS
from synrepl.errors import ConfigError
from synrepl.replication.addresses import Address
from synrepl.replication.follower.updates import FollowerEvent
from synrepl.testing import Cluster
from synrepl.wire.commands import Error


def logged(work: Callable[[], object]) -> list[str]:
    """The lines that are logged meanwhile."""
    lines: list[str] = []

    observe: Any = lambda event: lines.append(formatEvent(event))  # noqa: E731
    globalLogPublisher.addObserver(observe)
    try:
        work()
    finally:
        globalLogPublisher.removeObserver(observe)
    return lines


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9092", "http://127.0.0.1:9093", "tcp:9092", "tcpp:h:1", ""])
def test_an_endpoint_that_is_none_is_refused_with_an_example(endpoint: str) -> None:
    """Twisted says only that an endpoint type is unknown."""
    with pytest.raises(
        ConfigError, match=r"an endpoint must be a Twisted client .* such as tcp:localhost:9092"
    ):
        synrepl.connect(MemoryReactorClock(), endpoint, synrepl.Follower(instance="pusher1"))


@pytest.mark.parametrize("http", ["127.0.0.1:9093", "tcp:h:1", "", "http://"])
def test_an_address_of_http_that_is_none_is_refused_with_an_example(http: str) -> None:
    """It was noticed at the first gap."""
    with pytest.raises(ConfigError, match=r"http must be a URL such as http://127\.0\.0\.1:9093, not "):
        synrepl.connect(MemoryReactorClock(), "tcp:h:1", synrepl.Follower(instance="pusher1"), http=http)


def test_a_mistyped_start_is_refused() -> None:
    """It meant latest, without a word."""
    with pytest.raises(ConfigError, match="latest or earliest, not 'earlist'; did you mean earliest"):
        synrepl.Follower(instance="pusher1", start="earlist")  # type: ignore[arg-type]


def test_a_port_that_closes_without_a_greeting_may_be_one_with_tls() -> None:
    """A server with TLS waits for a handshake, and closes at anything else."""
    reactor = MemoryReactorClock()
    follower = synrepl.Follower(instance="pusher1")
    events: list[FollowerEvent] = []
    follower.on_event(events.append)
    synrepl.connect(reactor, "tcp:h:1", follower).startService()
    protocol: Any = reactor.tcpClients[0][2].buildProtocol(None)
    protocol.makeConnection(StringTransport())

    protocol.connectionLost(Failure(ConnectionDone()))

    assert events[-1].text == (
        "the peer closed the connection before it sent anything; if it listens with TLS, use tls: in place of"
        " tcp:"
    )


def test_a_problem_that_lasts_is_logged_once_a_minute() -> None:
    """Each retry of a fetch met the same refusal."""
    reactor = MemoryReactorClock()
    events = synrepl.Follower(instance="pusher1", clock=reactor).server.events

    def meet() -> None:
        for text in ("refused", "refused", "unknown host", "refused"):
            events.emit(FollowerEvent(kind="error", text=text))

    assert logged(meet) == ["refused", "unknown host"]
    reactor.advance(REPEAT_SECONDS)
    assert logged(meet) == ["refused", "unknown host"]
    for number in range(MAX_LOGGED * 3):
        events.emit(FollowerEvent(kind="error", text=f"reason {number}"))
    assert len(events._logged) <= MAX_LOGGED


def test_the_log_of_a_daemon_names_the_follower_that_sends_an_error() -> None:
    """Which of forty workers expects another homeserver?"""
    cluster = Cluster()
    commands = cluster.daemon.publisher.follower_commands

    lines = logged(lambda: commands.received(object(), Error(text="wrong server_name"), "pusher1"))

    assert lines == ["pusher1 sent ERROR: wrong server_name"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (Address("tcp:h:1"), "tcp:h:1"),
        (Address(http="http://h:2"), "http://h:2"),
        (Address("tcp:h:1", "http://h:2"), "tcp:h:1, http://h:2"),
    ],
)
def test_an_address_in_a_message_has_its_known_halves(address: Address, words: str) -> None:
    """Not the - of the other one."""
    assert address.words == words
