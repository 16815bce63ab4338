"""Handlers of the log: the changelog, its extent, and digests."""

from typing import TYPE_CHECKING

from synrepl.http_api.routes import READER
from synrepl.transports.http.arrow import arrow_form
from synrepl.transports.http.call import Call
from synrepl.transports.http.changelog_query import read_query
from synrepl.transports.http.holdings_check import set_held_header
from synrepl.transports.http.log_extent import ExtentAnswer, measure_extent
from synrepl.transports.http.messages import DigestsAnswer

if TYPE_CHECKING:
    from synrepl.transports.http.changelog_query import ChangelogQuery

__all__ = ["digests", "extent", "read"]


async def read(call: Call) -> None:
    """Serve the log from a serial on."""
    query = read_query(call)
    form = arrow_form(call.request, query, call.services.clock)
    await _prepare(call, query)
    set_held_header(call.request, call.holdings)
    await call.state.changelog.serve(call.request, query, form)


async def extent(call: Call) -> ExtentAnswer:
    """Return the number and size of facts from a serial on."""
    query = read_query(call)
    await _prepare(call, query)
    await call.state.changelog.check(query)
    set_held_header(call.request, call.holdings)
    return await measure_extent(call.services.log, query)


async def digests(call: Call) -> DigestsAnswer:
    """Return digests at serials: a client finds a fork by bisection."""
    log = call.services.log
    found = {serial: await log.digest_at(serial) for serial in sorted(set(call.query["serials"]))}
    return DigestsAnswer(epoch=log.epoch, serial=log.serial, history=log.history, digests=found)


async def _prepare(call: Call, query: "ChangelogQuery") -> None:
    """Wait for ``min_serial``; renew a named reader's lease, which retains the facts it has not read."""
    call.check_fresh()
    await call.read_your_writes()
    reader, registry = call.query[READER], call.services.relays
    if reader is None or registry is None:
        return
    await call.state.changelog.check(query)
    from synrepl.transports.http.replica_routes import renew_lease  # only with replicas in memory

    renew_lease(registry, reader, query.since, query.wait)
