"""What the watch job decides, without Spark: gaps, repairs, restarts, stalls, and the lists of minutes."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.pipeline.source.rows import explode
from synrepl.pipeline.watch import observations
from synrepl.pipeline.watch.events import KINDS, Epoch, WatchEvent, encode, order
from synrepl.pipeline.watch.log_state import MINUTE_MS, LogState, WatchRules, WriterChain
from synrepl.pipeline.watch.observations import COLUMNS, Drops, FactRun, Observations, add_fact, observe
from synrepl.pipeline.watch.watch import CheckpointedState
from synrepl.streams.facts import Fact
from tests.pipeline.archives import BEGAN_MS, batch_of_facts, chained

RULES = WatchRules(stall_ms=60_000)

Told = tuple[int, int, int, int]
"""A fact: serial, epoch, prev_token, token. It is committed in the second of its serial."""


def follow(
    *facts: Told, chain: WriterChain | None = None, now_ms: int = 0
) -> tuple[WriterChain, list[WatchEvent]]:
    """What is told of these facts, which come together."""
    chain = chain or WriterChain(stream="s", writer="w")
    runs = runs_of((*fact, fact[0] * 1000) for fact in facts)
    return chain, [line for run in runs for line in chain.advance(run, now_ms=now_ms, rules=RULES)]


def runs_of(facts: Iterable[tuple[int, int, int, int, int]]) -> list[FactRun]:
    """The runs of one writer's facts."""
    runs: list[FactRun] = []
    for fact in facts:
        add_fact(runs, *fact)
    return runs


def said(lines: Sequence[WatchEvent]) -> list[str]:
    """Lines in short: their types, and their numbers in order, without the times."""
    found = []
    for line in lines:
        told = json.loads(encode(line))
        for name in ("at_ms", "stream", "writer", "open_seconds"):
            told.pop(name, None)
        found.append(" ".join(map(str, told.values())))
    return found


def again(chain: WriterChain) -> WriterChain:
    """As a restart finds it."""
    return msgspec.json.decode(msgspec.json.encode(chain), type=WriterChain)


def test_a_part_of_a_gap_that_came_leaves_the_rest_open() -> None:
    """Facts go over the beginning of what was missing: it is not repaired yet."""
    chain, _ = follow((1, 1, 0, 5), (2, 1, 20, 21))

    chain, told = follow((3, 1, 5, 10), chain=chain)
    assert [] == told
    assert [(10, 20)] == chain.holes[0].parts
    chain, told = follow((4, 1, 10, 20), chain=chain)

    assert ["repaired"] == [line.split()[0] for line in said(told)]


GAPS: dict[str, tuple[list[Told], list[str]]] = {
    "a whole chain": ([(1, 1, 0, 2), (2, 1, 2, 3), (3, 1, 3, 7)], []),
    "tokens may be far apart": ([(1, 1, 4, 10), (2, 1, 10, 900)], []),
    "the first fact claims nothing that was seen": ([(9, 1, 500, 501)], []),
    "a fact is missing": ([(1, 1, 0, 2), (2, 1, 5, 6)], ["gap 2 5 1 2"]),
    "two are missing": ([(1, 1, 0, 2), (2, 1, 5, 6), (3, 1, 8, 9)], ["gap 2 5 1 2", "gap 6 8 1 3"]),
    "late facts claim nothing": ([(1, 1, 0, 9), (2, 1, 4, 4), (3, 1, 9, 9), (4, 1, 9, 12)], []),
    "a late fact comes first": ([(1, 1, 7, 7), (2, 1, 8, 9), (3, 1, 9, 10)], []),
    "a fact that certifies": ([(1, 1, 0, 4), (2, 1, 4, 80), (3, 1, 80, 81)], []),
    "an epoch that goes on": ([(1, 1, 0, 4), (2, 2, 4, 5), (3, 2, 5, 6)], []),
    "a restart": ([(1, 1, 0, 9), (2, 2, 4, 5), (3, 2, 5, 6)], ["restart 2 9 4 5 2"]),
    "a restart elsewhere": ([(1, 1, 0, 9), (2, 2, 12, 13)], ["restart 2 9 12 13 2"]),
    "late facts do not hide a restart": (
        [(1, 1, 0, 9), (2, 2, 3, 3), (3, 2, 4, 5)],
        ["restart 2 9 4 5 3"],
    ),
    "back in the same epoch": ([(1, 1, 0, 9), (2, 1, 4, 5), (3, 1, 5, 6)], ["again 1 9 4 5 2"]),
    "a gap after a restart": (
        [(1, 1, 0, 9), (2, 2, 4, 5), (3, 2, 7, 8)],
        ["restart 2 9 4 5 2", "gap 5 7 2 3"],
    ),
}

