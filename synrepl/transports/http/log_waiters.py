"""Waiting for the log: no thread, one watcher of it, and nothing left behind."""

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

__all__ = ["LogWaiters", "not_here_yet", "read_your_writes"]

MAX_WAITERS: Final = 10_000
MAX_WAIT_SECONDS: Final = 300.0
WAIT_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.5
"""How often the place of the log is looked at while anybody waits: that of a filtered copy moves without
facts."""


class _Listener(msgspec.Struct):
    chosen: Filter | None
    upto: int


class LogWaiters:
    """Everybody who waits for this log. At most `most` may wait for serials (`reach`)."""

    def __init__(self, log: Log, clock: IClock, *, most: int = MAX_WAITERS) -> None:
        self._log = log
        self._clock = clock
        self._most = most
        self._order: list[tuple[int, int]] = []
        self._waiters: dict[tuple[int, int], Deferred[bool]] = {}
        self._count = 0
        self._listeners: dict[Deferred[Sequence[Fact] | None], _Listener] = {}
        self._seen = log.position
        self._timer: Any = None
        log.subscribe(self._committed)
        log.on_epoch_started(self.look)
        log.on_replaced(self.look)

    @property
    def waiting(self) -> int:
        """How many wait for serials."""
        return len(self._waiters)

    @property
    def listening(self) -> int:
        """How many wait for news."""
        return len(self._listeners)

    @property
    def is_full(self) -> bool:
        """Whether no more may wait for serials."""
        return len(self._waiters) >= self._most

    async def reach(self, serial: int, timeout: float) -> bool:
        """Whether the log got as far within so many seconds. Raises `ApiError` when too many wait."""
        if self._log.serial >= serial:
            return True
        if timeout <= 0:
            return False
        if self.is_full:
            why = f"{self._most} requests wait for serials already"
            raise ApiError(503, "too_many_waiting", why, retry_after=RETRY_SECONDS)
        self._count += 1
        key = (serial, self._count)
        waiter: Deferred[bool] = Deferred()
        self._waiters[key] = waiter
        insort(self._order, key)
        timer = self._clock.callLater(timeout, self._answer, key, False)
        self._look_later()
        try:
            return await waiter
        finally:
            self._answer(key, None)
            if timer.active():
                timer.cancel()
            self._rest()

    async def news(
        self, chosen: Filter | None, *, upto: int = MAX_TOKEN, timeout: float | None = None
    ) -> Sequence[Fact] | None:
        """The next group of facts in which there are any of these (None: of whatever kind), right after it
        was committed.

        Nothing if there may be something to see without new facts, or if the log has come to `upto`; None
        after so many seconds.
        """
        waiter: Deferred[Sequence[Fact] | None] = Deferred()
        self._listeners[waiter] = _Listener(chosen, upto)
        timer = None if timeout is None else self._clock.callLater(timeout, waiter.callback, None)
        self._look_later()
        try:
            return await waiter
        finally:
            del self._listeners[waiter]
            if timer is not None and timer.active():
                timer.cancel()
            self._rest()

    def look(self) -> None:
        """See whether the log has moved without facts."""
        if self._log.position != self._seen:
            self._seen = self._log.position
            self._reached()
            for waiter in list(self._listeners):
                self._wake(waiter, ())

    def _committed(self, facts: Sequence[Fact]) -> None:
        if not facts[0].serial:
            return
        if not self._waiters and not self._listeners:
            return
        # Then there are some before these that nobody was shown, and each must look for itself.
        has_gap = facts[0].serial != self._seen.serial + 1
        self._seen = self._log.position
        if self._waiters:
            self._reached()
        if not self._listeners:
            return
        sources = {(fact.stream, fact.writer) for fact in facts}
        for waiter, listener in list(self._listeners.items()):
            if has_gap:
                self._wake(waiter, ())
            elif listener.chosen is None or any(starmap(listener.chosen.passes, sources)):
                self._wake(waiter, facts)
            elif facts[-1].serial >= listener.upto:
                self._wake(waiter, ())

    def _reached(self) -> None:
        serial = self._log.serial
        while self._order and self._order[0][0] <= serial:
            self._answer(self._order[0], True)

    def _answer(self, key: tuple[int, int], reached: bool | None) -> None:
        """Let go of a waiter, and tell it, unless it knows."""
        waiter = self._waiters.pop(key, None)
        if waiter is None:
            return
        del self._order[bisect_left(self._order, key)]
        if reached is not None and not waiter.called:
            waiter.callback(reached)

    def _wake(self, waiter: "Deferred[Sequence[Fact] | None]", facts: Sequence[Fact]) -> None:
        if not waiter.called:
            waiter.callback(facts)

    def _look_later(self) -> None:
        if self._timer is None:
            self._seen = self._log.position
            self._timer = self._clock.callLater(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._timer = self._clock.callLater(LOOK_SECONDS, self._look_again)
        self.look()

    def _rest(self) -> None:
        if self._timer is not None and not self._waiters and not self._listeners:
            self._timer.cancel()
            self._timer = None


def not_here_yet(serial: int, at: int, **more: Any) -> ApiError:
    """What is told when the log did not get as far in time."""
    why = f"serial {serial} is not here yet; this log is at {at}"
    return ApiError(
        504, "not_here_yet", why, more={"serial": serial, "at": at, **more}, retry_after=RETRY_SECONDS
    )


async def read_your_writes(request: Any, log: Log, waiting: LogWaiters) -> None:
    """Wait until the log has reached the ``min_serial`` of this request. Raises `ApiError`."""
    serial = integer(request, "min_serial", 0)
    timeout = seconds(request, "timeout", highest=MAX_WAIT_SECONDS, default=WAIT_SECONDS)
    if not await waiting.reach(serial, timeout):
        raise not_here_yet(serial, log.serial)
