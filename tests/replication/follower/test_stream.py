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
RESTARTING = ApplyPolicy(ordered=False, monotonic=False, earliest=False)
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
        most: int = 1,
    ) -> None:
        positions = AppliedPositions({} if known is None else {W: known})
        super().__init__("s", StreamHistory(policy, positions), Batches(), seconds=lambda: self.now)
        self.now = 0.0
        self.history.has_caches = has_caches
        self.facts.most = most
        self.applied: list[int] = []
        self.batches: list[list[int]] = []
        self.strategy = strategy
        self.handle(Connected(strategy, decode))

    def apply(self) -> list[Action]:
        """Apply facts as far as they go; in batches, if more than one may be in them."""
        if self.facts.most == 1:
            self.applied += [updates.token for updates in self.facts.take()]
        else:
            self.batches += [[updates.token for updates in batch] for batch in self.facts.take_batches()]
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

    def test_what_the_source_no_longer_has_is_reported_from_the_position_on(self) -> None:
        """Not only its last token: what is missing is all behind what was applied."""
        machine = live()

        machine.handle(position(20, 20))
        page = MissedFacts(facts=[(18, [b"[]"])], upto=20, limited=False, lost=[(10, 15)])
        found = machine.hears(page)

        [gap] = [one.error for one in found if isinstance(one, Report) and isinstance(one.error, GapError)]
        assert (10, 15) == (gap.have, gap.want)
        assert machine.applied == [18]

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


class TestNewWriters:
    """Rows before the POSITION of a writer."""

    @pytest.mark.parametrize("policy", [ORDERED, UNORDERED], ids=["ordered", "unordered"])
    @pytest.mark.parametrize("kind", [Rdata, RdataRun])
    @pytest.mark.parametrize(("first", "after"), [(20, 10), (5, 0)], ids=["the sequence of all", "its own"])
    def test_on_a_channel_they_are_fetched_with_what_was_before(
        self, policy: ApplyPolicy, kind: type, first: int, after: int
    ) -> None:
        """They passed for its first ones: what it wrote while this follower was away was lost in silence."""
        machine = live(policy=policy, strategy=SHARED)
        rows: StreamEvent
        if kind is Rdata:
            rows = Rdata(stream="s", instance="w2", token=first, row=b"[]")
        else:
            rows = RdataRun(stream="s", instance="w2", tokens=[first, first + 1], rows=[b"[]"] * 2)

        actions = machine.hears(rows)
        assert Reported.REWOUND not in [one.about for one in actions if isinstance(one, Report)]
        assert actions[-1] == Fetch("w2", after, first)
        machine.handle(Position(stream="s", instance="w2", prev_token=first + 1, token=first + 1))
        machine.hears(MissedFacts(facts=[(first - 1, [b"[]"]), (first, [b"[]"])], upto=first, limited=False))
        if kind is Rdata:
            page = MissedFacts(facts=[(first + 1, [b"[]"])], upto=first + 1, limited=False)
            machine.hears(page)

        assert machine.applied == [first - 1, first, first + 1]
        assert machine.positions.tokens == {W: 10, "w2": first + 1}

    def test_the_rest_of_such_a_fact_is_fetched_too(self) -> None:
        """Half of it may have come before we listened."""
        machine = live(strategy=SHARED)

        for token in (None, None):
            machine.handle(Rdata(stream="s", instance="w2", token=token, row=b"[]"))

        last = Rdata(stream="s", instance="w2", token=20, row=b"[]")
        assert machine.hears(last)[-1] == Fetch("w2", 10, 20)

    def test_a_stream_that_is_new_itself_begins_with_them(self) -> None:
        """A follower from now on has missed nothing."""
        machine = Machine(strategy=SHARED, known=None)
        machine.hears(position(10, 10), Rdata(stream="s", instance="w2", token=20, row=b"[]"))

        assert machine.applied == [20]


