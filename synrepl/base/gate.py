"""A gate at which coroutines wait until it is open, and one that closes behind each."""

from twisted.internet.defer import Deferred

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer


class Gate:
    """Coroutines wait at a gate until it is open. A new gate is open by default."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self._waiters: list[Deferred[None]] = []

    async def wait_open(self) -> None:
        """Wait until the gate is open."""
        if not self.is_open:
            waiter: Deferred[None] = Deferred()
            self._waiters.append(waiter)
            await waiter

    def open(self) -> None:
        """Open the gate, and let the waiting coroutines pass. Idempotent."""
        self.is_open = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.called:
                waiter.callback(None)

    def close(self) -> None:
        """Close the gate. Idempotent."""
        self.is_open = False


class Wakeup(Gate):
    """A gate for one coroutine; it closes when the coroutine has passed."""

    def __init__(self, clock: IClock) -> None:
        super().__init__(is_open=False)
        self._timer = Timer(clock, self.open)

    async def wait(self, seconds: float | None = None) -> None:
        """Return once `open` was called since the last wait, or after this many seconds (None: no limit)."""
        if seconds is not None and not self.is_open:
            self._timer.start(max(0.0, seconds))
        try:
            await self.wait_open()
        finally:
            self._timer.stop()
        self.close()
