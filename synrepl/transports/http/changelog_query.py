"""The query of a changelog request."""

from typing import Any, Final

import msgspec

from synrepl.ports.access import Right
from synrepl.replication.holdings import Holdings
from synrepl.streams.table import StreamTable
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.authorization import check_right, check_streams
from synrepl.transports.http.holdings_check import check_held
from synrepl.transports.http.query import (
    BAD_WORD,
    MAX_TOKEN,
    digest,
    flag,
    integer,
    is_word,
    names,
    seconds,
    text,
)
from synrepl.wire.filter import ALL, Filter

__all__ = ["ChangelogQuery", "read_query"]

MAX_WAIT_SECONDS: Final = 300.0
HEARTBEAT_SECONDS: Final = 5.0
MAX_HEARTBEAT_SECONDS: Final = 60.0


class ChangelogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The facts after `since`, up to `upto`, that pass `filter`; at most `limit` (None: no limit).

    Without matching facts, a response waits up to `wait` seconds. With `follow` the response is endless and
    has a heartbeat every `heartbeat` seconds; with `ephemeral` it includes facts that are not stored. With an
    `origin` it includes commands for all processes, except those that the reader forwarded under that name.
    `epoch`, `digest` and `history` describe the reader's own log at `since`, as far as the reader gives them.
    """

    since: int = 0
    upto: int = MAX_TOKEN
    limit: int | None = None
    wait: float = 0.0
    filter: Filter = ALL
    epoch: int | None = None
    digest: str | None = None
    history: str | None = None
    compacted: bool = False
    epoch_starts: bool = False
    receipts: bool = False
    checksum: bool | None = None
    follow: bool = False
    ephemeral: bool = False
    origin: str | None = None
    heartbeat: float = HEARTBEAT_SECONDS

    @property
    def checked(self) -> bool:
        """Whether each fact has its own checksum: by default, if facts are filtered."""
        return not self.filter.is_open if self.checksum is None else self.checksum


def read_query(request: Any, table: StreamTable, holdings: Holdings) -> ChangelogQuery:
    """Parse the query of this request. Without names, it selects all streams that the peer may see.

    Raises `ApiError`, also for streams and writers that this daemon does not hold; `UnknownStream` for
    streams that the table lacks.
    """
    streams, writers = names(request, "streams"), names(request, "writers")
    for name in sorted(streams or ()):
        _ = table[name]
        check_streams(request.access, name)
    if not all(map(is_word, writers or ())):
        raise ApiError(400, "bad_writer", BAD_WORD)
    check_held(holdings, streams or (), writers or ())
    if streams is None:
        streams = request.access.streams
    limit = integer(request, "limit", -1, lowest=1)
    epoch = integer(request, "epoch", -1)
    return ChangelogQuery(
        since=integer(request, "since", 0),
        upto=integer(request, "upto", MAX_TOKEN),
        limit=None if limit < 0 else limit,
        wait=seconds(request, "wait", highest=MAX_WAIT_SECONDS),
        filter=Filter(streams, writers),
        epoch=None if epoch < 0 else epoch,
        digest=digest(request, "digest"),
        history=text(request, "history"),
        compacted=flag(request, "compacted"),
        epoch_starts=flag(request, "epoch_starts"),
        receipts=flag(request, "receipts"),
        checksum=flag(request, "checksum") if text(request, "checksum") is not None else None,
        follow=flag(request, "follow"),
        ephemeral=flag(request, "ephemeral"),
        origin=_origin(request),
        heartbeat=seconds(
            request, "heartbeat", lowest=1.0, highest=MAX_HEARTBEAT_SECONDS, default=HEARTBEAT_SECONDS
        ),
    )


def _origin(request: Any) -> str | None:
    """Return the origin under which a replica forwards its own commands; None if it requests no commands."""
    origin = text(request, "commands")
    if origin is None:
        return None
    check_right(request.access, Right.REPLICATE)
    if not is_word(origin):
        raise ApiError(400, "bad_request", "commands must be the origin of the reader: one printable word")
    return origin
