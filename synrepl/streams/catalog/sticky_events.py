"""Sticky events of rooms."""

from synrepl.streams.stream import Stream, row

__all__ = ["STICKY_EVENTS", "StickyEvent"]


@row
class StickyEvent:
    """An event became sticky."""

    room_id: str
    event_id: str


# The exact release is unknown: after 1.66, and not after 1.163 (docs/reference/peers.md#row-shapes).
STICKY_EVENTS = Stream(
    "sticky_events", StickyEvent, key=("room_id", "event_id"), any_writer=True, since="1.67"
)
