"""What a replica's served channel is for its upstream: a subscriber, and the publishers at that replica."""

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from synrepl.base.limited_logger import LimitedLogger
from synrepl.channel.ends import ChannelPublisher, ChannelSubscriber
from synrepl.channel.served_channel import ServedChannel
from synrepl.daemon.other_daemons import ALL_PUBLISHERS
from synrepl.errors import RemoteProtocolError

MAX_PUBLISHERS: Final = 10_000
"""The most publishers at one replica; it names them itself."""


MAX_HELD: Final = 64 * 1024 * 1024
"""The most bytes of incomplete batches of all publishers at one replica."""


class ChannelDownlink:
    """Passes a channel to a replica, and what is published there to the channel, until `stop`.

    `write` sends encoded messages. `owner` is the name of the replica's key: what is published there counts
    for it. `refusal` returns why a line is refused; empty if it is not.
    """

    _logger = Logger()

    def __init__(
        self,
        channel: ServedChannel,
        write: Callable[[bytes], object],
        *,
        name: str,
        owner: str,
        refusal: Callable[[bytes], str],
        logger: LimitedLogger,
    ) -> None:
        self.refused = 0
        self._channel = channel
        self._name = name
        self._owner = owner
        self._refusal = refusal
        self._limited = logger
        self._subscriber = ChannelSubscriber(write, link=self)
        self._publishers: dict[str, ChannelPublisher] = {}
        self._held_bytes = 0

    def start(self, *, is_full: bool) -> None:
        """Pass the channel from here on, first the positions. All writers are asked for theirs."""
        if is_full:
            self._subscriber.pause()
        self._channel.subscribe(self._subscriber, self._channel.name)
        self._channel.ask()

    def stop(self) -> None:
        """The connection has ended, and with it all publishers."""
        self._channel.unsubscribe(self._subscriber, self._channel.name)
        self._lose_all()

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._subscriber.pause()

    def resume(self) -> None:
        """The transport's buffer has room."""
        self._channel.resumed(self._subscriber)

    def published(self, publisher: str, channel: str, line: str) -> None:
        """A client of the replica, or of one further down, has published a line.

        `channel` is the name of a sub-channel, or empty for the channel itself. Raises `RemoteProtocolError`
        if it was published here: then daemons follow each other in a circle.
        """
        known = self._publishers.get(publisher)
        if known is None:
            if publisher.partition(".")[0] == self._channel.origin:
                raise RemoteProtocolError(
                    "this daemon follows you, perhaps through others: follow another one"
                )
            if len(self._publishers) >= MAX_PUBLISHERS:
                raise RemoteProtocolError(f"more than {MAX_PUBLISHERS} publishers")
            known = self._publishers[publisher] = ChannelPublisher(self, publisher, self._owner)
        encoded = line.encode()
        try:
            if why := self._refusal(encoded):
                self.refused += 1
                raise RemoteProtocolError(why)
            if channel:
                name = self._channel.name + b"/" + channel.encode()
                self._channel.publish_beside(known, name, encoded)
            else:
                self._publish(known, encoded)
        except RemoteProtocolError as error:
            # Not the replica's fault but its client's: keep the replica connected.
            self._lose(publisher)
            self._limited.warn(
                "refused a line of the channel from {replica}: {why}", replica=self._name, why=error.why
            )

    def _publish(self, publisher: ChannelPublisher, line: bytes) -> None:
        before = publisher.held_bytes
        try:
            self._channel.publish(publisher, [line])
        finally:
            self._held_bytes += publisher.held_bytes - before
        if self._held_bytes > MAX_HELD:
            raise RemoteProtocolError(f"incomplete batches at this replica have more than {MAX_HELD} bytes")

    def publisher_lost(self, publisher: str) -> None:
        """A client of the replica is gone, perhaps with its last lines; or all are (`ALL_PUBLISHERS`)."""
        if publisher == ALL_PUBLISHERS:
            self._lose_all()
        else:
            self._lose(publisher)

    def _lose(self, name: str) -> None:
        publisher = self._publishers.pop(name, None)
        if publisher is not None:
            self._held_bytes -= publisher.held_bytes
            self._channel.publisher_lost(publisher)

    def _lose_all(self) -> None:
        for name in list(self._publishers):
            self._lose(name)
