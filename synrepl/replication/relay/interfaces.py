"""What a relay asks of those around it: the log, the publisher, and who has all the relays."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from synrepl.ports.access import Access, Keyring
from synrepl.ports.history import LogSnapshot
from synrepl.ports.interfaces import IClock, ILog
from synrepl.ports.metrics import Metrics
from synrepl.ports.tasks import Tasks
from synrepl.replication.command_forwarder import CommandReceiver
from synrepl.replication.relay.leases import LeasedLog, Leases
from synrepl.replication.ring import Ring
from synrepl.wire.filter import Filter
from synrepl.wire.grammar import Command
from synrepl.wire.native import Refusal, Subscription

__all__ = ["RelayFeed", "IReplicaRegistry", "ServedLog"]


class ServedLog(ILog, LeasedLog, Protocol):
    """What is asked of the log."""

    @property
    def serial(self) -> int: ...

    @property
    def notes(self) -> Mapping[str, str]: ...

    @property
    def boots(self) -> int: ...

    @property
    def receipts_upto(self) -> int: ...

    def head_age(self) -> float: ...

    def on_epoch_started(self, told: Callable[[], None]) -> None: ...

    def on_replaced(self, told: Callable[[], None]) -> None: ...

    def snapshot(self) -> Awaitable[LogSnapshot]: ...


class RelayFeed(Protocol):
    """What is asked of the publisher."""

    ring: Ring
    metrics: Metrics
    command_receiver: CommandReceiver

    def on_broadcast(self, watcher: Callable[[Command, object], None]) -> None:
        """Tell `watcher` of each command for all processes."""

    def lag_seconds_at(self, serial: int) -> float:
        """How long ago the log stood there."""


class IReplicaRegistry(Protocol):
    """Who has all the relays; `relays.Relays` is it."""

    log: ServedLog
    feeding: RelayFeed
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
        """One has ended."""

    async def news(self) -> None:
        """Returns when something was committed, or may have been."""

    def wake_soon(self) -> None:
        """Let everybody look again, once this turn of the reactor is over."""

    async def judge(
        self,
        uuid: str,
        name: str,
        asked: Subscription,
        access: Access,
        *,
        registered: bool = True,
        address: str = "",
    ) -> Refusal | None:
        """Why this cannot be served, if it cannot be."""

    def refuses_join(
        self, uuid: str, name: str, wanted: Filter, access: Access, *, registered: bool = True
    ) -> Refusal | None:
        """Why no copy can be given, if none can be."""

    def duplicate_of(self, relay: Any) -> Any:
        """The other, living connection of the same replica."""

    def peers(self, *, but: str) -> list[str]:
        """Where the replicas are, but for this one."""

    def filter(self) -> Filter:
        """What this daemon has itself."""
