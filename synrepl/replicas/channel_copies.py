"""What a replica, its upstream and a channel that this daemon serves need of each other."""

from collections.abc import Callable, Sequence
from typing import Protocol

from synrepl.ports.access import Access
from synrepl.ports.limited_logger import LimitedLogger
from synrepl.wire.native import Channel, Publish, PublisherLost, PublishTo

Sent = Channel | Publish | PublishTo | PublisherLost


class IChannelConversation(Protocol):
    """What an uplink needs of the conversation with the upstream (`NativeConversation`)."""

    on_channel: Callable[[bytes], None]
    """Called with messages of the upstream's channel, encoded as for a subscriber."""
    on_room: Callable[[], None]
    """Called when there is room again in the transport's buffer."""

    @property
    def is_full(self) -> bool:
        """Whether the transport's buffer is full."""

    def encode(self, commands: Sequence[Sent]) -> bytes | None:
        """Encode these commands; None if one of them is no line of the native protocol."""

    def write(self, data: bytes) -> None:
        """Send encoded commands. Does nothing if already closed."""


class IChannelUplink(Protocol):
    """Passes on to the upstream what is published here, and here what the upstream passes."""

    def connected(self, conversation: IChannelConversation) -> None:
        """There is an upstream that serves the channel."""

    def disconnected(self) -> None:
        """The upstream is gone."""


class IChannelDownlink(Protocol):
    """Passes the channel to a replica, and what is published there to the channel, until `stop`."""

    def start(self, *, is_full: bool) -> None:
        """Pass the channel from here on; `is_full` says that the transport's buffer is."""

    def stop(self) -> None:
        """The connection has ended, and with it all publishers."""

    def pause(self) -> None:
        """The transport's buffer is full."""

    def resume(self) -> None:
        """The transport's buffer has room."""

    def published(self, command: Publish | PublishTo) -> None:
        """A client of the replica has published a line. Raises `RemoteProtocolError`."""

    def publisher_lost(self, command: PublisherLost) -> None:
        """A client of the replica is gone."""


class IChannelCopies(Protocol):
    """A channel that this daemon serves, and that replicas serve too."""

    @property
    def is_served(self) -> bool:
        """Whether there is a channel now."""

    @property
    def uplink(self) -> IChannelUplink | None:
        """The way to the upstream; None unless this daemon is a replica that serves a channel."""

    def downlink(
        self,
        write: Callable[[bytes], object],
        *,
        most: int,
        name: str,
        access: Access,
        logger: LimitedLogger,
    ) -> IChannelDownlink | None:
        """Make the way to a replica, with this name and these rights; None if there is no channel.

        `write` sends encoded messages, of at most so many bytes at once if no message has more.
        """


class IPassesChannel(Protocol):
    """A daemon that may be a replica, or have replicas, and passes a channel between them."""

    @property
    def has_met_upstream(self) -> bool:
        """Whether this daemon is a replica with a complete copy, or one whose upstream has said who it is."""

    def use_channel(self, channel: IChannelCopies) -> None:
        """Pass this channel too."""
