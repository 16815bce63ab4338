"""Handler of what is done to the watched homeserver: the invalidation of its caches."""

from typing import Final

from twisted.logger import Logger

from synrepl.errors import ConfigError, ReplicationError
from synrepl.homeserver.invalidation_requests import InvalidationReport, InvalidationRequest, NotInvalidated
from synrepl.homeserver.part import invalidator_of
from synrepl.homeserver.routes import INVALIDATE
from synrepl.html.humanize import counted
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles
from synrepl.wire.text import printable

MAX_REASON: Final = 200
"""A longer reason is cut in the log."""

_logger = Logger()


@handles(INVALIDATE)
async def invalidate(call: Call, body: InvalidationRequest) -> InvalidationReport:
    """Invalidate caches of the homeserver, and log who did it and why; the keys are not logged."""
    invalidator = invalidator_of(call.context)
    if invalidator is None:
        raise ApiError("not_found", "this daemon knows no homeserver: start it with --homeserver")
    if body.is_empty:
        raise ApiError("bad_request", "name a cache with the key of an entry, or give all or rooms")
    by = call.access.name or ("the shared secret" if call.access.is_proven else "a peer without a key")
    # The keys of entries may be secret, as an access token is.
    names = ", ".join([body.name] * bool(body.name) + [*body.all[:10]] + ["rooms"] * bool(body.rooms))
    try:
        report = await invalidator.invalidate(body)
    except ConfigError as error:
        raise ApiError("bad_request", str(error)) from error
    except ReplicationError as error:
        _logger.warn("{by} could not invalidate {names}: {error}", by=by, names=names, error=error)
        code = error.code if isinstance(error, NotInvalidated) else "not_invalidated"
        raise ApiError(code, str(error)) from error
    if report.ids:
        _logger.info(
            "{by} wrote {rows} to invalidate {names} at the homeserver: {why}",
            by=by,
            rows=counted(len(report.ids), "row"),
            names=names,
            why=printable(body.why[:MAX_REASON]) or "no reason given",
        )
    return report
