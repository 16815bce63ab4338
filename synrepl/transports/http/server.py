"""The HTTP site of a daemon."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from synrepl.ports.access import Keyring
from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log
from synrepl.streams.table import StreamTable
from synrepl.transports.http.authorization import AccessCheck
from synrepl.transports.http.request import ApiSite
from synrepl.wire.dialect import Dialect

if TYPE_CHECKING:
    from synrepl.files import Files
    from synrepl.replication.relay import ReplicaRegistry
    from synrepl.replication.roles import RoleManager
    from synrepl.replication.status import StatusIngest, StatusReplication
    from synrepl.transports.http.api import IWriteForwarder

__all__ = ["MAX_BODY", "MAX_FILE", "make_site"]

MAX_BODY: Final = 64 * 1024 * 1024
MAX_FILE: Final = 16 * 1024 * 1024 * 1024


def make_site(
    *,
    log: Log,
    publisher: Publisher,
    table: StreamTable,
    ingest: "StatusIngest | None" = None,
    replication: "StatusReplication | None" = None,
    metrics: Metrics,
    clock: IClock,
    instance: str,
    server_name: str,
    keys: Keyring | None = None,
    hosts: Collection[str] = (),
    dialect: Dialect | None = None,
    max_body: int = MAX_BODY,
    started_at: float | None = None,
    files: "Files | None" = None,
    max_file: int = MAX_FILE,
    write_forwarder: "IWriteForwarder | None" = None,
    roles: "RoleManager | None" = None,
    relays: "ReplicaRegistry | None" = None,
    refuses_stale: bool = False,
) -> ApiSite:
    """Make a site over a started log; `ingest` brings facts into it, `replication` makes the daemon a primary
    or replica.

    With `keys`, ``/v1``, ``/_synapse`` and ``/status`` need one of them as ``Authorization: Bearer``. Without
    keys, `hosts` are the names with dots under which clients may reach the daemon. `dialect` is the release
    for whose row shapes catch-up is projected; None for the newest. `max_body` and `max_file` are limits in
    bytes; `started_at` is in the clock's seconds (None: now). `clock` is the reactor, except in tests.
    `files` must be started. `write_forwarder` takes facts that are posted to a replica. With `refuses_stale`,
    the site refuses reads while the daemon may be missing data.
    """
    # Klein imports the reactor, which the caller must have installed before.
    from synrepl.transports.http.api import Api

    guard = AccessCheck(
        keys if keys is not None else Keyring(), [server_name.rpartition(":")[0] or server_name, *hosts]
    )
    api = Api(
        log=log,
        publisher=publisher,
        table=table,
        ingest=ingest,
        replication=replication,
        metrics=metrics,
        clock=clock,
        instance=instance,
        server_name=server_name,
        guard=guard,
        dialect=dialect,
        started_at=clock.seconds() if started_at is None else started_at,
        files=files,
        write_forwarder=write_forwarder,
        roles=roles,
        relays=relays,
        refuses_stale=refuses_stale,
    )
    return ApiSite(
        api.app.resource(), clock=clock, guard=guard, max_body=max_body, files=files, max_file=max_file
    )
