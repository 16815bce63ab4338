"""What a POSITION shows in each mode, and the units that the modes are made of."""

from typing import Any

import pytest

from synrepl.errors import ReplicationError
from synrepl.replication.follower.facts import PendingFacts
from synrepl.replication.follower.gaps import DESCENDING_TOKENS, GapRepair, StreamGaps
from synrepl.replication.follower.history import (
    ORDERED,
    OVERTAKING,
    RESTARTING,
    UNORDERED,
    AppliedPositions,
    ApplyPolicy,
    Order,
    StreamHistory,
)
from synrepl.replication.follower.modes import Mode, Push, Verdict, mode_for
from synrepl.replication.follower.states import Fetch, Report, Reported
from synrepl.replication.follower.updates import MissedFacts, NowhereToFetch
from synrepl.replication.strategies import SHARED, FollowStrategy
from synrepl.wire.commands import Position

W = "w1"
PULL = FollowStrategy(pushed=False)
PUSH = FollowStrategy(pushed=True)


def mode(
    strategy: FollowStrategy,
    *,
    known: int | None = 10,
    announced: int | None = None,
    ordered: bool = True,
    monotonic: bool = True,
    external: int = -1,
    out_of_order: bool = False,
    **policy: Any,
) -> Mode:
    history = StreamHistory(
        ApplyPolicy(
            ordered=ordered,
            monotonic=monotonic,
            earliest=policy.pop("earliest", False),
            external_position=lambda writer: external,
            **policy,
        ),
        AppliedPositions({} if known is None else {W: known}),
    )
    history.is_out_of_order = out_of_order
    if announced is not None:
        history.announced[W] = announced
    return mode_for("s", strategy, history, seconds=lambda: 0.0)


FIRST, LATER = True, False


@pytest.mark.parametrize(
    ("is_first", "prev", "token", "verdict", "after"),
    [
        (FIRST, 10, 10, Verdict.CERTAIN, 0),
        (FIRST, 8, 12, Verdict.CERTAIN, 0),
        (FIRST, None, 12, Verdict.GAP, 10),
        (FIRST, 12, 15, Verdict.GAP, 10),
        (FIRST, 4, 4, Verdict.RESTARTED, 0),
        (LATER, 10, 12, Verdict.CERTAIN, 0),
        (LATER, 4, 4, Verdict.STALE, 0),
    ],
)
def test_pull_mode_fetches_from_the_applied_position(
    is_first: bool, prev: int | None, token: int, verdict: Verdict, after: int
) -> None:
    """The announced position against the applied one, which is 10."""
    command = Position(stream="s", instance=W, prev_token=prev, token=token)

    found = mode(PULL).judge(command, is_first=is_first)

    assert (found.verdict, found.token, found.after) == (verdict, token, after)


@pytest.mark.parametrize(
    ("options", "is_first", "token", "verdict"),
    [
        ({"known": None}, FIRST, 12, Verdict.UNCERTAIN),
        ({"known": None, "earliest": True}, FIRST, 12, Verdict.GAP),
        ({"known": None, "is_kept": True, "resumes": True}, FIRST, 12, Verdict.GAP),
        ({"monotonic": False}, FIRST, 10, Verdict.UNCERTAIN),
        ({"monotonic": False}, LATER, 10, Verdict.CERTAIN),
        ({"monotonic": False}, LATER, 4, Verdict.RESTARTED),
        ({"out_of_order": True}, FIRST, 10, Verdict.UNCERTAIN),
        ({"is_kept": True}, FIRST, 4, Verdict.REWOUND),
        ({"external": 15}, FIRST, 12, Verdict.STALE),
        ({"external": 15}, FIRST, 15, Verdict.CERTAIN),
        ({"external": 15}, FIRST, 20, Verdict.GAP),
    ],
)
def test_pull_of_other_streams(options: dict[str, Any], is_first: bool, token: int, verdict: Verdict) -> None:
    """Unknown writers, tokens that go back, logs, and other sources."""
    command = Position(stream="s", instance=W, prev_token=token, token=token)

    assert mode(PULL, **options).judge(command, is_first=is_first).verdict is verdict


