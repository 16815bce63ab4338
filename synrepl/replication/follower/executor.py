"""StreamExecutor: performs the actions that a stream's machine orders."""

from collections.abc import Awaitable, Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from synrepl.errors import ReplicationError
from synrepl.ports.interfaces import ICaches
from synrepl.ports.tasks import resume, step_eagerly
from synrepl.replication.follower import events
from synrepl.replication.follower.events import ADVANCED, APPLIED, APPLY, Action, Report, StreamEvent
from synrepl.replication.follower.gaps import retry_seconds
from synrepl.replication.follower.history import AppliedPositions
from synrepl.replication.follower.stream import StreamMachine
from synrepl.replication.follower.updates import Subscriber, Updates

if TYPE_CHECKING:
    from synrepl.replication.follower.engine import FollowerEngine

__all__ = ["FactSteps", "StreamExecutor"]

Waiting = Coroutine[Any, Any, StreamEvent]


class FactSteps:
    """The subscribers of one stream in order, then its caches: `steps`, each with its index.

    A failed step is repeated until it succeeds. `report_failure` takes an error, the stream, and what failed,
    in words.
    """

    def __init__(
        self, stream: str, positions: AppliedPositions, report_failure: Callable[[Exception, str, str], None]
    ) -> None:
        self.steps: list[tuple[int, Subscriber]] = []
        self._stream = stream
        self._positions = positions
        self._report_failure = report_failure
        self._caches: ICaches | None = None

    @property
    def has_caches(self) -> bool:
        """Whether the stream invalidates caches."""
        return self._caches is not None

    def attach_caches(self, caches: ICaches) -> None:
        """Invalidate these caches with each fact from now on."""
        if self._caches is None:
            self._caches = caches
            self.steps.append((len(self.steps), self._invalidate))

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with each fact."""
        steps = [step for _, step in self.steps]
        steps.insert(len(steps) - self.has_caches, subscriber)
        self.steps = list(enumerate(steps))

    def owner(self, index: int) -> str:
        """The code that runs a step, in words."""
        return "a cache" if self.steps[index][1] == self._invalidate else "a subscriber"

    def invalidate_stream(self) -> None:
        """Drop everything that the stream can invalidate."""
        if self._caches is not None:
            self._caches.invalidate_stream(self._stream)

    def _invalidate(self, updates: Updates[object]) -> None:
        """The last step. Raises only if neither the entries nor all caches can be dropped."""
        assert self._caches is not None
        if updates.writer not in self._positions.tokens:
            # The first fact of a new writer: its earlier facts may be newer than our entries.
            self.invalidate_stream()
        try:
            self._caches.apply(self._stream, updates.rows, token=updates.token)
        except Exception as error:
            self._report_failure(error, self._stream, "a cache")
            self.invalidate_stream()


class StreamExecutor:
    """Performs the actions of `machine`: calls subscribers, invalidates caches, fetches, waits.

    A failed subscriber is called again with backoff, without limit: its database may be down for a moment,
    and a fact is never skipped. So are caches.
    """

    def __init__(
        self, machine: StreamMachine, engine: "FollowerEngine", caches: ICaches | None = None
    ) -> None:
        self.machine = machine
        self._engine = engine
        self.steps = FactSteps(machine.name, machine.positions, engine.report_failure)
        # What the machine waits for. It is void once `_turn` has changed.
        self._current: Deferred[StreamEvent] | None = None
        self._turn = 0
        self._timer: Any = None
        if caches is not None:
            self.attach_caches(caches)

    def attach_caches(self, caches: ICaches) -> None:
        """Invalidate these caches with each fact from now on."""
        self.steps.attach_caches(caches)
        self.machine.has_caches = True

    def feed(self, event: StreamEvent) -> None:
        """Feed an event to the machine and perform its actions."""
        if self._timer is not None and event in (events.DISCONNECTED, events.STOPPED):
            self._timer.cancel()
            self._timer = None
        actions = self.machine.feed(event)
        if actions and (waiting := self._perform(actions)) is not None:
            self._wait_for(waiting)

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
            actions = self.machine.feed(outcome)
        return None

    def _wait_for(self, waiting: Waiting) -> None:
        self._engine.start(self._drive(waiting), f"following {self.machine.name}")

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
            waiting = self._perform(self.machine.feed(event))

    # -- actions -------------------------------------------------------------------------------------------

    def _execute(self, action: Action) -> StreamEvent | Waiting | None:
        match action:
            case Report():
                self._engine.report(self.machine.name, action)
            case events.Invalidate():
                return self._invalidate()
            case events.Fetch():
                return self._fetch(action)
            case events.Pause(seconds):
                return self._pause(seconds)
            case events.Wake(seconds):
                if self._timer is None:
                    self._timer = self._engine.clock.callLater(seconds, self._tick)
            case events.Cancel():
                self._turn += 1
                current, self._current = self._current, None
                if current is not None:
                    current.cancel()
        return None

    def _apply(self) -> StreamEvent | Waiting:
        machine, steps = self.machine, self.steps.steps
        facts, is_page = machine.facts, machine.gaps.repair is not None
        for updates in facts.take():
            if is_page:
                # A page may be long: the positions count after each fact of it.
                self._engine.report(self.machine.name, ADVANCED)
            for index, step in steps[-1:] if facts.is_repetition else steps:
                try:
                    waiting = step(updates)
                    if waiting is None:
                        continue
                    failure = None
                    if type(waiting) is CoroutineType:
                        # `step_eagerly` inlined: every row of every stream passes here.
                        try:
                            first = waiting.send(None)
                        except StopIteration:
                            continue
                        waiting = resume(waiting, first)
                except Exception as error:
                    waiting, failure = None, error
                self._engine.report(self.machine.name, ADVANCED)
                return self._finish(updates, index, waiting, failure)
        self._engine.report(self.machine.name, ADVANCED)
        return APPLIED

    async def _finish(
        self,
        updates: Updates[Any],
        index: int,
        waiting: Awaitable[None] | None,
        failure: Exception | None,
    ) -> StreamEvent:
        """Continue a fact at the step that waits or failed."""
        turn, attempt, steps = self._turn, 0, self.steps.steps
        while index < len(steps):
            try:
                if failure is not None:
                    raise failure
                if waiting is None:
                    result = steps[index][1](updates)
                    waiting = None if result is None else step_eagerly(result)
                if waiting is not None:
                    await waiting
                index += 1
            except Exception as error:
                if turn != self._turn:
                    raise CancelledError from error
                self._engine.report_failure(error, self.machine.name, self.steps.owner(index))
                failure = None
                await self._sleep(retry_seconds(attempt))
                attempt += 1
            waiting = None
        return APPLIED

    def _invalidate(self) -> StreamEvent | Waiting:
        try:
            self.steps.invalidate_stream()
        except Exception as error:
            return self._invalidate_later(error)
        return events.INVALIDATED

    async def _invalidate_later(self, error: Exception) -> StreamEvent:
        attempt = 0
        while True:
            self._engine.report_failure(error, self.machine.name, "a cache")
            await self._sleep(retry_seconds(attempt))
            attempt += 1
            try:
                self.steps.invalidate_stream()
            except Exception as again:
                error = again
            else:
                return events.INVALIDATED

    async def _fetch(self, action: events.Fetch) -> StreamEvent:
        turn = self._turn
        try:
            return await self._engine.fetch(
                stream=self.machine.name, writer=action.writer, after=action.after, upto=action.upto
            )
        except ReplicationError as error:
            return events.FetchFailed(error)
        except Exception as error:
            if turn != self._turn:
                raise CancelledError from error
            return events.FetchFailed(ReplicationError(f"the source of missing facts failed: {error!r}"))

    async def _pause(self, seconds: float) -> StreamEvent:
        await self._sleep(seconds)
        return events.PAUSE_OVER

    def _sleep(self, seconds: float) -> "Deferred[None]":
        return deferLater(self._engine.clock, seconds, lambda: None)  # type: ignore[arg-type]

    def _tick(self) -> None:
        self._timer = None
        self.feed(events.TICK)
