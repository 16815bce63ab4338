"""StreamExecutor: performs the actions that a stream's machine orders."""

from collections.abc import Awaitable, Coroutine, Iterator
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred

from synrepl.caches.registry import CacheRegistry, Drops
from synrepl.errors import ReplicationError
from synrepl.ports.interfaces import IClock
from synrepl.ports.tasks import Tasks, step_eagerly
from synrepl.ports.time import Backoff, sleep
from synrepl.replication.follower import states
from synrepl.replication.follower.gaps import RETRY_SECONDS
from synrepl.replication.follower.states import ADVANCED, APPLIED, APPLY, Action, Report, StreamEvent
from synrepl.replication.follower.stream import StreamMachine
from synrepl.replication.follower.updates import MissedFacts, Subscriber, Updates

Waiting = Coroutine[Any, Any, StreamEvent]


class IStreamsOwner(Protocol):
    """What an executor needs of its follower."""

    tasks: Tasks

    @property
    def clock(self) -> IClock:
        """The clock of the follower."""

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch missing facts. Raises what `ICatchUp` raises."""

    def report(self, stream: str, report: Report) -> None:
        """Handle a report of a stream."""

    def report_failure(self, error: Exception, stream: str, owner: str = "") -> None:
        """Report an error to the operator. `owner` names the code that failed, in words."""


class StreamExecutor:
    """Performs the actions of `machine`: invalidates caches, calls subscribers, fetches, waits.

    A fact drops its cache entries before its first subscriber is called, so that all of them read values that
    are as new as the fact. It drops them again after the last one, as a subscriber may have changed what was
    cached meanwhile.

    A failed subscriber is called again with backoff, until it succeeds or the follower stops: no fact is
    skipped. If caches cannot apply a fact, all that the stream can invalidate is dropped, with such retries.
    """

    def __init__(
        self, machine: StreamMachine, owner: IStreamsOwner, caches: CacheRegistry | None = None
    ) -> None:
        self.machine = machine
        self._owner = owner
        self._subscribers: list[Subscriber] = []
        # What is done with a fact.
        self._steps: list[Subscriber] = []
        self._caches: CacheRegistry | None = None
        # What the fact that is being applied invalidates; None if that could not be found out.
        self._dropped: Drops | None = None
        # What the machine waits for. It is void once `_turn` has changed.
        self._current: Deferred[StreamEvent] | None = None
        self._turn = 0
        self._timer: Any = None
        if caches is not None:
            self.attach_caches(caches)

    def attach_caches(self, caches: CacheRegistry) -> None:
        """Invalidate these caches with each fact from now on."""
        if self._caches is None:
            self._caches = caches
            self.machine.history.has_caches = True
            self._order_steps()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with each fact."""
        self._subscribers.append(subscriber)
        self._order_steps()

    def _order_steps(self) -> None:
        steps = [*self._subscribers]
        if self._caches is not None:
            steps = [self._invalidate_rows, *steps]
            if self._subscribers:
                steps.append(self._invalidate_again)
        self._steps = steps

    def handle(self, event: StreamEvent) -> None:
        """Feed an event to the machine and perform its actions."""
        if self._timer is not None and isinstance(event, states.Disconnected | states.Stopped):
            self._timer.cancel()
            self._timer = None
        actions = self.machine.handle(event)
        if actions and (waiting := self._perform(actions)) is not None:
            self._owner.tasks.start(self._drive(waiting), f"following {self.machine.name}")

    def _perform(self, actions: list[Action]) -> Waiting | None:
        """Perform actions and what follows from them. Returns what must be waited for."""
        while actions:
            turn = self._turn
            outcome: StreamEvent | Waiting | None = None
            for action in actions:
                outcome = self._apply() if action is APPLY else self._execute(action)
                if turn != self._turn:
                    # Cancelled, perhaps by a callback of this action.
                    if isinstance(outcome, Coroutine):
                        outcome.close()
                    return None
            if outcome is not APPLIED and (outcome is None or isinstance(outcome, Coroutine)):
                return outcome
            actions = self.machine.handle(outcome)
        return None

    async def _drive(self, waiting: Waiting | None) -> None:
        turn = self._turn
        while waiting is not None:
            self._current = Deferred.fromCoroutine(waiting)
            try:
                event = await self._current
            except CancelledError:
                return
            if turn != self._turn:
                return
            self._current = None
            waiting = self._perform(self.machine.handle(event))

    def _execute(self, action: Action) -> StreamEvent | Waiting | None:
        match action:
            case Report():
                self._owner.report(self.machine.name, action)
            case states.Invalidate():
                return self._invalidate()
            case states.Fetch():
                return self._fetch(action)
            case states.Pause(seconds):
                return self._pause(seconds)
            case states.Wake(seconds):
                if self._timer is None:
                    self._timer = self._owner.clock.callLater(seconds, self._tick)
            case states.Cancel():
                self._turn += 1
                current, self._current = self._current, None
                if current is not None:
                    current.cancel()
        return None

    def _apply(self) -> StreamEvent | Waiting:
        taken = self.machine.facts.take()
        rest = step_eagerly(self._apply_each(taken))
        self._owner.report(self.machine.name, ADVANCED)
        if rest is None:
            return APPLIED
        # The fact that waits is the last one: the machine orders what follows it.
        taken.close()
        return self._applied_after(rest)

    async def _applied_after(self, rest: Awaitable[None]) -> StreamEvent:
        await rest
        return APPLIED

    async def _apply_each(self, taken: Iterator[Updates[Any]]) -> None:
        """Do all steps of each fact.

        Every row of every stream passes here. To await a coroutine costs half as much as to start it alone,
        and all but few subscribers never wait.
        """
        turn, steps, facts = self._turn, self._steps, self.machine.facts
        is_page = self.machine.gaps.repair is not None
        for updates in taken:
            if is_page:
                # A page may be long: report the positions after each of its facts.
                self._owner.report(self.machine.name, ADVANCED)
            for step in steps[:1] if facts.is_repetition else steps:
                try:
                    waiting = step(updates)
                    if waiting is None:
                        continue
                    await waiting
                except Exception as error:
                    await self._retry(step, updates, error, turn)
                if turn != self._turn:
                    return

    async def _retry(self, step: Subscriber, updates: Updates[Any], error: Exception, turn: int) -> None:
        """Do a step that failed again, until it succeeds, or the turn is over."""
        backoff, left = Backoff(RETRY_SECONDS), [step]
        while left and turn == self._turn:
            is_subscriber = left[-1] not in (self._invalidate_rows, self._invalidate_again)
            owner = "a subscriber" if is_subscriber else "cache invalidation"
            self._owner.report_failure(error, self.machine.name, owner)
            await sleep(self._owner.clock, backoff.next())
            if is_subscriber and self._caches is not None:
                # Entries that were computed since may be older than what it changed before it failed.
                left.append(self._invalidate_again)
            try:
                while left:
                    waiting = left[-1](updates)
                    if waiting is not None:
                        await waiting
                    left.pop()
            except Exception as newer:
                error = newer

    def _invalidate_rows(self, updates: Updates[object]) -> None:
        """The first step of a fact. Raises only what `CacheRegistry.invalidate_stream` raises."""
        name = self.machine.name
        assert self._caches is not None
        if updates.writer not in self.machine.positions.tokens:
            # The first fact of a new writer: its earlier facts may be newer than our entries.
            self._caches.invalidate_stream(name)
        try:
            self._dropped = self._caches.apply(name, updates.rows)
        except Exception as error:
            self._dropped = None
            self._owner.report_failure(error, name, "cache invalidation")
            self._caches.invalidate_stream(name)

    def _invalidate_again(self, updates: Updates[object]) -> None:
        """Before a subscriber that is called again, and the last step of a fact. Raises as the first step."""
        name = self.machine.name
        assert self._caches is not None
        if self._dropped is not None:
            try:
                self._caches.repeat(self._dropped)
                return
            except Exception as error:
                self._dropped = None
                self._owner.report_failure(error, name, "cache invalidation")
        self._caches.invalidate_stream(name)

    def _invalidate_stream(self) -> None:
        if self._caches is not None:
            self._caches.invalidate_stream(self.machine.name)

    def _invalidate(self) -> StreamEvent | Waiting:
        try:
            self._invalidate_stream()
        except Exception as error:
            return self._invalidate_later(error)
        return states.Invalidated()

    async def _invalidate_later(self, error: Exception) -> StreamEvent:
        backoff = Backoff(RETRY_SECONDS)
        while True:
            self._owner.report_failure(error, self.machine.name, "cache invalidation")
            await sleep(self._owner.clock, backoff.next())
            try:
                self._invalidate_stream()
            except Exception as again:
                error = again
            else:
                return states.Invalidated()

    async def _fetch(self, action: states.Fetch) -> StreamEvent:
        turn = self._turn
        try:
            return await self._owner.fetch(
                stream=self.machine.name, writer=action.writer, after=action.after, upto=action.upto
            )
        except ReplicationError as error:
            return states.FetchFailed(error)
        except Exception as error:
            if turn != self._turn:
                raise CancelledError from error
            return states.FetchFailed(ReplicationError(f"the source of missing facts failed: {error!r}"))

    async def _pause(self, seconds: float) -> StreamEvent:
        await sleep(self._owner.clock, seconds)
        return states.PauseOver()

    def _tick(self) -> None:
        self._timer = None
        self.handle(states.Tick())
