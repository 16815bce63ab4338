"""Rooms whose state became complete."""

from synrepl.streams.stream import Stream, row

__all__ = ["UN_PARTIAL_STATED_ROOM", "UnPartialStatedRoom"]


@row
class UnPartialStatedRoom:
    """A room that was joined with partial state now has full state."""

    room_id: str


# The exact release is unknown: after 1.66, and not after 1.163 (docs/reference/peers.md#row-shapes).
UN_PARTIAL_STATED_ROOM = Stream("un_partial_stated_room", UnPartialStatedRoom, key="room_id", since="1.67")
