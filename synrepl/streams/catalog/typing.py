"""Who is typing where."""

from synrepl.streams.stream import Stream, row

__all__ = ["TYPING", "Typing"]


@row
class Typing:
    """Everyone now typing in a room; it replaces what was said before."""

    room_id: str
    user_ids: list[str]


# Typing is not stored: a restarted writer counts from zero again.
TYPING = Stream("typing", Typing, key="room_id", monotonic=False, ephemeral=True)
