"""The link of this process to its own channel: what the peer is given, and what it publishes."""

from collections.abc import Callable, Sequence
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock

from synrepl.base.metrics import Metrics
from synrepl.channel import served_link
from synrepl.channel.ends import ChannelPublisher, ChannelSubscriber
from synrepl.channel.served_channel import ServedChannel
from synrepl.channel.served_link import GATHER_SECONDS, HOLD_SECONDS, REJOIN_SECONDS, ServedLink
from synrepl.errors import RemoteProtocolError
from synrepl.replication.membership.daemon_member import DaemonMember
from synrepl.wire.commands import RemoteServerUp, Replicate, UserIp
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun


class Member:
    """A peer that notes what it is told, and may act on it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.then: Callable[[], object] = lambda: None

    def subscriber_up(self) -> None:
        self.told.append("subscribed")

    def publisher_up(self) -> None:
        self.told.append("publishing")

    def subscriber_down(self, why: str) -> None:
        self.told.append(f"not subscribed: {why}")

    def publisher_down(self, why: str) -> None:
        self.told.append("not publishing")

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        self.told += [
            f"RDATA {one.tokens}" if isinstance(one, RdataRun) else type(one).__name__ for one in commands
        ]
        then, self.then = self.then, lambda: None
        then()


class Setup:
    """A link, its member, a process that publishes and one that subscribes."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.member = Member()
        self.rooms = 0
        self.channel = ServedChannel(
            self.clock, "hs", is_ephemeral=lambda stream: False, metrics=Metrics(CollectorRegistry())
        )
        self.link = ServedLink(
            self.clock,
            cast(DaemonMember, self.member),
            self.channel,
            instance="us",
            metrics=Metrics(CollectorRegistry()),
            on_space=self._on_space,
        )
        self.process = ChannelPublisher()
        self.data = b""
        self.channel.use(ingest=self.link.take)
        self.link.start()
        self.channel.subscribe(ChannelSubscriber(self._keep), b"hs")

    def _on_space(self) -> None:
        self.rooms += 1

    def _keep(self, data: bytes) -> None:
        self.data += data

    def say(self, *lines: bytes) -> None:
        """The process publishes these lines."""
        self.channel.publish(self.process, lines)

    def told(self) -> list[str]:
        """What the member was told since the last time."""
        found = self.member.told[:]
        self.member.told.clear()
        return found


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_lines_that_come_together_are_given_together(setup: Setup) -> None:
    """The first at once: a quiet channel has no delay."""
    setup.say(b"REPLICATE ")
    assert ["subscribed", "publishing", "Replicate"] == setup.told()
    for token in (6, 7, 8):
        setup.say(b"RDATA events w %d [1]" % token)
    assert [] == setup.told()

    setup.clock.advance(GATHER_SECONDS)

    assert "RDATA [6, 7, 8]" in setup.told()


def test_many_lines_are_given_in_turns(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waited while the log took nothing may be half a million of them."""
    monkeypatch.setattr(served_link, "LINES_AT_ONCE", 2)
    setup.link.pause_reading()
    setup.say(*(b"REMOTE_SERVER_UP x%d" % number for number in range(5)))
    setup.told()
    setup.link.resume_reading()
    counts = [len(setup.told())]
    while setup.link.unread_bytes:
        call = setup.clock.calls.pop(0)
        call.called = 1
        call.func()
        counts.append(len(setup.told()))
    assert counts == [2, 2, 1]


def test_what_the_peer_publishes_comes_back_after_what_it_was_given(setup: Setup) -> None:
    """As over a Redis: to the subscribers, and to itself."""
    setup.told()
    setup.member.then = lambda: setup.link.send(Replicate())
    setup.say(b"REMOTE_SERVER_UP a", b"REMOTE_SERVER_UP b")

    assert ["RemoteServerUp", "RemoteServerUp", "Replicate"] == setup.told()
    assert setup.data.endswith(b"REPLICATE \r\n")


def test_a_command_with_a_channel_of_its_own_goes_there(setup: Setup) -> None:
    beside: list[bytes] = []
    setup.channel.subscribe(ChannelSubscriber(beside.append), b"hs/USER_IP")
    setup.told()
    setup.link.send(UserIp(user_id="@a:hs", seen=["token", "1.2.3.4", "ua", None, 1]))

    assert b"token" in b"".join(beside)
    assert b"token" not in setup.data
    setup.clock.advance(1)
    assert [] == setup.told()


def test_publishers_wait_while_the_peer_takes_nothing(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """And go on when it has taken what waited, however that came to wait."""
    monkeypatch.setattr(served_link, "MAX_UNREAD", 50)
    setup.link.pause_reading()
    setup.say(*[b"REMOTE_SERVER_UP a"] * 5)
    assert setup.link.is_full

    setup.link.resume_reading()
    assert (False, 1) == (setup.link.is_full, setup.rooms)

    setup.say(*[b"REMOTE_SERVER_UP a"] * 5)  # within the time in which lines are gathered
    assert setup.link.is_full
    setup.clock.advance(GATHER_SECONDS)
    assert (False, 2) == (setup.link.is_full, setup.rooms)


def test_a_log_that_takes_nothing_does_not_stop_the_channel(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers wait for a while. Then the log gets nothing, and asks for what it lacks."""
    monkeypatch.setattr(served_link, "MAX_UNREAD", 50)
    setup.told()
    setup.link.pause_reading()
    setup.say(*[b"REMOTE_SERVER_UP a"] * 5)
    setup.clock.advance(HOLD_SECONDS - 0.1)
    assert setup.link.is_full

    setup.clock.advance(0.1)
    setup.clock.advance(0)

    assert (False, 1, 1) == (setup.link.is_full, setup.rooms, setup.link.interruptions)
    assert ["not subscribed: the log does not take what is published", "not publishing"] == setup.told()
    setup.clock.advance(REJOIN_SECONDS)
    assert ["subscribed", "publishing"] == setup.told()
    setup.link.pause_reading()
    setup.say(*[b"REMOTE_SERVER_UP a"] * 5)
    setup.clock.advance(0)  # at once now: it has taken nothing since
    assert (False, 2) == (setup.link.is_full, setup.link.interruptions)


def test_a_line_that_is_no_command_is_counted(setup: Setup) -> None:
    setup.say(b"NONSENSE", b"REMOTE_SERVER_UP a")

    assert "RemoteServerUp" in setup.told()
    assert 1 == setup.link.messages_refused


def test_a_peer_that_finds_fault_joins_again(setup: Setup) -> None:
    """It asks for all positions then; what it publishes meanwhile goes nowhere."""

    def fail() -> None:
        raise RemoteProtocolError("that makes no sense")

    setup.told()
    setup.member.then = fail
    setup.say(b"REMOTE_SERVER_UP a")
    setup.clock.advance(0)
    setup.data = b""
    setup.link.send(RemoteServerUp(server="b"))
    setup.say(b"REMOTE_SERVER_UP c")

    assert ["RemoteServerUp", "not subscribed: that makes no sense", "not publishing"] == setup.told()
    assert b"REMOTE_SERVER_UP b" not in setup.data
    setup.clock.advance(REJOIN_SECONDS)
    assert ["subscribed", "publishing"] == setup.told()
    setup.link.stop()
    assert [] == setup.clock.getDelayedCalls()
