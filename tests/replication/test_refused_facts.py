"""Refused facts: what could not be read is kept as it was sent, and goes where it belongs once it can be."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred

from synrepl.base.metrics import Metrics
from synrepl.replication import refused_facts
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.streams.catalog import RefusedFact
from synrepl.streams.facts import LOST
from synrepl.streams.writer import Writer
from tests.ingest.test_lost_facts import TABLE, UNREADABLE, Ingesting

GOOD = '["get_user_by_id",["@a:hs"],1]'


def fact(token: int, *rows: str, stream: str = "caches", publisher: str = "p") -> RefusedFact:
    return RefusedFact(
        stream=stream, writer="w5", token=token, publisher=publisher, why="odd", rows=list(rows)
    )


class Keeping:
    """The log of a daemon, and what it keeps of refused facts."""

    def __init__(self) -> None:
        self.story = Ingesting()
        self.log = self.story.daemon.log
        self.refused = self.anew()

    def anew(self) -> RefusedFacts:
        refused = RefusedFacts(self.log, TABLE, Metrics(CollectorRegistry()), instance="master")
        self.log.subscribe(refused.committed)
        return refused

    def done(self, coroutine: Any) -> Any:
        return self.story.cluster._run(Deferred.fromCoroutine(coroutine))

    def lose(self, *facts: tuple[str, int], stream: str = "caches") -> None:
        stored = self.log.append_assigned(stream, [(writer, token, LOST) for writer, token in facts])
        self.story.cluster._run(stored)

    def kept(self) -> list[tuple[str, int, list[str] | None]]:
        return [(one.fact.stream, one.fact.token, one.fact.rows) for one in self.done(self.refused.kept())]

    def stored(self, stream: str = "caches") -> list[tuple[int, bytes]]:
        facts, _ = self.story.cluster._run(
            self.log.reads.tokens(  # type: ignore[arg-type]
                stream=stream, writer="w5", after=-1, upto=99, serial=self.log.head.serial, limit=99
            )
        )
        return [(one.token, one.rows) for one in facts]


@pytest.mark.parametrize("bad", UNREADABLE.values(), ids=UNREADABLE)
def test_a_row_that_cannot_be_read_is_kept_as_it_was_sent(bad: str) -> None:
    """With stream, writer, token and why; before the log says that it is lost."""
    story = Ingesting()

    story.hears(
        'RDATA account_data w5 batch ["@a:hs","!r:hs","ok"]',
        f"RDATA account_data w5 2 {bad}",
        'RDATA account_data w5 3 ["@a:hs","!r:hs","after"]',
    )

    (one,) = story.cluster._run(Deferred.fromCoroutine(story.refused.kept()))
    assert ("account_data", "w5", 2) == (one.fact.stream, one.fact.writer, one.fact.token)
    assert ['["@a:hs","!r:hs","ok"]', bad] == one.fact.rows
    assert "bad row" in one.fact.why
    (hole,) = [fact for fact in story.facts() if fact.is_lost]
    assert one.serial < hole.serial
    assert 1 == len(story.refused)
    assert 1 == story.metrics.refused_facts.value


def test_the_same_fact_is_kept_once_and_found_after_a_restart() -> None:
    """A server sends again what was not acknowledged by a position."""
    keeping = Keeping()

    keeping.done(keeping.refused.keep([fact(5, "x"), fact(5, "x")]))
    keeping.done(keeping.refused.keep([fact(5, "x"), fact(6, "yy")]))

    assert [("caches", 5, ["x"]), ("caches", 6, ["yy"])] == keeping.kept()
    later = keeping.anew()
    keeping.done(later.load())
    assert (2, 3) == (len(later), later.size)


def test_bounds_count_bytes() -> None:
    """A letter of another alphabet has several."""
    keeping = Keeping()

    keeping.done(keeping.refused.keep([fact(5, "\u00e9\U0001f642")]))

    assert 6 == keeping.refused.size


def test_bounds_for_a_publisher_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is counted with its tokens, and leaves the others their room."""
    monkeypatch.setattr(refused_facts, "MAX_OF_PUBLISHER", 10)
    monkeypatch.setattr(refused_facts, "MAX_BYTES", 16)
    keeping = Keeping()

    keeping.done(keeping.refused.keep([fact(token, "x" * 4) for token in range(1, 6)]))
    keeping.done(keeping.refused.keep([fact(6, "y" * 8, publisher="q"), fact(7, "z", publisher="q")]))

    assert [1, 2, 6] == [token for _, token, _ in keeping.kept()]
    unkept = keeping.refused.unkept[Writer("caches", "w5")]
    assert (4, 3, 7) == (unkept.facts, unkept.first, unkept.last)
    keeping.done(keeping.refused.remove([("caches", "w5", 6)]))
    keeping.done(keeping.refused.keep([fact(7, "z", publisher="q")]))
    assert [1, 2, 7] == [token for _, token, _ in keeping.kept()]