def busy(known: int = 20, **options: Any) -> Machine:
    """A machine at position 19 whose subscriber is busy with the fact 20; a BIG row fills its queue."""
    machine = live(**options)
    machine.hears(position(10, known - 1))
    assert machine.handle(row(known)) == [APPLY]
    next(machine.facts.take())
    return machine


def reports(machine: Machine, *events: StreamEvent) -> list[Reported]:
    return [one.about for one in machine.hears(*events) if isinstance(one, Report)]


class TestFullQueue:
    """What is dropped from it is fetched."""

    @pytest.mark.parametrize(
        ("policy", "after"),
        [(ORDERED, 20), (UNORDERED, 14), (RESTARTING, 0)],
        ids=["", "late", "begun again"],
    )
    @pytest.mark.parametrize("strategy", [PULL, SHARED], ids=["server", "channel"])
    def test_a_dropped_fact_below_the_position(
        self, policy: ApplyPolicy, after: int, strategy: FollowStrategy
    ) -> None:
        """A late one was never fetched, nor was anything said; an old cache entry stayed."""
        machine = busy(policy=policy, strategy=strategy)
        for event in (row(15), row(16), row(21), row(22, BIG)):
            machine.handle(event)

        assert machine.hears(APPLIED)[-1] == Fetch(W, after, 22)
        facts = [(token, [b"[]"]) for token in (15, 16, 21, 22)]
        machine.hears(MissedFacts(facts=facts, upto=22, limited=False))

        late = [15, 16] if policy is not ORDERED else []
        assert machine.applied[-len(facts) :] == [*late, 21, 22]
        assert machine.positions.tokens == {W: 22}

    @pytest.mark.parametrize("strategy", [PULL, SHARED], ids=["server", "channel"])
    def test_a_dropped_fact_below_the_position_over_a_disconnect(self, strategy: FollowStrategy) -> None:
        """What is known of the next connection shows nothing of it."""
        machine = busy(policy=UNORDERED, strategy=strategy)
        for event in (row(15), row(22, BIG)):
            machine.handle(event)
        assert machine.hears(APPLIED)[-1] == Fetch(W, 14, 22)
        for _ in range(2):
            machine.handle(Disconnected())
            machine.handle(Connected(strategy, decode))
            assert machine.hears(position(22, 22))[-1] == Fetch(W, 14, 22)

        machine.hears(MissedFacts(facts=[(15, [b"[]"]), (22, [b"[]"])], upto=22, limited=False))

        assert machine.applied[-2:] == [15, 22]
        assert machine.hears(position(22, 22)) == [at(22), ADVANCED]

    @pytest.mark.parametrize("strategy", [PULL, SHARED], ids=["server", "channel"])
    @pytest.mark.parametrize("text", [b"[]", BIG], ids=["waits", "dropped"])
    def test_a_late_fact_that_waits_at_a_disconnect(self, strategy: FollowStrategy, text: bytes) -> None:
        """As if it had come a moment later."""
        machine = busy(policy=UNORDERED, strategy=strategy)
        machine.handle(row(15, text))
        machine.handle(Disconnected())
        machine.handle(APPLIED)
        machine.handle(Connected(strategy, decode))

        assert machine.hears(position(20, 20))[-1] == Fetch(W, 14, 20)

    @pytest.mark.parametrize("strategy", [PULL, SHARED], ids=["server", "channel"])
    def test_dropped_repetitions_are_no_loss(self, strategy: FollowStrategy) -> None:
        """On a channel, a POSITION as low would say that the writer has lost facts."""
        machine = busy(strategy=strategy)
        machine.handle(row(19))
        machine.handle(row(20, BIG))

        assert reports(machine, APPLIED) == [Reported.ADVANCED]
        assert machine.positions.tokens == {W: 20}

    def test_a_life_after_another_in_the_queue(self) -> None:
        """The tokens of the first one are void."""
        machine = busy(policy=RESTARTING)
        for token in (21, 22, 23, 1, 2):
            machine.handle(row(token, BIG))

        assert machine.hears(APPLIED)[-1] == Fetch(W, 0, 2)

    def test_facts_of_writers_that_take_turns(self) -> None:
        """One POSITION and one request for each writer, however many were dropped."""
        machine = busy()
        writers = ["w2", "w3"]
        for writer in writers:
            machine.handle(Position(stream="s", instance=writer, prev_token=20, token=20))
        for token in range(21, 41):
            machine.handle(Rdata(stream="s", instance=writers[token % 2], token=token, row=BIG))
            other = Position(stream="s", instance=writers[1 - token % 2], prev_token=token - 1, token=token)
            machine.handle(other)
        assert len(machine.intake.queue) <= 3 * len(writers)

        asked = []
        actions = machine.hears(APPLIED)
        while isinstance(actions[-1], Fetch):
            asked.append(actions[-1])
            actions = machine.hears(MissedFacts(facts=[], upto=actions[-1].upto, limited=False))

        assert asked == [Fetch("w3", 20, 40), Fetch("w2", 21, 40)]
        assert machine.positions.tokens == {W: 20, "w2": 40, "w3": 40}

    def test_positions_without_facts_are_joined(self) -> None:
        """Those of an idle writer; but for the first, which may show a loss."""
        machine = busy(strategy=SHARED)
        for event in (position(12, 12), position(12, 15), position(15, 18), position(18, 30)):
            machine.handle(event)
        assert len(machine.intake.queue) == 2

        assert Reported.REWOUND in reports(machine, APPLIED)
        machine.hears(MissedFacts(facts=[], upto=12, limited=False))
        assert machine.positions.tokens == {W: 30}

    @pytest.mark.parametrize("strategy", [PULL, SHARED], ids=["server", "channel"])
    def test_first_facts_of_a_new_writer(self, strategy: FollowStrategy) -> None:
        """Of a follower from now on: neither what was dropped is skipped, nor is all fetched."""
        machine = Machine(strategy=strategy, known=None)
        machine.hears(position(10, 10))
        machine.handle(row(20))
        next(machine.facts.take())
        for token in (21, 22):
            machine.handle(Rdata(stream="s", instance="w2", token=token, row=BIG))

        assert machine.hears(APPLIED)[-1] == Fetch("w2", 20, 22)

    def test_what_was_dropped_before_the_first_position(self) -> None:
        """It says what is missing, and what was dropped after it is fetched too."""
        machine = busy()
        machine.handle(Disconnected())
        machine.handle(Connected(PULL, decode))
        for event in (row(18, BIG), row(25, BIG), position(25, 25), row(26), row(27, BIG)):
            machine.handle(event)
        assert len(machine.intake.queue) == 1

        assert machine.hears(APPLIED)[-1] == Fetch(W, 20, 25)
        assert machine.hears(MissedFacts(facts=[], upto=25, limited=False))[-1] == Fetch(W, 25, 27)

    def test_what_was_dropped_without_any_position(self) -> None:
        """Nothing, as for rows that are not dropped."""
        machine = busy()
        machine.handle(Disconnected())
        machine.handle(Connected(PULL, decode))
        machine.handle(row(25, BIG))

        machine.hears(APPLIED)

        assert machine.state is StreamState.LIVE
        assert machine.hears(position(25, 25))[-1] == Fetch(W, 20, 25)


