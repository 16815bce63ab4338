"""A replica's way from its served channel to that of its upstream, and back.

What clients publish at this daemon goes up line by line, each with the name of its publisher, so that the
upstream can hold to the rules of `served_channel` as if they published there. Nothing is acknowledged: after
an interruption the upstream believes none of these publishers before they have said their positions again,
and it asks for them. So rows and positions need not wait for an upstream that is away. Other commands do,
for a while.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.metrics import Metrics
from synrepl.channel.ends import ChannelPublisher
from synrepl.channel.resp_codec import read_messages
from synrepl.channel.served_channel import ServedChannel
from synrepl.daemon.other_daemons import ALL_PUBLISHERS, IChannelConversation
from synrepl.errors import RemoteProtocolError

MAX_WAITING: Final = 8 * 1024 * 1024
"""The bytes that wait for an upstream that does not read. Beyond it all of them are dropped."""

MAX_AGE_SECONDS: Final = 30.0
"""Commands that have waited longer than this are not passed on: users have stopped syncing, locks have run
out."""

OF_STREAMS: Final = (b"RDATA ", b"POSITION ", b"REPLICATE")


class Waiting(NamedTuple):
    """Lines that belong together, on their way to the upstream. `channel` is a sub-channel, or empty."""

    since: float
    publisher: ChannelPublisher
    channel: str
    lines: Sequence[bytes]

    @property
    def is_of_stream(self) -> bool:
        """Whether these are rows, a position or the question for positions."""
        return not self.channel and self.lines[0].startswith(OF_STREAMS)

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return sum(map(len, self.lines))


class ChannelUplink:
    """Passes on to the upstream what is published here, and here what the upstream passes.

    `connected` and `disconnected` say when there is an upstream that serves the channel.
    """

    _logger = Logger()

    def __init__(self, channel: ServedChannel, clock: IClock, metrics: Metrics) -> None:
        self.overflows = 0
        """How often all that waited was dropped."""
        self.expired = 0
        """Commands that were not passed on, since they had waited too long."""
        self.too_long = 0
        """What was not passed on, since the native protocol has no lines of its length."""
        self._channel = channel
        self._clock = clock
        self._metrics = metrics
        self._limited = LimitedLogger(self._logger, clock)
        self._conversation: IChannelConversation | None = None
        self._upstream = ChannelPublisher(link=self)
        self._known: set[ChannelPublisher] = set()
        """The publishers whose lines the upstream has got."""
        self._count = 0
        self._waiting: list[Waiting] = []
        self._waiting_bytes = 0

    @property
    def is_connected(self) -> bool:
        """Whether there is an upstream that serves the channel."""
        return self._conversation is not None

    # -- called by the channel -----------------------------------------------------------------------------

    def published(self, publisher: ChannelPublisher, batches: Sequence[Sequence[bytes]]) -> None:
        """Pass on lines of the channel itself: a batch, or one line, at a time."""
        now = self._clock.seconds()
        self._pass([Waiting(now, publisher, "", lines) for lines in batches])

    def published_beside(self, publisher: ChannelPublisher, channel: bytes, line: bytes) -> None:
        """Pass on a line of a sub-channel."""
        name = channel.removeprefix(self._channel.name + b"/").decode("utf-8", "surrogateescape")
        self._pass([Waiting(self._clock.seconds(), publisher, name, [line])])

    def publisher_lost(self, publisher: ChannelPublisher) -> None:
        """Say that this publisher is gone, perhaps with its last lines."""
        if publisher not in self._known:
            return
        self._known.remove(publisher)
        # Rows of it that wait would be believed by nobody.
        self._drop(lambda one: one.publisher is publisher and one.is_of_stream)
        self._send_lost(publisher.name)

    # -- called by the replica -----------------------------------------------------------------------------

    def connected(self, conversation: IChannelConversation) -> None:
        """Join the channel of this upstream."""
        self._conversation = conversation
        conversation.on_channel = self._received
        conversation.on_space = self._flush
        conversation.join_channel()
        self._flush()

    def disconnected(self) -> None:
        """There is no upstream any more: what it has passed last may be lost."""
        if self._conversation is None:
            return
        self._conversation = None
        self._known.clear()
        self._drop(lambda one: one.is_of_stream)
        self._channel.publisher_lost(self._upstream)

    def stop(self) -> None:
        """Pass on nothing more: this daemon is no replica any longer."""
        self.disconnected()
        self._limited.stop()

    # -- up ------------------------------------------------------------------------------------------------

    def _pass(self, lines: Sequence[Waiting]) -> None:
        if self._conversation is None:
            lines = [one for one in lines if not one.is_of_stream]
        self._waiting += lines
        self._waiting_bytes += sum(one.size for one in lines)
        if self._conversation is not None and not self._conversation.is_full:
            self._flush()
        elif self._waiting_bytes > MAX_WAITING:
            self.overflows += 1
            self._drop(lambda one: True)
            self._known.clear()
            self._send_lost(ALL_PUBLISHERS)

    def _flush(self) -> None:
        """Send the waiting lines."""
        conversation = self._conversation
        if conversation is None or not self._waiting:
            return
        oldest = self._clock.seconds() - MAX_AGE_SECONDS
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        sent: list[bytes] = []
        for one in waiting:
            if one.since < oldest and not one.is_of_stream:
                self.expired += 1
                self._count_dropped(one)
                continue
            self._introduce(one.publisher)
            name = one.publisher.name
            data = conversation.encode_published(name, one.channel, one.lines)
            if data is None:
                self.too_long += 1
                self._count_dropped(one)
                # Its rows are believed again after its next position.
                self._known.remove(one.publisher)
                data = conversation.encode_lost(name)
                assert data is not None
            sent.append(data)
        conversation.write(b"".join(sent))

    def _introduce(self, publisher: ChannelPublisher) -> None:
        self._known.add(publisher)
        if not publisher.name:
            self._count += 1
            publisher.name = f"{self._channel.origin}.{self._count}"

    def _send_lost(self, publisher: str) -> None:
        """Say that this publisher is gone, before all that waits."""
        conversation = self._conversation
        if conversation is not None and (data := conversation.encode_lost(publisher)) is not None:
            conversation.write(data)

    def _drop(self, is_dropped: Callable[[Waiting], bool]) -> None:
        for one in self._waiting:
            if is_dropped(one):
                self._count_dropped(one)
        self._waiting = [one for one in self._waiting if not is_dropped(one)]
        self._waiting_bytes = sum(one.size for one in self._waiting)

    def _count_dropped(self, one: Waiting) -> None:
        if not one.is_of_stream:
            # Not by its own name, which a client chooses.
            self._metrics.commands_dropped.labels("PUBLISH").inc()

    # -- down ----------------------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        """Pass on messages of the upstream's channel. Raises `RemoteProtocolError` if the data is none."""
        lines: list[bytes] = []
        for channel, line in read_messages(data):
            if channel == self._channel.name:
                lines.append(line)
            else:
                self._channel.publish_beside(self._upstream, channel, line)
        if not lines:
            return
        try:
            self._channel.publish(self._upstream, lines)
        except RemoteProtocolError as error:
            # Perhaps not its fault, but that of clients here: the log goes on over this connection.
            self._limited.warn("ignored lines of the upstream's channel: {why}", why=error.why)
            self._channel.publisher_lost(self._upstream)