def test_a_replay_fills_the_hole_of_a_stream_without_order_once() -> None:
    """As a late fact, which its readers take."""
    keeping = Keeping()
    keeping.lose(("w5", 5))
    keeping.done(keeping.refused.keep([fact(5, GOOD)]))

    assert [("replayed", "")] == keeping.done(keeping.refused.replay([("caches", "w5", 5)]))

    assert [] == keeping.kept()
    assert [(5, b"[]"), (5, b'[["get_user_by_id",["@a:hs"],1]]')] == keeping.stored()
    assert "absent" == keeping.done(keeping.refused.replay([("caches", "w5", 5)]))[0][0]


def test_a_replay_that_died_before_its_end_stores_nothing_twice() -> None:
    """The fact was stored, and is still listed as refused."""
    keeping = Keeping()
    keeping.lose(("w5", 5))
    keeping.done(keeping.refused.keep([fact(5, GOOD)]))
    keeping.done(keeping.refused.replay([("caches", "w5", 5)]))
    keeping.done(keeping.refused.keep([fact(5, GOOD)]))

    assert "known" == keeping.done(keeping.refused.replay([("caches", "w5", 5)]))[0][0]

    assert [] == keeping.kept()
    assert 2 == len(keeping.stored())


def test_a_stream_in_order_gets_its_facts_in_order() -> None:
    """Whatever the order of the request; one that an earlier replay has stored is not refused."""
    keeping = Keeping()
    keys = [("push_rules", "w5", token) for token in (6, 5)]
    keeping.done(keeping.refused.keep([fact(token, '["@a:hs"]', stream="push_rules") for token in (5, 6)]))

    assert [("replayed", "")] * 2 == keeping.done(keeping.refused.replay(keys))

    stored = [(5, b'[["@a:hs"]]'), (6, b'[["@a:hs"]]')]
    assert stored == keeping.stored("push_rules")
    keeping.done(keeping.refused.keep([fact(token, '["@a:hs"]', stream="push_rules") for token in (5, 6)]))
    assert ["known"] * 2 == [outcome for outcome, _ in keeping.done(keeping.refused.replay(keys))]
    assert ([], stored) == (keeping.kept(), keeping.stored("push_rules"))


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (fact(5, '["get_user_by_id",NaN,1]'), "bad row 0 of stream caches"),
        (fact(5, '["@a:hs"]', stream="push_rules"), "have passed token 5 of w5, they are at 5"),
        (fact(5, '["!r:hs",["@a:hs"]]', stream="typing"), "of their moment"),
        (fact(5, "[]", stream="nowhere"), "no stream nowhere"),
    ],
    ids=lambda one: one.stream if isinstance(one, RefusedFact) else "",
)
def test_a_replay_that_is_not_possible_says_why_and_keeps_the_fact(one: RefusedFact, why: str) -> None:
    """Readers in order have passed it; a row that is still no row stays refused."""
    keeping = Keeping()
    keeping.lose(("w5", 5), stream="push_rules")
    keeping.done(keeping.refused.keep([one]))

    [(outcome, said)] = keeping.done(keeping.refused.replay([(one.stream, "w5", 5)]))

    assert "refused" == outcome
    assert why in said
    assert 1 == len(keeping.kept())
