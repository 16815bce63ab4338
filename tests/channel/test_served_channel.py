"""The channel that this daemon serves: who gets which line, and which position before it."""

from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock

from synrepl.base.metrics import Metrics
from synrepl.channel import ends as channel_ends
from synrepl.channel import publisher_limits, served_channel
from synrepl.channel.ends import ChannelPublisher, ChannelSubscriber
from synrepl.channel.served_channel import CATCH_UP_SECONDS, ServedChannel
from synrepl.errors import RemoteProtocolError
from tests.channel.channel_lines import MAIN, Subscription


class Reader(ChannelSubscriber):
    """A subscriber that keeps what it is sent."""

    def __init__(self) -> None:
        self.subscription = Subscription()
        super().__init__(self.subscription.write)

    @property
    def lines(self) -> list[str]:
        """The lines of the channel itself so far; from now on only new ones."""
        return self.subscription.take()


class Setup:
    """A channel with two writers, and what its log was given; `stored` is on disk, if that matters."""

    def __init__(self, *, is_durable: bool = False, only_durable: bool = False) -> None:
        self.clock = Clock()
        self.stored: dict[tuple[str, str], int] = {}
        self.ingested: list[str] = []
        self.channel = ServedChannel(
            self.clock,
            "hs",
            is_ephemeral=lambda stream: stream == "typing",
            metrics=Metrics(CollectorRegistry()),
            is_durable=(lambda source, token: self.stored.get(source, 0) >= token) if is_durable else None,
            only_durable=only_durable,
        )
        self.channel.use(ingest=self._ingest)
        self.one, self.two = ChannelPublisher(), ChannelPublisher()

    def _ingest(self, lines: Sequence[bytes]) -> None:
        self.ingested += [line.decode() for line in lines]

    def reader(self) -> Reader:
        """A new subscriber of the channel."""
        reader = Reader()
        self.channel.subscribe(reader, MAIN)
        return reader

    def say(self, *lines: str, publisher: ChannelPublisher | None = None) -> None:
        """The first writer publishes these lines, or another one."""
        self.channel.publish(publisher or self.one, [line.encode() for line in lines])

    def heard(self, *sources: str, token: int = 5, publisher: ChannelPublisher | None = None) -> None:
        """These sources, each a stream and a writer, have said their position."""
        self.say(*(f"POSITION {source} {token} {token}" for source in sources), publisher=publisher)


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_lines_go_to_all_in_order_and_into_the_log(setup: Setup) -> None:
    """To the publisher too, as on Redis; commands as facts."""
    first, second = setup.reader(), setup.reader()
    lines = ["REPLICATE ", "POSITION events w 5 5", "RDATA events w 6 [1]", "REMOTE_SERVER_UP x"]

    setup.say(*lines)

    assert lines == first.lines == second.lines == setup.ingested
    assert (4, 2) == (setup.channel.lines, setup.channel.count(MAIN))


def test_a_batch_is_passed_in_one_run(setup: Setup) -> None:
    """Between its lines another writer's would end up in the same fact."""
    setup.heard("caches a")
    setup.heard("caches b", publisher=setup.two)
    reader = setup.reader()
    reader.lines.clear()
    setup.ingested.clear()

    setup.say("RDATA caches a batch [1]", "RDATA caches a batch [2]")
    setup.say("RDATA caches b 6 [9]", publisher=setup.two)
    setup.say("REMOTE_SERVER_UP x")
    setup.say("RDATA caches a 7 [3]")

    expected = [
        "RDATA caches b 6 [9]",
        "REMOTE_SERVER_UP x",
        "RDATA caches a batch [1]",
        "RDATA caches a batch [2]",
        "RDATA caches a 7 [3]",
    ]
    assert expected == reader.lines[-5:] == setup.ingested


def test_a_batch_that_is_cut_off_is_never_passed(setup: Setup) -> None:
    """Nor stored. Until the writer's POSITION has come, nothing more of it is passed."""
    setup.heard("events w")
    reader = setup.reader()
    setup.say("RDATA events w batch [1]")
    assert ["POSITION events w 5 5"] == reader.lines

    setup.channel.publisher_lost(setup.one)
    back = ChannelPublisher()
    setup.say("RDATA events w 9 [3]", publisher=back)
    assert ["REPLICATE "] == reader.lines
    setup.say("POSITION events w 5 9", "RDATA events w 10 [4]", publisher=back)

    assert ["POSITION events w 5 9", "RDATA events w 10 [4]"] == reader.lines
    assert "RDATA events w batch [1]" not in setup.ingested
    assert "RDATA events w 9 [3]" in setup.ingested
    assert 1 == setup.channel.held_back


