"""The channel that daemons pass to each other, over the connections of replicas.

What a channel is, and who serves one, this package does not know: see `IServedChannel`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from synrepl.base.access import Access
from synrepl.base.limited_logger import LimitedLogger
from synrepl.replicas.wire.native import Channel, Publish, PublisherLost, PublishTo

SentOnChannel = Channel | Publish | PublishTo | PublisherLost
"""The commands by which a replica takes part in the channel of its upstream."""


class IChannelConversation(Protocol):
    """A replica's connection to its upstream, as far as a channel uses it (`NativeConversation`)."""

    on_channel: Callable[[bytes], None]
    """Called with messages of the upstream's channel, encoded as for a subscriber."""
    on_room: Callable[[], None]
    """Called when there is room again in the transport's buffer."""

    @property
    def is_full(self) -> bool:
        """Whether the transport's buffer is full."""

    def encode(self, commands: Sequence[SentOnChannel]) -> bytes | None:
        """Encode these commands; None if one of them is no line of the native protocol."""

    def write(self, data: bytes) -> None:
        """Send encoded commands. Does nothing if already closed."""


class IChannelDownlink(Protocol):
    """Passes the channel of this daemon to one replica, and what is published there to the channel."""

    def start(self, *, is_full: bool) -> None:
        """Pass the channel from here on. `is_full`: the transport's buffer is."""

    def stop(self) -> None:
        """The connection has ended."""

    def pause(self) -> None:
        """The transport's buffer is full."""

    def resume(self) -> None:
        """The transport's buffer has room."""

    def published(self, command: Publish | PublishTo) -> None:
        """Take a line that was published at the replica. Raises `RemoteProtocolError`."""

    def publisher_lost(self, command: PublisherLost) -> None:
        """A publisher at the replica is gone, or all are."""


class IServedChannel(Protocol):
    """The channel of this daemon, which its replicas may join, and which joins that of its upstream."""

    @property
    def is_served(self) -> bool:
        """Whether replicas may join it now."""

    def downlink(
        self,
        write: Callable[[bytes], object],
        *,
        most: int,
        name: str,
        access: Access,
        logger: LimitedLogger,
    ) -> IChannelDownlink | None:
        """Make what passes the channel to the replica with this name and these rights; None if not served.

        `write` sends encoded messages, at most so many bytes at a time.
        """

    def connected(self, conversation: IChannelConversation) -> None:
        """There is an upstream that passes its channel."""

    def disconnected(self) -> None:
        """There is none any more: what it has passed last may be lost."""


class ICarriesChannel(Protocol):
    """The daemon's part among other daemons, as its channel sees it."""

    @property
    def is_replica(self) -> bool:
        """Whether this daemon follows another one."""

    @property
    def is_fenced(self) -> bool:
        """Whether another daemon is primary, and this one serves nobody."""

    @property
    def has_met_upstream(self) -> bool:
        """Whether this replica has heard from its upstream, now or before."""

    def use_channel(self, served: IServedChannel) -> None:
        """Pass this channel to replicas, and join it with that of the upstream."""

    def on_role_changed(self, changed: Callable[[], object]) -> None:
        """Call this function whenever one of the properties may have changed."""


class Channels:
    """The channel of a daemon, as its connections to other daemons see it: none until `use` gives one."""

    def __init__(self) -> None:
        self._served: IServedChannel | None = None

    def use(self, served: IServedChannel) -> None:
        """Pass this channel from now on."""
        self._served = served

    @property
    def is_served(self) -> bool:
        """Whether replicas may join the channel now."""
        return self._served is not None and self._served.is_served

    def downlink(
        self,
        write: Callable[[bytes], object],
        *,
        most: int,
        name: str,
        access: Access,
        logger: LimitedLogger,
    ) -> IChannelDownlink | None:
        """See `IServedChannel`."""
        if self._served is None:
            return None
        return self._served.downlink(write, most=most, name=name, access=access, logger=logger)

    def connected(self, conversation: IChannelConversation) -> None:
        """There is an upstream that passes its channel."""
        if self._served is not None:
            self._served.connected(conversation)

    def disconnected(self) -> None:
        """There is none any more."""
        if self._served is not None:
            self._served.disconnected()
