"""What a daemon's connections to other daemons of its log carry beside the log: its files, and its channel.

One room makes these connections, others have the files and the channel, and each may be missing. So what they
need of each other is here: whoever is there asks `DaemonParts.other_daemons`, and gives itself to it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from synrepl.base.access import Access
from synrepl.base.limited_logger import LimitedLogger

if TYPE_CHECKING:
    from synrepl.errors import ReplicationError
    from synrepl.transports.http.http_client import HttpClient

ALL_PUBLISHERS: Final = "*"
"""Stands for all publishers at a replica."""


class IOtherDaemons(Protocol):
    """The connections of this daemon to others. What it is among them `IRole` tells."""

    def use_channel(self, served: "IServedChannel") -> None:
        """Pass this channel to replicas, and join it with that of the upstream."""

    def use_files(self, files: "IFileCopies") -> None:
        """Copy these files from the upstream."""

    def file_refusal(self) -> "ReplicationError | None":
        """Return the error with which uploads are refused now; None if they are taken."""


# -- files -------------------------------------------------------------------------------------------------


class IFileCopies(Protocol):
    """The files of this daemon, which a replica copies too."""

    async def fetch_from(self, http: "HttpClient | None", url: str) -> None:
        """Fetch files from the daemon at this URL, and forward uploads to it (None: neither)."""

    async def missing_upto(self, serial: int) -> Sequence[Any]:
        """Name and checksum of each missing file that was named up to this serial."""

    async def wait_for(self, sha256: str, seconds: float) -> bool:
        """Whether the file is here, or arrives in so many seconds."""


# -- the channel -------------------------------------------------------------------------------------------


class IChannelConversation(Protocol):
    """A replica's connection to its upstream, as far as a channel uses it."""

    on_channel: Callable[[bytes], None]
    """Called with messages of the upstream's channel, encoded as for a subscriber."""
    on_space: Callable[[], None]
    """Called when the transport's buffer can take more again."""

    @property
    def is_full(self) -> bool:
        """Whether the transport's buffer is full."""

    def join_channel(self) -> None:
        """Ask the upstream to pass its channel."""

    def encode_published(self, publisher: str, channel: str, lines: Sequence[bytes]) -> bytes | None:
        """Encode lines that were published on a sub-channel (empty: on the channel itself).

        None if one of them is too long, or after the end.
        """

    def encode_lost(self, publisher: str) -> bytes | None:
        """Encode that a publisher is gone, or `ALL_PUBLISHERS`; None after the end."""

    def write(self, data: bytes) -> None:
        """Send what was encoded. Does nothing if already closed."""


class IChannelDownlink(Protocol):
    """Passes the channel of this daemon to one replica, and what is published there to the channel."""

    def start(self, *, is_full: bool) -> None:
        """Pass the channel from here on. `is_full` tells whether the transport's buffer is full by now."""

    def stop(self) -> None:
        """The connection has ended."""

    def pause(self) -> None:
        """The transport's buffer is full."""

    def resume(self) -> None:
        """The transport's buffer can take more again."""

    def published(self, publisher: str, channel: str, line: str) -> None:
        """Take a line that was published at the replica, on a sub-channel or (empty) on the channel itself.

        Raises `RemoteProtocolError`.
        """

    def publisher_lost(self, publisher: str) -> None:
        """A publisher at the replica is gone, or `ALL_PUBLISHERS`."""


class IServedChannel(Protocol):
    """The channel of this daemon, which its replicas may join, and which joins that of its upstream."""

    @property
    def is_served(self) -> bool:
        """Whether replicas may join it now."""
        return False

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
        return None

    def connected(self, conversation: IChannelConversation) -> None:
        """There is an upstream that passes its channel."""
        return

    def disconnected(self) -> None:
        """There is none any more: what it has passed last may be lost."""
        return


class NoChannel(IServedChannel):
    """A daemon without a channel answers as the protocol does by itself."""
