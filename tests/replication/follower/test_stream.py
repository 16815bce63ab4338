"""The state machine of a stream: events in, actions out."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from synrepl.errors import GapError, LocalProtocolError, NotConnected, ReplicationError, RowError
from synrepl.replication.follower.facts import MAX_WAITING_BYTES
from synrepl.replication.follower.gaps import MAX_ATTEMPTS
from synrepl.replication.follower.history import QUIET_SECONDS, AppliedPositions, ApplyPolicy, StreamHistory
from synrepl.replication.follower.states import (
    ADVANCED,
    APPLIED,
    APPLY,
    TRANSITIONS,
    Action,
    Applied,
    Cancel,
    Connected,
    Disconnected,
    Fetch,
    FetchFailed,
    Invalidate,
    Invalidated,
    Pause,
    PauseOver,
    Report,
    Reported,
    Stopped,
    StreamEvent,
    StreamState,
    Tick,
    Wake,
)
from synrepl.replication.follower.stream import StreamMachine
from synrepl.replication.follower.updates import MissedFacts, NowhereToFetch
from synrepl.replication.strategies import SHARED, FollowStrategy
from synrepl.streams.batches import Batches
from synrepl.wire.commands import Position, Rdata, Rewind
from synrepl.wire.rdata_runs import RdataRun

W = "w1"
BIG = b"x" * (MAX_WAITING_BYTES + 1)
PULL = FollowStrategy(pushed=False)
PUSH = FollowStrategy(pushed=True)

ORDERED = ApplyPolicy(ordered=True, monotonic=True, earliest=False)
UNORDERED = ApplyPolicy(ordered=False, monotonic=True, earliest=False)
DESCENDING = ApplyPolicy(ordered=False, monotonic=True, earliest=False, descends=True)

DETECTED, REPAIRED = Report(Reported.GAP_DETECTED), Report(Reported.GAP_REPAIRED)


def row(token: int | None, text: bytes = b"[]") -> Rdata:
    return Rdata(stream="s", instance=W, token=token, row=text)


def position(prev: int, token: int) -> Position:
    return Position(stream="s", instance=W, prev_token=prev, token=token)


def at(token: int) -> Report:
    return Report(Reported.POSITION, W, token)


def error(why: str, have: int, want: int) -> GapError:
    return GapError(stream="s", writer=W, have=have, want=want, why=why)


def decode(rows: list[bytes]) -> list[Any]:
    if b"bad" in rows:
        raise RowError(stream="s", why="bad")
    return rows


class Machine(StreamMachine):
    """A machine at position 10, and what it ordered. Facts are applied when they are ordered."""

    def __init__(
        self,
        policy: ApplyPolicy = ORDERED,
        strategy: FollowStrategy = PULL,
        *,
        has_caches: bool = False,
        known: int | None = 10,
    ) -> None:
        positions = AppliedPositions({} if known is None else {W: known})
        super().__init__("s", StreamHistory(policy, positions), Batches(), seconds=lambda: self.now)
        self.now = 0.0
        self.history.has_caches = has_caches
        self.applied: list[int] = []
        self.strategy = strategy
        self.handle(Connected(strategy, decode))

    def apply(self) -> list[Action]:
        """Apply facts as far as they go."""
        self.applied += [updates.token for updates in self.facts.take()]
        return self.handle(APPLIED)

    def hears(self, *events: StreamEvent) -> list[Action]:
        """All actions for these events; facts are applied at once, caches are dropped at once."""
        done: list[Action] = []
        for event in events:
            actions = self.handle(event)
            while actions:
                done += actions
                last = actions[-1]
                actions = []
                if last is APPLY:
                    actions = self.apply()
                elif last == Invalidate():
                    actions = self.handle(Invalidated())
        return done


def live(**options: Any) -> Machine:
    machine = Machine(**options)
    machine.hears(position(10, 10))
    assert machine.state is StreamState.LIVE
    return machine


def disconnected() -> Machine:
    machine = live()
    machine.handle(Disconnected())
    return machine


def applying() -> Machine:
    machine = live()
    machine.handle(row(11))
    next(machine.facts.take())
    return machine


def invalidating() -> Machine:
    machine = live(has_caches=True)
    machine.handle(row(11, b"bad"))
    assert list(machine.facts.take()) == []
    machine.handle(APPLIED)
    return machine


def fetching() -> Machine:
    machine = live()
    machine.handle(position(20, 20))
    return machine


def backing_off() -> Machine:
    machine = fetching()
    machine.handle(FetchFailed(ReplicationError("away")))
    return machine


STATES: dict[StreamState, Callable[[], Machine]] = {
    StreamState.DISCONNECTED: disconnected,
    StreamState.LIVE: live,
    StreamState.APPLYING: applying,
    StreamState.INVALIDATING: invalidating,
    StreamState.FETCHING: fetching,
    StreamState.BACKING_OFF: backing_off,
}

EVENTS: list[StreamEvent] = [
    row(12),
    RdataRun(stream="s", instance=W, tokens=[12, 13], rows=[b"[]", b"[]"]),
    position(12, 12),
    Rewind(stream="s", instance=W, token=8),
    MissedFacts(facts=[(15, [b"[]"])], upto=20, limited=False),
    Connected(PULL, decode),
    Disconnected(),
    Stopped(),
    APPLIED,
    Invalidated(),
    FetchFailed(ReplicationError("away")),
    PauseOver(),
    Tick(),
]


def test_the_examples_are_all_states_and_events() -> None:
    """A new one needs an example."""
    assert set(STATES) == set(StreamState) == set(TRANSITIONS)
    assert {type(event) for event in EVENTS} == {event for events in TRANSITIONS.values() for event in events}


@pytest.mark.parametrize("state", StreamState, ids=lambda state: state.name)
def test_a_stream_is_blocked_unless_it_is_live_or_disconnected(state: StreamState) -> None:
    """A follower with a blocked stream is not up to date."""
    is_blocked = state not in (StreamState.LIVE, StreamState.DISCONNECTED)

    assert is_blocked is STATES[state]().is_blocked


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", StreamState, ids=lambda state: state.name)
def test_every_event_in_every_state(state: StreamState, event: StreamEvent) -> None:
    """It leads where the table says, or is an error that changes nothing."""
    machine = STATES[state]()
    assert machine.state is state
    allowed = TRANSITIONS[state].get(type(event))

    if allowed is None:
        impossible = f"{type(event).__name__} is impossible in state {state.name}"
        with pytest.raises(LocalProtocolError, match=impossible):
            machine.handle(event)
        assert machine.state is state
    else:
        actions = machine.handle(event)
        assert machine.state in allowed
        waits = [one for one in actions if not isinstance(one, Report | Wake)]
        assert waits == actions[len(actions) - len(waits) :]
        assert len(waits) == (Cancel() in waits or (state, machine.state) not in _SILENT)


_SILENT = {
    *((state, state) for state in StreamState),
    *((state, StreamState.LIVE) for state in StreamState),
    *((state, StreamState.DISCONNECTED) for state in (StreamState.LIVE, StreamState.DISCONNECTED)),
}
"""Steps without an action that is followed by an event."""


def test_the_table_has_no_step_that_cannot_be_taken() -> None:
    """Chance takes each of them, with every policy, strategy and kind of page."""
    taken: set[tuple[StreamState, type, StreamState]] = set()
    for seed in range(1500):
        _walk(Random(seed), taken)
    _end_of_a_dropped_fact(taken)

    assert taken == {
        (state, event, other)
        for state, events in TRANSITIONS.items()
        for event, others in events.items()
        for other in others
    }


def _walk(chance: Random, taken: set[tuple[StreamState, type, StreamState]]) -> None:
    strategy = chance.choice([PULL, PULL, PUSH, SHARED, SHARED])
    machine = Machine(
        chance.choice([ORDERED, UNORDERED, DESCENDING]),
        strategy,
        has_caches=chance.random() < 0.5,
        known=chance.choice([None, 10]),
    )
    token = 10
    for _ in range(60):
        machine.now += 0.3
        token += chance.choice([-3, 0, 1, 1, 1, 2])
        writer, text = chance.choice([W, W, W, "w2"]), chance.choice([b"[]", b"[]", b"[]", b"bad", BIG])
        before = machine.state
        kinds = [kind for kind in TRANSITIONS[before] if kind is not Rewind]
        kind = chance.choice([*kinds, Rdata, Rdata, RdataRun, RdataRun])
        if kind is Position and chance.random() < 0.2:
            kind = Rewind
        event: StreamEvent
        if kind is Rdata:
            event = Rdata(stream="s", instance=writer, token=chance.choice([None, token]), row=text)
        elif kind is RdataRun:
            event = RdataRun(stream="s", instance=writer, tokens=[token, None], rows=[text, b"[]"])
        elif kind is Position:
            prev = token - chance.choice([0, 2])
            event = Position(stream="s", instance=writer, prev_token=prev, token=token)
        elif kind is Rewind:
            event = Rewind(stream="s", instance=writer, token=token - 5)
        elif kind is MissedFacts:
            few = chance.choice([[], [(token - 1, [text])]])
            event = MissedFacts(facts=few, upto=token - 1, limited=chance.random() < 0.5)
        elif kind is FetchFailed:
            event = FetchFailed(chance.choice([ReplicationError("away"), NowhereToFetch("nowhere")]))
        elif kind is Connected:
            event = Connected(strategy, decode)
        else:
            event = next(one for one in EVENTS if type(one) is kind)
        if kind is Applied:
            for _ in machine.facts.take():
                if chance.random() < 0.5:
                    break
        machine.handle(event)
        taken.add((before, kind, machine.state))


def _end_of_a_dropped_fact(taken: set[tuple[StreamState, type, StreamState]]) -> None:
    """The queue was full of a new writer's rows. Chance meets this too seldom."""
    for kind in (Rdata, RdataRun):
        machine = Machine(has_caches=True, known=None)
        machine.positions.advance("w2", 10)
        machine.history.has_started = True
        machine.handle(Disconnected())
        machine.handle(Connected(PULL, decode))
        machine.hears(Position(stream="s", instance="w2", prev_token=10, token=10))
        machine.handle(Rdata(stream="s", instance="w2", token=11, row=b"[]"))
        next(machine.facts.take())
        machine.handle(row(None, BIG))
        machine.handle(APPLIED)
        run = RdataRun(stream="s", instance=W, tokens=[11, None], rows=[b"[]", b"[]"])
        machine.handle(run if kind is RdataRun else row(11))
        taken.add((StreamState.LIVE, kind, machine.state))


