"""The queue of presence for other servers."""

from synrepl.streams.stream import Stream, row

__all__ = ["PRESENCE_FEDERATION", "PresenceFederation"]


@row
class PresenceFederation:
    """A server to send the presence of a user to."""

    destination: str
    user_id: str


# A queue in the writer's memory: after a restart tokens begin at zero again (docs/reference/peers.md#tokens).
PRESENCE_FEDERATION = Stream(
    "presence_federation",
    PresenceFederation,
    key=("destination", "user_id"),
    monotonic=False,
    ephemeral=True,
    since="1.33",
)
