"""Waiters for the log: they share one timer that polls, and use no thread."""

from bisect import bisect_left, insort
from itertools import starmap
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred

from synrepl.ports.interfaces import IClock
from synrepl.ports.time import Timer
from synrepl.replication.feed import MAX_SERIAL
from synrepl.replication.ring import RingGroup
from synrepl.wire.filter import Filter

if TYPE_CHECKING:
    from synrepl.storage.log import Log

MAX_WAITERS: Final = 10_000
POLL_SECONDS: Final = 0.5
"""Interval at which the log's position is polled while there are waiters: the position of a filtered copy
moves without facts.
"""


class TooManyWaiting(Exception):
    """The limit of waiters for serials is reached."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} requests already wait for serials: retry later")


class LogWaiters:
    """All readers that wait for a commit, and all requests that wait for a serial.

    The publisher calls `committed` with each group, after the ring has it. At most `max_waiters` may wait for
    serials (`wait_for`).
    """

    def __init__(self, log: "Log", clock: IClock, *, max_waiters: int = MAX_WAITERS) -> None:
        self._log = log
        self._clock = clock
        self._max_waiters = max_waiters
        self._waiters: list[tuple[int, int, Deferred[bool]]] = []
        """Serial, number in the order of arrival, and Deferred of each request; sorted."""
        self._count = 0
        self._listeners: dict[Deferred[RingGroup | None], tuple[Filter | None, int, bool]] = {}
        self._seen = log.position
        self._poll_timer = Timer(clock, self._tick)
        log.on_epoch_started(self.poll)
        log.on_replaced(self.poll)

    @property
    def is_full(self) -> bool:
        """Whether the limit of waiters for serials is reached."""
        return len(self._waiters) >= self._max_waiters

    async def wait_for(self, serial: int, timeout: float) -> bool:
        """Wait until the log reaches a serial; False after the timeout, in seconds.

        Raises `TooManyWaiting` at the limit of waiters.
        """
        if self._log.serial >= serial:
            return True
        if timeout <= 0:
            return False
        if self.is_full:
            raise TooManyWaiting(self._max_waiters)
        self._count += 1
        waiter: Deferred[bool] = Deferred()
        entry = (serial, self._count, waiter)
        insort(self._waiters, entry)
        self._start_polling()
        try:
            return await waiter.addTimeout(timeout, self._clock, lambda *_: False)  # type: ignore[arg-type]
        finally:
            position = bisect_left(self._waiters, entry)
            if self._waiters[position : position + 1] == [entry]:
                del self._waiters[position]
            self._stop_idle_polling()

    async def next_group(
        self,
        group_filter: Filter | None = None,
        *,
        upto: int = MAX_SERIAL,
        ephemeral: bool = False,
        timeout: float | None = None,
    ) -> RingGroup | None:
        """Wait for the next group with a fact that passes the filter (None: any fact).

        Only with `ephemeral` it may be an ephemeral group. Returns None if the log changed in another way or
        has reached `upto`, and after the timeout, in seconds (None: no limit).
        """
        waiter: Deferred[RingGroup | None] = Deferred()
        self._listeners[waiter] = group_filter, upto, ephemeral
        if timeout is not None:
            waiter.addTimeout(timeout, self._clock, lambda *_: None)  # type: ignore[arg-type]
        self._start_polling()
        try:
            return await waiter
        finally:
            del self._listeners[waiter]
            self._stop_idle_polling()

    def poll(self) -> None:
        """If the log has moved without facts, wake all readers, and the requests whose serial is reached."""
        if self._log.position != self._seen:
            self._seen = self._log.position
            self._wake_waiters()
            for waiter in list(self._listeners):
                self._wake(waiter, None)

    def wake_readers(self) -> None:
        """Wake all readers, although the log has not moved."""
        for waiter in list(self._listeners):
            self._wake(waiter, None)

    def committed(self, group: RingGroup) -> None:
        """Wake the waiters for this group."""
        if not self._waiters and not self._listeners:
            return
        # Facts were committed before these without a notification, so each listener must read the log.
        has_gap = group.is_durable and group.serial_before > self._seen.serial
        if group.is_durable:
            self._seen = self._log.position
            self._wake_waiters()
        if not self._listeners:
            return
        sources = {(fact.stream, fact.writer) for fact in group.facts}
        for waiter, (group_filter, upto, ephemeral) in list(self._listeners.items()):
            if not group.is_durable and not ephemeral:
                continue
            if has_gap:
                self._wake(waiter, None)
            elif group_filter is None or any(starmap(group_filter.passes, sources)):
                self._wake(waiter, group)
            elif group.serial >= upto:
                self._wake(waiter, None)

    def _wake_waiters(self) -> None:
        serial = self._log.serial
        while self._waiters and self._waiters[0][0] <= serial:
            _, _, waiter = self._waiters.pop(0)
            if not waiter.called:
                waiter.callback(True)

    def _wake(self, waiter: "Deferred[RingGroup | None]", group: RingGroup | None) -> None:
        if not waiter.called:
            waiter.callback(group)

    def _start_polling(self) -> None:
        if not self._poll_timer.is_active:
            self._seen = self._log.position
            self._poll_timer.start(POLL_SECONDS)

    def _tick(self) -> None:
        self._poll_timer.start(POLL_SECONDS)
        self.poll()

    def _stop_idle_polling(self) -> None:
        if not self._waiters and not self._listeners:
            self._poll_timer.stop()
