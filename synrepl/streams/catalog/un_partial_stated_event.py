"""Which events now have their full state."""

from synrepl.streams.stream import Bool, Stream, row

__all__ = ["UN_PARTIAL_STATED_EVENT", "UnPartialStatedEvent"]


@row
class UnPartialStatedEvent:
    """An event that had partial state has all of it now, and may be rejected (or not) for it."""

    event_id: str
    rejection_status_changed: Bool


# The release is only known to be after 1.66, and 1.163 has it.
UN_PARTIAL_STATED_EVENT = Stream(
    "un_partial_stated_event", UnPartialStatedEvent, key="event_id", since="1.67"
)