def run(*tokens: int, bad: int = 0) -> RdataRun:
    """A run of a fact for each token, of which one may be bad."""
    rows = [b"bad" if token == bad else b"[]" for token in tokens]
    return RdataRun(stream="s", instance=W, tokens=list(tokens), rows=rows)


class TestBatches:
    """Several facts are applied as one."""

    def test_a_batch_moves_the_position_after_it_was_applied(self) -> None:
        """Over all of its facts."""
        machine = live(most=10)

        assert machine.handle(run(11, 12, 14)) == [APPLY]
        assert [one.token for one in next(machine.facts.take_batches())] == [11, 12, 14]
        assert machine.positions.tokens == {W: 10}
        assert machine.handle(APPLIED) == [ADVANCED]
        assert machine.positions.tokens == {W: 14}

    def test_a_batch_has_at_most_so_many_facts(self) -> None:
        """The rest of a run is the next batch; what is known already is in none."""
        machine = live(most=2)

        machine.hears(run(9, 10, 11, 12, 12, 13))

        assert machine.batches == [[11, 12], [13]]

    def test_what_arrived_meanwhile_is_one_batch(self) -> None:
        """Rows that a busy subscriber has kept waiting; a POSITION among them ends it."""
        machine = live(most=3)
        machine.handle(row(11))
        next(machine.facts.take_batches())
        for event in (row(12), run(13, 14), row(15), position(15, 16), row(17), row(None), row(18)):
            machine.handle(event)

        machine.hears(APPLIED)

        assert machine.batches == [[12, 13, 14], [15], [17, 18]]
        assert machine.positions.tokens == {W: 18}

    def test_a_page_is_divided(self) -> None:
        """Each batch counts by itself."""
        machine = live(most=2)
        machine.handle(position(20, 20))
        facts = [(token, [b"[]"]) for token in (12, 13, 20)]

        actions = machine.hears(MissedFacts(facts=facts, upto=20, limited=False))

        assert machine.batches == [[12, 13], [20]]
        assert actions == [APPLY, REPAIRED, at(20), ADVANCED]

    @pytest.mark.parametrize("most", [2, 3, 10])
    def test_a_row_of_no_shape_does_not_spoil_its_neighbors(self, most: int) -> None:
        """It alone is reported and skipped, after the batch before it has counted."""
        machine = live(most=most, has_caches=True)

        actions = machine.hears(run(11, 12, 13, 14, bad=13))

        assert machine.batches == [[11, 12], [14]]
        assert [one.about for one in actions if isinstance(one, Report)] == [
            Reported.FACT_LOST,
            Reported.ADVANCED,
        ]
        assert actions.count(Invalidate()) == 1
        assert machine.positions.tokens == {W: 14}

    def test_a_row_of_no_shape_is_reported_although_a_cut_came_first(self) -> None:
        """It was ready with the batch before it, and is not taken for a repetition when it comes again."""
        machine = live(policy=UNORDERED, strategy=SHARED, most=10)
        machine.handle(row(11))
        next(machine.facts.take_batches())
        machine.handle(row(12))
        machine.handle(row(13, b"bad"))
        machine.handle(APPLIED)
        assert [one.token for one in next(machine.facts.take_batches())] == [12]
        for event in (Disconnected(), APPLIED, Connected(SHARED, decode), position(10, 13)):
            machine.handle(event)

        facts = [(12, [b"[]"]), (13, [b"bad"])]
        actions = machine.hears(MissedFacts(facts=facts, upto=13, limited=False))

        assert Reported.FACT_LOST in [one.about for one in actions if isinstance(one, Report)]
        assert machine.batches == []

    def test_a_repetition_is_alone(self) -> None:
        """It is for the caches only, not for subscribers."""
        machine = live(policy=UNORDERED, has_caches=True, most=10)
        machine.hears(row(11))
        machine.handle(run(12, 11, 13))

        taken = [
            ([one.token for one in batch], machine.facts.is_repetition)
            for batch in machine.facts.take_batches()
        ]

        assert taken == [([12], False), ([11], True), ([13], False)]
        assert machine.positions.tokens == {W: 13}

    def test_a_batch_of_several_writers_moves_each(self) -> None:
        """Late facts in it move nothing back."""
        machine = live(policy=UNORDERED, most=10)
        machine.hears(Position(stream="s", instance="w2", prev_token=10, token=10), row(11))
        machine.handle(row(14))
        next(machine.facts.take_batches())
        for event in (row(13), Rdata(stream="s", instance="w2", token=12, row=b"[]"), row(15), row(12)):
            machine.handle(event)
        machine.handle(APPLIED)

        next(machine.facts.take_batches())

        assert machine.positions.tokens == {W: 14, "w2": 10}
        assert machine.handle(APPLIED) == [ADVANCED, ADVANCED]
        assert machine.positions.tokens == {W: 15, "w2": 12}

    @pytest.mark.parametrize(("policy", "reached"), [(ORDERED, 12), (UNORDERED, 10)])
    def test_a_batch_that_ends_after_the_cut(self, policy: ApplyPolicy, reached: int) -> None:
        """With an exact order it counts; without, earlier facts may have been lost with the connection."""
        machine = live(policy=policy, strategy=PULL if policy is ORDERED else SHARED, most=10)
        machine.handle(run(11, 12))
        next(machine.facts.take_batches())
        machine.handle(Disconnected())

        machine.handle(APPLIED)

        assert machine.state is StreamState.DISCONNECTED
        assert machine.positions.tokens == {W: reached}

    def test_a_batch_that_is_stopped_does_not_count(self) -> None:
        """It is delivered again."""
        machine = live(most=10)
        machine.handle(run(11, 12))
        next(machine.facts.take_batches())

        assert machine.handle(Stopped()) == [Cancel()]
        assert machine.positions.tokens == {W: 10}

    @pytest.mark.parametrize("most", [2, 3, 100])
    def test_batches_have_the_facts_of_single_ones(self, most: int) -> None:
        """In the same order, with the same positions and reports at the end, whatever a server says."""
        for seed in range(200):
            chance = Random(seed)
            options: dict[str, Any] = {
                "policy": chance.choice([ORDERED, UNORDERED, DESCENDING]),
                "strategy": chance.choice([PULL, PUSH, SHARED]),
                "has_caches": chance.random() < 0.5,
            }
            single, batched = Machine(**options), Machine(**options, most=most)
            for _ in range(30):
                event = _said(chance, single)
                told, again = (
                    [repr(one) for one in machine.hears(event) if one not in (APPLY, ADVANCED)]
                    for machine in (single, batched)
                )
                assert told == again
                assert single.state is batched.state

            assert single.applied == [token for batch in batched.batches for token in batch]
            assert single.positions.tokens == batched.positions.tokens
            assert max(map(len, batched.batches), default=0) <= most


