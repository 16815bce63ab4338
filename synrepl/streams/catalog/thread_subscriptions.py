"""Subscriptions to threads."""

from synrepl.streams.stream import Stream, row

__all__ = ["THREAD_SUBSCRIPTIONS", "ThreadSubscription"]


@row
class ThreadSubscription:
    """A user subscribed to a thread, or unsubscribed; `event_id` is the root of the thread."""

    user_id: str
    room_id: str
    event_id: str


# The exact release is unknown: after 1.66, and not after 1.163 (docs/reference/peers.md#row-shapes).
THREAD_SUBSCRIPTIONS = Stream(
    "thread_subscriptions",
    ThreadSubscription,
    key=("user_id", "room_id", "event_id"),
    any_writer=True,
    since="1.67",
)
