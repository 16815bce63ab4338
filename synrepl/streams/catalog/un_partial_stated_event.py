"""Events whose state became complete."""

from synrepl.streams.stream import Bool, Stream, row

__all__ = ["UN_PARTIAL_STATED_EVENT", "UnPartialStatedEvent"]


@row
class UnPartialStatedEvent:
    """An event with partial state now has full state, which may change whether it is rejected."""

    event_id: str
    rejection_status_changed: Bool


# The exact release is unknown: after 1.66, and not after 1.163 (docs/reference/peers.md#row-shapes).
UN_PARTIAL_STATED_EVENT = Stream(
    "un_partial_stated_event", UnPartialStatedEvent, key="event_id", since="1.67"
)