def test_a_writer_that_was_not_heard_is_asked(setup: Setup) -> None:
    """By all, and not too often; its facts are in the log already."""
    reader = setup.reader()
    setup.say(*(f"RDATA events w{n} 9 [3]" for n in range(5)))
    assert ["REPLICATE "] == reader.lines
    assert 5 == setup.channel.held_back

    setup.clock.advance(1)
    assert ["REPLICATE "] == reader.lines
    setup.clock.pump([1.0] * 8)
    assert ["REPLICATE "] == reader.lines  # once more after five seconds, then ever more seldom


def test_a_new_subscriber_is_first_told_all_positions_that_were_passed(setup: Setup) -> None:
    """One POSITION would let it believe RDATA of every writer of the stream."""
    setup.heard("events a", "events b")
    setup.say("RDATA events a 8 [1]")

    reader = setup.reader()
    setup.say("RDATA events b 9 [1]")

    expected = ["POSITION events a 8 8", "POSITION events b 5 5", "RDATA events b 9 [1]"]
    assert expected == reader.lines


def test_of_streams_in_memory_only_their_writers_say_positions(setup: Setup) -> None:
    """An old position would undo what is newer; a new subscriber waits for the writer's own."""
    setup.heard("typing w", "events w")
    reader = setup.reader()
    setup.say("RDATA typing w 6 [1]")
    assert ["POSITION events w 5 5", "REPLICATE "] == reader.lines

    setup.say("POSITION typing w 6 6", "RDATA typing w 7 [2]")
    assert ["POSITION typing w 6 6", "RDATA typing w 7 [2]"] == reader.lines


