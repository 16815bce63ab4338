"""PositionWaits: waiting until streams reach positions, and no longer than they can."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from twisted.internet.defer import Deferred

from synrepl.base.interfaces import IAllocated
from synrepl.errors import NeverAllocated
from synrepl.replication.follower.clock import FollowerClock
from synrepl.replication.follower.waiters import Allocation, Waiter, Waiters


class PositionWaits:
    """The waits of a follower. `start` runs a coroutine; `allocated` says which tokens exist.

    The applied positions of the stream are given with each wait: by writer, `applied`.
    """

    def __init__(
        self,
        clock: FollowerClock,
        start: Callable[[Coroutine[Any, Any, None], str], object],
        report_failure: Callable[[Exception, str, str], None],
        allocated: IAllocated | None,
    ) -> None:
        self.waiters = Waiters()
        self.allocation = Allocation(self.waiters, start, report_failure, allocated)
        self.connections = 0
        """The number of connections that were made."""
        self._clock = clock

    def wait(
        self,
        stream: str,
        targets: Mapping[str, int],
        applied: Mapping[str, int],
        timeout: float,
        error: Callable[[Waiter], Exception],
    ) -> "Deferred[None]":
        """Wait for `timeout` seconds, then fail with `error(waiter)`. Fails at once for a missing token.

        Raises `NotConnected` if the follower has no clock yet.
        """
        waiter = self.waiters.add(stream, targets, applied, self.connections)
        self.waiters.fail_after(waiter, timeout, self._clock.required, error)
        if max(waiter.missing.values(), default=-1) > max(applied.values(), default=-1):
            self.allocation.check(stream)
        else:
            # The usual wait costs no request: another writer is that far, so the token exists.
            waiter.is_checked = True
        return waiter.done

    def wait_unchecked(
        self, stream: str, targets: Mapping[str, int], applied: Mapping[str, int]
    ) -> "Deferred[None]":
        """Wait without a timeout, and without asking whether the tokens exist."""
        waiter = self.waiters.add(stream, targets, applied, self.connections)
        waiter.is_checked = True
        return waiter.done

    def connected(self) -> None:
        """There is a new connection: the server may have lost tokens that existed."""
        self.connections += 1
        self.allocation.forget()

    def rewound(self, stream: str, writer: str, token: int) -> None:
        """The writer has lost its facts after this token: later tokens may be allocated again."""
        self.allocation.forget(stream)
        for waiter in self.waiters.for_stream(stream):
            want = waiter.targets.get(writer, token)
            if want <= token:
                continue
            if waiter.connection < self.connections:
                # Waiters from before the reconnect refer to the old history, which the writer has lost. The
                # token may be allocated again for another fact: fail them rather than wake them for it.
                error = NeverAllocated(stream=stream, writer=writer, want=want, allocated=token)
                self.waiters.fail(waiter, error)
            else:
                # The token may belong to the new history and arrive later.
                waiter.is_checked = False
        self.allocation.check(stream)
