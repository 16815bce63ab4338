"""StreamMachine: decides how one stream is followed. It does no I/O: events in, actions out."""

from collections.abc import Callable
from typing import Any, Final

from synrepl.errors import LocalProtocolError, ReplicationError, RowError
from synrepl.replication.follower import events
from synrepl.replication.follower.catchup import MissedFacts, NowhereToFetch
from synrepl.replication.follower.events import Action, Report, Reported, StreamEvent
from synrepl.replication.follower.facts import PendingFacts
from synrepl.replication.follower.gaps import MAX_ATTEMPTS, GapRepair, StreamGaps
from synrepl.replication.follower.intake import StreamIntake
from synrepl.replication.follower.mode import Mode, StreamHistory, Verdict
from synrepl.replication.follower.modes import mode_for
from synrepl.replication.follower.positions import PositionStep
from synrepl.replication.follower.reorder import QUIET_SECONDS
from synrepl.replication.follower.states import TRANSITIONS, StreamState
from synrepl.replication.follower.updates import Updates
from synrepl.streams.batches import Batches
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.rdata_runs import RdataRun

__all__ = ["StreamMachine"]


class StreamMachine:
    """The state of one stream. A fact that is known already is dropped, whichever source it comes from.

    While facts are missing or a subscriber is busy, the whole stream is blocked and commands are queued. Set
    `has_caches` once `Invalidate` has an effect. `seconds` returns the time.
    """

    def __init__(
        self, name: str, history: StreamHistory, batches: Batches[bytes], *, seconds: Callable[[], float]
    ) -> None:
        self.name = name
        self.state = StreamState.DISCONNECTED
        self.positions = history.positions
        self.gaps = StreamGaps(name, history.positions, descends=history.policy.descends)
        self.intake = StreamIntake(name, batches)
        self.has_caches = False
        self._history = history
        self._seconds = seconds
        self._mode: Mode | None = None
        # What to do next, before the queue: apply these facts, continue the repair, judge this position.
        self._facts = PendingFacts(name, history)
        self._position: tuple[Position, bool] | None = None
        # What is being done, and what comes then: a fact that cannot be decoded is skipped.
        self._step: PositionStep | None = None
        self._skips: PositionStep | None = None
        self._actions: list[Action] = []

    @property
    def is_blocked(self) -> bool:
        """Whether facts have arrived, or are known to be missing, that are not applied yet."""
        if self.state is StreamState.LIVE or self.state is StreamState.DISCONNECTED:
            return self._mode is not None and self._mode.collects
        return True

    def feed(self, event: StreamEvent) -> list[Action]:
        """Handle an event. Returns the actions to perform, in order.

        Raises `LocalProtocolError` for an event that `TRANSITIONS` lacks, `RemoteProtocolError` for a batch
        that is too large.
        """
        allowed = TRANSITIONS[self.state].get(type(event))
        if allowed is None:
            raise LocalProtocolError(f"{self.name}: {type(event).__name__} while {self.state.name}")
        _HANDLERS[type(event)](self, event)
        if self.state is StreamState.LIVE:
            self._proceed()
        assert self.state in allowed, (event, self.state)
        actions, self._actions = self._actions, []
        return actions

    def begin_run(self, run: RdataRun) -> list[Any] | None:
        """Decode the rows of a run to apply each that is above the position; None: feed them one by one.

        The caller moves the position after each row, and feeds `Applied` after the last one, or after the one
        of `block_run`.
        """
        if self.state is not StreamState.LIVE or self._mode is None:
            return None
        if not self.intake.accepts_run(run, self._mode):
            return None
        try:
            rows = self._facts.decode_many(run.rows)
        except RowError:
            return None  # one by one: report the bad one, apply the others
        self.state = StreamState.APPLYING
        return rows

    def block_run(self, writer: str, token: int) -> None:
        """This row of a run waits: `Applied` refers to it. Feed the rows after it: they are queued."""
        self._step = PositionStep(writer, token)

    def next_fact(self) -> tuple[Updates[Any], bool] | None:
        """The next fact to apply, once the last one is applied; None: feed `Applied`.

        The flag is True if only its caches must be invalidated. The caller reports that positions moved.
        """
        if self._step is not None and self._step.advances:
            self.positions.advance(self._step.writer, self._step.token)
        self._step = None
        fact = self._facts.pop(
            is_fetched=self.gaps.repair is not None,
            in_backlog=self._mode is not None and self._mode.in_backlog,
            # It may be an equal fact of a lost history: its caches are invalidated again.
            repeats=self.has_caches,
        )
        if fact is None:
            return None
        if isinstance(fact.updates, RowError):
            self._report(Reported.ERROR, error=fact.updates)
            self._skips = fact.step
            return None
        self._step = fact.step
        return fact.updates, not fact.is_new

    # -- events --------------------------------------------------------------------------------------------

    def _connected(self, event: events.Connected) -> None:
        self._mode = mode_for(self.name, event.strategy, self._history, seconds=self._seconds)
        self._facts.decode_many = event.decode_many
        self._facts.order = self._mode.order
        if self.state is StreamState.DISCONNECTED:
            self.state = StreamState.LIVE

    def _disconnected(self, event: events.Disconnected) -> None:
        """Drop everything that was partly received. The next POSITION repeats what is not applied."""
        self._history.was_disconnected = True
        self._mode = self._position = self._skips = self.gaps.repair = None
        self._facts.clear()
        self.positions.rewind()
        if self.intake.is_full:
            self._report(Reported.EMPTY)
        self.intake.clear()
        if self.state is StreamState.INVALIDATING or (
            self.state is StreamState.APPLYING and not self._facts.order.is_exact
        ):
            # Without order a token says nothing about earlier facts, which may have been lost with the
            # connection.
            if self._step is not None:
                self._step.advances = False
        elif self.state is not StreamState.APPLYING:
            self._cancel()

    def _stopped(self, event: events.Stopped) -> None:
        self._disconnected(events.Disconnected())
        self._cancel()

    def _cancel(self) -> None:
        if self.state not in (StreamState.LIVE, StreamState.DISCONNECTED):
            self._actions.append(events.CANCEL)
        self._step = None
        self.state = StreamState.DISCONNECTED

    def _received_run(self, run: RdataRun) -> None:
        for command in run.commands():
            self._received(command)

    def _received(self, command: Rdata | Position) -> None:
        if self._mode is None:
            return
        queue = self.intake.queue
        if self.state is StreamState.LIVE and not queue and not queue.is_dropping(command.instance):
            self._take(command, self._mode)
            return
        was_full = self.intake.is_full
        self.intake.enqueue(command, self._mode)
        if self.intake.is_full and not was_full:
            self._report(Reported.FULL)

    def _take(self, command: Rdata | Position, mode: Mode) -> None:
        if isinstance(command, Position):
            facts, is_first = self.intake.position(command, mode)
            self._position = command, is_first
            self._facts.extend(facts)
            return
        collected = mode.collects
        self._facts.extend(self.intake.row(command, mode))
        if mode.collects and not collected:
            self._actions.append(events.Wake(QUIET_SECONDS))

    def _tick(self, event: events.Tick) -> None:
        if self._mode is not None:
            if self.state is StreamState.LIVE:
                self._facts.extend(self._mode.quiet_facts())
            if self._mode.collects:
                self._actions.append(events.Wake(QUIET_SECONDS))

    def _done(self, event: events.Applied | events.Invalidated) -> None:
        step, self._step = self._step, None
        self._unblock()
        if step is not None:
            self._finish(step)
        if self._skips is not None:
            skips, self._skips = self._skips, None
            self._skip(skips)

    def _page(self, page: MissedFacts) -> None:
        repair = self.gaps.repair
        assert repair is not None
        self._unblock()
        try:
            facts = repair.received(page)
        except ReplicationError as error:
            self._fetch_failed(events.FetchFailed(error))
        else:
            self._facts.extend((repair.writer, token, rows) for token, rows in facts)

    def _fetch_failed(self, event: events.FetchFailed) -> None:
        self._unblock()
        reports, seconds = self.gaps.failed(event.error)
        self._actions += reports
        if seconds is not None:
            self._block(StreamState.BACKING_OFF, events.Pause(seconds))
        else:
            step = self.gaps.finish()  # the facts cannot be fetched: continue without them
            if not isinstance(event.error, NowhereToFetch):
                self._history.position_unchecked(step.writer)
            self._skip(step)

    def _pause_over(self, event: events.PauseOver) -> None:
        self._unblock()

    # -- what to do next -----------------------------------------------------------------------------------

    def _unblock(self) -> None:
        self.state = StreamState.DISCONNECTED if self._mode is None else StreamState.LIVE

    def _block(self, state: StreamState, action: Action) -> None:
        self.state = state
        self._actions.append(action)

    def _report(
        self, about: Reported, writer: str = "", token: int = 0, error: Exception | None = None
    ) -> None:
        self._actions.append(Report(about, writer, token, error))

    def _proceed(self) -> None:
        """Do what is to be done next, until the stream is blocked or nothing is left."""
        assert self._mode is not None
        while self.state is StreamState.LIVE:
            if self._facts:
                self._block(StreamState.APPLYING, events.APPLY)
            elif self.gaps.repair is not None:
                self._continue_repair(self.gaps.repair)
            elif self._position is not None:
                (command, is_first), self._position = self._position, None
                self._judge(command, self._mode, is_first=is_first)
            elif (queued := self.intake.queue.pop()) is not None:
                self._take(queued, self._mode)
            else:
                if self.intake.is_full:
                    self.intake.is_full = False
                    self._report(Reported.EMPTY)
                return

    def _skip(self, step: PositionStep) -> None:
        """Drop everything that skipped facts could invalidate, before the position advances over them."""
        if self.has_caches:
            self._step = step
            self._block(StreamState.INVALIDATING, events.INVALIDATE)
        else:
            self._finish(step)

    def _finish(self, step: PositionStep) -> None:
        if not step.advances:
            return
        self.positions.advance(step.writer, step.token)
        if step.is_position:
            self._history.position_done(step.writer)
            self.positions.release()
            self._report(Reported.POSITION, step.writer, step.token)
        self._actions.append(events.ADVANCED)

    def _judge(self, command: Position, mode: Mode, *, is_first: bool) -> None:
        """Process a POSITION after the facts before it."""
        writer = command.instance
        judgement = mode.judge(command, is_first=is_first)
        if judgement.void_after is not None:
            self._history.recent.forget_beyond(judgement.void_after)
        if judgement.is_rewound:
            self._report(Reported.REWOUND, writer, command.token)
        token, after = judgement.token, judgement.after
        match judgement.verdict:
            case Verdict.CERTAIN:
                self._actions += self.gaps.close(writer)
                self._finish(PositionStep(writer, token, is_position=True))
            case Verdict.UNCERTAIN:
                self._actions += self.gaps.close(writer)
                self._skip(PositionStep(writer, token, is_position=True))
            case Verdict.REWOUND:
                self._skip(PositionStep(writer, token, is_position=True))
            case Verdict.RECHECK:
                self._actions += self.gaps.close(writer)
                self.gaps.recheck(writer, after, token)
            case Verdict.GAP:
                self._actions += self.gaps.open(writer, after, token)
                if not judgement.is_certain:
                    self._skip(PositionStep(writer, max(after, self.positions.tokens.get(writer, after))))
            case Verdict.RESTARTED:
                self._report(Reported.RESTARTED, writer)
                self._actions += self.gaps.open(writer, 0, token, max_attempts=MAX_ATTEMPTS)
                self._skip(PositionStep(writer, 0))

    def _continue_repair(self, repair: GapRepair) -> None:
        if not repair.is_complete:
            self._block(StreamState.FETCHING, repair.request())
        elif repair.is_recheck:
            self._skip(self.gaps.finish())
        else:
            self._actions += self.gaps.close(repair.writer)
            self._finish(self.gaps.finish())


_HANDLERS: Final[dict[type, Callable[[StreamMachine, Any], None]]] = {
    events.Connected: StreamMachine._connected,
    events.Disconnected: StreamMachine._disconnected,
    events.Stopped: StreamMachine._stopped,
    Rdata: StreamMachine._received,
    RdataRun: StreamMachine._received_run,
    Position: StreamMachine._received,
    events.Tick: StreamMachine._tick,
    events.Applied: StreamMachine._done,
    events.Invalidated: StreamMachine._done,
    MissedFacts: StreamMachine._page,
    events.FetchFailed: StreamMachine._fetch_failed,
    events.PauseOver: StreamMachine._pause_over,
}
