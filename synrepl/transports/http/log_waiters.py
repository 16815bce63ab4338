"""Waiters for the log: one log listener and one timer for all of them, and no thread."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import starmap
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred

from synrepl.ports.interfaces import IClock
from synrepl.storage import Log
from synrepl.streams.facts import Fact
from synrepl.transports.http.api_error import RETRY_SECONDS, ApiError
from synrepl.transports.http.query import MAX_TOKEN, integer, seconds
from synrepl.wire.filter import Filter

__all__ = ["LogWaiters", "not_here_yet_error", "read_your_writes"]

MAX_WAITERS: Final = 10_000
MAX_WAIT_SECONDS: Final = 300.0
WAIT_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.5
"""Interval at which the log's position is polled while there are waiters: the position of a filtered copy
moves without facts.
"""


class _Listener(msgspec.Struct):
    group_filter: Filter | None
    upto: int


class LogWaiters:
    """All requests that wait for this log. At most `max_waiters` may wait for serials (`wait_for`)."""

    def __init__(self, log: Log, clock: IClock, *, max_waiters: int = MAX_WAITERS) -> None:
        self._log = log
        self._clock = clock
        self._max_waiters = max_waiters
        self._order: list[tuple[int, int]] = []
        self._waiters: dict[tuple[int, int], Deferred[bool]] = {}
        self._count = 0
        self._listeners: dict[Deferred[Sequence[Fact] | None], _Listener] = {}
        self._seen = log.position
        self._timer: Any = None
        log.subscribe(self._committed)
        log.on_epoch_started(self.poll)
        log.on_replaced(self.poll)

    @property
    def waiter_count(self) -> int:
        """Number of requests that wait for serials."""
        return len(self._waiters)

    @property
    def listener_count(self) -> int:
        """Number of requests that wait for a group."""
        return len(self._listeners)

    @property
    def is_full(self) -> bool:
        """Whether the limit of waiters for serials is reached."""
        return len(self._waiters) >= self._max_waiters

    async def wait_for(self, serial: int, timeout: float) -> bool:
        """Wait until the log reaches a serial; False after the timeout.

        Raises `ApiError` at the limit of waiters.
        """
        if self._log.serial >= serial:
            return True
        if timeout <= 0:
            return False
        if self.is_full:
            why = f"{self._max_waiters} requests already wait for serials: retry later"
            raise ApiError(503, "too_many_waiting", why, retry_after=RETRY_SECONDS)
        self._count += 1
        key = (serial, self._count)
        waiter: Deferred[bool] = Deferred()
        self._waiters[key] = waiter
        insort(self._order, key)
        timer = self._clock.callLater(timeout, self._remove, key, False)
        self._start_timer()
        try:
            return await waiter
        finally:
            self._remove(key, None)
            if timer.active():
                timer.cancel()
            self._stop_idle_timer()

    async def next_group(
        self, group_filter: Filter | None, *, upto: int = MAX_TOKEN, timeout: float | None = None
    ) -> Sequence[Fact] | None:
        """Wait for the next committed group with a fact that passes the filter (None: any fact).

        Returns an empty group if the log changed without new facts or has reached `upto`; None after the
        timeout, in seconds.
        """
        waiter: Deferred[Sequence[Fact] | None] = Deferred()
        self._listeners[waiter] = _Listener(group_filter, upto)
        timer = None if timeout is None else self._clock.callLater(timeout, waiter.callback, None)
        self._start_timer()
        try:
            return await waiter
        finally:
            del self._listeners[waiter]
            if timer is not None and timer.active():
                timer.cancel()
            self._stop_idle_timer()

    def poll(self) -> None:
        """Wake all waiters if the log has moved without facts."""
        if self._log.position != self._seen:
            self._seen = self._log.position
            self._wake_waiters()
            for waiter in list(self._listeners):
                self._wake(waiter, ())

    def _committed(self, facts: Sequence[Fact]) -> None:
        if not facts[0].serial:
            return
        if not self._waiters and not self._listeners:
            return
        # Facts were committed before these without a notification, so each listener must read the log.
        has_gap = facts[0].serial != self._seen.serial + 1
        self._seen = self._log.position
        if self._waiters:
            self._wake_waiters()
        if not self._listeners:
            return
        sources = {(fact.stream, fact.writer) for fact in facts}
        for waiter, listener in list(self._listeners.items()):
            if has_gap:
                self._wake(waiter, ())
            elif listener.group_filter is None or any(starmap(listener.group_filter.passes, sources)):
                self._wake(waiter, facts)
            elif facts[-1].serial >= listener.upto:
                self._wake(waiter, ())

    def _wake_waiters(self) -> None:
        serial = self._log.serial
        while self._order and self._order[0][0] <= serial:
            self._remove(self._order[0], True)

    def _remove(self, key: tuple[int, int], result: bool | None) -> None:
        """Remove a waiter, with this result unless it is None."""
        waiter = self._waiters.pop(key, None)
        if waiter is None:
            return
        del self._order[bisect_left(self._order, key)]
        if result is not None and not waiter.called:
            waiter.callback(result)

    def _wake(self, waiter: "Deferred[Sequence[Fact] | None]", facts: Sequence[Fact]) -> None:
        if not waiter.called:
            waiter.callback(facts)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._seen = self._log.position
            self._timer = self._clock.callLater(POLL_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = self._clock.callLater(POLL_SECONDS, self._tick)
        self.poll()

    def _stop_idle_timer(self) -> None:
        if self._timer is not None and not self._waiters and not self._listeners:
            self._timer.cancel()
            self._timer = None


def not_here_yet_error(serial: int, at: int, **more: Any) -> ApiError:
    """Make the error for a log that did not reach the serial in time."""
    why = f"serial {serial} has not arrived yet; this log is at {at}"
    return ApiError(
        504, "not_here_yet", why, more={"serial": serial, "at": at, **more}, retry_after=RETRY_SECONDS
    )


async def read_your_writes(request: Any, log: Log, waiters: LogWaiters) -> None:
    """Wait until the log reaches the ``min_serial`` of this request. Raises `ApiError` on timeout."""
    serial = integer(request, "min_serial", 0)
    timeout = seconds(request, "timeout", highest=MAX_WAIT_SECONDS, default=WAIT_SECONDS)
    if not await waiters.wait_for(serial, timeout):
        raise not_here_yet_error(serial, log.serial)
