"""Waiters for the log: they share one timer that polls, and use no thread."""

from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import starmap
from typing import TYPE_CHECKING, Final

import msgspec
from twisted.internet.defer import Deferred

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.replication.serving.feed import MAX_SERIAL
from synrepl.replication.serving.ring import RingGroup
from synrepl.wire.filter import Filter

if TYPE_CHECKING:
    from synrepl.storage.log import Log

MAX_WAITERS: Final = 10_000
POLL_SECONDS: Final = 0.5
"""Interval at which the log's position is polled while there are waiters: the position of a filtered copy
moves without facts.
"""


class Interest(msgspec.Struct, frozen=True):
    """The commits that a reader waits for: those with a fact that passes the filter (None: any fact).

    Groups of ephemeral facts count only with `ephemeral`. A reader that waits also wakes up at the serial
    `upto`, and when the log changes in another way than by a commit.
    """

    filter: Filter | None = None
    upto: int = MAX_SERIAL
    ephemeral: bool = False


ANY: Final = Interest()

Wake = Callable[[RingGroup | None], None]
"""Called with the group that was waited for; None if the reader must look at the log."""


class TooManyWaiting(Exception):
    """The limit of waiters for serials is reached."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} requests already wait for serials: retry later")


class LogWaiters:
    """All readers that wait for a commit, and all requests that wait for a serial.

    The publisher calls `committed` with each group, after the ring has it, and has `poll` called when the log
    changes in another way. At most `max_waiters` may wait for serials (`wait_for`).
    """

    def __init__(self, log: "Log", clock: IClock, *, max_waiters: int = MAX_WAITERS) -> None:
        self._log = log
        self._clock = clock
        self._max_waiters = max_waiters
        self._waiters: list[tuple[int, int, Deferred[bool]]] = []
        """Serial, number in the order of arrival, and Deferred of each request; sorted."""
        self._count = 0
        self._readers: dict[Wake, Interest] = {}
        self._seen = log.position
        self._poll_timer = Timer(clock, self._tick)

    @property
    def is_full(self) -> bool:
        """Whether the limit of waiters for serials is reached."""
        return len(self._waiters) >= self._max_waiters

    async def wait_for(self, serial: int, timeout: float) -> bool:
        """Wait until the log reaches a serial; False after the timeout, in seconds.

        Raises `TooManyWaiting` at the limit of waiters.
        """
        if self._log.head.serial >= serial:
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
            index = bisect_left(self._waiters, entry)
            if self._waiters[index : index + 1] == [entry]:
                del self._waiters[index]
            self._stop_idle_polling()

    def listen(self, wake: Wake, interest: Interest = ANY) -> None:
        """Call `wake` once, at the next commit of this interest."""
        self._readers[wake] = interest
        self._start_polling()

    def forget(self, wake: Wake) -> None:
        """Do not call `wake` any more. Idempotent."""
        self._readers.pop(wake, None)
        self._stop_idle_polling()

    def poll(self) -> None:
        """If the log has moved without facts, wake all readers, and the requests whose serial is reached."""
        if self._log.position != self._seen:
            self._seen = self._log.position
            self._wake_waiters()
            self.wake_readers()

    def wake_readers(self) -> None:
        """Wake all readers, although the log has not moved."""
        for wake in list(self._readers):
            self._wake(wake, None)

    def committed(self, group: RingGroup) -> None:
        """Wake the waiters for this group."""
        if not self._waiters and not self._readers:
            return
        # Facts were committed before these without a notification, so each reader must read the log.
        has_gap = group.is_kept and group.serial_before > self._seen.serial
        if group.is_kept:
            self._seen = self._log.position
            self._wake_waiters()
        if not self._readers:
            return
        sources = {(fact.stream, fact.writer) for fact in group.facts}
        for wake, interest in list(self._readers.items()):
            if not group.is_kept and not interest.ephemeral:
                continue
            if has_gap:
                self._wake(wake, None)
            elif interest.filter is None or any(starmap(interest.filter.passes, sources)):
                self._wake(wake, group)
            elif group.serial >= interest.upto:
                self._wake(wake, None)

    def _wake_waiters(self) -> None:
        serial = self._log.head.serial
        while self._waiters and self._waiters[0][0] <= serial:
            _, _, waiter = self._waiters.pop(0)
            if not waiter.called:
                waiter.callback(True)

    def _wake(self, wake: Wake, group: RingGroup | None) -> None:
        if self._readers.pop(wake, None) is not None:
            wake(group)
            self._stop_idle_polling()

    def _start_polling(self) -> None:
        if not self._poll_timer.is_active:
            self._seen = self._log.position
            self._poll_timer.start(POLL_SECONDS)

    def _tick(self) -> None:
        self._poll_timer.start(POLL_SECONDS)
        self.poll()

    def _stop_idle_polling(self) -> None:
        if not self._waiters and not self._readers:
            self._poll_timer.stop()
