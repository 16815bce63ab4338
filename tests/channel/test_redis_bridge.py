"""The bridge between a served channel and a Redis: each line once, and no hole without a position."""

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock

from synrepl.base.metrics import Metrics
from synrepl.channel.ends import ChannelPublisher, ChannelSubscriber
from synrepl.channel.redis_bridge import SWITCH_SECONDS, RedisBridge
from synrepl.channel.resp_codec import message
from synrepl.channel.served_channel import ServedChannel
from tests.channel.channel_lines import MAIN, Subscription


class Setup:
    """A bridge, a client at the port, and one on Redis, which passes everything to everybody."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.channel = ServedChannel(
            self.clock,
            "hs",
            is_ephemeral=lambda stream: stream == "typing",
            metrics=Metrics(CollectorRegistry()),
        )
        self.ingested: list[str] = []
        self.channel.use(ingest=lambda lines: self.ingested.extend(line.decode() for line in lines))
        self.bridge = RedisBridge(self.channel, self.clock)
        self.bridge.channels = self
        self.client = ChannelPublisher()
        self.on_redis: list[str] = []
        self.echoes = True
        self.subscription = Subscription()
        self.channel.subscribe(ChannelSubscriber(self.subscription.write), MAIN)

    def publish(self, channel: str, data: bytes) -> None:
        """Redis gets lines of ours."""
        suffix = channel.partition("/")[2]
        lines = data[:-1].split(b"\n")
        self.on_redis += [f"{suffix}{'/' if suffix else ''}{line.decode()}" for line in lines]
        if self.echoes:
            self.bridge.take(suffix, lines)

    def connect(self) -> None:
        """Both connections come up."""
        self.bridge.subscriber_up()
        self.bridge.publisher_up()

    def there(self, *lines: str) -> None:
        """A process on Redis publishes these lines."""
        self.bridge.take("", [line.encode() for line in lines])

    def here(self, *lines: str) -> None:
        """A client of the port publishes these lines."""
        self.channel.publish(self.client, [line.encode() for line in lines])

    @property
    def heard(self) -> list[str]:
        """What the client at the port was sent since the last time, without questions for positions."""
        return self.subscription.take_but_questions()

    @property
    def published(self) -> list[str]:
        """What Redis got since the last time, without questions for positions."""
        found, self.on_redis = self.on_redis, []
        return [line for line in found if line != "REPLICATE "]


@pytest.fixture
def setup() -> Setup:
    made = Setup()
    made.connect()
    return made


def test_each_line_goes_over_once(setup: Setup) -> None:
    """What comes back of our own is not passed again; nor what came from there."""
    here = ["POSITION events a 5 5", "RDATA events a batch [1]", "RDATA events a 6 [2]", "REMOTE_SERVER_UP x"]
    there = ["POSITION events b 5 5", "RDATA events b 7 [3]", "USER_SYNC b @u:hs start 1"]
    setup.here(*here)
    setup.there(*there)

    assert here == setup.published
    assert [*here, *there] == setup.heard
    assert [one for one in setup.ingested if one != "REPLICATE "] == [*here, *there]


def test_equal_lines_of_others_are_theirs(setup: Setup) -> None:
    """As many as we have sent are ours."""
    setup.echoes = False
    setup.here("REMOTE_SERVER_UP x")
    assert setup.heard == ["REMOTE_SERVER_UP x"]
    setup.there("REMOTE_SERVER_UP x", "REMOTE_SERVER_UP x")

    assert setup.heard == ["REMOTE_SERVER_UP x"]


def test_sub_channels_go_over_too(setup: Setup) -> None:
    """And nowhere else."""
    beside: list[bytes] = []
    setup.channel.subscribe(ChannelSubscriber(beside.append), b"hs/USER_IP")
    setup.channel.publish_beside(setup.client, b"hs/USER_IP", b"USER_IP here")
    setup.bridge.take("USER_IP", [b"USER_IP there"])

    assert ["USER_IP/USER_IP here"] == setup.published
    assert [message(b"hs/USER_IP", b"USER_IP here"), message(b"hs/USER_IP", b"USER_IP there")] == beside
    assert "USER_IP" not in " ".join(setup.ingested)


def test_what_redis_missed_is_told_by_a_position(setup: Setup) -> None:
    """Of streams in memory their writers say it: they are asked."""
    setup.here("POSITION events a 5 5", "POSITION typing a 5 5")
    setup.bridge.publisher_down("gone")
    assert setup.published
    setup.here("RDATA events a 6 [1]", "RDATA typing a 6 [1]", "REMOTE_SERVER_UP x")
    assert [] == setup.published
    setup.bridge.publisher_up()
    setup.here("RDATA events a 7 [1]", "RDATA typing a 7 [1]")

    assert ["POSITION events a 6 6", "RDATA events a 7 [1]"] == setup.published
    setup.here("POSITION typing a 7 7", "RDATA typing a 8 [1]")
    assert ["POSITION typing a 7 7", "RDATA typing a 8 [1]"] == setup.published


def test_after_a_loss_nothing_of_redis_is_believed_before_a_position(setup: Setup) -> None:
    """Redis keeps nothing for who is not there. The log asks for what it lacks itself."""
    setup.there("POSITION events b 5 5")
    setup.bridge.subscriber_down("gone")
    setup.bridge.subscriber_up()
    assert setup.heard == ["POSITION events b 5 5"]
    # Perhaps the end of a batch whose beginning nobody here has.
    setup.there("RDATA events b 9 [1]")
    assert setup.heard == []
    setup.there("POSITION events b 9 9", "RDATA events b 10 [1]")

    assert setup.heard == ["POSITION events b 9 9", "RDATA events b 10 [1]"]
    assert "RDATA events b 9 [1]" not in setup.ingested

    # What did not come back before the loss never will.
    setup.echoes = False
    setup.here("REMOTE_SERVER_UP x")
    setup.bridge.subscriber_down("gone")
    setup.bridge.subscriber_up()
    assert setup.heard == ["REMOTE_SERVER_UP x"]
    setup.there("REMOTE_SERVER_UP x")
    assert setup.heard == ["REMOTE_SERVER_UP x"]
    assert "REPLICATE " in setup.on_redis


def test_nothing_is_published_before_redis_is_heard() -> None:
    """What came back would be taken for another process's."""
    setup = Setup()
    setup.bridge.publisher_up()
    setup.here("REMOTE_SERVER_UP x")
    assert [] == setup.published
    setup.bridge.subscriber_up()
    setup.here("REMOTE_SERVER_UP y")

    assert ["REMOTE_SERVER_UP y"] == setup.published


