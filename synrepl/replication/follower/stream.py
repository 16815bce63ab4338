"""StreamMachine: decides how one stream is followed. It does no I/O: events in, actions out.

Only this file changes the state, and only as `states.TRANSITIONS` allows: each event is checked before it is
handled, and the state after it. Where the table allows several next states, `_proceed` chooses: pending facts
come first, then the repair of a gap, then the POSITION after them, then the queue. What a POSITION shows is
decided in `modes`, which facts are new in `facts`, what is requested and repeated in `gaps`.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from synrepl.errors import LocalProtocolError, ReplicationError
from synrepl.replication.follower import states
from synrepl.replication.follower.facts import LOST_ROWS, PendingFacts, PositionEntry, StreamIntake
from synrepl.replication.follower.gaps import MAX_ATTEMPTS, GapRepair, StreamGaps
from synrepl.replication.follower.history import QUIET_SECONDS, PositionStep, StreamHistory
from synrepl.replication.follower.modes import Mode, Verdict, mode_for
from synrepl.replication.follower.states import APPLY, Report, Reported, StreamEvent, StreamState
from synrepl.replication.follower.updates import MissedFacts, NowhereToFetch
from synrepl.streams.batches import Batches
from synrepl.wire.commands import Position, Rdata, Rewind
from synrepl.wire.rdata_runs import RdataRun

_DISCONNECTED: Final = StreamState.DISCONNECTED
_LIVE: Final = StreamState.LIVE
_APPLYING: Final = StreamState.APPLYING


class StreamMachine:
    """The state of one stream. A fact that is known already is not given to subscribers again.

    While facts are missing, or a subscriber or cache is busy, the stream is blocked and commands are queued.
    The action `Apply` tells the caller to apply `facts`. The caller sets `history.has_caches` when it has
    caches; only then is `Invalidate` returned. `seconds` returns the time.
    """

    def __init__(
        self, name: str, history: StreamHistory, batches: Batches[bytes], *, seconds: Callable[[], float]
    ) -> None:
        self.name = name
        self.state = _DISCONNECTED
        self.positions = history.positions
        policy = history.policy
        self.gaps = StreamGaps(name, history.positions, descends=policy.descends, ephemeral=policy.ephemeral)
        self.intake = StreamIntake(name, batches)
        self.facts = PendingFacts(name, history, self.gaps)
        self.history = history
        self._seconds = seconds
        self._mode: Mode | None = None
        # The POSITION to judge after the facts and the repair, and before the queue; whether it is the first.
        self._position: tuple[PositionEntry, bool] | None = None
        # The step to make once everything is dropped that skipped facts could invalidate.
        self._step: PositionStep | None = None
        self._awaits_quiet = False
        self._actions: list[states.Action] = []

    @property
    def is_blocked(self) -> bool:
        """Whether the stream waits for a subscriber, a cache, missing facts or the end of a burst."""
        if self.state is _LIVE or self.state is _DISCONNECTED:
            mode = self._mode
            return mode is not None and mode.collects_rows and mode.collects
        return True

    @property
    def is_rewinding(self) -> bool:
        """Whether a rewind is not done yet."""
        return self._step is not None or any(isinstance(one, Rewind) for one in self.intake.queue)

    def handle(self, event: StreamEvent) -> list[states.Action]:
        """Handle an event. Returns the actions, which the caller must perform in order.

        If the class of the last action names an event that follows, handle that event once it has come; until
        then any other event may be fed. After a `Cancel`, perform no actions of earlier events.

        Raises `LocalProtocolError` for an event that `TRANSITIONS` does not allow in this state,
        `RemoteProtocolError` for a batch that is too large.
        """
        step = _STEPS[self.state].get(type(event))
        if step is None:
            why = f"the event {type(event).__name__} is impossible in state {self.state.name}"
            raise LocalProtocolError(f"stream {self.name}: {why}")
        handle, allowed = step
        handle(self, event)
        if self.state is _LIVE:
            self._proceed()
        if self.state not in allowed:
            why = f"the state {self.state.name} may not follow the event {type(event).__name__}"
            raise LocalProtocolError(f"stream {self.name}: {why}")
        actions, self._actions = self._actions, []
        return actions

    def _connected(self, event: states.Connected) -> None:
        self._mode = mode_for(self.name, event.strategy, self.history, seconds=self._seconds)
        self.facts.decode_many = event.decode_many
        self.facts.mode = self._mode
        if self.state is _DISCONNECTED:
            self.state = _LIVE

    def _disconnected(self, event: states.Disconnected) -> None:
        """Drop everything that was partly received. The next connection repeats what was not applied."""
        self.history.was_disconnected = True
        self.history.is_compared = False
        self._awaits_quiet = False
        self._note_late()
        self._mode = self._position = self._step = self.gaps.repair = None
        self.facts.clear()
        self.positions.rewind()
        if self.intake.is_full:
            self._actions.append(Report(Reported.EMPTY))
        self.intake.clear()
        if self.state is _APPLYING:
            if not self.facts.mode.order.is_exact:
                # A token says nothing about earlier facts, which may have been lost with the connection.
                self.facts.finish()
        elif self.state is not StreamState.INVALIDATING:
            self._cancel()

    def _note_late(self) -> None:
        """Note the late facts that wait: the POSITION of the next connection does not show that they lack."""
        order = self.facts.mode.order
        if self.facts.mode.pushes or order.is_exact or order.restarts:
            return
        for writer, token in [*self.intake.tokens(), *((one[0], one[1]) for one in self.facts.queue)]:
            if token <= self.positions.tokens.get(writer, -1):
                self.gaps.late[writer] = min(token, self.gaps.late.get(writer, token))

    def _stopped(self, event: states.Stopped) -> None:
        self._disconnected(states.Disconnected())
        self._cancel()

    def _cancel(self) -> None:
        if self.state is not _LIVE and self.state is not _DISCONNECTED:
            self._actions.append(states.Cancel())
        self.facts.finish()
        self.state = _DISCONNECTED

    def _take_run(self, run: RdataRun) -> None:
        assert self._mode is not None
        if self.intake.accepts_run(run, self._mode):
            self.facts.add_run(run)
            self._block(_APPLYING, APPLY)
            return
        for row in run.commands():
            if self.facts.has_space and not self.intake.queue:
                self._add_row(row)
            else:
                self._queue(row)

    def _take_row(self, row: Rdata) -> None:
        self._add_row(row)
        if self.facts.queue:
            self.state = _APPLYING
            self._actions.append(APPLY)

    def _add_row(self, row: Rdata) -> None:
        mode = self._mode
        assert mode is not None
        facts = self.intake.row(row, mode)
        self.facts.extend(facts)
        if not facts and mode.collects_rows and mode.collects:
            self._await_quiet()

    def _take_position(self, position: Position) -> None:
        self._take_queued(PositionEntry(position))

    def _take_queued(self, position: PositionEntry) -> None:
        mode, writer = self._mode, position.command.instance
        assert mode is not None
        is_known = writer in mode.ready or writer not in self.positions.tokens
        if position.lowest is not None and not is_known and not mode.accepts_writer(writer):
            # As rows before the first POSITION of a known writer: it says what is missing.
            if position.announced is None:
                return
            self.intake.queue.appendleft(position)
            position = PositionEntry(position.announced)
        facts, is_first = self.intake.position(position.command, mode)
        self._position = position, is_first
        self.facts.extend(facts)

    def _take_rewind(self, command: Rewind) -> None:
        """Go back to what the server's log has in common with the log that was followed before."""
        writer, token = command.instance, command.token
        if self.positions.tokens.get(writer, 0) <= token:
            return
        self.history.recent.forget_beyond(token)
        self.history.announced.pop(writer, None)
        self._actions.append(Report(Reported.REWOUND, writer, token))
        self._skip(PositionStep(writer, token))

    def _queue_run(self, run: RdataRun) -> None:
        for row in run.commands():
            self._queue(row)

    def _queue(self, command: Rdata | Position | Rewind) -> None:
        mode = self._mode
        if mode is None:
            return  # the connection has ended: the next one repeats the command
        was_full = self.intake.is_full
        self.intake.enqueue(command, mode)
        if self.intake.is_full and not was_full:
            self._actions.append(Report(Reported.FULL))

    def _await_quiet(self) -> None:
        if not self._awaits_quiet:
            self._awaits_quiet = True
            self._actions.append(states.Wake(QUIET_SECONDS))

    def _tick(self, event: states.Tick) -> None:
        self._awaits_quiet = False
        if self._mode is not None:
            if self.state is _LIVE:
                self.facts.extend(self._mode.quiet_facts())
            if self._mode.collects:
                self._await_quiet()

    def _applied(self, event: states.Applied) -> None:
        self.state = _DISCONNECTED if self._mode is None else _LIVE
        facts = self.facts
        steps = facts.finish() if facts.reached else []
        if facts.failure is not None:
            writer, token, error, rows = facts.failure
            self._actions.append(Report(Reported.FACT_LOST, writer, token, error, rows))
            facts.failure = None
            self._skip(steps[0] if steps else None)
        else:
            for step in steps:
                self._finish(step)

    def _invalidated(self, event: states.Invalidated) -> None:
        step, self._step = self._step, None
        self._unblock()
        if step is not None:
            self._finish(step)

    def _page(self, page: MissedFacts) -> None:
        repair = self.gaps.repair
        assert repair is not None
        self._unblock()
        try:
            facts = repair.received(page)
            if page.lost:
                lost = [(upto, LOST_ROWS) for _, upto in page.lost]
                facts = sorted([*facts, *lost], key=itemgetter(0))
        except ReplicationError as error:
            self._fetch_failed(states.FetchFailed(error))
        else:
            self.facts.extend((repair.writer, token, rows) for token, rows in facts)

    def _fetch_failed(self, event: states.FetchFailed) -> None:
        self._unblock()
        reports, seconds = self.gaps.failed(event.error)
        self._actions += reports
        if seconds is not None:
            self._block(StreamState.BACKING_OFF, states.Pause(seconds))
        else:
            step = self.gaps.finish()  # the facts cannot be fetched: continue without them
            if not isinstance(event.error, NowhereToFetch):
                # Late facts before the writer's POSITION are missing: the next POSITION covers them.
                self.history.announcing.pop(step.writer, None)
            self._skip(step)

    def _unblock(self, event: states.PauseOver | None = None) -> None:
        self.state = _DISCONNECTED if self._mode is None else _LIVE

    def _block(self, state: StreamState, action: states.Action) -> None:
        self.state = state
        self._actions.append(action)

    def _proceed(self) -> None:
        """Do what is to be done next, until the stream is blocked or nothing is left."""
        facts, intake = self.facts, self.intake
        while self.state is _LIVE:
            if facts.queue or facts.run is not None:
                self._block(_APPLYING, APPLY)
            elif self.gaps.repair is not None:
                self._continue_repair(self.gaps.repair)
            elif self._position is not None:
                (position, is_first), self._position = self._position, None
                self._judge(position, is_first=is_first)
            elif intake.queue:
                queued = intake.pop()
                if isinstance(queued, Rdata):
                    self._add_row(queued)
                    while facts.has_space and (row := intake.pop_row()) is not None:
                        self._add_row(row)
                elif isinstance(queued, Rewind):
                    self._take_rewind(queued)
                else:
                    self._take_queued(queued)
            else:
                if intake.is_full:
                    intake.is_full = False
                    self._actions.append(Report(Reported.EMPTY))
                return

    def _skip(self, step: PositionStep | None) -> None:
        """Drop everything that skipped facts could invalidate, before the position advances over them."""
        if self.history.has_caches:
            self._step = step
            self._block(StreamState.INVALIDATING, states.Invalidate())
        elif step is not None:
            self._finish(step)

    def _finish(self, step: PositionStep) -> None:
        self.positions.advance(step.writer, step.token)
        if step.is_position:
            self.history.position_done(step.writer)
            self.positions.release()
            self._actions.append(Report(Reported.POSITION, step.writer, step.token))
        self._actions.append(states.ADVANCED)

    def _judge(self, position: PositionEntry, *, is_first: bool) -> None:
        mode, command, lowest = self._mode, position.command, position.lowest
        assert mode is not None
        writer = command.instance
        known = self.positions.tokens.get(writer, 0)
        if command.token >= known and writer in self.gaps.late and not mode.pushes:
            # The connection was lost before they were fetched.
            late = self.gaps.late[writer]
            lowest = late if lowest is None else min(late, lowest)
        if lowest is None:
            judgement = mode.judge(command, is_first=is_first)
        else:
            judgement = mode.judge_dropped(command, lowest, is_first=is_first)
        if judgement.void_after is not None:
            self.history.recent.forget_beyond(judgement.void_after)
        if judgement.is_rewound:
            self._actions.append(Report(Reported.REWOUND, writer, command.token))
        if judgement.is_behind:
            self._actions.append(Report(Reported.BEHIND, writer, command.token))
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
                if lowest is not None and after < known:
                    self.gaps.late[writer] = lowest
                self._actions += self.gaps.open(writer, after, token)
                if not judgement.is_certain:
                    self._skip(PositionStep(writer, max(after, self.positions.tokens.get(writer, after))))
            case Verdict.RESTARTED:
                self._actions.append(Report(Reported.RESTARTED, writer))
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