@pytest.mark.parametrize(
    ("is_first", "token", "verdict", "is_rewound", "void_after"),
    [
        (FIRST, 12, Verdict.CERTAIN, False, None),
        (FIRST, 10, Verdict.CERTAIN, False, None),
        (FIRST, 4, Verdict.UNCERTAIN, True, 4),
        (LATER, 10, Verdict.CERTAIN, False, None),
        (LATER, 12, Verdict.UNCERTAIN, False, None),
        (LATER, 4, Verdict.UNCERTAIN, False, 4),
    ],
)
def test_push_mode_trusts_only_the_closing_position(
    is_first: bool, token: int, verdict: Verdict, is_rewound: bool, void_after: int | None
) -> None:
    """Only the POSITION that ends the push certifies what was pushed."""
    found = mode(PUSH).judge(Position(stream="s", instance=W, token=token), is_first=is_first)

    assert (found.verdict, found.is_rewound, found.void_after) == (verdict, is_rewound, void_after)


@pytest.mark.parametrize(
    ("options", "is_first", "prev", "token", "verdict", "after"),
    [
        ({}, LATER, 4, 4, Verdict.RESTARTED, 0),
        ({"ordered": False}, LATER, 4, 4, Verdict.CERTAIN, 0),
        ({"ordered": False, "announced": 7}, FIRST, 9, 10, Verdict.RECHECK, 7),
        ({"ordered": False, "announced": 10}, FIRST, 9, 10, Verdict.CERTAIN, 0),
        ({"ordered": False, "announced": 7}, LATER, 9, 10, Verdict.CERTAIN, 0),
        ({"ordered": False, "announced": 7}, LATER, 12, 12, Verdict.GAP, 7),
        ({"ordered": False, "is_kept": True, "known": 2_000}, FIRST, 2_000, 2_000, Verdict.RECHECK, 1_000),
    ],
)
def test_shared(
    options: dict[str, Any], is_first: bool, prev: int, token: int, verdict: Verdict, after: int
) -> None:
    """A writer may fall back at any time; late facts are looked for below its last POSITION."""
    command = Position(stream="s", instance=W, prev_token=prev, token=token)

    found = mode(SHARED, **options).judge(command, is_first=is_first)

    assert (found.verdict, found.after) == (verdict, after)


@pytest.mark.parametrize("strategy", [PULL, SHARED], ids=["server", "channel"])
def test_latest_adopts_every_first_position_of_the_first_connection(strategy: FollowStrategy) -> None:
    """The history of all writers but the first is not news."""
    new = mode(strategy, known=None)
    positions = [Position(stream="s", instance=w, prev_token=t, token=t) for w, t in ((W, 3), ("w2", 9))]

    for position in positions:
        assert new.judge(position, is_first=True).verdict is Verdict.UNCERTAIN
        new._positions.advance(position.instance, position.token)


def test_rows_are_accepted_behind_a_position() -> None:
    """There may be a gap before the others, unless their writer is a new one."""
    pull = mode(PULL)
    assert not pull.accepts_writer("new")
    assert not pull.accepts_writer(W)
    assert pull.announce("other")
    assert pull.accepts_writer("new")
    assert not pull.accepts_writer(W)
    assert pull.announce(W)
    assert W in pull.ready
    assert not pull.announce(W)


@pytest.mark.parametrize(
    ("order", "new", "after"),
    [
        (ORDERED, [(11, b"1")], 11),
        (OVERTAKING, [(11, b"1"), (8, b"1"), (8, b"2")], 11),
        (UNORDERED, [(11, b"1"), (8, b"1"), (8, b"2")], 11),
        (RESTARTING, [(11, b"1"), (8, b"1"), (8, b"2")], 8),
    ],
    ids=["ordered", "overtaking", "unordered", "restarting"],
)
def test_repetitions_and_late_facts_by_mode(order: Order, new: list[tuple[int, bytes]], after: int) -> None:
    """What is a repetition, and how far a late fact moves the position."""
    positions = AppliedPositions({W: 10})
    history = StreamHistory(ApplyPolicy(ordered=True, monotonic=True, earliest=False), positions)
    facts = PendingFacts("s", history, StreamGaps("s", positions, descends=False))
    facts.mode = Mode(history, order)
    facts.extend([(W, 11, [b"1"]), (W, 8, [b"1"]), (W, 8, [b"1"]), (W, 8, [b"2"])])

    assert [(updates.token, updates.rows[0]) for updates in facts.take()] == new
    assert positions.tokens[W] == after


def test_pushed_rows_of_one_token_are_one_fact() -> None:
    """The next token, or the end of the backlog, completes it."""
    policy = ApplyPolicy(ordered=True, monotonic=True, earliest=False)
    push = Push(StreamHistory(policy, AppliedPositions({})), ORDERED)

    assert push.collect(W, 1, [b"a"]) == push.collect(W, 1, [b"b"]) == ()
    assert push.collect(W, 2, [b"c"]) == ((W, 1, [b"a", b"b"]),)
    assert push.flush(W) == ((W, 2, [b"c"]),)