# What follows a gap of (2, 5].
REPAIRS: dict[str, tuple[list[Told], list[str]]] = {
    "the certain fact": ([(3, 1, 5, 5)], ["repaired 2 5 1 3"]),
    "others before it": ([(3, 1, 3, 3), (4, 1, 4, 4), (5, 1, 5, 5)], ["repaired 2 5 3 5"]),
    "others alone": ([(3, 1, 3, 3), (4, 1, 4, 4)], []),
    "once": ([(3, 1, 5, 5), (4, 1, 4, 4), (5, 1, 5, 5)], ["repaired 2 5 1 3"]),
    "not outside": ([(3, 1, 2, 2), (4, 1, 6, 6)], []),
    "by all that was missing": ([(3, 1, 2, 4), (4, 1, 4, 5), (5, 1, 6, 7)], ["repaired 2 5 2 4"]),
    "by one whose last token comes again, late": ([(3, 1, 2, 5), (4, 1, 5, 5)], ["repaired 2 5 1 3"]),
    "by its end, its beginning open": ([(3, 1, 3, 5)], []),
    "by its end, then its beginning": ([(3, 1, 3, 5), (4, 1, 2, 3)], ["repaired 2 5 2 4"]),
    "while the writer goes on": (
        [(3, 1, 6, 7), (4, 1, 5, 5), (5, 1, 7, 8)],
        ["repaired 2 5 1 4"],
    ),
    "beside another gap": (
        [(3, 1, 8, 9), (4, 1, 8, 8), (5, 1, 5, 5)],
        ["gap 6 8 1 3", "repaired 6 8 1 4", "repaired 2 5 1 5"],
    ),
    "void after a restart": ([(3, 2, 2, 3), (4, 2, 5, 5)], ["restart 2 6 2 3 3"]),
    "after a restart beyond it": ([(3, 2, 5, 6), (4, 2, 5, 5)], ["restart 2 6 5 6 3", "repaired 2 5 1 4"]),
}


class TestChains:
    """What a writer's facts say of those that did not come."""

    @pytest.mark.parametrize("name", GAPS)
    def test_gaps_are_found_by_prev_token(self, name: str) -> None:
        """Only what `prev_token` says is missing, is."""
        facts, expected = GAPS[name]

        _, told = follow(*facts)

        assert expected == said(told)

    @pytest.mark.parametrize("name", REPAIRS)
    def test_a_gap_is_closed_once_its_facts_have_come(self, name: str) -> None:
        """A gap is closed when all that certainly was in it is there."""
        facts, expected = REPAIRS[name]
        chain, before = follow((1, 1, 0, 2), (2, 1, 5, 6))

        _, told = follow(*facts, chain=again(chain))

        assert ["gap 2 5 1 2"] == said(before)
        assert expected == said(told)

    @given(
        moves=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=30),
        cuts=st.sets(st.integers(0, 30)),
    )
    def test_it_does_not_matter_how_facts_are_cut_into_batches(
        self, moves: list[tuple[int, int, bool]], cuts: set[int]
    ) -> None:
        """Nor that what is known was written down meanwhile."""
        token, facts = 10, []
        for serial, (skipped, step, is_late) in enumerate(moves, 1):
            if is_late:
                facts.append((serial, 1, token - skipped, token - skipped))
                continue
            facts.append((serial, 1, token + skipped, token + skipped + step))
            token += skipped + step

        whole = follow(*facts)[1] if facts else []
        chain, parts = None, []
        edges = sorted({0, len(facts), *(cut for cut in cuts if cut < len(facts))})
        for trimmed_upto, end in pairwise(edges):
            chain, told = follow(*facts[trimmed_upto:end], chain=None if chain is None else again(chain))
            parts += told

        assert said(whole) == said(parts)

    def test_facts_that_follow_are_one_run(self) -> None:
        """However many there are, little goes to who keeps the state."""
        facts = [(serial, 1, serial - 1, serial, serial * 10) for serial in range(1, 1001)]

        (run,) = runs_of(facts)

        assert (1, 1000, 0, 1000, 1000, 10, 10_000) == (
            run.serial,
            run.last_serial,
            run.prev_token,
            run.token,
            run.facts,
            run.first_ms,
            run.last_ms,
        )


