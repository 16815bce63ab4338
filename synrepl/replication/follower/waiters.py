"""Who waits until a stream has got somewhere."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred

__all__ = ["Waiter", "Waiters"]


class Waiter:
    """Waits until each writer of `wanted` has reached its token in `stream`; `done` fires then.

    `lacks` are those that have not yet. `connection` counts the connections there had been when it began.
    """

    __slots__ = ("stream", "wanted", "lacks", "done", "connection", "timer", "is_checked", "number")

    def __init__(self, stream: str, wanted: dict[str, int], connection: int, number: int) -> None:
        self.stream = stream
        self.wanted = wanted
        self.lacks = dict(wanted)
        self.connection = connection
        self.number = number
        self.timer: Any = None
        self.is_checked = False
        self.done: Deferred[None]


class Waiters:
    """All who wait, so that a stream that moves looks at nobody but those who are done."""

    def __init__(self) -> None:
        # By stream and writer: those who wait for a token of it, the lowest first.
        self._queues: dict[str, dict[str, list[tuple[int, int, Waiter]]]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def of(self, stream: str) -> list[Waiter]:
        """Those who wait for this stream, in the order they came."""
        queues = self._queues.get(stream, {}).values()
        found = {waiter.number: waiter for queue in queues for _, _, waiter in queue}
        return [found[number] for number in sorted(found)]

    def add(
        self, stream: str, wanted: Mapping[str, int], reached: Mapping[str, int], connection: int = 0
    ) -> Waiter:
        """Wait from now on; done at once if everything is reached already."""
        self._count += 1
        waiter = Waiter(stream, dict(wanted), connection, self._count)
        waiter.done = Deferred(lambda _: self.remove(waiter))
        for writer, token in wanted.items():
            if writer in reached and reached[writer] >= token:
                del waiter.lacks[writer]
            else:
                queue = self._queues.setdefault(stream, {}).setdefault(writer, [])
                entry = (token, waiter.number, waiter)
                queue.insert(bisect_left(queue, entry[:2], key=_place), entry)
        if not waiter.lacks:
            waiter.done.callback(None)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """It waits no longer, for whatever reason."""
        queues = self._queues.get(waiter.stream, {})
        for writer, token in waiter.lacks.items():
            queue = queues[writer]
            del queue[bisect_left(queue, (token, waiter.number), key=_place)]
            self._tidy(waiter.stream, writer)
        waiter.lacks = {}
        self._stop(waiter)

    def fail(self, waiter: Waiter, error: Exception) -> None:
        """It waits in vain."""
        self.remove(waiter)
        waiter.done.errback(error)

    def fail_after(
        self, waiter: Waiter, seconds: float, clock: Any, error: Callable[[Waiter], Exception]
    ) -> None:
        """It waits no longer than this."""
        if not waiter.done.called:
            waiter.timer = clock.callLater(max(0.0, seconds), lambda: self.fail(waiter, error(waiter)))

    def wake(self, stream: str, reached: Mapping[str, int]) -> None:
        """The stream moved: wake those who have now what they waited for."""
        ready = []
        for writer, queue in list(self._queues.get(stream, {}).items()):
            at = reached.get(writer)
            if at is None or queue[0][0] > at:
                continue
            count = bisect_right(queue, at, key=_token)
            for _, _, waiter in queue[:count]:
                del waiter.lacks[writer]
                if not waiter.lacks:
                    ready.append(waiter)
            del queue[:count]
            self._tidy(stream, writer)
        for waiter in ready:
            self._stop(waiter)
            if not waiter.done.called:  # as one who was woken before it may have called it off
                waiter.done.callback(None)

    def _stop(self, waiter: Waiter) -> None:
        if waiter.timer is not None and waiter.timer.active():
            waiter.timer.cancel()
        waiter.timer = None

    def _tidy(self, stream: str, writer: str) -> None:
        if not self._queues[stream][writer]:
            del self._queues[stream][writer]
            if not self._queues[stream]:
                del self._queues[stream]


def _place(entry: tuple[int, int, Waiter]) -> tuple[int, int]:
    return entry[:2]


def _token(entry: tuple[int, int, Waiter]) -> int:
    return entry[0]
