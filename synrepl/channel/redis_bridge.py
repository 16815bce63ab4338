"""The bridge between the channel that this daemon serves and that on a Redis, while processes move.

Each line goes over once, away from the side on which it was published. What comes back of our own is known by
its text: Redis sends each message to its publisher too. The rules of `served_channel` hold across: for them
the bridge is a subscriber that was elsewhere while it was not connected, and a publisher that may have lost
its last lines.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, Protocol

from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.channel.ends import ChannelPublisher, ChannelSubscriber
from synrepl.channel.publish_rights import writer_of
from synrepl.channel.publisher_limits import MAX_WRITERS
from synrepl.channel.resp_codec import read_messages
from synrepl.channel.served_channel import ServedChannel
from synrepl.errors import RemoteProtocolError
from synrepl.replication.membership.member import ChannelMember

SWITCHES: Final = 4
SWITCH_SECONDS: Final = 60.0
"""A writer that changes its side so often within this time is on both: one that moves changes it once."""

MAX_ECHOES: Final = 100_000


class IRedisChannels(Protocol):
    """What a bridge needs of its connections to Redis."""

    def publish(self, channel: str, data: bytes) -> None:
        """Publish encoded lines, each ended by a newline."""


class RedisBridge(ChannelMember):
    """Passes lines between a served channel and a Redis, while both connections to that are up.

    The links to Redis call it as their member, and `take` with lines as they came.
    """

    _logger = Logger()

    def __init__(self, channel: ServedChannel, clock: IClock) -> None:
        self.channels: IRedisChannels
        """Our connections to Redis. Set before the first callback."""
        self.unpublished = 0
        """Lines that cannot be published, since they have a line break."""
        self._channel = channel
        self._clock = clock
        self._name = channel.name.decode()
        self._limited = LimitedLogger(self._logger, clock)
        self._is_subscribed = self._can_publish = self._is_full = False
        self._publisher = ChannelPublisher(link=self)
        self._subscriber = ChannelSubscriber(self._publish, link=self)
        self._echoes: Counter[tuple[str, bytes]] = Counter()
        self._heard: set[tuple[bytes, bytes]] = set()
        """The streams and writers on Redis that have said their position."""
        self._sides: dict[str, str] = {}
        """By the name of a writer: the side on which it was last heard."""
        self._switched: dict[str, deque[float]] = {}

    @property
    def conflict(self) -> str:
        """Which writers are on both sides, and what to do; empty if none is."""
        since = self._clock.seconds() - SWITCH_SECONDS
        both = sorted(name for name, at in self._switched.items() if len(at) >= SWITCHES and at[0] >= since)
        if not both:
            return ""
        who = ", ".join(both)
        return (
            f"{who} publishes on the Redis and at the RESP port: set its redis to one of them, and restart it"
        )

    # -- the links' member ---------------------------------------------------------------------------------

    def subscriber_up(self) -> None:
        """Every subscription is confirmed."""
        self._is_subscribed = True
        self._join()

    def subscriber_down(self, why: str) -> None:
        """What others publish on Redis is missed."""
        self._logger.warn("disconnected from the Redis channel, reconnecting: {why}", why=why)
        self._is_subscribed = False
        self._leave()

    def publisher_up(self) -> None:
        """The publisher's connection is up."""
        self._can_publish = True
        self._join()

    def publisher_down(self, why: str) -> None:
        """What is published here does not reach Redis. Ends a `pause` too."""
        self._logger.warn("cannot publish on the Redis channel, reconnecting: {why}", why=why)
        self._can_publish = self._is_full = False
        self._leave()

    def unreachable(self, why: str) -> None:
        """A connection attempt failed; it is retried."""
        self._limited.warn("cannot connect to Redis, retrying: {why}", why=why)

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._is_full = True
        self._subscriber.pause()

    def resume(self) -> None:
        """The transport's buffer has space again."""
        self._is_full = False
        self._channel.resumed(self._subscriber)

    def stop(self) -> None:
        """Pass on nothing more."""
        self._is_subscribed = self._can_publish = False
        self._leave()
        self._limited.stop()

    # -- from Redis ----------------------------------------------------------------------------------------

    def take(self, suffix: str, lines: Sequence[bytes]) -> None:
        """Pass on lines of a channel of Redis; `suffix` is empty for the main one."""
        foreign = [
            line for line in lines if not self._is_echo(suffix, line) and (suffix or self._is_whole(line))
        ]
        if suffix:
            for line in foreign:
                self._channel.publish_beside(self._publisher, f"{self._name}/{suffix}".encode(), line)
            return
        for line in foreign:
            self._note_side("Redis", line)
        if not foreign:
            return
        try:
            self._channel.publish(self._publisher, foreign)
        except RemoteProtocolError as error:
            self._limited.warn("ignored lines of the Redis channel: {why}", why=error.why)
            self._forget()

    def _is_echo(self, suffix: str, line: bytes) -> bool:
        key = (suffix, line)
        if not self._echoes.get(key):
            return False
        self._echoes[key] -= 1
        if not self._echoes[key]:
            del self._echoes[key]
        return True

    def _is_whole(self, line: bytes) -> bool:
        """Whether this is no row of a writer that has not said its position since we hear Redis.

        It may be the end of a batch whose beginning was missed: nobody may take it for a fact, nor the log.
        """
        words = line.split(b" ", 3)
        if words[0] not in (b"RDATA", b"POSITION") or len(words) < 4:
            return True
        writer = (words[1], words[2])
        if words[0] == b"POSITION":
            if len(self._heard) < MAX_WRITERS:
                self._heard.add(writer)
            return True
        if writer in self._heard:
            return True
        self._channel.ask()
        return False

    def _forget(self) -> None:
        """Believe nothing more of the writers on Redis before their positions."""
        self._heard.clear()
        self._channel.publisher_lost(self._publisher)

    # -- to Redis ------------------------------------------------------------------------------------------

    def _join(self) -> None:
        if self._is_subscribed and self._can_publish:
            self._subscriber = ChannelSubscriber(self._publish, link=self)
            if self._is_full:
                self._subscriber.pause()
            self._channel.subscribe(self._subscriber, self._channel.name)
            self._channel.ask()

    def _leave(self) -> None:
        self._channel.unsubscribe(self._subscriber, self._channel.name)
        # What has not come back may come as if another process had published it: it is believed by nobody,
        # or says what everybody knows.
        self._echoes.clear()
        self._forget()

    def _publish(self, data: bytes) -> None:
        """Publish messages of the served channel on Redis, those of a batch in one write."""
        by_channel: list[tuple[str, list[bytes]]] = []
        for channel, line in read_messages(data):
            suffix = channel[len(self._channel.name) + 1 :].decode("utf-8", "replace")
            if b"\n" in line:
                self.unpublished += 1
                continue
            if not suffix:
                self._note_side("RESP", line)
            if len(self._echoes) < MAX_ECHOES:
                self._echoes[suffix, line] += 1
            if not by_channel or by_channel[-1][0] != suffix:
                by_channel.append((suffix, []))
            by_channel[-1][1].append(line)
        for suffix, lines in by_channel:
            name = f"{self._name}/{suffix}" if suffix else self._name
            self.channels.publish(name, b"".join(line + b"\n" for line in lines))

    def _note_side(self, side: str, line: bytes) -> None:
        writer = writer_of(line) if line.startswith(b"RDATA ") else None
        before = self._sides.get(writer) if writer else side
        if not writer or before == side:
            return
        if before is None and len(self._sides) >= MAX_WRITERS:
            return
        self._sides[writer] = side
        if before is not None:
            self._switched.setdefault(writer, deque(maxlen=SWITCHES)).append(self._clock.seconds())
