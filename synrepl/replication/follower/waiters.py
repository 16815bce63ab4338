"""Waiters: callers that wait until a stream reaches a position, and the check that the position exists."""

from bisect import bisect_left, bisect_right, insort_left
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from twisted.internet.defer import Deferred

from synrepl.base.interfaces import IAllocated
from synrepl.errors import NeverAllocated, ReplicationError

_SORT_KEY: Final = itemgetter(0, 1)
"""Waiters of a writer are sorted by token, then by number."""


@dataclass(eq=False, repr=False, slots=True)
class Waiter:
    """Waits until each writer of `targets` has reached its token in `stream`; then `done` fires.

    `missing` are the targets not reached yet. `connection` is the number of connections made before the wait.
    """

    stream: str
    targets: dict[str, int]
    missing: dict[str, int]
    connection: int
    number: int
    timer: Any = None
    is_checked: bool = False
    done: "Deferred[None]" = field(init=False)


class Waiters:
    """All waiters, sorted so that an advance of a writer touches only those whose tokens it reaches.

    `queues`: by stream and writer, the waiters, the lowest token first.
    """

    def __init__(self) -> None:
        self.queues: dict[str, dict[str, list[tuple[int, int, Waiter]]]] = {}
        self._count = 0

    def for_stream(self, stream: str) -> list[Waiter]:
        """The waiters of this stream, oldest first."""
        queues = self.queues.get(stream, {}).values()
        found = {waiter.number: waiter for queue in queues for _, _, waiter in queue}
        return [found[number] for number in sorted(found)]

    def add(
        self, stream: str, targets: Mapping[str, int], positions: Mapping[str, int], connection: int = 0
    ) -> Waiter:
        """Add a waiter; it is done at once if `positions` include all its targets."""
        self._count += 1
        missing = {
            writer: token
            for writer, token in targets.items()
            if writer not in positions or positions[writer] < token
        }
        waiter = Waiter(stream, dict(targets), missing, connection, self._count)
        waiter.done = Deferred(lambda _: self.remove(waiter))
        for writer, token in missing.items():
            queue = self.queues.setdefault(stream, {}).setdefault(writer, [])
            insort_left(queue, (token, waiter.number, waiter), key=_SORT_KEY)
        if not waiter.missing:
            waiter.done.callback(None)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter and stop its timer, without firing `done`."""
        queues = self.queues.get(waiter.stream, {})
        for writer, token in waiter.missing.items():
            queue = queues[writer]
            del queue[bisect_left(queue, (token, waiter.number), key=_SORT_KEY)]
            self._tidy(waiter.stream, writer)
        waiter.missing = {}
        self._stop(waiter)

    def fail(self, waiter: Waiter, error: Exception) -> None:
        """Remove a waiter and fail its Deferred."""
        self.remove(waiter)
        waiter.done.errback(error)

    def fail_after(
        self, waiter: Waiter, seconds: float, clock: Any, error: Callable[[Waiter], Exception]
    ) -> None:
        """Fail a waiter that is not done after this many seconds, with `error(waiter)`."""
        if not waiter.done.called:
            waiter.timer = clock.callLater(max(0.0, seconds), lambda: self.fail(waiter, error(waiter)))

    def wake(self, stream: str, positions: Mapping[str, int]) -> None:
        """Complete the waiters whose targets these positions include."""
        ready = []
        for writer, queue in list(self.queues.get(stream, {}).items()):
            at = positions.get(writer)
            if at is None or queue[0][0] > at:
                continue
            count = bisect_right(queue, at, key=itemgetter(0))
            for _, _, waiter in queue[:count]:
                del waiter.missing[writer]
                if not waiter.missing:
                    ready.append(waiter)
            del queue[:count]
            self._tidy(stream, writer)
        for waiter in ready:
            self._stop(waiter)
            if not waiter.done.called:  # an earlier callback may have cancelled it
                waiter.done.callback(None)

    def _stop(self, waiter: Waiter) -> None:
        if waiter.timer is not None and waiter.timer.active():
            waiter.timer.cancel()
        waiter.timer = None

    def _tidy(self, stream: str, writer: str) -> None:
        if not self.queues[stream][writer]:
            del self.queues[stream][writer]
            if not self.queues[stream]:
                del self.queues[stream]


@dataclass(eq=False, repr=False)
class Allocation:
    """Asks `source` for the highest token of a stream, and fails waiters for tokens above it.

    One query per stream runs at a time, for all unchecked waiters. A response says nothing about waiters that
    came after the query, since their token may be newer. It does show that all tokens up to it exist, which
    is remembered until the next connection, or until the stream is rewound.
    """

    waiters: Waiters
    start: Callable[[Coroutine[Any, Any, None], str], object]
    report_error: Callable[[Exception, str, str], None]
    source: IAllocated | None

    def __post_init__(self) -> None:
        self._highest: dict[str, int] = {}
        self._querying: set[str] = set()

    def check(self, stream: str) -> None:
        """Check the unchecked waiters of this stream, if there is a `source`."""
        if self.source is not None and stream not in self._querying and self._unchecked(stream):
            self.start(self._query(stream, self.source), f"querying the highest token of {stream}")

    def forget(self, stream: str | None = None) -> None:
        """Forget the highest token of this stream, or of all streams."""
        for name in [stream] if stream is not None else list(self._highest):
            self._highest.pop(name, None)

    async def _query(self, stream: str, source: IAllocated) -> None:
        self._querying.add(stream)
        try:
            while unchecked := self._unchecked(stream):
                for waiter in unchecked:
                    waiter.is_checked = True
                try:
                    highest = await source.highest(stream)
                except Exception as error:
                    if not isinstance(error, ReplicationError):
                        # A `ReplicationError` means no answer; anything else is a bug of the source.
                        self.report_error(error, stream, "querying the highest token")
                    continue
                if highest is not None:
                    self._highest[stream] = highest
                    self._fail_beyond(unchecked, highest)
        finally:
            self._querying.discard(stream)

    def _unchecked(self, stream: str) -> list[Waiter]:
        known = self._highest.get(stream)
        return [
            waiter
            for waiter in self.waiters.for_stream(stream)
            if not waiter.is_checked and (known is None or max(waiter.missing.values()) > known)
        ]

    def _fail_beyond(self, unchecked: list[Waiter], highest: int) -> None:
        for waiter in unchecked:
            for writer, want in waiter.missing.items():
                if want > highest:
                    error = NeverAllocated(stream=waiter.stream, writer=writer, want=want, allocated=highest)
                    self.waiters.fail(waiter, error)
                    break
