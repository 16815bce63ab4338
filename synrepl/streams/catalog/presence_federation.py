"""Whose presence other servers are to be told."""

from synrepl.streams.stream import Stream, row

__all__ = ["PRESENCE_FEDERATION", "PresenceFederation"]


@row
class PresenceFederation:
    """A server is to be told the presence of a user."""

    destination: str
    user_id: str


# A queue in the writer's memory: a restarted one counts from zero again.
PRESENCE_FEDERATION = Stream(
    "presence_federation",
    PresenceFederation,
    key=("destination", "user_id"),
    monotonic=False,
    ephemeral=True,
    since="1.33",
)
