"""A channel of two daemons: what goes up, what comes down, and what an interruption does."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock
from twisted.logger import Logger

from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.metrics import Metrics
from synrepl.channel import downlink as channel_downlink
from synrepl.channel import ends as channel_ends
from synrepl.channel import publisher_limits
from synrepl.channel import uplink as channel_uplink
from synrepl.channel.downlink import ChannelDownlink
from synrepl.channel.ends import ChannelPublisher, ChannelSubscriber
from synrepl.channel.resp_codec import message
from synrepl.channel.served_channel import ServedChannel
from synrepl.channel.uplink import MAX_AGE_SECONDS, ChannelUplink
from synrepl.errors import RemoteProtocolError
from tests.channel.channel_lines import MAIN, Subscription


class Published(NamedTuple):
    """A line on its way up."""

    publisher: str
    channel: str
    line: str


class Lost(NamedTuple):
    """A publisher that is gone."""

    publisher: str


class Place:
    """A daemon's channel, a client that subscribes there, and one that publishes."""

    def __init__(self, clock: Clock, *, only_durable: bool = False) -> None:
        self.channel = ServedChannel(
            clock,
            "hs",
            is_ephemeral=lambda stream: stream == "typing",
            metrics=Metrics(CollectorRegistry()),
            is_durable=(lambda source, token: False) if only_durable else None,
            only_durable=only_durable,
        )
        self.ingested: list[str] = []
        self.use()
        self.publisher = ChannelPublisher()
        self.subscription = Subscription()
        self.channel.subscribe(ChannelSubscriber(self.subscription.write), MAIN)

    def use(self, uplink: ChannelUplink | None = None) -> None:
        """What is published is kept, and goes up."""
        self.channel.use(
            ingest=lambda lines: self.ingested.extend(line.decode() for line in lines), uplink=uplink
        )

    def say(self, *lines: str) -> None:
        """The client publishes these lines."""
        self.channel.publish(self.publisher, [line.encode() for line in lines])

    @property
    def heard(self) -> list[str]:
        """The lines that the subscriber got since the last time, without questions for positions."""
        return self.subscription.take_but_questions()


