"""Handlers of streams of one's own: what is declared, and new declarations."""

import msgspec

from synrepl.errors import ConfigError
from synrepl.http_api.routes import DECLARE, DECLARED
from synrepl.streams.declared import StreamBody
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles


class DeclaredAnswer(msgspec.Struct, frozen=True):
    """The stream; `created` is false if it had an equal declaration before."""

    stream: StreamBody
    created: bool


class DeclaredStreamsAnswer(msgspec.Struct, frozen=True):
    """The declared streams that the peer may see."""

    streams: list[StreamBody]


@handles(DECLARED)
async def list_all(call: Call) -> DeclaredStreamsAnswer:
    """List the declared streams that the peer may see."""
    known = list(call.context.declared.declared.values())
    return DeclaredStreamsAnswer([StreamBody.of(one) for one in known if call.access.sees(one.name)])


@handles(DECLARE)
async def create(call: Call, body: StreamBody) -> DeclaredAnswer:
    """Declare a stream. Raises `ApiError` if the declaration is invalid, or differs from an earlier one."""
    call.check_streams(body.name)
    declared = call.context.declared
    try:
        wanted = body.declaration()
    except ConfigError as error:
        raise ApiError("bad_request", str(error)) from error
    try:
        return DeclaredAnswer(StreamBody.of(wanted), await declared.declare(wanted))
    except ConfigError as error:
        raise ApiError("declared_otherwise", str(error)) from error
