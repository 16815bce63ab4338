"""Time on a clock: a timer, the delays between retries, a pause, and the clock by which things expire."""

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from synrepl.base.interfaces import IClock

BELIEF_SECONDS: Final = 24 * 3600.0
"""How long a jump ahead of the wall clock must last until `ExpiryClock` believes it."""

JUMP_SECONDS: Final = 1.0
"""By how much the wall clock must get ahead between two readings to count as a jump."""

_SINCE_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", None)


def steady_seconds() -> float:
    """Return seconds of a clock that nobody sets; on Linux it goes on while the machine is suspended."""
    return time.monotonic() if _SINCE_BOOT is None else time.clock_gettime(_SINCE_BOOT)


class Timer:
    """Calls `work` once after each start. At most one call is pending."""

    __slots__ = ("_call", "_clock", "_work")

    def __init__(self, clock: IClock, work: Callable[[], object]) -> None:
        self._clock = clock
        self._work = work
        self._call: Any = None

    @property
    def is_active(self) -> bool:
        """Whether a call is pending."""
        return self._call is not None

    def start(self, seconds: float) -> None:
        """Call `work` after `seconds`, unless a call is pending."""
        if self._call is None:
            self._call = self._clock.callLater(seconds, self._fire)

    def restart(self, seconds: float) -> None:
        """Call `work` after `seconds`, in place of the pending call."""
        self.stop()
        self.start(seconds)

    def start_within(self, seconds: float) -> None:
        """Call `work` after `seconds`, unless the pending call is due by then."""
        if self._call is None or self._call.getTime() > self._clock.seconds() + seconds:
            self.restart(seconds)

    def stop(self) -> None:
        """Cancel the pending call. Idempotent."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _fire(self) -> None:
        self._call = None
        self._work()


class ExpiryClock:
    """The wall clock, except that it believes a jump ahead only once it has lasted `BELIEF_SECONDS`.

    What has expired is deleted for good, so that a clock that is wrong for a moment must not expire anything.
    A wall clock that goes back is believed at once: things then expire later. After a start, time goes on
    from the last moment that is known (`resume`): nobody can tell a jump from the time that the daemon was
    off, and readers that were cut off by that can come back first.

    `monotonic` returns seconds of a clock that nobody sets, such as `time.monotonic`.
    """

    _logger: ClassVar = Logger()

    def __init__(self, clock: IClock, monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._started_at, self._started = clock.seconds(), monotonic()
        self._last_moment = float("-inf")
        # Wall time minus monotonic time: what is believed, and what a jump would make of it, and since when.
        self._offset = self._started_at - self._started
        self._jumped_offset = self._offset
        self._jumped_since: float | None = None

    def resume(self, moment: float) -> None:
        """Go on from this moment, in seconds of the wall clock, or from a later one that was passed before.

        To be called at the start, with times that were stored before it.
        """
        self._last_moment = max(self._last_moment, moment)
        self._offset = min(self._started_at, self._last_moment) - self._started
        self._jumped_offset, self._jumped_since = self._started_at - self._started, self._started

    def seconds(self) -> float:
        """Return the time, in seconds of the wall clock."""
        now = self._monotonic()
        offset = self._clock.seconds() - now
        if offset <= self._offset + JUMP_SECONDS:
            self._offset, self._jumped_since = offset, None
        elif self._jumped_since is None:
            self._jumped_offset, self._jumped_since = offset, now
            self._logger.warn(
                "the clock jumped ahead by {seconds:.0f} seconds; leases and trimming ignore that until it"
                " has lasted {hours:.0f} hours",
                seconds=offset - self._offset,
                hours=BELIEF_SECONDS / 3600,
            )
        else:
            self._jumped_offset = min(self._jumped_offset, offset)
            if now - self._jumped_since >= BELIEF_SECONDS:
                self._offset, self._jumped_since = self._jumped_offset, None
        return now + self._offset


class Backoff:
    """The delays between attempts, in seconds: each of `delays` once, then the last one forever.

    `jitter` returns a factor for each delay, so that processes that failed together retry apart.
    """

    def __init__(self, delays: Sequence[float], *, jitter: Callable[[], float] = lambda: 1.0) -> None:
        self.failures = 0
        """The number of delays since the last `reset`."""
        self._delays = delays
        self._jitter = jitter

    def next(self) -> float:
        """Return the next delay."""
        delay = self._delays[min(self.failures, len(self._delays) - 1)]
        self.failures += 1
        return delay * self._jitter()

    def reset(self) -> None:
        """Start again with the first delay: an attempt succeeded."""
        self.failures = 0

    def exhaust(self) -> None:
        """Go on with the longest delay: a retry soon is pointless."""
        self.failures = max(self.failures, len(self._delays))


def doubling(first: float, longest: float) -> tuple[float, ...]:
    """Return delays of which each doubles the one before, up to `longest`.

    >>> doubling(1.0, 5.0)
    (1.0, 2.0, 4.0, 5.0)
    """
    delays = [first]
    while delays[-1] < longest:
        delays.append(min(longest, delays[-1] * 2))
    return tuple(delays)


def sleep(clock: IClock, seconds: float) -> "Deferred[None]":
    """Return a Deferred that fires after this many seconds, and can be cancelled."""
    return deferLater(clock, seconds)  # type: ignore[arg-type]  # the stubs want all of IReactorTime