class Pair:
    """A primary and a replica; `connect` joins them. What goes up is kept in `sent`."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.above, self.below = Place(self.clock), Place(self.clock)
        self.uplink = ChannelUplink(self.below.channel, self.clock, Metrics(CollectorRegistry()))
        self.below.use(self.uplink)
        self.downlink: ChannelDownlink | None = None
        self.is_full = False
        self.on_channel: Callable[[bytes], None] = lambda data: None
        self.on_space: Callable[[], None] = lambda: None
        self.allowed: set[str] | None = None
        self.longest = 1000
        self.sent: list[Published | Lost] = []

    def encode_published(self, publisher: str, channel: str, lines: Sequence[bytes]) -> bytes | None:
        """The lines wait here until they are written."""
        if any(len(line) > self.longest for line in lines):
            return None
        return b"".join(self._keep(Published(publisher, channel, line.decode())) for line in lines)

    def encode_lost(self, publisher: str) -> bytes | None:
        """It waits here, too."""
        return self._keep(Lost(publisher))

    def _keep(self, sent: Published | Lost) -> bytes:
        self.sent.append(sent)
        return b"%d " % (len(self.sent) - 1)

    def write(self, data: bytes) -> None:
        """Give what waits to the other end."""
        for number in data.split():
            assert self.downlink is not None
            match self.sent[int(number)]:
                case Lost(publisher):
                    self.downlink.publisher_lost(publisher)
                case Published(publisher, channel, line):
                    self.downlink.published(publisher, channel, line)

    def join_channel(self) -> None:
        """The other end passes its channel."""
        self.downlink = ChannelDownlink(
            self.above.channel,
            lambda data: self.on_channel(data),  # noqa: PLW0108  # it is set later
            name="below",
            owner="",
            refusal=self._refusal,
            logger=LimitedLogger(Logger(), self.clock),
        )
        self.downlink.start(is_full=False)

    def _refusal(self, line: bytes) -> str:
        is_allowed = self.allowed is None or line.decode().split(" ")[2] in self.allowed
        return "" if is_allowed else "the key may not publish under this name"

    def connect(self) -> None:
        """The replica has subscribed."""
        self.uplink.connected(self)

    def disconnect(self) -> None:
        """The connection is lost."""
        self.uplink.disconnected()
        assert self.downlink is not None
        self.downlink.stop()
        self.downlink = None


@pytest.fixture
def pair() -> Pair:
    made = Pair()
    made.connect()
    return made


def positions(place: Place, *writers: str) -> None:
    """These writers are at 5 in `events`."""
    place.say(*(f"POSITION events {writer} 5 5" for writer in writers))


def test_lines_go_to_both_daemons_once(pair: Pair) -> None:
    """And into the log of the primary, wherever they were published."""
    positions(pair.above, "a")
    positions(pair.below, "b")
    assert pair.above.heard == pair.below.heard == ["POSITION events a 5 5", "POSITION events b 5 5"]
    pair.above.say("RDATA events a batch [1]", "RDATA events a 6 [2]", "REMOTE_SERVER_UP x")
    pair.below.say("RDATA events b batch [3]", "RDATA events b 7 [4]", "REMOTE_SERVER_UP y")

    expected = [
        "RDATA events a batch [1]",
        "RDATA events a 6 [2]",
        "REMOTE_SERVER_UP x",
        "RDATA events b batch [3]",
        "RDATA events b 7 [4]",
        "REMOTE_SERVER_UP y",
    ]
    assert expected == pair.above.heard == pair.below.heard == pair.above.ingested[-6:]


def test_a_sub_channel_goes_to_its_subscribers_at_both(pair: Pair) -> None:
    beside: dict[str, list[bytes]] = {"above": [], "below": []}
    pair.above.channel.subscribe(ChannelSubscriber(beside["above"].append), b"hs/USER_IP")
    pair.below.channel.subscribe(ChannelSubscriber(beside["below"].append), b"hs/USER_IP")
    for place in (pair.above, pair.below):
        place.channel.publish_beside(place.publisher, b"hs/USER_IP", b"USER_IP x")

    assert [message(b"hs/USER_IP", b"USER_IP x")] * 2 == beside["above"] == beside["below"]


def test_who_joins_is_told_the_positions_of_the_other_side_only() -> None:
    """Its own writers' positions would come back as if another process had said them."""
    pair = Pair()
    positions(pair.above, "a")
    positions(pair.below, "b")
    assert pair.below.heard == ["POSITION events b 5 5"]

    pair.connect()

    assert b"REPLICATE" in pair.below.subscription.data
    assert pair.below.heard == ["POSITION events a 5 5"]
    # The primary asks all writers, those at the replica too.
    positions(pair.below, "b")
    pair.below.say("RDATA events b 6 [1]")
    assert ["POSITION events b 5 5", "RDATA events b 6 [1]"] == pair.above.heard[-2:]
    assert pair.below.heard == ["POSITION events b 5 5", "RDATA events b 6 [1]"]


def test_nothing_is_believed_after_an_interruption_before_a_position(pair: Pair) -> None:
    """Meanwhile each daemon serves its own clients. Commands wait; who lacks rows fetches them."""
    positions(pair.above, "a")
    positions(pair.below, "b")
    pair.disconnect()
    pair.above.say("RDATA events a 6 [1]")
    pair.below.say("RDATA events b 7 [2]", "REMOTE_SERVER_UP y")
    assert pair.above.heard[-1:] == ["RDATA events a 6 [1]"]
    assert pair.below.heard[-2:] == ["RDATA events b 7 [2]", "REMOTE_SERVER_UP y"]

    late = Subscription()
    pair.below.channel.subscribe(ChannelSubscriber(late.write), MAIN)
    assert late.take() == ["POSITION events b 7 7"]

    before = len(pair.sent)
    pair.connect()
    assert pair.below.heard == ["POSITION events a 6 6"]
    assert pair.above.heard == ["REMOTE_SERVER_UP y"]
    assert not any("RDATA" in getattr(one, "line", "") for one in pair.sent[before:])
    pair.below.say("RDATA events b 8 [3]", "POSITION events b 8 8", "RDATA events b 9 [4]")

    assert pair.above.heard == ["POSITION events b 8 8", "RDATA events b 9 [4]"]
    # The log is given what nobody believes, too: it asks for what it lacks itself.
    assert "RDATA events b 8 [3]" in pair.above.ingested


