"""Pushers: the recipients of push notifications."""

from synrepl.streams.stream import Bool, Stream, row

__all__ = ["PUSHERS", "Pusher"]


@row
class Pusher:
    """A pusher was set or deleted. Push keys may contain spaces."""

    user_id: str
    app_id: str
    pushkey: str
    deleted: Bool


PUSHERS = Stream(
    "pushers",
    Pusher,
    key=("user_id", "app_id", "pushkey"),
    any_writer=True,
    tombstone=lambda row: row.deleted,
)
