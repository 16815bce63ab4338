"""The log of a worker tells where it is connected and why it is not: each change once."""

from collections.abc import Iterator

import pytest
from twisted.internet import error
from twisted.internet.address import HostnameAddress
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent
from synrepl.transports.connection_monitor import MAX_REASONS, SILENT_SECONDS, ConnectionMonitor
from synrepl.transports.failures import address_text, describe_failure

CONNECTED = FollowerEvent(kind="connected")
GREETED = FollowerEvent(kind="server", text="example.org")


def lost(why: str, code: str = "") -> FollowerEvent:
    """A connection that ended, or could not be opened."""
    return FollowerEvent(kind="disconnected", text=why, code=code)


@implementer(ILogObserver)
class Monitored:
    """A follower without a connection, its monitor, and the lines in the log."""

    def __init__(self, *, is_http: bool = False) -> None:
        self.lines: list[tuple[str, str]] = []
        self.events: list[FollowerEvent] = []
        self.probes = 0
        self.is_http = is_http
        self.clock = Clock()
        self.follower = Follower(instance="pusher1", clock=self.clock)
        self.follower.on_event(self.events.append)
        self.monitor = ConnectionMonitor(
            self.follower, lambda: "tcp:h:1", clock=self.clock, speaks_http=self._speaks_http
        )

    def _speaks_http(self) -> "Deferred[bool]":
        self.probes += 1
        return succeed(self.is_http)

    def tell(self, *events: FollowerEvent) -> "Monitored":
        """Events of the follower, a second apart."""
        for event in events:
            self.follower.server.events.emit(event)
            self.clock.advance(1.0)
        return self

    def __call__(self, event: LogEvent) -> None:
        """An observer of the log."""
        self.lines.append((event["log_level"].name, formatEvent(event)))


@pytest.fixture(params=[False])
def monitored(request: pytest.FixtureRequest) -> Iterator[Monitored]:
    made = Monitored(is_http=request.param)
    globalLogPublisher.addObserver(made)
    yield made
    globalLogPublisher.removeObserver(made)


def test_each_connection_is_told_with_both_names(monitored: Monitored) -> None:
    """Silence in the log of a worker that works was read as a worker that does not."""
    monitored.tell(CONNECTED, GREETED)

    assert monitored.lines == [("info", "following tcp:h:1 as pusher1; the server is example.org")]


def test_a_reason_is_told_at_the_first_failure_and_when_it_changes(monitored: Monitored) -> None:
    """Attempts repeat every ten seconds, for days."""
    refused, unknown = lost("connection refused"), lost("no such host")
    monitored.tell(refused, refused, unknown, refused, unknown)

    advice = "is the server running, and is this its port for followers, by default 9092?"
    assert monitored.lines == [
        ("warn", f"cannot follow tcp:h:1, trying again: connection refused; {advice}"),
        ("warn", "cannot follow tcp:h:1, trying again: no such host"),
    ]


def test_a_lost_connection_and_its_return_are_reported(monitored: Monitored) -> None:
    """After a return the same reason is news again."""
    refused = lost("connection refused")
    monitored.tell(CONNECTED, GREETED, lost("the connection was lost"), refused, refused, CONNECTED, GREETED)
    monitored.tell(lost("the connection was lost"), refused)

    assert [(level, text.partition(";")[0]) for level, text in monitored.lines] == [
        ("info", "following tcp:h:1 as pusher1"),
        ("warn", "lost the connection to tcp:h:1, connecting again: the connection was lost"),
        ("warn", "cannot follow tcp:h:1, trying again: connection refused"),
        ("info", "following tcp:h:1 again"),
        ("warn", "lost the connection to tcp:h:1, connecting again: the connection was lost"),
        ("warn", "cannot follow tcp:h:1, trying again: connection refused"),
    ]
    assert monitored.lines[3][1].endswith("the connection was lost for 4.0 s")


def test_another_server_is_told_with_what_to_do(monitored: Monitored) -> None:
    """The greeting comes, but is refused."""
    why = "wrong server_name: the server is hs, expected example.org"
    monitored.tell(CONNECTED, lost(why, "wrong_server"), CONNECTED, lost(why, "wrong_server"))

    assert monitored.lines == [
        ("warn", f"cannot follow tcp:h:1, trying again: {why}; check the address, and server_name")
    ]
    assert monitored.probes == 0


@pytest.mark.parametrize("monitored", [True], indirect=True)
@pytest.mark.parametrize("is_closed", [True, False])
def test_the_port_of_http_is_recognized(is_closed: bool, monitored: Monitored) -> None:
    """It says nothing, as it waits for the end of a request, or it closes; neither ever passes."""
    monitored.tell(CONNECTED)
    if is_closed:
        monitored.tell(lost("the peer closed the connection"))
    else:
        monitored.clock.advance(SILENT_SECONDS)
    monitored.tell(CONNECTED, lost("the peer closed the connection"))

    assert monitored.probes == 1
    why = "it speaks HTTP, not the line protocol; use the port of the line protocol, by default 9092"
    assert ("warn", f"cannot follow tcp:h:1, trying again: {why}") in monitored.lines
    assert "bad_port" in {event.code for event in monitored.events}


def test_a_server_that_is_only_slow_is_waited_for(monitored: Monitored) -> None:
    """One probe, and a line for a server that accepts a connection and sends nothing."""
    monitored.tell(CONNECTED)
    monitored.clock.advance(SILENT_SECONDS)
    monitored.tell(GREETED)
    monitored.clock.advance(SILENT_SECONDS)

    assert monitored.probes == 1
    assert [level for level, _ in monitored.lines] == ["warn", "info"]
    assert "has sent no greeting for 3 s" in monitored.lines[0][1]
    assert {event.code for event in monitored.events} == {""}


def test_a_stop_is_no_loss(monitored: Monitored) -> None:
    """The connection then ends because this process wants it to."""
    monitored.tell(CONNECTED, GREETED)
    monitored.monitor.stop()
    monitored.tell(lost("closed by this process"))

    assert len(monitored.lines) == 1
    assert monitored.clock.getDelayedCalls() == []


def test_a_peer_cannot_fill_the_log_with_new_reasons(monitored: Monitored) -> None:
    """The text of a refusal is the peer's."""
    monitored.tell(*(lost(f"reason {number}") for number in range(MAX_REASONS * 3)))

    assert len(monitored.lines) <= MAX_REASONS * 2


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        (error.ConnectionRefusedError(111), "connection refused"),
        (error.DNSLookupError("no results for hostname lookup: x."), "no such host"),
        (error.TimeoutError(), "no answer"),
        (error.ConnectionDone(), "the peer closed the connection"),
        # A connection that was given up before there was an answer, as to a host that drops packets.
        (error.ConnectingCancelledError(HostnameAddress(b"10.0.0.2", 9093)), "no answer"),
        (ValueError("a\nb"), "a b"),
        (ValueError(), "ValueError"),
    ],
)
def test_failures_are_a_few_words(raised: Exception, text: str) -> None:
    """Not the sentences of Twisted, with the number of the error twice."""
    assert text == describe_failure(Failure(raised))


def test_addresses_are_written_as_operators_write_them() -> None:
    """Not as a Python object."""
    from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress

    assert address_text(IPv4Address("TCP", "127.0.0.1", 9092)) == "127.0.0.1:9092"
    assert address_text(IPv6Address("TCP", "::1", 9092)) == "[::1]:9092"
    assert address_text(UNIXAddress(b"/run/s")) == "/run/s"
