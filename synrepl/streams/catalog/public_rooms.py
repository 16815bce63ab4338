"""Rooms in the public directory (until 1.41)."""

from typing import Annotated, Literal

from synrepl.streams.stream import BoolSpelling, Stream, row

__all__ = ["PUBLIC_ROOMS", "PublicRoom"]


def _is_public(visibility: bool | int | str) -> bool:
    return visibility == "public" if isinstance(visibility, str) else bool(visibility)


@row
class PublicRoom:
    """A room was added to the directory, or removed from it."""

    room_id: str
    # Masters on SQLite write numbers (docs/reference/peers.md#json); the words are those of the
    # client-server API.
    visibility: Annotated[
        bool, BoolSpelling(accepts=bool | Literal[0, 1, "public", "private"], read=_is_public)
    ]
    appservice_id: str | None
    network_id: str | None


PUBLIC_ROOMS = Stream(
    "public_rooms", PublicRoom, key=("room_id", "appservice_id", "network_id"), until="1.41"
)
