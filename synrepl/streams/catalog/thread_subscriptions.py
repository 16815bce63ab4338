"""Who follows which thread."""

from synrepl.streams.stream import Stream, row

__all__ = ["THREAD_SUBSCRIPTIONS", "ThreadSubscription"]


@row
class ThreadSubscription:
    """A user subscribed to a thread, or no longer does; `event_id` is its root."""

    user_id: str
    room_id: str
    event_id: str


# The release is only known to be after 1.66, and 1.163 has it.
THREAD_SUBSCRIPTIONS = Stream(
    "thread_subscriptions",
    ThreadSubscription,
    key=("user_id", "room_id", "event_id"),
    any_writer=True,
    since="1.67",
)