def test_a_batch_that_an_interruption_cut_is_not_passed_in_part(pair: Pair) -> None:
    """The log would take its rest for the whole."""
    positions(pair.below, "b")
    pair.below.say("RDATA events b batch [1]")
    pair.disconnect()
    pair.connect()
    pair.below.say("RDATA events b 6 [2]")

    assert ["RDATA events b batch [1]", "RDATA events b 6 [2]"] == pair.above.ingested[-2:]
    assert ["RDATA events b batch [1]", "RDATA events b 6 [2]"] == pair.below.heard[-2:]


def test_a_publisher_that_is_lost_below_is_lost_above(pair: Pair) -> None:
    """Its last lines may be: its rows are believed again after a position."""
    positions(pair.below, "b")
    pair.below.channel.publisher_lost(pair.below.publisher)
    pair.below.publisher = ChannelPublisher()
    assert pair.above.heard == ["POSITION events b 5 5"]
    pair.below.say("RDATA events b 9 [1]")

    assert pair.above.heard == []
    assert any(isinstance(one, Lost) for one in pair.sent)


def test_rows_that_are_refused_below_are_lost_above() -> None:
    """They never go up, so that the upstream would believe the next one."""
    pair = Pair()
    pair.below = Place(pair.clock, only_durable=True)
    pair.uplink = ChannelUplink(pair.below.channel, pair.clock, Metrics(CollectorRegistry()))
    pair.below.use(pair.uplink)
    pair.connect()
    positions(pair.below, "b")
    pair.below.say("RDATA events b 6 [1]")
    pair.clock.advance(5)
    assert pair.below.channel.refuses(pair.below.publisher, b"RDATA events b 7 [1]")
    pair.below.say("RDATA events b 8 [1]")

    assert pair.above.heard == ["POSITION events b 5 5", "RDATA events b 6 [1]"]


def test_a_writer_may_move_to_another_daemon(pair: Pair) -> None:
    """Its first connection may be dead without anybody knowing, and lines may be lost in it."""
    positions(pair.below, "w")
    assert pair.above.heard == pair.below.heard
    pair.above.say("RDATA events w 8 [1]")
    assert ([], []) == (pair.above.heard, pair.below.heard)
    pair.above.say("POSITION events w 8 8", "RDATA events w 9 [1]")

    assert ["POSITION events w 8 8", "RDATA events w 9 [1]"] == pair.above.heard == pair.below.heard


