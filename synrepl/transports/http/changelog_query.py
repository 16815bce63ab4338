"""The query of a changelog request."""

from typing import TYPE_CHECKING, Final

import msgspec

from synrepl.http_api.kinds import MAX_INTEGER
from synrepl.ports.access import Right
from synrepl.transports.http.authorization import check_right, check_streams
from synrepl.transports.http.holdings_check import check_held
from synrepl.wire.filter import ALL, Filter

if TYPE_CHECKING:
    from synrepl.transports.http.call import Call

__all__ = ["ChangelogQuery", "read_query"]


class ChangelogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The facts after `since`, up to `upto`, that pass `filter`; at most `limit` (None: no limit).

    Without matching facts, a response waits up to `wait` seconds. With `follow` the response is endless and
    has a heartbeat every `heartbeat` seconds; with `ephemeral` it includes facts that are not stored. With an
    `origin` it includes commands for all processes, except those that the reader forwarded under that name.
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
    checksum: bool | None = None
    follow: bool = False
    ephemeral: bool = False
    origin: str | None = None
    heartbeat: float = 5.0

    @property
    def checked(self) -> bool:
        """Whether each fact has its own checksum: by default, if facts are filtered."""
        return not self.filter.is_open if self.checksum is None else self.checksum


def read_query(call: "Call") -> ChangelogQuery:
    """Return the query of this request. Without names, it selects all streams that the peer may see.

    Raises `ApiError`, also for streams and writers that this daemon does not hold; `UnknownStream` for
    streams that the table lacks.
    """
    values, access = dict(call.query), call.access
    streams, writers = values.pop("streams"), values.pop("writers")
    for name in sorted(streams or ()):
        _ = call.services.table[name]
        check_streams(access, name)
    check_held(call.holdings, streams or (), writers or ())
    origin = values.pop("commands", None)
    if origin is not None:
        check_right(access, Right.REPLICATE)
    own = {name: value for name, value in values.items() if name in _FIELDS and value is not None}
    selected = Filter(access.streams if streams is None else streams, writers)
    return ChangelogQuery(filter=selected, origin=origin, **own)


_FIELDS: Final = frozenset(ChangelogQuery.__struct_fields__)
