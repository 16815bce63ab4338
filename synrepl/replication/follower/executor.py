"""StreamExecutor: performs the actions that a stream's machine orders."""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred

from synrepl.base.tasks import Tasks, step_eagerly
from synrepl.base.time import Backoff, sleep
from synrepl.caches.registry import CacheRegistry
from synrepl.caches.vintage import Drop
from synrepl.errors import ProtocolError, ReplicationError
from synrepl.replication.follower import states
from synrepl.replication.follower.clock import FollowerClock
from synrepl.replication.follower.events import FollowerEvents
from synrepl.replication.follower.gaps import BACKOFF_SECONDS
from synrepl.replication.follower.states import ADVANCED, APPLIED, APPLY, Action, Report, StreamEvent
from synrepl.replication.follower.stream import StreamMachine
from synrepl.replication.follower.updates import Batch, BatchSubscriber, MissedFacts, Subscriber, Updates
from synrepl.streams.stream import Stream

Waiting = Coroutine[Any, Any, StreamEvent]

Step = Callable[[Any], Awaitable[None] | None]
"""Something to do with a fact, or with a batch."""


class IFollowedServer(Protocol):
    """What the streams of a follower need of its server (`FollowedServer`)."""

    clock: FollowerClock
    events: FollowerEvents
    tasks: Tasks

    def failed(self, error: ProtocolError) -> None:
        """End the connection: a stream met this error in what it had queued."""

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch missing facts. Raises what `ICatchUp` raises; `NotConnected` if there is no source."""

    def report(self, stream: str, report: Report) -> None:
        """Handle a report of a stream."""

    def stream_added(self, stream: Stream[Any], executor: "StreamExecutor", *, asks: bool) -> None:
        """Begin to follow a stream, perhaps in the middle of a connection. `asks`: request it then."""


class OneByOne:
    """Makes a subscriber of batches of one that takes single facts.

    If it fails, the next call with the same batch continues at the fact that failed.
    """

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._batch: Batch = ()
        self._done = 0

    async def __call__(self, batch: Batch) -> None:
        """Call the subscriber with each fact."""
        if batch is not self._batch:
            self._batch, self._done = batch, 0
        for updates in batch[self._done :]:
            waiting = self._subscriber(updates)
            if waiting is not None:
                await waiting
            self._done += 1
        self._batch = ()


class StreamExecutor:
    """Performs the actions of `machine`: invalidates caches, calls subscribers, fetches, waits.

    A fact, or a batch of them, drops its cache entries before its first subscriber is called, so that all of
    them read values that are as new as the fact. It drops them again after the last one, as a subscriber may
    have changed what was cached meanwhile.

    A failed subscriber is called again with backoff, until it succeeds or the follower stops: no fact is
    skipped. If caches cannot apply a fact, all that the stream can invalidate is dropped, with such retries.
    """

    def __init__(
        self, machine: StreamMachine, server: IFollowedServer, caches: CacheRegistry | None = None
    ) -> None:
        self.machine = machine
        self._server = server
        # Each with whether it is called with batches.
        self._subscribers: list[tuple[Any, bool]] = []
        self._has_batches = False
        # What is done with a fact; with a batch, if any subscriber is called with batches.
        self._steps: list[Step] = []
        self._caches: CacheRegistry | None = None
        # What the fact that is being applied invalidates; None if that could not be found out.
        self._dropped: Sequence[Drop] | None = None
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
        self._subscribers.append((subscriber, False))
        self._order_steps()

    def subscribe_batches(self, subscriber: BatchSubscriber, max_facts: int) -> None:
        """Call `subscriber` with batches of at most so many facts. The stream is applied in batches then."""
        facts = self.machine.facts
        facts.most = min(max_facts, facts.most) if self._has_batches else max_facts
        self._has_batches = True
        self._subscribers.append((subscriber, True))
        self._order_steps()

    def _order_steps(self) -> None:
        steps: list[Step] = [
            OneByOne(subscriber) if self._has_batches and not takes_batches else subscriber
            for subscriber, takes_batches in self._subscribers
        ]
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
            self._server.tasks.start(self._drive(waiting), f"following {self.machine.name}")

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
            try:
                waiting = self._perform(self.machine.handle(event))
            except ProtocolError as error:
                self._server.failed(error)
                return

    def _execute(self, action: Action) -> StreamEvent | Waiting | None:
        match action:
            case Report():
                self._server.report(self.machine.name, action)
            case states.Invalidate():
                return self._invalidate()
            case states.Fetch():
                return self._fetch(action)
            case states.Pause(seconds):
                return self._pause(seconds)
            case states.Wake(seconds):
                if self._timer is None:
                    self._timer = self._server.clock.callLater(seconds, self._tick)
            case states.Cancel():
                self._turn += 1
                current, self._current = self._current, None
                if current is not None:
                    current.cancel()
        return None

    def _apply(self) -> StreamEvent | Waiting:
        facts = self.machine.facts
        taken = facts.take_batches() if self._has_batches else facts.take()
        rest = step_eagerly(self._apply_each(taken))
        self._server.report(self.machine.name, ADVANCED)
        if rest is None:
            return APPLIED
        # What waits is the last: the machine orders what follows it.
        taken.close()
        return self._applied_after(rest)

    async def _applied_after(self, rest: Awaitable[None]) -> StreamEvent:
        await rest
        return APPLIED

    async def _apply_each(self, taken: Iterator[Updates[Any] | Batch]) -> None:
        """Do all steps of each fact or batch.

        Every row of every stream passes here. To await a coroutine costs half as much as to start it alone,
        and all but few subscribers never wait.
        """
        turn, steps, facts = self._turn, self._steps, self.machine.facts
        is_page = self.machine.gaps.repair is not None
        for work in taken:
            if is_page:
                # A page may be long: report the positions within it.
                self._server.report(self.machine.name, ADVANCED)
            for step in steps[:1] if facts.is_repetition else steps:
                try:
                    waiting = step(work)
                    if waiting is None:
                        continue
                    await waiting
                except Exception as error:
                    await self._retry(step, work, error, turn)
                if turn != self._turn:
                    return

    async def _retry(self, step: Step, work: Updates[Any] | Batch, error: Exception, turn: int) -> None:
        """Do a step that failed again, until it succeeds, or the turn is over."""
        backoff, left = Backoff(BACKOFF_SECONDS), [step]
        while left and turn == self._turn:
            is_subscriber = left[-1] not in (self._invalidate_rows, self._invalidate_again)
            owner = "a subscriber" if is_subscriber else "cache invalidation"
            self._server.events.report_failure(error, self.machine.name, owner)
            await sleep(self._server.clock, backoff.next())
            if is_subscriber and self._caches is not None:
                # Entries that were computed since may be older than what it changed before it failed.
                left.append(self._invalidate_again)
            try:
                while left:
                    waiting = left[-1](work)
                    if waiting is not None:
                        await waiting
                    left.pop()
            except Exception as newer:
                error = newer

    def _invalidate_rows(self, work: Updates[Any] | Batch) -> None:
        """The first step. Raises only what `CacheRegistry.invalidate_stream` raises."""
        name, facts = self.machine.name, [work] if isinstance(work, Updates) else work
        assert self._caches is not None
        if any(updates.writer not in self.machine.positions.tokens for updates in facts):
            # The first fact of a new writer: its earlier facts may be newer than our entries.
            self._caches.invalidate_stream(name)
        try:
            self._dropped = self._caches.apply(name, [row for updates in facts for row in updates.rows])
        except Exception as error:
            self._dropped = None
            self._server.events.report_failure(error, name, "cache invalidation")
            self._caches.invalidate_stream(name)

    def _invalidate_again(self, work: Updates[Any] | Batch) -> None:
        """Before a subscriber that is called again, and the last step. Raises as the first step."""
        name = self.machine.name
        assert self._caches is not None
        if self._dropped is not None:
            try:
                self._caches.repeat(self._dropped)
                return
            except Exception as error:
                self._dropped = None
                self._server.events.report_failure(error, name, "cache invalidation")
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
        backoff = Backoff(BACKOFF_SECONDS)
        while True:
            self._server.events.report_failure(error, self.machine.name, "cache invalidation")
            await sleep(self._server.clock, backoff.next())
            try:
                self._invalidate_stream()
            except Exception as again:
                error = again
            else:
                return states.Invalidated()

    async def _fetch(self, action: states.Fetch) -> StreamEvent:
        turn = self._turn
        try:
            return await self._server.fetch(
                stream=self.machine.name, writer=action.writer, after=action.after, upto=action.upto
            )
        except ReplicationError as error:
            return states.FetchFailed(error)
        except Exception as error:
            if turn != self._turn:
                raise CancelledError from error
            return states.FetchFailed(ReplicationError(f"the source of missing facts failed: {error!r}"))

    async def _pause(self, seconds: float) -> StreamEvent:
        await sleep(self._server.clock, seconds)
        return states.PauseOver()

    def _tick(self) -> None:
        self._timer = None
        self.handle(states.Tick())
