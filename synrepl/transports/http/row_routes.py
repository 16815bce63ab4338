"""Handlers of a stream's rows by token: pages of a writer's rows, and positions.

Requests for streams and writers that this daemon does not hold are refused.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from synrepl.errors import ConfigError
from synrepl.http_api.routes import ALLOCATED, CATCH_UP, ROWS
from synrepl.storage.log import Log
from synrepl.streams.stream import Stream
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles
from synrepl.transports.http.headers import header
from synrepl.wire.dialect import Dialect
from synrepl.wire.js_numbers import numbers_as_text

CATCH_UP_ROWS: Final = 1_000

BEHIND_SECONDS: Final = 1.0
"""How long a request for facts that are not here yet waits for the next commit: Synapse's workers repeat it
without a pause."""

_synapse: Final = re.compile(r"Synapse/([0-9]{1,3}\.[0-9]{1,4}(?:\.[0-9]{1,4})?)", re.ASCII)


class AllocatedAnswer(msgspec.Struct, frozen=True):
    """The positions of a stream's writers, and the highest token that any reader can have (None: unknown)."""

    stream: str
    allocated: int | None
    positions: dict[str, int]


@handles(ROWS)
async def page(call: Call) -> bytes:
    """Return a page of one writer's rows, in the newest shape."""
    call.check_fresh()
    query, log, name = call.query, call.context.log, call.path["stream"]
    stream = call.context.table[name]
    writer = query["writer"] or call.context.settings.instance_name
    call.check_held([name], [writer])
    await call.read_your_writes()
    head = log.positions(name).get(writer, 0)
    rows = await read_page(
        log,
        stream,
        writer,
        after=query["from"],
        upto=head if query["upto"] is None else min(query["upto"], head),
        limit=query["limit"],
        texts=stream.project_newest,
    )
    body = rows.body(b"upto")
    return numbers_as_text(body) if query["numbers"] else body


@handles(ALLOCATED)
async def allocated(call: Call) -> AllocatedAnswer:
    """Return the positions of a stream; from memory, as followers request them often."""
    call.check_fresh()
    context, name = call.context, call.path["stream"]
    _ = context.table[name]
    call.check_held([name])
    await call.read_your_writes()
    # Other processes allocate the ids of a table, and clients can wait for ids that this daemon has not
    # seen.
    is_partial = context.is_followed(name)
    writers = call.read_gate.filter.writers
    positions = context.log.positions(name)
    if writers is not None:
        # Positions of writers that are not held may be ahead of the log.
        is_partial = True
        positions = {writer: token for writer, token in positions.items() if writer in writers}
    return AllocatedAnswer(name, None if is_partial else context.log.linear_position(name), positions)


@handles(CATCH_UP)
async def updates(call: Call) -> bytes:
    """Return missed rows in Synapse's response format.

    Unlike Synapse, this ignores the transaction id: a repeated read is harmless. Nor does it claim what is
    not here: Synapse's processes answer for their own facts, but this copy may be behind its writer.
    """
    call.check_fresh()
    context, name = call.context, call.path["stream"]
    stream = context.table.get(name)
    dialect = context.settings.dialect or _worker_dialect(call.request)
    if stream is None or (dialect and dialect.release not in stream.span):
        raise ApiError("M_UNKNOWN", "Unknown stream")
    writer = _requested_writer(call, name)
    call.check_held([name], [writer])
    await call.read_your_writes()
    texts: Callable[[bytes], list[bytes]] = stream.project_newest
    if dialect is not None:
        texts = lambda rows: stream.project_fact(rows, dialect)  # noqa: E731
    after, upto = call.query["from_token"], call.query["upto_token"]
    until = context.clock.seconds() + BEHIND_SECONDS
    while not stream.ephemeral and context.log.positions(name).get(writer, 0) <= after < upto:
        if (left := until - context.clock.seconds()) <= 0:
            break
        await call.next_commit(left)
    rows = await read_page(
        context.log, stream, writer, after=after, upto=upto, limit=CATCH_UP_ROWS, texts=texts
    )
    context.metrics.catch_up_requests.labels("in").inc()
    return rows.body(b"upto_token")


def _requested_writer(call: Call, stream: str) -> str:
    """Return the writer in the query, else in Host (``Host: event_persister1:80``), else this instance."""
    named: str | None = call.query["writer"]
    if named is not None:
        return named
    host: str = call.request.getRequestHostname().decode("utf-8")
    return host if host in call.context.log.positions(stream) else call.context.settings.instance_name


def _worker_dialect(request: Any) -> Dialect | None:
    """The release of a Synapse worker, from its User-Agent (``Synapse/1.66.0``); None if it is unknown.

    A worker crashes on fields and kinds of rows that its release does not know.
    """
    release = _synapse.match(header(request, "user-agent") or "")
    if release is None:
        return None
    try:
        return Dialect.parse(release[1])
    except ConfigError:  # a release without this protocol
        return None


class RowPage(msgspec.Struct, frozen=True):
    """A page: `updates` are ``[token,row]`` texts; up to the token `upto` no row is missing.

    `limited`: more rows follow, or will be here later. `lost`: pairs of tokens; facts after the first up to
    the second are gone.
    """

    updates: list[bytes]
    upto: int
    limited: bool
    lost: Sequence[tuple[int, int]] = ()

    def body(self, upto_name: bytes) -> bytes:
        """Encode the response, with `upto` under this name."""
        # Synapse's workers ignore a member that they do not know.
        lost = b',"lost":%b' % msgspec.json.encode(self.lost) if self.lost else b""
        return b'{"updates":[%s],"%s":%d,"limited":%s%s}' % (
            b",".join(self.updates),
            upto_name,
            self.upto,
            b"true" if self.limited else b"false",
            lost,
        )


async def read_page(
    log: Log,
    stream: Stream[Any],
    writer: str,
    *,
    after: int,
    upto: int,
    limit: int,
    texts: Callable[[bytes], list[bytes]],
) -> RowPage:
    """Read the rows with ``after < token <= upto``; at most `limit`, unless one fact alone has more.

    A page never ends beyond the writer's position in this log. If that is below `upto`, it is `limited`; but
    not of an ephemeral stream, as the writer may have begun again, and who asked again would never hear it.
    `texts` returns the rows of a fact in the requested shape. If `after` is beyond `upto`, no row is
    returned; but of an ephemeral stream, whose tokens start again with the writer, rows from the first on.

    Of a stream without keys trimming leaves nothing in place of old facts: those are gone, as lost ones are.
    Where rows have keys, the newest row of each key is still there.
    """
    end = min(upto, log.positions(stream.name).get(writer, 0))
    if after > upto:
        if not stream.ephemeral:
            return RowPage([], end, False)
        after = 0
    facts, limited = await log.reads.tokens(
        stream=stream.name, writer=writer, after=after, upto=upto, serial=log.head.serial, limit=limit
    )
    keeps_all = stream.key is None and not stream.ephemeral
    updates: list[bytes] = []
    lost: list[tuple[int, int]] = []
    last = after
    for fact in facts:
        rows = texts(fact.rows)
        if updates and len(updates) + len(rows) > limit and fact.token != last:
            limited = True
            break
        if fact.is_lost:
            lost.append((last, fact.token))
        elif keeps_all and last < fact.prev_token < fact.token:
            lost.append((last, fact.prev_token))
        head = b"[%d," % fact.token
        updates += [head + row + b"]" for row in rows]
        last = fact.token
    if keeps_all and not limited and last < end:
        lost.append((last, end))
    return RowPage(updates, last if limited else end, limited or (end < upto and not stream.ephemeral), lost)
