"""Time on a clock: a timer, the delays between retries, and a pause."""

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from synrepl.ports.interfaces import IClock


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


class Backoff:
    """The delays between attempts, in seconds: each of `delays` once, then the last one forever.

    `jitter` returns a factor for each delay, so that processes that failed together retry apart.
    """

    def __init__(self, delays: Sequence[float], *, jitter: Callable[[], float] = lambda: 1.0) -> None:
        self.failures = 0
        """The number of delays since the last `reset`; `exhaust` raises it to the number of all delays."""
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
