"""The site of a daemon, ready to listen with."""

from typing import TYPE_CHECKING, Final

from twisted.web.server import Site

from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log
from synrepl.streams.table import StreamTable
from synrepl.transports.http.authorization import Guard
from synrepl.transports.http.bodies import ApiSite
from synrepl.wire.dialect import Dialect

if TYPE_CHECKING:
    from synrepl.replication.status import DescribedSources, DescribedTables

__all__ = ["MAX_BODY", "make_site"]

MAX_BODY: Final = 64 * 1024 * 1024


def make_site(
    *,
    log: Log,
    publisher: Publisher,
    table: StreamTable,
    tables: "DescribedTables | None" = None,
    sources: "DescribedSources | None" = None,
    metrics: Metrics,
    clock: IClock,
    instance: str,
    server_name: str,
    secret: str | None = None,
    dialect: Dialect | None = None,
    max_body: int = MAX_BODY,
    started_at: float | None = None,
) -> Site:
    """A site to listen with, over a log that has been started, and the `tables` and the `sources` that it
    follows, if any.

    With a `secret`, ``/v1``, ``/_synapse`` and ``/status`` want it as ``Authorization: Bearer``. `dialect` is
    the release to whose shape catch-up is cut; None for the newest. `max_body` is in bytes, `started_at` in
    the clock's seconds (None: now). `clock` is the reactor, outside of tests.
    """
    # Klein imports the reactor, which only who calls this has chosen.
    from synrepl.transports.http.api import Api

    guard = Guard(secret)
    api = Api(
        log=log,
        publisher=publisher,
        table=table,
        tables=tables,
        sources=sources,
        metrics=metrics,
        clock=clock,
        instance=instance,
        server_name=server_name,
        guard=guard,
        dialect=dialect,
        started_at=clock.seconds() if started_at is None else started_at,
    )
    return ApiSite(api.app.resource(), clock=clock, guard=guard, max_body=max_body)
