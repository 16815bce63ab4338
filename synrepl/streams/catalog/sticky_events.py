"""Which events stick to their rooms for a while."""

from synrepl.streams.stream import Stream, row

__all__ = ["STICKY_EVENTS", "StickyEvent"]


@row
class StickyEvent:
    """An event became sticky."""

    room_id: str
    event_id: str


# The release is only known to be after 1.66, and 1.163 has it.
STICKY_EVENTS = Stream(
    "sticky_events", StickyEvent, key=("room_id", "event_id"), any_writer=True, since="1.67"
)
