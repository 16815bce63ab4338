"""Backfill: old events fetched from other servers."""

from typing import Annotated

from synrepl.streams.stream import Since, Stream, row

__all__ = ["BACKFILL", "Backfilled"]


@row
class Backfilled:
    """An event that is older than the known events of its room."""

    event_id: str
    room_id: str
    type: str
    state_key: str | None
    redacts: str | None
    relates_to: Annotated[str | None, Since("0.99.5", default=None)]


# Real masters send the tokens of one burst in descending order (docs/reference/peers.md#tokens).
BACKFILL = Stream("backfill", Backfilled, key="event_id", descends=True)
