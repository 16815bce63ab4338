"""Notification of other daemons: each is told who is primary, until it has acknowledged that."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.tasks import Tasks
from synrepl.errors import ReplicationError
from synrepl.replicas.roles.messages import Claim, IPeerClient
from synrepl.replication.addresses import Address

NOTIFY_RETRY_SECONDS: Final = 5.0
"""First delay before an unreachable daemon is notified of a new epoch again; it grows with each retry."""

MAX_NOTIFY_RETRY_SECONDS: Final = 60.0


@dataclass(eq=False, repr=False)
class PrimaryNotifier:
    """Sends the current claim to daemons until each has acknowledged it, or is known to have another log.

    `claim` returns the claim of the primary that this daemon knows; None if its address is unknown.
    `complete` adds parts of addresses that are known by now. `save` stores the addresses still to be
    notified. `on_superseded` is called for a daemon that refuses the claim because it knows a later primary,
    and returns whether to notify it again.
    """

    _logger = Logger()
    clock: IClock
    peers: IPeerClient
    tasks: Tasks
    _: KW_ONLY
    claim: Callable[[], Claim | None]
    complete: Callable[[Sequence[Address]], list[Address]]
    save: Callable[[Sequence[Address]], Awaitable[None]]
    on_superseded: Callable[[Address, str], bool]

    def __post_init__(self) -> None:
        self.unnotified: list[Address] = []
        self._is_running = False
        self._retry_seconds = NOTIFY_RETRY_SECONDS
        self._retry_waiter: Deferred[None] | None = None

    def notify(self, addresses: Sequence[Address]) -> None:
        """Notify these daemons, and no others, of the current claim."""
        self.unnotified = list(addresses)
        self._retry_seconds = NOTIFY_RETRY_SECONDS
        if self._retry_waiter is not None and not self._retry_waiter.called:
            # The claim that waits for its retry is outdated.
            self._retry_waiter.callback(None)
        if self.unnotified and not self._is_running:
            self._is_running = True
            self.tasks.start(self._notify_all(), "notifying of the new epoch").addBoth(self._on_end)

    def add(self, address: Address) -> None:
        """Notify this daemon as well."""
        if address not in self.unnotified:
            self.notify([*self.unnotified, address])

    def _on_end(self, _: object) -> None:
        self._is_running = False

    async def _notify_all(self) -> None:
        while self.unnotified and (claim := self.claim()) is not None:
            # A peer of which only half of the address was known may have connected and sent the other half.
            self.unnotified = self.complete(self.unnotified)
            for address in list(self.unnotified):
                if await self._is_settled(address, claim) and address in self.unnotified:
                    self.unnotified.remove(address)
            await self.save(self.unnotified)
            if self.unnotified:
                await self._wait_before_retry()

    async def _is_settled(self, address: Address, claim: Claim) -> bool:
        """Notify one daemon; return whether it need not be notified again."""
        try:
            await self.peers.claim(address, claim)
        except ReplicationError as error:
            code = getattr(error, "code", "")
            # A daemon with another log cannot be primary of this one.
            is_settled = code == "other_history" or (
                code == "superseded" and not self.on_superseded(address, str(error))
            )
            self._logger.info(
                "cannot notify {address} of epoch {epoch}: {why}; {what_next}",
                address=str(address),
                epoch=claim.epoch,
                why=str(error),
                what_next="will not retry" if is_settled else "will retry",
            )
            return is_settled
        return claim == self.claim()

    async def _wait_before_retry(self) -> None:
        """Wait for the retry delay, or until there is a new claim to send."""
        waiter = self._retry_waiter = Deferred()
        seconds = self._retry_seconds
        self._retry_seconds = min(seconds * 1.5, MAX_NOTIFY_RETRY_SECONDS)
        try:
            await waiter.addTimeout(seconds, self.clock, lambda *_: None)  # type: ignore[arg-type]
        finally:
            self._retry_waiter = None
