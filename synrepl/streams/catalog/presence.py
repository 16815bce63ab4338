"""Presence of users."""

from synrepl.streams.stream import Bool, Stream, row

__all__ = ["PRESENCE", "Presence"]


@row
class Presence:
    """The current presence of a user. Times are in milliseconds."""

    user_id: str
    state: str
    last_active_ts: int
    last_federation_update_ts: int
    last_user_sync_ts: int
    status_msg: str | None
    currently_active: Bool


PRESENCE = Stream("presence", Presence, key="user_id", ephemeral=True)
