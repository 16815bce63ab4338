"""A listener makes what it speaks with its first connection."""

from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Factory, Protocol

from synrepl.transports.late_factory import LateFactory

PEER = IPv4Address("TCP", "127.0.0.1", 40_000)


class Recorder(Factory):
    """Records what is asked of it."""

    noisy = False
    protocol = Protocol

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls
        calls.append("made")

    def startFactory(self) -> None:
        self._calls.append("started")

    def buildProtocol(self, addr: object) -> Protocol:
        self._calls.append("connected")
        return Protocol()

    def stopFactory(self) -> None:
        self._calls.append("stopped")


def test_the_first_connection_makes_the_factory_and_all_connections_use_it() -> None:
    """A port that opens and closes again, as one of an idle daemon does, never needs one."""
    calls: list[str] = []
    late = LateFactory("followers", lambda: Recorder(calls))

    late.doStart()
    assert calls == []
    assert isinstance(late.buildProtocol(PEER), Protocol)
    assert isinstance(late.buildProtocol(PEER), Protocol)
    late.doStop()

    assert calls == ["made", "started", "connected", "connected", "stopped"]


def test_a_port_to_which_nobody_connects_makes_nothing() -> None:
    """Nothing has to be stopped then."""
    calls: list[str] = []
    late = LateFactory("followers", lambda: Recorder(calls))

    late.doStart()
    late.doStop()

    assert calls == []


def test_log_messages_name_the_listener() -> None:
    """Before the first connection, too."""
    late = LateFactory("followers", lambda: Recorder([]))

    assert late.logPrefix() == "followers"