def active(facts: int = 5, *, every_ms: int = 1000, now_ms: int = 0) -> WriterChain:
    """A writer that said something so often; seen now."""
    chain = WriterChain(stream="s", writer="w")
    for run in runs_of((n, 1, n - 1, n, n * every_ms) for n in range(1, facts + 1)):
        assert [] == list(chain.advance(run, now_ms=now_ms, rules=RULES))
    return chain


def hush(chain: WriterChain, now_ms: int, rules: WatchRules = RULES) -> tuple[WriterChain, list[str]]:
    """What its silence until now says."""
    return chain, said(list(chain.silence(now_ms=now_ms, rules=rules)))


class TestSilence:
    """Who says nothing any more."""

    @pytest.mark.parametrize(
        ("facts", "every_ms", "silent_ms", "is_told"),
        [
            (5, 1_000, 60_000, False),
            (5, 1_000, 60_001, True),
            (4, 1_000, 10_000_000, False),  # too little is known of it
            (5, 0, 60_001, True),  # all at once
            (50, 20_000, 60_001, False),  # it always takes its time
            (50, 20_000, 200_001, True),
        ],
    )
    def test_it_is_told_when_it_is_unusual(
        self, facts: int, every_ms: int, silent_ms: int, is_told: bool
    ) -> None:
        """Longer than what was asked for, and than ten times what is usual."""
        chain = active(facts, every_ms=every_ms, now_ms=1_000_000)

        _, told = hush(chain, 1_000_000 + silent_ms)

        assert is_told == bool(told)

    def test_it_is_told_once_and_so_is_its_end(self) -> None:
        """Whatever is wrong with a token that comes then is told as well."""
        chain = active(now_ms=5_000)

        chain, first = hush(chain, 70_000)
        chain, second = hush(again(chain), 700_000)
        chain, told = follow((800, 1, 5, 6), (801, 1, 6, 7), chain=again(chain), now_ms=800_000)
        chain, third = hush(chain, 800_001)

        assert (["stall 5 65.0 1.0"], [], []) == (first, second, third)
        assert ["active 6 795.0 800"] == said(told)

    def test_one_long_silence_does_not_become_usual(self) -> None:
        """It counts for no more than what was allowed."""
        chain, _ = hush(active(100, now_ms=100_000), 9_000_000)

        chain, _ = follow((9_000, 1, 100, 101), chain=chain, now_ms=9_000_000)

        assert 1_000 < chain.usual_ms < 1_700

    def test_a_new_habit_becomes_usual(self) -> None:
        """A writer that is slow from now on is soon what it is."""
        chain = active(100, every_ms=10, now_ms=0)

        for n in range(101, 401):
            (run,) = runs_of([(n, 1, n - 1, n, n * 20_000)])
            assert [] == list(chain.advance(run, now_ms=n * 20_000, rules=RULES))

        assert 15_000 < chain.usual_ms <= 20_000


MINUTE = BEGAN_MS // MINUTE_MS


def dropped(*keys: str, rows: int = 1) -> Drops:
    """Entries of one cache."""
    counts = Counter(f"c {json.dumps([key])}" for key in keys)
    return Drops(rows=rows, keyed=len(keys), names={"c": len(keys)}, keys=dict(counts))


def saw(at_s: float, epoch: int = 1, *, serial: int = 1, **in_minutes: Drops) -> Observations:
    """A task that read up to so many seconds after the beginning; ``m3`` is the minute 3."""
    at_ms = BEGAN_MS + int(at_s * 1000)
    return Observations(
        at_ms=at_ms,
        begun=[Epoch(at_ms=at_ms, epoch=epoch, before_epoch=epoch, serial=serial)],
        runs=[],
        minutes={MINUTE + int(name[1:]): drops for name, drops in in_minutes.items()},
    )


def look(
    log: LogState | None, seen: Sequence[Observations], *, now_ms: int = 0, rules: WatchRules = RULES
) -> tuple[LogState, list[WatchEvent]]:
    """What is told of what tasks saw."""
    log = log or LogState()
    told = [line for one in seen for line in log.follow(one, now_ms=now_ms, rules=rules)]
    return log, told + log.pass_time(now_ms=now_ms, rules=rules)


