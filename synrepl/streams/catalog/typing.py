"""Typing users of rooms."""

from synrepl.streams.stream import Stream, row

__all__ = ["TYPING", "Typing"]


@row
class Typing:
    """All users who are now typing in a room."""

    room_id: str
    user_ids: list[str]


# Typing is not stored: after a restart of the writer tokens begin at zero again
# (docs/reference/peers.md#tokens).
TYPING = Stream("typing", Typing, key="room_id", monotonic=False, ephemeral=True)
