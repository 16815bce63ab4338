"""What a primary asks as it starts: whether another daemon was promoted while it was away."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred

from synrepl.errors import ReplicationError
from synrepl.ports.interfaces import IClock
from synrepl.ports.tasks import Tasks
from synrepl.replication.addresses import Address
from synrepl.replication.roles.interfaces import IPeerClient, PeerStatus

__all__ = ["INQUIRY_SECONDS", "MAX_ASKED", "Inquiry"]

INQUIRY_SECONDS: Final = 3.0
"""How long a primary that starts takes no facts while daemons that it knows have not answered."""

MAX_ASKED: Final = 20
"""How many daemons are asked."""


class Inquiry:
    """Asks daemons what they are, all at once. Each that answers is handed to `answered`.

    It ends when all of that is done for each of them, or after `INQUIRY_SECONDS`; `ended` is called then. An
    answer that comes later is handed on all the same.
    """

    def __init__(
        self,
        clock: IClock,
        tell: IPeerClient,
        tasks: Tasks,
        *,
        answered: Callable[[Address, PeerStatus], Awaitable[None]],
        ended: Callable[[], None],
    ) -> None:
        self.is_running = False
        self._clock = clock
        self._tell = tell
        self._tasks = tasks
        self._answered = answered
        self._ended = ended
        self._asked: set[Address] = set()
        self._timer: Any = None
        self._waiting: list[Deferred[None]] = []

    def start(self, addresses: Sequence[Address]) -> None:
        """Ask these daemons; it does not run if there is none."""
        self._asked = set(addresses[:MAX_ASKED])
        if not self._asked:
            return
        self.is_running = True
        self._timer = self._clock.callLater(INQUIRY_SECONDS, self._end)
        for address in addresses[:MAX_ASKED]:
            asking = self._tasks.start(self._ask(address), "asking who is primary")
            asking.addBoth(self._done, address)

    def stop(self) -> None:
        """Wait for nobody any more."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self.is_running = False

    async def over(self) -> None:
        """Returns once it does not run."""
        if self.is_running:
            waiter: Deferred[None] = Deferred()
            self._waiting.append(waiter)
            await waiter

    async def _ask(self, address: Address) -> None:
        try:
            told = await self._tell.describe(address, trusted=True)
        except ReplicationError:
            return  # it is away, and can tell nothing
        await self._answered(address, told)

    def _done(self, _: object, address: Address) -> None:
        self._asked.discard(address)
        if not self._asked:
            self._end()

    def _end(self) -> None:
        if not self.is_running:
            return
        self.stop()
        self._ended()
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.callback(None)
