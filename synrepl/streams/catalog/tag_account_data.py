"""Users' tags of rooms (until 1.67; then part of account_data)."""

from typing import Any

from synrepl.streams.stream import Stream, row

__all__ = ["TAG_ACCOUNT_DATA", "TagAccountData"]


@row
class TagAccountData:
    """The tags of a room changed. Masters write `data` as a string of JSON."""

    user_id: str
    room_id: str
    data: str | dict[str, Any]


TAG_ACCOUNT_DATA = Stream("tag_account_data", TagAccountData, key=("user_id", "room_id"), until="1.67")