def test_what_waits_for_a_slow_upstream_is_dropped_whole(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the upstream is told, so that it asks for the positions."""
    monkeypatch.setattr(channel_uplink, "MAX_WAITING", 60)
    positions(pair.below, "b")
    pair.is_full = True
    pair.below.say("RDATA events b 6 [1]", "RDATA events b 7 [1]")
    assert pair.above.heard == ["POSITION events b 5 5"]
    pair.below.say("RDATA events b 8 [1]", "REMOTE_SERVER_UP x")
    assert Lost("*") == pair.sent[-1]
    pair.is_full = False
    pair.on_space()
    pair.below.say("RDATA events b 9 [1]")
    assert pair.above.heard == []

    pair.below.say("POSITION events b 9 9", "RDATA events b 10 [1]")

    assert pair.above.heard == ["POSITION events b 9 9", "RDATA events b 10 [1]"]
    assert 1 == pair.uplink.overflows
    assert [f"RDATA events b {n} [1]" for n in (6, 7, 8, 9)] == [
        line for line in pair.below.heard if "RDATA" in line
    ][:4]


def test_a_slow_replica_is_told_what_it_lacks_of_the_other_side(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of its own: it has told that itself."""
    monkeypatch.setattr(channel_ends, "MAX_WAITING", 60)
    positions(pair.above, "a")
    positions(pair.below, "b")
    assert len(pair.below.heard) == 2
    assert pair.downlink is not None
    pair.downlink.pause()
    pair.above.say(*(f"RDATA events a {n} [1]" for n in (6, 7, 8)))
    pair.above.say("RDATA events a 9 [1]")
    pair.downlink.resume()

    assert pair.below.heard == ["POSITION events a 9 9"]


def test_a_slow_upstream_gets_all_once_it_reads(pair: Pair) -> None:
    positions(pair.below, "b")
    pair.is_full = True
    pair.below.say("RDATA events b 6 [1]", "RDATA events b 7 [1]")
    pair.is_full = False
    pair.on_space()

    assert pair.above.heard[-2:] == ["RDATA events b 6 [1]", "RDATA events b 7 [1]"]


def test_commands_that_waited_too_long_are_not_passed_on(pair: Pair) -> None:
    """A user has stopped syncing, a lock has run out."""
    pair.disconnect()
    pair.below.say("USER_SYNC w @a:hs start 1")
    pair.clock.advance(MAX_AGE_SECONDS + 1)
    pair.below.say("USER_SYNC w @b:hs start 1")
    pair.connect()

    assert pair.above.heard == ["USER_SYNC w @b:hs start 1"]
    assert 1 == pair.uplink.expired


def test_a_line_that_is_too_long_for_the_way_up_is_counted(pair: Pair) -> None:
    """Its subscribers here have it; its writer is asked for the rest."""
    pair.longest = 40
    positions(pair.below, "b")
    pair.below.say(f"RDATA events b batch [1{'0' * 40}]", "RDATA events b 6 [2]", "RDATA events b 7 [1]")

    assert pair.above.heard == ["POSITION events b 5 5"]
    assert pair.above.ingested[-1:] == ["RDATA events b 7 [1]"]
    assert 4 == len(pair.below.heard)
    assert any(isinstance(one, Lost) for one in pair.sent)
    assert 1 == pair.uplink.too_long


def test_rows_of_names_that_the_replica_may_not_write_are_refused(pair: Pair) -> None:
    """It stays connected: a client of it was wrong."""
    pair.allowed = {"b"}
    pair.below.say("POSITION events a 5 5")
    positions(pair.below, "b")

    assert pair.above.heard == ["POSITION events b 5 5"]
    assert pair.downlink is not None
    assert 1 == pair.downlink.refused


def test_a_daemon_that_is_promoted_passes_nothing_up(pair: Pair) -> None:
    pair.uplink.stop()
    pair.below.use()
    sent = len(pair.sent)
    positions(pair.below, "b")

    assert sent == len(pair.sent)
    assert pair.below.heard == ["POSITION events b 5 5"]


def test_daemons_that_follow_each_other_in_a_circle_are_told(pair: Pair) -> None:
    """Lines would go round for ever."""
    pair.below.say("REMOTE_SERVER_UP x")
    sent = pair.sent[-1]
    assert isinstance(sent, Published)
    circle = Pair()
    circle.above = pair.below
    circle.connect()
    assert circle.downlink is not None
    with pytest.raises(RemoteProtocolError, match="this daemon follows you"):
        circle.downlink.published(*sent)


def test_a_replica_has_a_number_of_publishers(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_downlink, "MAX_PUBLISHERS", 1)
    assert pair.downlink is not None
    pair.downlink.published("x.1", "", "REMOTE_SERVER_UP x")
    with pytest.raises(RemoteProtocolError, match="more than 1 publishers"):
        pair.downlink.published("x.2", "", "REMOTE_SERVER_UP x")


def test_batches_at_a_replica_are_bounded_together(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names its publishers itself. One that is lost leaves room."""
    monkeypatch.setattr(channel_downlink, "MAX_HELD", 60)
    assert pair.downlink is not None
    row = "RDATA events {} batch [1]"
    for name in ("x.1", "x.2"):
        pair.downlink.published(name, "", row.format(name))
    assert pair.above.channel.limits.count == 2
    pair.downlink.published("x.3", "", row.format("x.3"))
    assert pair.above.channel.limits.count == 2
    pair.downlink.publisher_lost("x.1")
    pair.downlink.published("x.3", "", row.format("x.3"))
    assert pair.above.channel.limits.count == 2


def test_too_many_writers_do_not_end_the_connection(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of the replica comes over it."""
    positions(pair.above, "a")
    monkeypatch.setattr(publisher_limits, "MAX_WRITERS", 1)
    pair.on_channel(message(MAIN, b"POSITION events b 5 5"))
    monkeypatch.undo()
    assert pair.below.heard == ["POSITION events a 5 5"]
    pair.above.say("RDATA events a 6 [1]")
    assert pair.below.heard == []
    positions(pair.above, "a")

    assert pair.below.heard == ["POSITION events a 5 5"]


def test_what_comes_down_must_be_messages(pair: Pair) -> None:
    with pytest.raises(RemoteProtocolError, match="no message"):
        pair.on_channel(b"*1\r\n$4\r\nPING\r\n")