_METHODS: Final[dict[type, Callable[[StreamMachine, Any], None]]] = {
    states.Connected: StreamMachine._connected,
    states.Disconnected: StreamMachine._disconnected,
    states.Stopped: StreamMachine._stopped,
    Rdata: StreamMachine._take_row,
    RdataRun: StreamMachine._take_run,
    Position: StreamMachine._take_position,
    Rewind: StreamMachine._take_rewind,
    states.Tick: StreamMachine._tick,
    states.Applied: StreamMachine._applied,
    states.Invalidated: StreamMachine._invalidated,
    MissedFacts: StreamMachine._page,
    states.FetchFailed: StreamMachine._fetch_failed,
    states.PauseOver: StreamMachine._unblock,
}

_QUEUING: Final[dict[type, Callable[[StreamMachine, Any], None]]] = {
    Rdata: StreamMachine._queue,
    RdataRun: StreamMachine._queue_run,
    Position: StreamMachine._queue,
    Rewind: StreamMachine._queue,
}

_STEPS: Final = {
    state: {
        event: ((_METHODS if state is _LIVE else _METHODS | _QUEUING)[event], allowed)
        for event, allowed in events.items()
    }
    for state, events in states.TRANSITIONS.items()
}
"""By state and possible event: the method that handles it, and the states that may follow."""
