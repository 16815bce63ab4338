"""The HTTP site of a daemon, and the parts of the daemon that it serves."""

from collections.abc import Callable
from dataclasses import dataclass

from synrepl.files.files import Files
from synrepl.ports.access import Keyring
from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.publisher import Publisher
from synrepl.replication.relay.registry import ReplicaRegistry
from synrepl.replication.roles.manager import RoleManager
from synrepl.replication.status import StatusSource
from synrepl.replication.write_forwarder import WriteForwarder
from synrepl.storage.log import Log
from synrepl.streams.table import StreamTable
from synrepl.transports.http.authorization import AccessCheck
from synrepl.transports.http.request import ApiSite
from synrepl.transports.settings import ApiSettings

__all__ = ["Services", "make_site"]


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts, around a started log.

    `ingest` brings facts into the log; `is_followed` tells whether those of a stream come from a table.
    `replication` makes the daemon a primary or replica. `clock` is the reactor, except in tests. Catch-up is
    projected to the row shapes of `settings.dialect`; None for the newest. `started_at` is in the clock's
    seconds (None: when the site is made). `files` must be started. `write_forwarder` takes facts that are
    posted to a replica.
    """

    log: Log
    publisher: Publisher
    table: StreamTable
    metrics: Metrics
    clock: IClock
    settings: ApiSettings
    ingest: StatusSource | None = None
    is_followed: Callable[[str], bool] = lambda stream: False
    replication: StatusSource | None = None
    started_at: float | None = None
    files: Files | None = None
    write_forwarder: WriteForwarder | None = None
    roles: RoleManager | None = None
    relays: ReplicaRegistry | None = None
    declared: DeclaredStreams | None = None

    def not_ready_reasons(self) -> list[str]:
        """Return the reasons this daemon is not ready, the most severe first."""
        is_healthy, why = self.log.healthy
        reasons = [] if is_healthy else [f"log: {why}"]
        for part in (self.replication, self.ingest):
            if part is not None:
                reasons += [reason for reason, _ in part.not_ready_reasons()]
        return reasons


def make_site(services: Services, *, keys: Keyring | None = None) -> ApiSite:
    """Make a site that serves these services.

    With `keys`, ``/v1``, ``/_synapse`` and ``/status`` need one of them as ``Authorization: Bearer``. Without
    keys, clients may use the host names of the settings only.
    """
    from synrepl.transports.http.api import Api  # it imports this module

    guard = AccessCheck(
        keys if keys is not None else Keyring(), lambda: services.settings.hosts(services.log.notes)
    )
    return ApiSite(Api(services, guard), services, guard)