class TestActions:
    """What is ordered, in which order."""

    def test_a_fact_moves_the_position_after_it_was_applied(self) -> None:
        """G4."""
        machine = live()

        assert machine.handle(row(11)) == [APPLY]
        assert machine.positions.tokens == {W: 10}
        assert next(machine.facts.take()).token == 11
        assert machine.positions.tokens == {W: 10}
        assert machine.handle(APPLIED) == [ADVANCED]
        assert machine.positions.tokens == {W: 11}

    def test_a_gap_is_fetched_page_by_page(self) -> None:
        """Each request begins where the last page ended."""
        machine = live()

        assert machine.handle(position(20, 20)) == [DETECTED, Fetch(W, 10, 20)]
        page = MissedFacts(facts=[(12, [b"[]"])], upto=15, limited=True)
        assert machine.hears(page) == [APPLY, Fetch(W, 15, 20)]
        page = MissedFacts(facts=[(18, [b"[]"]), (20, [b"[]"])], upto=20, limited=False)
        assert machine.hears(page) == [APPLY, REPAIRED, at(20), ADVANCED]
        assert machine.applied == [12, 18, 20]

    def test_the_facts_of_an_unknown_writer_may_have_been_missed(self) -> None:
        """What they could invalidate is dropped before anything is fetched."""
        machine = Machine(has_caches=True, known=None)
        machine.positions.advance("w0", 7)
        machine.history.has_started = True
        machine.handle(Disconnected())
        machine.handle(Connected(PULL, decode))

        assert machine.handle(position(9, 9)) == [DETECTED, Invalidate()]
        assert machine.handle(Invalidated()) == [ADVANCED, Fetch(W, 7, 9)]

    def test_failures_are_paused_for_longer_and_longer(self) -> None:
        """And reported each time."""
        machine = fetching()
        failed = FetchFailed(ReplicationError("away"))
        pauses = []
        for _ in range(7):
            report, pause = machine.handle(failed)
            assert isinstance(report, Report)
            assert str(report.error) == str(error("away", 10, 20))
            pauses.append(pause)
            assert machine.handle(PauseOver()) == [Fetch(W, 10, 20)]

        assert pauses == [Pause(seconds) for seconds in (0.5, 1, 2, 4, 8, 8, 8)]
        assert [str(gap) for gap in machine.gaps.errors.values()] == [str(error("away", 10, 20))]

    def test_a_gap_that_cannot_be_fetched_is_given_up(self) -> None:
        """The stream continues, and its caches are dropped."""
        machine = fetching()
        machine.history.has_caches = True

        reports = machine.handle(FetchFailed(NowhereToFetch("nowhere")))

        assert [one.about for one in reports if isinstance(one, Report)] == [
            Reported.ERROR,
            Reported.GAP_LOST,
        ]
        assert reports[-1] == Invalidate()
        assert machine.handle(Invalidated()) == [at(20), ADVANCED]

    def test_a_disconnect_cancels_a_fetch_and_drops_the_queue(self) -> None:
        """Rows behind the gap must not be applied."""
        machine = fetching()
        machine.handle(row(21))

        assert machine.handle(Disconnected()) == [Cancel()]
        machine.handle(Connected(PULL, decode))
        assert machine.handle(position(21, 21)) == [Fetch(W, 10, 21)]

    def test_a_busy_subscriber_may_finish_after_a_disconnect(self) -> None:
        """With an exact order its fact counts."""
        machine = applying()
        machine.handle(row(12))

        assert machine.handle(Disconnected()) == []
        assert machine.handle(APPLIED) == [ADVANCED]
        assert machine.state is StreamState.DISCONNECTED
        assert machine.positions.tokens == {W: 11}

    def test_without_order_it_does_not_count(self) -> None:
        """Earlier facts may have been lost with the connection."""
        machine = live(policy=UNORDERED, strategy=SHARED)
        machine.handle(row(11))
        next(machine.facts.take())
        machine.handle(Disconnected())

        assert machine.handle(APPLIED) == []
        assert machine.positions.tokens == {W: 10}

    def test_a_stopped_fact_does_not_count(self) -> None:
        """It is delivered again."""
        machine = applying()

        assert machine.handle(Stopped()) == [Cancel()]
        assert machine.positions.tokens == {W: 10}

    def test_a_row_of_no_shape_is_reported_and_skipped(self) -> None:
        """Its caches are dropped."""
        machine = live(has_caches=True)

        report, *others = machine.hears(row(11, b"bad"), row(12))[1:]

        assert isinstance(report, Report)
        assert isinstance(report.error, RowError)
        assert others == [Invalidate(), ADVANCED, APPLY]
        assert machine.applied == [12]

    def test_a_repetition_invalidates_again(self) -> None:
        """It may be an equal fact of a lost history."""
        machine = live(policy=UNORDERED, has_caches=True)
        machine.hears(row(11))
        machine.handle(row(11))

        next(machine.facts.take())

        assert machine.facts.is_repetition
        assert machine.handle(APPLIED) == []

    def test_a_burst_is_applied_when_it_is_quiet(self) -> None:
        """From the lowest token up."""
        machine = live(policy=DESCENDING, strategy=SHARED)

        assert machine.hears(row(13), row(12)) == [Wake(QUIET_SECONDS)]
        assert machine.is_blocked
        machine.now += QUIET_SECONDS - 0.1
        assert machine.hears(Tick()) == [Wake(QUIET_SECONDS)]
        machine.now += QUIET_SECONDS
        assert machine.hears(Tick()) == [APPLY]
        assert machine.applied == [12, 13]
        assert not machine.is_blocked

    def test_a_push_that_is_too_much_is_paused_until_the_queue_is_empty(self) -> None:
        """A server that pushes cannot be asked again."""
        machine = live(strategy=PUSH)
        machine.handle(row(11))
        next(machine.facts.take())

        assert machine.handle(row(12, BIG)) == [Report(Reported.FULL)]
        assert machine.handle(row(13)) == []
        assert machine.handle(APPLIED) == [ADVANCED, APPLY]
        machine.apply()
        assert machine.apply()[-1:] == [Report(Reported.EMPTY)]
        assert machine.applied == [12, 13]

    def test_a_run_may_begin_with_the_end_of_a_dropped_fact(self) -> None:
        """That fact is fetched whole; its last row is not applied alone."""
        machine = applying()
        machine.handle(row(None, BIG))
        assert machine.hears(APPLIED) == [ADVANCED]

        run = RdataRun(stream="s", instance=W, tokens=[12, 13], rows=[b"[]", b"[]"])

        assert machine.handle(run) == [DETECTED, Fetch(W, 11, 12)]

    def test_what_follows_a_row_that_must_be_waited_for_is_ordered_again(self) -> None:
        """The rest of a run, decoded already."""
        machine = live()
        run = RdataRun(stream="s", instance=W, tokens=[11, 12, 13], rows=[b"[]"] * 3)
        assert machine.handle(run) == [APPLY]
        facts = machine.facts.take()
        assert [next(facts).token, next(facts).token] == [11, 12]
        assert machine.positions.tokens == {W: 11}

        assert machine.handle(APPLIED) == [ADVANCED, APPLY]
        assert [updates.token for updates in machine.facts.take()] == [13]
        assert machine.positions.tokens == {W: 13}

    def test_a_run_with_a_batch_is_taken_row_by_row(self) -> None:
        """Its first fact blocks the stream: the rows after it are queued."""
        machine = live()

        assert machine.handle(RdataRun(stream="s", instance=W, tokens=[11, None, 12], rows=[b"[]"] * 3)) == [
            APPLY
        ]

        assert len(machine.intake.queue) == 2
        machine.apply()
        assert machine.positions.tokens == {W: 11}
        machine.apply()
        assert machine.applied == [11, 12]

    def test_the_rest_of_a_run_ends_with_the_connection(self) -> None:
        """Even if the subscriber of one of its rows ends it."""
        machine = live()
        machine.handle(RdataRun(stream="s", instance=W, tokens=[11, 12], rows=[b"[]"] * 2))
        facts = machine.facts.take()
        next(facts)

        machine.handle(Disconnected())

        assert list(facts) == []
        assert machine.positions.tokens == {W: 11}

    def test_late_facts_are_fetched_again_after_a_disconnect(self) -> None:
        """A recheck is no gap, and goes on without a source."""
        machine = live(policy=UNORDERED, strategy=SHARED)
        machine.hears(position(30, 30), MissedFacts(facts=[], upto=30, limited=False))
        machine.handle(Disconnected())
        machine.handle(Connected(SHARED, decode))

        assert machine.handle(position(25, 35)) == [Fetch(W, 30, 35)]
        assert machine.handle(FetchFailed(NowhereToFetch("nowhere"))) == [at(35), ADVANCED]

    def test_late_facts_that_could_not_be_fetched_are_fetched_with_the_next_position(self) -> None:
        """Broker 313938: their writer was down for three attempts, and its late fact was never applied."""
        machine = live(policy=UNORDERED, strategy=SHARED)
        machine.hears(position(30, 30), MissedFacts(facts=[], upto=30, limited=False), row(35))
        machine.handle(Disconnected())
        machine.handle(Connected(SHARED, decode))
        failed = FetchFailed(NotConnected("refused"))
        assert machine.handle(position(35, 35)) == [Fetch(W, 30, 35)]
        for _ in range(MAX_ATTEMPTS - 1):
            assert isinstance(machine.handle(failed)[-1], Pause)
            machine.handle(PauseOver())
        assert machine.handle(failed)[1:] == [at(35), ADVANCED]

        assert machine.handle(position(35, 35)) == [Fetch(W, 30, 35)]
