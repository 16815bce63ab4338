"""Memberships of groups (from 0.24 until 1.61)."""

from typing import Any

from synrepl.streams.stream import Stream, row

__all__ = ["GROUPS", "Group"]


@row
class Group:
    """The membership of a user in a group changed."""

    group_id: str
    user_id: str
    type: str
    content: dict[str, Any]


GROUPS = Stream("groups", Group, key=("group_id", "user_id"), since="0.24", until="1.61")
