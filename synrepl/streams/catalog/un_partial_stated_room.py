"""Which rooms now have their full state."""

from synrepl.streams.stream import Stream, row

__all__ = ["UN_PARTIAL_STATED_ROOM", "UnPartialStatedRoom"]


@row
class UnPartialStatedRoom:
    """A room that was joined with partial state has all of it now."""

    room_id: str


# The release is only known to be after 1.66, and 1.163 has it.
UN_PARTIAL_STATED_ROOM = Stream("un_partial_stated_room", UnPartialStatedRoom, key="room_id", since="1.67")
