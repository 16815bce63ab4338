"""Queue between a connection to an upstream and the replica that takes its events."""

from collections import deque
from collections.abc import Callable
from typing import Any

from synrepl.base.gate import Gate
from synrepl.replicas.replica.conversation import Event


class EventQueue:
    """Events in the order in which they were received, with backpressure.

    `on_full` is called when the sum of their sizes exceeds `limit`, `on_space` when it falls to half of
    `limit`; after `end`, neither is called. An exception among the events is raised when its turn comes.
    """

    def __init__(self, limit: int, *, on_full: Callable[[], None], on_space: Callable[[], None]) -> None:
        self.is_full = False
        self.size = 0
        self.error: Exception | None = None
        """Raised after the last event; None while more can come."""
        self._limit = limit
        self._on_full = on_full
        self._on_space = on_space
        self._events: deque[tuple[int, Any]] = deque()
        self._news = Gate()

    def put(self, event: object, size: int = 1) -> None:
        """Add an event, or an exception, of this size."""
        self._events.append((size, event))
        self.size += size
        if self.size > self._limit and not self.is_full:
            self.is_full = True
            self._on_full()
        self._news.open()

    def end(self, error: Exception) -> None:
        """Let no more events come: `error` is raised after the last one. The first call counts."""
        if self.error is None:
            self.error = error
            # The callbacks refer to the connection, which would form a reference cycle.
            self._on_full = self._on_space = lambda: None
        self._news.open()

    async def next(self) -> Event:
        """Wait for the next event. Raises an exception whose turn it is, and `error` after the last event."""
        while not self._events:
            if self.error is not None:
                raise self.error
            self._news.close()
            await self._news.wait_open()
        return self._take()

    def ready(self) -> Event | None:
        """Return the next event; None if there is none now, or it is an exception."""
        if not self._events or isinstance(self._events[0][1], Exception):
            return None
        return self._take()

    def _take(self) -> Event:
        size, event = self._events.popleft()
        self.size -= size
        if self.is_full and self.size <= self._limit // 2:
            self.is_full = False
            self._on_space()
        if isinstance(event, Exception):
            raise event
        taken: Event = event
        return taken
