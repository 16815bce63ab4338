"""Interfaces that a relay needs: the log, the publisher and the registry."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from synrepl.ports.access import Access, Keyring
from synrepl.ports.interfaces import IClock, ILog
from synrepl.ports.metrics import Metrics
from synrepl.ports.tasks import Tasks
from synrepl.replication.command_forwarder import CommandReceiver
from synrepl.replication.log_waiters import LogWaiters
from synrepl.replication.relay.leases import Leases
from synrepl.replication.ring import Ring
from synrepl.wire.filter import Filter
from synrepl.wire.grammar import Command
from synrepl.wire.native import Refusal, Subscription

__all__ = ["RelayFeed", "IReplicaRegistry"]


class RelayFeed(Protocol):
    """The part of the publisher that relays use."""

    ring: Ring
    waiters: LogWaiters
    metrics: Metrics
    command_receiver: CommandReceiver

    def on_broadcast(self, watcher: Callable[[Command, object], None]) -> None:
        """Call `watcher` with each command for all processes."""

    def lag_seconds_at(self, serial: int) -> float:
        """Return how long ago the log was at this serial."""


class IReplicaRegistry(Protocol):
    """The registry of replicas (`ReplicaRegistry`)."""

    log: ILog
    feed: RelayFeed
    clock: IClock
    instance: str
    server_name: str
    keys: Keyring
    heartbeat_seconds: float
    tasks: Tasks
    leases: Leases
    role: Callable[[], str]
    address: Callable[[], str]
    primary: Callable[[], str]

    @property
    def connected(self) -> Sequence[Any]:
        """All relays."""

    def detach(self, relay: Any) -> None:
        """Forget a relay whose connection has ended."""

    async def admission(
        self,
        uuid: str,
        name: str,
        request: Subscription,
        access: Access,
        *,
        registered: bool = True,
        address: str = "",
    ) -> Refusal | None:
        """Return why this subscription is refused; None if it is admitted."""

    def join_refusal(
        self, uuid: str, name: str, query: Filter, access: Access, *, registered: bool = True
    ) -> Refusal | None:
        """Return why this daemon gives no copy; None if it does."""

    def duplicate_of(self, relay: Any) -> Any:
        """Return another live connection of the same replica."""

    def peers(self, *, excluding: str) -> list[str]:
        """The addresses of the replicas, except this one's."""

    def filter(self) -> Filter:
        """The filter of this daemon's own log."""