def test_a_slow_redis_gets_all_once_it_reads(setup: Setup) -> None:
    setup.bridge.pause()
    setup.here("REMOTE_SERVER_UP x")
    assert [] == setup.published
    setup.bridge.resume()

    assert ["REMOTE_SERVER_UP x"] == setup.published


def test_a_writer_on_both_sides_is_told_to_the_operator(setup: Setup) -> None:
    """One that moves changes its side once, and perhaps back."""
    setup.here("POSITION events a 5 5", "RDATA events a 6 [1]")
    setup.there("POSITION events a 6 6", "RDATA events a 7 [1]")
    setup.here("POSITION events a 7 7", "RDATA events a 8 [1]")
    assert setup.bridge.conflict == ""
    setup.there("POSITION events a 8 8", "RDATA events a 9 [1]")
    setup.here("POSITION events a 9 9", "RDATA events a 10 [1]")

    assert setup.bridge.conflict.startswith("a publishes on the Redis and at the RESP port")
    setup.clock.advance(SWITCH_SECONDS + 1)
    assert setup.bridge.conflict == ""


@pytest.mark.parametrize("line", ["RDATA", "RDATA ", "RDATA x", "RDATA  ", "POSITION x", ""])
def test_a_row_without_a_writer_does_not_end_the_bridge(setup: Setup, line: str) -> None:
    """Whoever may publish on the Redis could send it."""
    setup.there(line, "REMOTE_SERVER_UP x")

    assert setup.heard[-1:] == ["REMOTE_SERVER_UP x"]


def test_a_line_with_a_line_break_is_counted(setup: Setup) -> None:
    """It would be two on Redis."""
    setup.here("REMOTE_SERVER_UP x\nREMOTE_SERVER_UP y", "REMOTE_SERVER_UP z")

    assert ["REMOTE_SERVER_UP z"] == setup.published
    assert 1 == setup.bridge.unpublished


def test_a_writer_whose_batch_has_no_end_does_not_stop_the_bridge(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synrepl.channel.served_channel.MAX_MESSAGE", 60)
    setup.there("POSITION events b 5 5")
    setup.there(*["RDATA events b batch [1234567890]"] * 3)
    setup.there("POSITION events b 5 5", "RDATA events b 6 [1]")

    assert setup.heard[-2:] == ["POSITION events b 5 5", "RDATA events b 6 [1]"]


def test_a_bridge_that_has_stopped_passes_nothing(setup: Setup) -> None:
    setup.bridge.stop()
    setup.here("REMOTE_SERVER_UP x")

    assert [] == setup.published
