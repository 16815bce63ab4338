"""The parts of a daemon that its HTTP API serves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from synrepl.ports.interfaces import Appended, IClock
from synrepl.ports.metrics import Metrics
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log
from synrepl.streams.table import StreamTable
from synrepl.transports.settings import ApiSettings

if TYPE_CHECKING:
    from synrepl.files import Files
    from synrepl.replication.log_waiters import LogWaiters
    from synrepl.replication.relay import ReplicaRegistry
    from synrepl.replication.roles import RoleManager
    from synrepl.replication.status import StatusIngest, StatusReplication
    from synrepl.replication.write_forwarder import PostedFacts

__all__ = ["IWriteForwarder", "Services"]


class IWriteForwarder(Protocol):
    """Takes facts that are posted to a replica; see `synrepl.replication.write_forwarder`."""

    @property
    def is_active(self) -> bool:
        """Whether this daemon forwards facts to a primary."""

    async def forward(self, posted: "PostedFacts", waiters: "LogWaiters") -> Appended:
        """Return the primary's response. Raises `NotForwarded`, or `ReadOnlyHere` if stopped."""


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts, around a started log.

    `ingest` brings facts into the log, `replication` makes the daemon a primary or replica. `clock` is the
    reactor, except in tests. Catch-up is projected to the row shapes of `settings.dialect`; None for the
    newest. `started_at` is in the clock's seconds (None: when the site is made). `files` must be started.
    `write_forwarder` takes facts that are posted to a replica.
    """

    log: Log
    publisher: Publisher
    table: StreamTable
    metrics: Metrics
    clock: IClock
    settings: ApiSettings
    ingest: "StatusIngest | None" = None
    replication: "StatusReplication | None" = None
    started_at: float | None = None
    files: "Files | None" = None
    write_forwarder: IWriteForwarder | None = None
    roles: "RoleManager | None" = None
    relays: "ReplicaRegistry | None" = None
