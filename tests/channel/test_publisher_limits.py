"""What publishers and subscribers may fill of a channel, and that it is free again once they are gone."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock

from synrepl.base.metrics import Metrics
from synrepl.channel import publisher_limits, served_channel
from synrepl.channel.ends import ChannelPublisher, ChannelSubscriber
from synrepl.channel.position_teller import POSITIONS_AT_ONCE
from synrepl.channel.publisher_limits import MAX_OF_KEY, MAX_OF_PUBLISHER, PublisherLimits
from synrepl.channel.served_channel import ServedChannel
from synrepl.errors import RemoteProtocolError
from synrepl.replication.membership.position_query import REQUERY_SECONDS
from tests.channel.channel_lines import MAIN, Subscription


class Setup:
    """A channel whose daemon knows the streams `events` and `caches`."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ingested: list[bytes] = []
        self.channel = ServedChannel(
            self.clock,
            "hs",
            is_ephemeral=lambda stream: False,
            is_known=("events", "caches").__contains__,
            metrics=Metrics(CollectorRegistry()),
        )
        self.channel.use(ingest=self.ingested.extend)

    def say(self, publisher: ChannelPublisher, *sources: str) -> None:
        """Publish the position of each source, a stream and a writer."""
        self.channel.publish(publisher, [f"POSITION {source} 0 1".encode() for source in sources])

    def questions(self) -> int:
        """How often all were asked for their positions since the last time."""
        count = self.ingested.count(b"REPLICATE ")
        self.ingested.clear()
        return count


@pytest.fixture
def setup() -> Setup:
    return Setup()


def made_up(first: int, count: int, stream: str = "s{}") -> list[str]:
    """So many sources, from this number on."""
    return [f"{stream.format(number)} persister{number}" for number in range(first, first + count)]


def test_a_publisher_that_is_gone_leaves_room_at_once(setup: Setup) -> None:
    """With 10,010 made-up streams over two connections nobody else could publish until a restart."""
    for first in (0, 5_005):
        liar = ChannelPublisher(owner="mallory")
        with pytest.raises(RemoteProtocolError, match=f"more than {MAX_OF_PUBLISHER} streams and writers"):
            setup.say(liar, *made_up(first, 5_005))
        setup.channel.publisher_lost(liar)

    assert setup.channel.limits.count == 0
    setup.say(ChannelPublisher(owner="worker"), "events w1")
    assert b"POSITION events w1 0 1" in setup.ingested


