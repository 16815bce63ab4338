"""Read receipts."""

from typing import Annotated, Any

from synrepl.streams.stream import Since, Stream, row

__all__ = ["RECEIPTS", "Receipt"]


@row
class Receipt:
    """A user has read a room, or a thread of it, up to an event."""

    room_id: str
    receipt_type: str
    user_id: str
    event_id: str
    # The exact release is unknown: after 1.66, and not after 1.163 (docs/reference/peers.md#row-shapes).
    thread_id: Annotated[str | None, Since("1.67", default=None)]
    data: dict[str, Any]


RECEIPTS = Stream("receipts", Receipt, key=("room_id", "receipt_type", "user_id", "thread_id"))