def lists(lines: Sequence[WatchEvent]) -> list[tuple[str, int, list[tuple[str, int]]]]:
    """The minutes, their invalidations, and their keys."""
    told = [json.loads(encode(line)) for line in lines]
    return [
        (line["minute"][11:], line["invalidations"], [(one["key"][0], one["count"]) for one in line["keys"]])
        for line in told
    ]


class TestMinutes:
    """The list of each minute, once."""

    def test_a_minute_is_told_when_the_daemon_is_past_it(self) -> None:
        """With a little grace; what came for it in several batches is together."""
        log, told = look(None, [saw(10, m0=dropped("a"))], now_ms=0, rules=RULES)
        assert not told
        log, told = look(log, [saw(64, m0=dropped("a", "b"), m1=dropped("c"))], now_ms=1, rules=RULES)
        assert not told
        log = msgspec.json.decode(msgspec.json.encode(log), type=LogState)

        log, told = look(log, [saw(65)], now_ms=2, rules=RULES)

        assert [("00:00Z", 3, [("a", 2), ("b", 1)])] == lists(told)
        assert {MINUTE + 1} == set(log.minutes)

    def test_a_minute_is_told_when_nothing_comes_any_more(self) -> None:
        """By our clock, which need not agree with the daemon's."""
        log, _ = look(None, [saw(50, m0=dropped("a"))], now_ms=77)
        when = 77 + 15_000

        assert not log.pass_time(now_ms=when - 1, rules=RULES)
        assert [("00:00Z", 1, [("a", 1)])] == lists(log.pass_time(now_ms=when, rules=RULES))
        assert not log.minutes

    def test_what_comes_for_a_minute_that_was_told_counts_in_the_next(self) -> None:
        """A minute is told once, and nothing is left out."""
        log, _ = look(None, [saw(70, m0=dropped("a"))], now_ms=0, rules=RULES)

        log, told = look(log, [saw(130, m0=dropped("b"), m1=dropped("c"))], now_ms=1, rules=RULES)

        assert [("00:01Z", 2, [("b", 1), ("c", 1)])] == lists(told)

    def test_many_minutes_at_once_are_told_in_order(self) -> None:
        """As where a run begins at the beginning of the log."""
        seen = [saw(59, m0=dropped("a")), saw(600, m2=dropped("c"), m1=dropped("b"))]

        _, told = look(None, seen, now_ms=0, rules=RULES)

        assert ["00:00Z", "00:01Z", "00:02Z"] == [minute for minute, _, _ in lists(told)]

    def test_the_rarest_of_very_many_entries_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And it is said by how much a count may be too low."""
        monkeypatch.setattr(observations, "MOST_KEYS", 10)
        drops = dropped("hot", "hot", "hot", *(f"k{n}" for n in range(15)))

        _, (line,) = look(None, [saw(70, m0=drops)], now_ms=0, rules=WatchRules(top=1))

        told = json.loads(encode(line))
        assert [{"name": "c", "key": ["hot"], "count": 3}] == told["keys"]
        assert 1 == told["short_by"]
        assert [{"name": "c", "count": 18}] == told["names"]

    def test_a_turn_is_told_once(self) -> None:
        """By the first fact of its epoch; the first epoch that is seen is no turn."""
        log, first = look(None, [saw(1, epoch=3)], now_ms=0, rules=RULES)
        log, second = look(log, [saw(2, epoch=3, serial=5), saw(3, 4, serial=8)], now_ms=0, rules=RULES)
        log, third = look(log, [saw(4, 4, serial=9)], now_ms=0, rules=RULES)

        assert ([], ["epoch 4 3 8"], []) == (said(first), said(second), said(third))


def rows_of(facts: Sequence[Fact]) -> Any:
    """As the source gives them."""
    rows = explode(batch_of_facts(facts))
    return pa.record_batch([rows[name] for name in COLUMNS], names=list(COLUMNS))


class TestObserving:
    """What a task makes of what it reads."""

    def test_rows_become_runs_and_drops(self) -> None:
        """Aliases are what workers take them for; whole caches are counted apart."""
        facts = chained(
            [
                ("caches", "master", [["cs_cache_fake", ["!r:h", "@a:h", "@b:far"], 0], ["mine", None, 1]]),
                ("caches", "w1", [["get_user_by_id", ["@a:h"], 0], ["cs_cache_fake", None, 0]]),
                ("caches", "master", [["get_user_by_id", ["@a:h"], 0], [5]]),
                ("push_rules", "master", []),
            ],
            step_ms=1000,
        )

        (batch,) = observe([rows_of(facts[:2]), rows_of(facts[2:])])

        seen = msgspec.json.decode(batch["observations"][0].as_py(), type=Observations)
        runs = [(stream, writer, run.facts, run.token) for stream, writer, its in seen.runs for run in its]
        assert sorted(runs) == [
            ("caches", "master", 2, 3),
            ("caches", "w1", 1, 2),
            ("push_rules", "master", 1, 1),
        ]
        assert facts[-1].committed_at_ms == seen.at_ms
        (drops,) = seen.minutes.values()
        assert (6, 1, 1) == (drops.rows, drops.misshapen, drops.unreadable)
        assert 2 == drops.names["get_user_by_id"]
        assert 2 == drops.names["is_host_joined"]
        hosts = {entry: count for entry, count in drops.keys.items() if entry.startswith("is_host_joined ")}
        assert {'is_host_joined ["!r:h","far"]': 1, 'is_host_joined ["!r:h","h"]': 1} == hosts
        assert 1 == drops.whole_names["mine"]
        assert drops.keyed == sum(drops.names.values())
        assert drops.whole == sum(drops.whole_names.values())

    def test_what_the_log_says_to_be_lost_is_no_gap(self) -> None:
        """It will not come: no repair is awaited, and the next fact goes on from there."""
        facts = [
            Fact(serial, 1, "s", "w", prev_token, token, rows, serial * 1000, "")
            for serial, prev_token, token, rows in [
                (1, 0, 0, b"[]"),
                (2, 0, 2, b"[[1]]"),
                (3, 5, 5, b"[]"),
                (4, 5, 6, b"[[1]]"),
                (5, 4, 4, b"[[1]]"),
                (6, 9, 9, b"[]"),
            ]
        ]
        chain = WriterChain(stream="s", writer="w")

        (batch,) = observe([rows_of(facts)])

        seen = msgspec.json.decode(batch["observations"][0].as_py(), type=Observations)
        ((_, _, runs),) = seen.runs
        lines = [line for run in runs for line in chain.advance(run, now_ms=0, rules=RULES)]
        assert ["lost 2 5 1 3", "lost 6 9 1 6"] == said(lines)
        assert (9, []) == (chain.token, chain.holes)

    def test_an_empty_batch_gives_no_rows(self) -> None:
        """Spark asks so where there is nothing."""
        assert [] == list(observe([rows_of([])]))


def test_lines_of_a_batch_are_in_the_order_of_the_log() -> None:
    """A turn comes before what it explains; what is about no fact comes last."""
    _, epoch_start = look(None, [saw(1), saw(2, 2, serial=5)], now_ms=0, rules=RULES)
    _, restart = follow((1, 1, 0, 9), (5, 2, 4, 5))
    _, gap = follow((1, 1, 0, 2), (4, 1, 3, 5))
    stall = active().silence(now_ms=10**9, rules=RULES)
    _, hot = look(None, [saw(70, m0=dropped("a"))], now_ms=0, rules=RULES)

    told = sorted([*hot, *stall, *restart, *epoch_start, *gap], key=order)

    assert ["Gap", "Epoch", "Restart", "Stall", "Hot"] == [type(line).__name__ for line in told]
    assert len(KINDS) == len({json.loads(encode(line))["type"] for line in told}) + 4


class TestCheckpointedState:
    """What a run knows of the one before it."""

    def test_a_batch_that_is_repeated_finds_what_was_before_it(self, tmp_path: Path) -> None:
        """Spark repeats what it has not committed, in which case its lines are told again."""
        file = CheckpointedState(str(tmp_path))
        for batch in range(3):
            look(file.begin(batch), [saw(batch, epoch=batch + 1)])
            file.save()

        again, later = CheckpointedState(str(tmp_path)), CheckpointedState(str(tmp_path))

        assert 3 == later.state.epoch
        assert 2 == again.begin(2).epoch
        assert 3 == later.begin(3).epoch
        assert 3 == CheckpointedState(str(tmp_path)).state.epoch

    def test_without_a_checkpoint_nothing_is_written(self) -> None:
        """The state lives as long as the run."""
        file = CheckpointedState(None)
        look(file.begin(0), [saw(1)])
        file.save()

        assert 1 == file.begin(1).epoch