def test_positions_held_back_are_not_reported() -> None:
    """A push that is cut off is requested again from there."""
    positions = AppliedPositions({W: 1})
    positions.hold_back()
    positions.advance(W, 5)
    assert (positions.tokens, positions.reported) == ({W: 5}, {W: 1})
    positions.rewind()
    assert positions.tokens == positions.reported == {W: 1}

    positions.hold_back()
    positions.advance(W, 6)
    positions.release()
    positions.rewind()

    assert positions.tokens == positions.reported == {W: 6}


def test_gaps_stay_open_until_they_are_closed() -> None:
    """A gap is counted once, however often it is met."""
    gaps = StreamGaps("s", AppliedPositions({W: 10}), descends=False)

    assert gaps.open(W, 10, 20) == [Report(Reported.GAP_DETECTED)]
    assert gaps.open(W, 10, 25) == []
    assert gaps.missing() == 15
    assert gaps.close(W) == [Report(Reported.GAP_REPAIRED)]
    assert gaps.close(W) == []
    assert gaps.missing() == 0


def test_descending_responses_are_requested_in_small_steps() -> None:
    """And sorted."""
    repair = GapRepair("s", W, 0, DESCENDING_TOKENS + 9, descends=True)

    assert repair.request() == Fetch(W, 0, DESCENDING_TOKENS)
    facts = [(7, [b"7"]), (3, [b"3"])]
    assert repair.received(MissedFacts(facts=facts, upto=DESCENDING_TOKENS, limited=False)) == facts[::-1]
    assert repair.request() == Fetch(W, DESCENDING_TOKENS, DESCENDING_TOKENS + 9)


def test_a_repair_ends_after_some_failures_in_a_row() -> None:
    """Or at once if a retry cannot help. A page between them starts the count again."""
    repair = GapRepair("s", W, 0, 9, max_attempts=2)
    away = ReplicationError("away")

    assert repair.failed(away) == 0.5
    repair.received(MissedFacts(facts=[], upto=5, limited=True))
    assert [repair.failed(away), repair.failed(away)] == [0.5, None]
    assert GapRepair("s", W, 0, 9).failed(NowhereToFetch("nowhere")) is None


@pytest.mark.parametrize("limited", [True, False])
def test_a_page_without_progress_is_an_error(*, limited: bool) -> None:
    """Or the source would be asked without a pause."""
    with pytest.raises(ReplicationError, match="token 5, not beyond 5"):
        GapRepair("s", W, 5, 9).received(MissedFacts(facts=[], upto=5, limited=limited))


@pytest.mark.parametrize(("ephemeral", "waits"), [(False, [0.5, 1.0, 2.0]), (True, [0.5, 1.0, None])])
def test_a_source_in_memory_that_is_behind_may_have_begun_again(
    *, ephemeral: bool, waits: list[float | None]
) -> None:
    """It is asked a few times, not for ever: the stream would stand still until its tokens are as high."""
    repair = GapRepair("s", W, 5, 9, ephemeral=ephemeral)
    found = []

    for _ in waits:
        with pytest.raises(ReplicationError) as raised:
            repair.received(MissedFacts(facts=[], upto=0, limited=False))
        found.append(repair.failed(raised.value))

    assert found == waits


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize(("upto", "after"), [(7, 7), (9, 9), (99, 9)])
def test_a_page_covers_no_more_than_it_says_nor_than_was_asked(
    *, upto: int, after: int, limited: bool
) -> None:
    """A copy that is behind says so by its token."""
    repair = GapRepair("s", W, 5, 9)

    repair.received(MissedFacts(facts=[], upto=upto, limited=limited))

    assert repair.after == after


@pytest.mark.parametrize(
    ("is_first", "token", "monotonic", "is_behind"),
    [
        (FIRST, 4, True, True),
        (LATER, 4, True, False),  # told once a connection
        (FIRST, 10, True, False),
        (FIRST, 12, True, False),
        (FIRST, 4, False, False),  # its tokens go back
    ],
)
def test_a_server_below_what_was_applied_of_the_same_log_is_told(
    is_first: bool, token: int, monotonic: bool, is_behind: bool
) -> None:
    """A log that was put back to an older copy was followed in silence, and its new facts were left out."""
    found = mode(PULL, monotonic=monotonic)
    found._history.is_compared = True
    command = Position(stream="s", instance=W, prev_token=token, token=token)

    assert found.judge(command, is_first=is_first).is_behind is is_behind