def test_a_subscriber_that_does_not_read_is_told_what_it_lacks(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not closed, and holds up nobody."""
    monkeypatch.setattr(channel_ends, "MAX_WAITING", 300)
    setup.heard("events a", "events b", "typing a")
    slow, quick = setup.reader(), setup.reader()
    setup.heard("typing a")
    setup.clock.pump([1.0, 1.0])
    for reader in (slow, quick):
        assert reader.lines
    slow.pause()
    setup.say("RDATA events a 6 [1]")
    for token in range(7, 15):
        setup.say(f"RDATA events a {token} [1]", f"RDATA typing a {token} [2]", "REMOTE_SERVER_UP x")
    assert [] == slow.lines
    assert 25 == len(quick.lines)
    assert 1 == setup.channel.demotions
    setup.heard("events c")

    setup.channel.resumed(slow)
    setup.say("RDATA events b 20 [1]", "RDATA typing a 20 [2]")

    expected = [
        "POSITION events a 14 14",
        "POSITION events b 5 5",
        "POSITION events c 5 5",
        "REPLICATE ",
        "RDATA events b 20 [1]",
    ]
    assert expected == slow.lines


def test_a_subscriber_that_pauses_for_a_moment_lacks_nothing(setup: Setup) -> None:
    setup.heard("events a")
    reader = setup.reader()
    reader.pause()
    setup.say("RDATA events a 6 [1]", "RDATA events a 7 [1]")
    before = reader.lines
    setup.channel.resumed(reader)

    assert ["POSITION events a 5 5"] == before
    assert ["RDATA events a 6 [1]", "RDATA events a 7 [1]"] == reader.lines


def test_sub_channels_are_for_their_subscribers_alone(setup: Setup) -> None:
    """They carry access tokens: nothing of them comes into the log."""
    reader, other = setup.reader(), Reader()
    setup.channel.subscribe(other, b"hs/USER_IP")

    setup.channel.publish_beside(setup.one, b"hs/USER_IP", b"USER_IP secret")

    assert b"secret" in other.subscription.data
    assert b"" == reader.subscription.data
    assert [] == setup.ingested
    setup.channel.unsubscribe(other, b"hs/USER_IP")
    assert 0 == setup.channel.count(b"hs/USER_IP")


@pytest.mark.parametrize(
    "line",
    [
        "RDATA events w",
        "RDATA events w batch",
        "RDATA events w x [1]",
        "RDATA ev\x07 w 3 [1]",
        "POSITION a b 1",
    ],
)
def test_bad_lines_are_left_to_the_log(setup: Setup, line: str) -> None:
    """It counts them; nobody else is bothered."""
    reader = setup.reader()
    setup.say(line)

    assert [] == reader.lines
    assert [line] == setup.ingested


def test_names_and_batches_are_bounded(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_limits, "MAX_WRITERS", 3)
    monkeypatch.setattr(served_channel, "MAX_MESSAGE", 60)
    setup.heard("a w", "b w", "c w")
    with pytest.raises(RemoteProtocolError, match="3 streams and writers"):
        setup.heard("d w")
    with pytest.raises(RemoteProtocolError, match="more than 60 bytes"):
        setup.say(*["RDATA a w batch [1234567890]"] * 3)


def test_durable_rows_are_passed_once_they_are_on_disk() -> None:
    """And what their publisher said after them; others do not wait."""
    setup = Setup(is_durable=True)
    setup.heard("events a", "typing a")
    reader = setup.reader()
    setup.heard("typing a")
    assert reader.lines
    setup.say("RDATA typing a 6 [1]", "RDATA events a 6 [1]", "REMOTE_SERVER_UP x", "RDATA typing a 7 [2]")
    setup.say("REMOTE_SERVER_UP y", publisher=setup.two)
    assert ["REMOTE_SERVER_UP y"] == reader.lines[-1:]

    setup.stored["events", "a"] = 6
    setup.channel.durable_more()

    assert ["RDATA events a 6 [1]", "REMOTE_SERVER_UP x", "RDATA typing a 7 [2]"] == reader.lines
    assert 0 == setup.channel.overdue


def test_durable_rows_are_passed_and_counted_when_the_disk_takes_too_long() -> None:
    """A log that cannot be written must not stop a homeserver."""
    setup = Setup(is_durable=True)
    setup.heard("events a")
    reader = setup.reader()
    assert reader.lines
    setup.say("RDATA events a 6 [1]")
    setup.clock.advance(4.9)
    assert [] == reader.lines

    setup.clock.advance(0.1)

    assert ["RDATA events a 6 [1]"] == reader.lines
    assert 1 == setup.channel.overdue


def test_rows_that_must_be_durable_are_refused_when_the_disk_takes_too_long() -> None:
    """With the rest of their batch, and what is published meanwhile; then their writers are asked."""
    setup = Setup(is_durable=True, only_durable=True)
    setup.heard("events a", "caches b")
    reader = setup.reader()
    assert reader.lines
    setup.say("RDATA events a 6 [1]")
    setup.clock.advance(5)
    assert (True, [], 1) == (setup.channel.is_refusing, reader.lines, setup.channel.refused)

    batch = [f"RDATA caches b {token} [1]".encode() for token in ("batch", "batch", "7")]
    assert setup.channel.refuses(setup.one, batch[0])
    assert not setup.channel.refuses(setup.one, b"POSITION caches b 6 6")
    setup.say("POSITION caches b 6 6")
    setup.stored["events", "a"] = 6
    setup.channel.durable_more()
    assert not setup.channel.is_refusing
    assert [True, True, False] == [setup.channel.refuses(setup.one, line) for line in (*batch[1:], batch[0])]
    assert ["POSITION caches b 6 6"] == reader.lines

    setup.say("RDATA events a 7 [1]", "RDATA caches b 8 [1]")
    setup.stored |= {("events", "a"): 7, ("caches", "b"): 8}
    setup.channel.durable_more()
    assert ["REPLICATE "] == reader.lines
    setup.say("POSITION events a 7 7", "RDATA events a 8 [1]")
    setup.stored["events", "a"] = 8
    setup.channel.durable_more()
    assert ["POSITION events a 7 7", "RDATA events a 8 [1]"] == reader.lines


def test_a_writer_that_comes_over_another_connection_is_believed_after_a_position(setup: Setup) -> None:
    """The first one may be dead without anybody knowing, and lines may be lost in it."""
    setup.heard("events a")
    reader = setup.reader()
    assert reader.lines
    setup.say("RDATA events a 8 [1]", publisher=setup.two)
    assert ["REPLICATE "] == reader.lines

    setup.say("POSITION events a 8 8", "RDATA events a 9 [1]", publisher=setup.two)
    setup.say("RDATA events a 7 [1]")
    setup.channel.publisher_lost(setup.one)
    setup.say("RDATA events a 10 [1]", publisher=setup.two)

    heard = [line for line in reader.lines if line != "REPLICATE "]
    assert ["POSITION events a 8 8", "RDATA events a 9 [1]", "RDATA events a 10 [1]"] == heard


def test_the_first_position_of_a_writer_waits_until_the_log_has_caught_up(setup: Setup) -> None:
    """With what it says after it. A writer in memory does not wait, nor one that was heard."""
    known = {("events", "a"): 0}
    setup.channel.use(is_caught_up=lambda source, token: known.get(source, 0) >= token)
    reader = setup.reader()
    setup.say("POSITION events a 9 9", "RDATA events a 10 [1]")
    setup.say("POSITION typing b 3 3", publisher=setup.two)
    assert ["POSITION typing b 3 3"] == reader.lines

    known["events", "a"] = 9
    setup.clock.advance(CATCH_UP_SECONDS)
    setup.say("POSITION events a 11 11")
    expected = ["POSITION events a 9 9", "RDATA events a 10 [1]", "POSITION events a 11 11"]
    assert expected == reader.lines
    assert 0 == setup.channel.overdue


def test_a_position_does_not_wait_for_ever(setup: Setup) -> None:
    """The source of what the log lacks may not answer."""
    setup.channel.use(is_caught_up=lambda source, token: False)
    reader = setup.reader()
    setup.say("POSITION events a 9 9", "RDATA events a 10 [1]")
    setup.clock.pump([CATCH_UP_SECONDS] * 99)
    assert [] == reader.lines
    setup.clock.pump([CATCH_UP_SECONDS] * 2)

    assert ["POSITION events a 9 9", "RDATA events a 10 [1]"] == reader.lines
    assert 1 == setup.channel.overdue


def test_durable_rows_of_a_lost_publisher_are_not_passed_late() -> None:
    """What the writer says over its next connection could come before them."""
    setup = Setup(is_durable=True)
    setup.heard("events a")
    reader = setup.reader()
    assert reader.lines
    setup.say("RDATA events a 6 [1]", "REMOTE_SERVER_UP x")

    setup.channel.publisher_lost(setup.one)
    setup.stored["events", "a"] = 9
    setup.say("POSITION events a 9 9", "RDATA events a 9 [1]", publisher=setup.two)

    expected = ["REMOTE_SERVER_UP x", "REPLICATE ", "POSITION events a 9 9", "RDATA events a 9 [1]"]
    assert expected == reader.lines
    assert 1 == setup.channel.held_back


def test_with_many_subscribers_lines_within_a_millisecond_go_together(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, and the first one at once."""
    monkeypatch.setattr(served_channel, "MANY", 2)
    setup.heard("events a")
    first, second = setup.reader(), setup.reader()
    setup.clock.advance(0.002)
    assert first.lines + second.lines
    for token in (6, 7, 8):
        setup.say(f"RDATA events a {token} [1]")
    assert ["RDATA events a 6 [1]"] == first.lines == second.lines

    setup.clock.advance(0.001)

    assert ["RDATA events a 7 [1]", "RDATA events a 8 [1]"] == first.lines == second.lines
    setup.clock.advance(0.001)
    setup.say("RDATA events a 9 [1]")
    assert ["RDATA events a 9 [1]"] == first.lines


def test_a_subscriber_that_a_sub_channel_fills_is_told_what_it_lacks(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waited of the channel itself is dropped with it."""
    monkeypatch.setattr(channel_ends, "MAX_WAITING", 300)
    setup.heard("events a")
    reader = setup.reader()
    setup.channel.subscribe(reader, b"hs/USER_IP")
    assert reader.lines
    reader.pause()
    setup.say("RDATA events a 6 [1]")
    setup.channel.publish_beside(setup.one, b"hs/USER_IP", b"x" * 300)

    setup.channel.resumed(reader)

    assert ["POSITION events a 6 6"] == reader.lines
    assert (1, 1) == (setup.channel.demotions, setup.channel.dropped)


@pytest.mark.parametrize("line", [f"RDATA events a {'9' * 5000} [1]", f"POSITION events a 1 {'9' * 5000}"])
def test_a_token_of_any_length_is_no_token(setup: Setup, line: str) -> None:
    reader = setup.reader()
    setup.say(line)

    assert [] == reader.lines


def test_tokens_below_zero_are_passed(setup: Setup) -> None:
    """Of a stream that counts down, should a release have one."""
    reader = setup.reader()
    setup.say("POSITION backfill a -5 -5", "RDATA backfill a -6 [1]")

    assert ["POSITION backfill a -5 -5", "RDATA backfill a -6 [1]"] == reader.lines


def test_a_writer_whose_rows_are_held_back_is_asked_again(setup: Setup) -> None:
    """Another connection of it has ended: its rows go on coming, and it does not know."""
    setup.heard("events a")
    reader = setup.reader()
    assert reader.lines
    setup.channel.publish(setup.two, [b"REMOTE_SERVER_UP x"])
    setup.channel.publisher_lost(setup.one)
    setup.say("RDATA events a 6 [1]", publisher=setup.two)

    assert ["REMOTE_SERVER_UP x", "REPLICATE "] == reader.lines