def test_a_key_cannot_use_up_the_share_of_others(setup: Setup) -> None:
    """However many connections it has; the problem is shown, and over with them."""
    liars = [ChannelPublisher(owner="mallory") for _ in range(MAX_OF_KEY // MAX_OF_PUBLISHER + 1)]
    for number, liar in enumerate(liars[:-1]):
        setup.say(liar, *made_up(number * MAX_OF_PUBLISHER, MAX_OF_PUBLISHER))
    with pytest.raises(RemoteProtocolError, match=f"the key mallory has {MAX_OF_KEY} streams and writers"):
        setup.say(liars[-1], "events w1")

    setup.say(ChannelPublisher(owner="worker"), *made_up(0, MAX_OF_PUBLISHER, "events"))
    assert "mallory" in setup.channel.limits.problem
    for liar in liars:
        setup.channel.publisher_lost(liar)
    assert setup.channel.limits.problem == ""


def test_another_daemon_may_name_as_many_as_the_channel_has(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes on what many publishers say."""
    monkeypatch.setattr(publisher_limits, "MAX_WRITERS", 2_000)
    upstream = ChannelPublisher(link=object())
    setup.say(upstream, *made_up(0, 2_000, "events"))
    with pytest.raises(RemoteProtocolError, match="the channel has 2000 streams and writers, its limit"):
        setup.say(upstream, "events w1")
    assert "2000" in setup.channel.limits.problem


def test_what_came_before_one_source_too_many_is_passed(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as received."""
    monkeypatch.setattr(publisher_limits, "MAX_OF_PUBLISHER", 1)
    lines = [
        b"REMOTE_SERVER_UP x",
        b"POSITION events w1 0 1",
        b"POSITION events w2 0 1",
        b"REMOTE_SERVER_UP y",
    ]
    with pytest.raises(RemoteProtocolError):
        setup.channel.publish(ChannelPublisher(owner=""), lines)
    assert lines[:2] == setup.ingested


@pytest.mark.parametrize(("bound", "what"), [("MAX_BATCH_BYTES", "bytes"), ("MAX_BATCH_LINES", "lines")])
def test_a_batch_of_a_client_is_bounded(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, bound: str, what: str
) -> None:
    """It is passed in one turn. What another daemon passes on is that of many clients."""
    monkeypatch.setattr(served_channel, bound, 2)
    lines = [b"RDATA events w batch [1]"] * 3
    setup.channel.publish(ChannelPublisher(link=object()), lines)
    with pytest.raises(RemoteProtocolError, match=f"more than 2 {what}"):
        setup.channel.publish(ChannelPublisher(owner=""), lines)


def test_positions_are_told_some_in_a_turn(setup: Setup) -> None:
    """What is passed meanwhile comes after the position before it; each is told once."""
    writers = [ChannelPublisher(owner=f"w{number}") for number in range(3)]
    for number, writer in enumerate(writers):
        setup.say(writer, *made_up(1_000 * number, 1_000, "events"))
    subscription, other = Subscription(), Subscription()
    reader, leaver = ChannelSubscriber(subscription.write), ChannelSubscriber(other.write)
    for one in (leaver, reader):
        setup.channel.subscribe(one, MAIN)
    told = subscription.take_but_questions()
    assert len(told) == len(other.take_but_questions()) == POSITIONS_AT_ONCE
    setup.channel.unsubscribe(leaver, MAIN)
    setup.channel.publish(
        writers[2], [b"RDATA events persister2999 5 [1]", b"POSITION events persister2998 1 9"]
    )
    setup.channel.publisher_lost(writers[1])
    while setup.clock.calls and setup.clock.calls[0].getTime() <= setup.clock.seconds():
        setup.clock.advance(0)
        told += subscription.take_but_questions()

    late = ["POSITION events persister2999 1 1", "RDATA events persister2999 5 [1]"]
    assert told[POSITIONS_AT_ONCE:][:3] == [*late, "POSITION events persister2998 1 9"]
    assert len(set(told)) == len(told) == 2_000 + 1
    assert other.take_but_questions() == []


def test_lost_writers_are_asked_for_until_the_last_question(setup: Setup) -> None:
    """Those of streams that this daemon does not know are not asked for."""
    publisher = ChannelPublisher(owner="")
    setup.say(publisher, "events w1", "made-up w1")
    setup.channel.publisher_lost(publisher)
    assert setup.channel.expected == {("events", "w1")}
    setup.questions()

    for seconds in REQUERY_SECONDS:
        assert setup.channel.expected
        setup.clock.advance(seconds)
        assert setup.questions() == 1
    assert not setup.channel.expected
    setup.clock.advance(10_000)
    assert setup.questions() == 0


def test_what_is_expected_is_bounded(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that connects and leaves, again and again, fills nothing; all are asked as before."""
    monkeypatch.setattr(served_channel, "MAX_WRITERS", 100)
    for number in range(10):
        publisher = ChannelPublisher(owner="")
        setup.say(publisher, *made_up(number * 50, 50, "events"))
        setup.channel.publisher_lost(publisher)
    assert len(setup.channel.expected) == 100

    setup.questions()
    setup.clock.advance(REQUERY_SECONDS[0])
    assert setup.questions() == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.booleans()), max_size=60))
def test_the_count_is_that_of_those_who_are_there(steps: Sequence[tuple[str, int, bool]]) -> None:
    """Whoever comes and goes."""
    setup = Setup()
    publishers = {name: ChannelPublisher(owner=name) for name in "abc"}
    for name, number, is_there in steps:
        if is_there:
            setup.say(publishers[name], f"events w{number}")
        else:
            setup.channel.publisher_lost(publishers[name])
        there = sum(len(one.writers) for one in publishers.values())
        assert setup.channel.limits.count == there
    for one in publishers.values():
        setup.channel.publisher_lost(one)
    assert vars(setup.channel.limits) == vars(PublisherLimits(setup.clock))


def test_a_sub_channel_without_subscribers_is_forgotten(setup: Setup) -> None:
    """60 names of 10 MiB stayed in memory for ever."""
    reader = ChannelSubscriber(Subscription().write)
    for number in range(1_000):
        setup.channel.subscribe(reader, MAIN + b"/%d" % number)
        setup.channel.unsubscribe(reader, MAIN + b"/%d" % number)
    setup.channel.unsubscribe(reader, MAIN + b"/never")
    assert setup.channel.sub_channels == 0
