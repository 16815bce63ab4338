"""Facts that a daemon cannot get: its log shows the hole, and every reader is told once and goes on."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from synrepl.base.metrics import Metrics
from synrepl.ingest.ingester import Ingester, LoggedPositions
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, MissedFacts, NowhereToFetch
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.streams.facts import LOST, NO_ROWS, Fact
from synrepl.streams.table import StreamTable
from synrepl.testing import Cluster, FakeWorker, MemoryEndpoint
from synrepl.testing.cluster import DirectCatchUp
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire.dialect import CURRENT, LEGACY
from tests.raw_peer import RawPeer, raw_client, raw_server

TABLE = StreamTable.default()
ACCOUNT_DATA = TABLE["account_data"]

UNREADABLE = {
    "a lone surrogate": r'["@a:hs","!r:hs","x\ud800y"]',
    "too large a number": '["@a:hs","!r:hs",1e400]',
    "NaN": '["@a:hs","!r:hs",NaN]',
    "a shape that no release has": '["@a:hs"]',
}


def row(text: str) -> bytes:
    return b'["@a:hs","!r:hs","%b"]' % text.encode()


class Ingesting:
    """A daemon that follows a server spoken by hand."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.daemon = self.cluster.daemon
        servers = raw_server(self.cluster.network, "source")
        self.metrics = Metrics(CollectorRegistry())
        self.events: list[FollowerEvent] = []
        self.follower = Follower(
            instance="us",
            clock=self.cluster.clock,
            streams=TABLE,
            positions=LoggedPositions(self.daemon.log),
            catch_up=DirectCatchUp(self.daemon, self.cluster.clock, lambda: 0.001),
            canonical=True,
            metrics=self.metrics,
        )
        self.refused = RefusedFacts(self.daemon.log, TABLE, self.metrics, instance="us")
        self.daemon.log.subscribe(self.refused.committed)
        Ingester(self.daemon.log, TABLE, self.cluster.clock, refused=self.refused).attach(self.follower)
        self.follower.on_event(self.events.append)
        factory = FollowerFactory(
            self.follower,
            dialect=CURRENT,
            expected_server=None,
            clock=self.cluster.clock,
            metrics=self.metrics,
        )
        factory.connect(MemoryEndpoint(self.cluster.network, "us", "source"))
        self.cluster.settle(0.1)
        self.source: RawPeer = servers[-1]
        self.hears("SERVER hs", "POSITION account_data w5 0 0")

    def hears(self, *lines: str) -> None:
        self.source.says(*lines)
        self.cluster.settle(1.5)

    def chain(self) -> list[tuple[int, int, bool]]:
        """Of each fact in the log: prev_token, token, and whether it has rows."""
        return [(fact.prev_token, fact.token, fact.rows != NO_ROWS) for fact in self.facts()]

    def facts(self) -> list[Fact]:
        """The facts in the log."""
        log = self.daemon.log
        facts, _ = self.cluster._run(
            log.reads.tokens(  # type: ignore[arg-type]
                stream="account_data", writer="w5", after=-1, upto=99, serial=log.head.serial, limit=99
            )
        )
        return list(facts)

    def counted(self) -> tuple[float, float, float]:
        """The gaps detected, repaired and lost."""
        return counts(self.metrics)


def counts(metrics: Metrics) -> tuple[float, float, float]:
    return metrics.gaps_detected.value, metrics.gaps_repaired.value, metrics.gaps_lost.value


def worker(cluster: Cluster, **options: Any) -> FakeWorker:
    return cluster.worker(streams=[ACCOUNT_DATA], **options)


@pytest.mark.parametrize("bad", UNREADABLE.values(), ids=UNREADABLE)
def test_the_log_shows_a_hole_in_place_of_a_row_that_cannot_be_read(bad: str) -> None:
    """`prev_token` of the next fact certified that it never was, and the status said lost 0."""
    story = Ingesting()

    story.hears(
        'RDATA account_data w5 1 ["@a:hs","!r:hs","ok"]',
        f"RDATA account_data w5 2 {bad}",
        'RDATA account_data w5 3 ["@a:hs","!r:hs","after"]',
    )

    assert [(0, 0, False), (0, 1, True), (2, 2, False), (2, 3, True)] == story.chain()
    assert (1, 0, 1) == story.counted()
    [(_, gap)] = story.follower.lost_gaps
    assert ("account_data", "w5", 1, 2) == (gap.stream, gap.writer, gap.have, gap.want)
    assert 3 == story.daemon.log.positions("account_data")["w5"]


def test_a_writer_that_announces_token_0_has_lost_nothing() -> None:
    """The daemon stores that position as a fact whose `prev_token` is 0 as well: no token is below it."""
    story = Ingesting()

    [position] = story.facts()

    assert (0, 0, NO_ROWS) == (position.prev_token, position.token, position.rows)
    assert not position.is_lost


