"""The interface of a room that serves a channel of Synapse's processes itself, in the place of a Redis."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from synrepl.ingest.channel_source import ChannelSource


class IChannelHost(Protocol):
    """Serves a channel. While this daemon is the primary, the facts on it go into the log."""

    def make_source(self, **parts: Any) -> "ChannelSource":
        """Make the source of the channel's facts, with the fields of `ChannelSource`."""

    def sender_of(self, stream: str, writer: str) -> str:
        """Return who sends a stream of a writer on the channel: the name of a key, or the channel."""
