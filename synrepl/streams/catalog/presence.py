"""Who is online."""

from synrepl.streams.stream import Bool, Stream, row

__all__ = ["PRESENCE", "Presence"]


@row
class Presence:
    """The presence of a user now; it replaces what was said before. Times are in milliseconds."""

    user_id: str
    state: str
    last_active_ts: int
    last_federation_update_ts: int
    last_user_sync_ts: int
    status_msg: str | None
    currently_active: Bool


PRESENCE = Stream("presence", Presence, key="user_id", ephemeral=True)
