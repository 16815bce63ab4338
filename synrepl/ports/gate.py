"""A gate at which coroutines wait until it is open."""

from twisted.internet.defer import Deferred


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
