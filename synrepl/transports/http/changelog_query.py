"""The query of a changelog request: the facts that it selects, and whether this log has them."""

from typing import Any, Final

import msgspec

from synrepl.http_api.route import MAX_INTEGER
from synrepl.replication.serving.admission import ReaderPosition, history_mismatch, position_mismatch
from synrepl.replication.serving.feed import EphemeralMode, Feed, Stop
from synrepl.replication.serving.ring import Ring
from synrepl.storage.log import Log
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
from synrepl.wire.filter import ALL, Filter

CODES: Final = {"ahead": "ahead_of_log"}
"""Codes that have another name over HTTP."""


class ChangelogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The facts after `since`, up to `upto`, that pass `filter`; at most `limit` (None: no limit).

    With `follow` the response goes on at the head, with heartbeats `heartbeat` seconds apart, ephemeral facts
    if `ephemeral`, and with an `origin` commands for all processes, except those forwarded under that name.
    Without `follow`, a response waits up to `wait` seconds for a first fact.
    Receipts, epoch starts and commands name only the streams `seen` (None: all): those the peer may see.
    With `numbers`, those that JavaScript would change are text.
    `epoch`, `digest` and `history` describe the reader's own log at `since`, as far as the reader gives them.
    """

    since: int = 0
    upto: int = MAX_INTEGER
    limit: int | None = None
    wait: float = 0.0
    filter: Filter = ALL
    epoch: int | None = None
    digest: str | None = None
    history: str | None = None
    compacted: bool = False
    epoch_starts: bool = False
    receipts: bool = False
    seen: frozenset[str] | None = None
    checksum: bool | None = None
    follow: bool = False
    ephemeral: bool = False
    origin: str | None = None
    heartbeat: float = 5.0
    numbers: bool = False

    @property
    def checked(self) -> bool:
        """Whether each fact has its own checksum: by default, if facts are filtered."""
        return not self.filter.is_open if self.checksum is None else self.checksum


def read_query(call: Call) -> ChangelogQuery:
    """Return the query of this request. Without names, it selects all streams that the peer may see.

    Raises `ApiError` for what the peer may not see, or this daemon does not hold; `UnknownStream` for
    streams that the table lacks.
    """
    values, access = dict(call.query), call.access
    streams, writers = values.pop("streams"), values.pop("writers")
    named = sorted(streams or ())
    for name in named:
        _ = call.context.table[name]
    call.check_streams(*named)
    call.check_held(streams or (), writers or ())
    origin = values.pop("commands", None)
    own = {name: value for name, value in values.items() if name in _FIELDS and value is not None}
    selected = Filter(access.streams if streams is None else streams, writers)
    return ChangelogQuery(filter=selected, origin=origin, seen=access.streams, **own)


_FIELDS: Final = frozenset(ChangelogQuery.__struct_fields__)


def query_feed(log: Log, query: ChangelogQuery, ring: Ring | None = None) -> Feed:
    """Make the feed of this query. Without a `ring` it reads every fact from the log."""
    return Feed(
        log,
        ring,
        after=query.since,
        epoch=query.epoch,
        filter=query.filter,
        upto=query.upto,
        limit=query.limit,
        epochs=query.epoch_starts,
        receipts=query.receipts,
        seen=query.seen,
        ephemeral=EphemeralMode.HELD if query.ephemeral else EphemeralMode.NONE,
        compacted=query.compacted,
        whole_groups=False,
    )


async def check_position(log: Log, query: ChangelogQuery) -> None:
    """Raises `ApiError` if this log lacks the reader's position, or (unless `compacted`) facts after it."""
    reader = ReaderPosition(
        history=query.history,
        serial=query.since,
        epoch=query.epoch,
        digest=query.digest,
        compacted=query.compacted,
        digest_decides=True,
    )
    mismatch = history_mismatch(log, reader) or await position_mismatch(log, reader)
    if mismatch is None:
        return
    if mismatch.code == "trimmed":
        raise _trimmed_error(log, query.since)
    raise _refusal(log, CODES.get(mismatch.code, mismatch.code), mismatch.message)


def stop_error(log: Log, feed: Feed, stop: Stop) -> ApiError:
    """Make the error for a reader that would miss facts, or mix two histories."""
    if stop is Stop.TRIMMED:
        return _trimmed_error(log, feed.serial)
    why = "another copy replaced the log meanwhile: send the request again"
    return ApiError("replaced", why)


def _trimmed_error(log: Log, since: int) -> ApiError:
    trimmed_upto = log.head.trimmed_upto.serial
    why = (
        f"the log was trimmed up to serial {trimmed_upto}; "
        f"request the remaining facts after {since} with compacted=true"
    )
    return _refusal(log, "trimmed", why, trimmed_upto=trimmed_upto)


def _refusal(log: Log, code: str, message: str, **extra: Any) -> ApiError:
    return ApiError(code, message, serial=log.head.serial, epoch=log.head.epoch, **extra)
