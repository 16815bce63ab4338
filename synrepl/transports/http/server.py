"""The site of a daemon, ready to listen with."""

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
    from synrepl.replication.files import Files
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
    bringing: "StatusIngest | None" = None,
    copies: "StatusReplication | None" = None,
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
    relaying: "IWriteForwarder | None" = None,
    roles: "RoleManager | None" = None,
    relays: "ReplicaRegistry | None" = None,
    refuses_stale: bool = False,
) -> ApiSite:
    """A site to listen with, over a log that has been started, what is `bringing` facts into it, and its
    `copies`, if any: what role this daemon has in them (`roles`), and who is served (`relays`).

    With `keys`, ``/v1``, ``/_synapse`` and ``/status`` want one of them as ``Authorization: Bearer``. Without
    any, `hosts` are the names with dots under which clients may reach it. `dialect` is the release to whose
    shape catch-up is cut; None for the newest. `max_body` is in bytes, `started_at` in
    the clock's seconds (None: now). `clock` is the reactor, outside of tests. `files` were started; one may
    have `max_file` bytes. `relaying` takes facts that are posted to a replica. One that
    `refuses_stale` reads answers none while it may lack too much.
    """
    # Klein imports the reactor, which only who calls this has chosen.
    from synrepl.transports.http.api import Api

    guard = AccessCheck(
        keys if keys is not None else Keyring(), [server_name.rpartition(":")[0] or server_name, *hosts]
    )
    api = Api(
        log=log,
        publisher=publisher,
        table=table,
        bringing=bringing,
        copies=copies,
        metrics=metrics,
        clock=clock,
        instance=instance,
        server_name=server_name,
        guard=guard,
        dialect=dialect,
        started_at=clock.seconds() if started_at is None else started_at,
        files=files,
        relaying=relaying,
        roles=roles,
        relays=relays,
        refuses_stale=refuses_stale,
    )
    return ApiSite(
        api.app.resource(), clock=clock, guard=guard, max_body=max_body, files=files, max_file=max_file
    )
