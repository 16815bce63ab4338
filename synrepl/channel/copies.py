"""The channel at the RESP port, as replicas pass it on (`synrepl.replicas.channel_copies`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from synrepl.channel.resp_codec import split_messages
from synrepl.ports.access import Access
from synrepl.ports.limited_logger import LimitedLogger

if TYPE_CHECKING:
    from synrepl.channel.downlink import ChannelDownlink
    from synrepl.channel.resp.server import RespServer
    from synrepl.channel.uplink import ChannelUplink


class ChannelCopies:
    """Ties the channel of a server to the upstream and the replicas of its daemon."""

    def __init__(self, server: "RespServer") -> None:
        self._server = server

    @property
    def is_served(self) -> bool:
        """Whether there is a channel now."""
        return self._server.channel is not None

    @property
    def uplink(self) -> "ChannelUplink | None":
        """The way to the upstream; None unless this daemon is a replica that serves a channel."""
        return self._server.uplink

    def downlink(
        self,
        write: Callable[[bytes], object],
        *,
        most: int,
        name: str,
        access: Access,
        logger: LimitedLogger,
    ) -> "ChannelDownlink | None":
        """Make the way to a replica, with this name and these rights; None if there is no channel.

        `write` sends encoded messages, of at most so many bytes at once if no message has more.
        """
        # Imported on use: a channel without replicas needs none of these.
        from synrepl.channel.downlink import ChannelDownlink
        from synrepl.channel.publish_rights import line_refusal

        channel = self._server.channel
        if channel is None:
            return None
        # A replica with a key for all instances has asked this of its own clients, which may move.
        runs = None if access.instances is None else channel.runs

        def send(data: bytes) -> None:
            for piece in split_messages(data, most):
                write(piece)

        return ChannelDownlink(
            channel,
            send,
            name=name,
            owner=access.name,
            refusal=lambda line: line_refusal(access, line, runs),
            logger=logger,
        )
