"""A gate at which a coroutine waits until it is open."""

from twisted.internet.defer import Deferred

__all__ = ["Gate"]


class Gate:
    """Open at first. One coroutine at a time may wait until it is open."""

    def __init__(self) -> None:
        self.is_open = True
        self._waiter: Deferred[None] | None = None

    async def wait_open(self) -> None:
        """Wait until the gate is open."""
        if not self.is_open:
            self._waiter = Deferred()
            await self._waiter

    def open(self) -> None:
        """Open the gate, and let the waiting coroutine pass. Idempotent."""
        self.is_open = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)

    def close(self) -> None:
        """Close the gate. Idempotent."""
        self.is_open = False
