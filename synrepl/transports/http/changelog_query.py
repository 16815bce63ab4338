"""What a reader of the changelog wants, and where it stands."""

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

__all__ = ["ChangelogQuery", "read_wanted"]

MAX_WAIT_SECONDS: Final = 300.0
HEARTBEAT_SECONDS: Final = 5.0
MAX_HEARTBEAT_SECONDS: Final = 60.0


class ChangelogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The facts after `since`, up to `upto`, at most `limit` (None: all) of those that are `chosen`.

    With nothing to tell, an answer waits up to `wait` seconds for it; with `follow` it has no end, and says
    every `heartbeat` seconds how far it is; with `ephemeral` it also has the facts that nobody keeps. With an
    `origin` it also has the commands for all processes, but for those that the reader forwards under it. What
    the reader holds at `since` is of this `epoch` and has this `digest`, in a log of this `history`, as far
    as it says so.
    """

    since: int = 0
    upto: int = MAX_TOKEN
    limit: int | None = None
    wait: float = 0.0
    chosen: Filter = ALL
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
        """Whether each fact comes with a checksum of its own: unless said, where facts are chosen."""
        return not self.chosen.is_open if self.checksum is None else self.checksum


def read_wanted(request: Any, table: StreamTable, holdings: Holdings) -> ChangelogQuery:
    """What the query of this request says; unless it names streams, all that the peer may see and is held.

    Raises `ApiError`, also for streams and writers that are named and not held here; or `UnknownStream` by
    this table.
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
        chosen=Filter(streams, writers),
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
    """Under what name a replica that asks for commands forwards its own; None if it asks for none."""
    given = text(request, "commands")
    if given is None:
        return None
    check_right(request.access, Right.REPLICATE)
    if not is_word(given):
        raise ApiError(400, "bad_request", "commands is the origin of the reader's own: one printable word")
    return given