def test_a_fact_with_one_row_that_cannot_be_read_is_lost_whole() -> None:
    """Facts are atomic."""
    story = Ingesting()

    story.hears(
        'RDATA account_data w5 batch ["@a:hs","!r:hs","ok"]',
        f"RDATA account_data w5 2 {UNREADABLE['NaN']}",
    )

    assert [(0, 0, False), (2, 2, False)] == story.chain()


class Answering:
    """Answers each request for missing facts alike: with a page, or an error."""

    def __init__(self, answer: MissedFacts | Exception) -> None:
        self._answer = answer
        self.asked = 0

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        self.asked += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_a_gap_that_no_source_can_fill_is_a_hole_too() -> None:
    """It was given up, and then certified as never written."""
    story = Ingesting()
    story.follower.server.catch_up = Answering(NowhereToFetch("no URL is known"))

    story.hears("POSITION account_data w5 4 5", 'RDATA account_data w5 6 ["@a:hs","!r:hs","after"]')

    assert [(0, 0, False), (5, 5, False), (5, 6, True)] == story.chain()
    assert (1, 0, 1) == story.counted()


class Behind:
    """A daemon whose log has lost what w5 wrote under the tokens 2 and 3."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.live = worker(self.cluster)
        self.store([("w5", 1, b"[%b]" % row("one"))])
        facts = [("w5", 3, LOST), ("w5", 4, b"[%b]" % row("four"))]
        self.store(facts)

    def store(self, facts: list[tuple[str, int, bytes]]) -> None:
        self.cluster._run(self.cluster.daemon.log.append_assigned("account_data", facts))
        self.cluster.settle()


def lost(one: FakeWorker) -> list[tuple[str, str, int]]:
    return [(event.stream, event.writer, event.token) for event in one.events if event.kind == "lost"]


def requests(one: FakeWorker) -> float:
    return float(one.metrics.catch_up_requests.labels("out").value)


def test_a_live_follower_is_told_once_and_goes_on() -> None:
    """It asks for what the POSITION says is missing, once."""
    behind = Behind()

    assert [1, 4] == behind.live.tokens("account_data")
    assert [("account_data", "w5", 3)] == lost(behind.live)
    assert 4 == behind.live.follower.positions()["account_data"]["w5"]
    detected, repaired, given_up = counts(behind.live.metrics)
    assert detected == repaired + given_up
    assert 1 == given_up
    asked = requests(behind.live)
    behind.cluster.settle(120)
    assert asked == requests(behind.live) <= 2


def test_a_follower_that_comes_later_is_told_too() -> None:
    """In the order of the tokens: what it stores on has the hole in the same place."""
    behind = Behind()
    late = worker(behind.cluster, start="earliest")
    behind.cluster.settle(5)

    assert [1, 4] == late.tokens("account_data")
    assert [("account_data", "w5", 3)] == lost(late)
    detected, repaired, given_up = counts(late.metrics)
    assert (detected, given_up) == (repaired + 1, 1)


def test_a_daemon_that_follows_has_the_hole_in_the_same_place() -> None:
    """The chain of the daemon behind it certifies no more than the first one's."""
    story = Ingesting()
    source = Answering(
        MissedFacts(
            facts=[(1, [row("one")]), (4, [row("four")])], upto=4, limited=False, lost=[(1, 2), (2, 3)]
        )
    )
    story.follower.server.catch_up = source

    story.hears("POSITION account_data w5 4 4")

    assert [(0, 0, False), (0, 1, True), (2, 2, False), (3, 3, False), (3, 4, True)] == story.chain()
    assert 1 == source.asked
    detected, repaired, given_up = story.counted()
    assert (detected, given_up) == (repaired + given_up, 2)


@pytest.mark.parametrize("dialect", [CURRENT, LEGACY], ids=str)
def test_a_hand_spoken_follower_gets_a_position_in_its_place(dialect: Any) -> None:
    """Synapse's own workers fetch when prev_token is not theirs, and go on at the answer's `upto_token`."""
    behind = Behind()
    peer = raw_client(behind.cluster.network, "daemon")
    behind.cluster.settle(0.1)
    peer.says("REPLICATE" if dialect is CURRENT else "REPLICATE account_data 1")
    behind.cluster.settle()
    peer.hears()

    behind.store([("w5", 6, LOST), ("w5", 7, b"[%b]" % row("seven"))])

    said = [line for line in peer.hears() if "account_data" in line]
    if dialect is CURRENT:
        assert ["POSITION account_data w5 6 6", "RDATA account_data w5 7"] == [said[0], said[1][:24].rstrip()]
    else:
        assert "RDATA account_data 7" == said[-1][:20]