def _said(chance: Random, machine: Machine) -> StreamEvent:
    """Something that may happen to this machine, whose subscribers and caches are never busy."""
    machine.now += 0.3
    at = max(machine.positions.tokens.values(), default=10)
    writer = chance.choice([W, W, "w2"])
    match machine.state:
        case StreamState.FETCHING if chance.random() < 0.8:
            tokens = sorted({at + chance.randint(-1, 4) for _ in range(4)})
            facts = [(token, [chance.choice([b"[]", b"[]", b"bad"])]) for token in tokens]
            return MissedFacts(facts=facts, upto=tokens[-1], limited=chance.random() < 0.3)
        case StreamState.BACKING_OFF:
            return PauseOver()
        case StreamState.DISCONNECTED:
            return Connected(machine.strategy, decode)
    if chance.random() < 0.05:
        return Disconnected()
    if chance.random() < 0.3:
        prev = at + chance.choice([-2, 0, 0, 1])
        return Position(stream="s", instance=writer, prev_token=prev, token=prev + chance.choice([0, 2]))
    tokens = [at + chance.randint(-2, 6) for _ in range(6)]
    if chance.random() < 0.7:
        tokens.sort()
    rows = [chance.choice([b"[]", b"[]", b"[]", b"bad"]) for _ in tokens]
    batched = [None if chance.random() < 0.1 else token for token in tokens]
    return RdataRun(stream="s", instance=writer, tokens=batched, rows=rows)
