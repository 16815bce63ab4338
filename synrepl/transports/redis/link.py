"""A member's place on the channels of a homeserver on Redis."""

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec
from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.transports.redis.address import RedisAddress
from synrepl.transports.redis.half_links import PublisherLink, SubscriberLink
from synrepl.transports.redis.interfaces import IRedisMember
from synrepl.transports.redis.sentinel import Sentinels
from synrepl.wire.dialect import NEWEST, Dialect
from synrepl.wire.grammar import BROKER, Command
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.session import Close, Deliver, Keepalive, Session, Warn

__all__ = ["REDIS_KEEPALIVE", "RedisLink", "RedisState"]

REDIS_KEEPALIVE: Final = Keepalive(ping_seconds=5.0, timeout_seconds=15.0)
"""PING a Redis that has said nothing for `ping_seconds`; one silent for `timeout_seconds` is gone."""

COMPLAIN_SECONDS: Final = 1.0
"""At most one line in the log in so long is about messages that make no sense."""


class RedisState(msgspec.Struct, frozen=True, kw_only=True):
    """How a link stands, for the status page.

    `since` is when it last began or ceased to hear or to speak, in Unix seconds. `reconnects` counts the lost
    connections that were opened again, `messages_refused` the messages that made no sense. `why` is the
    trouble that keeps a connection down; "" when both are up.
    """

    address: str
    hearing: bool
    speaking: bool
    since: float
    reconnects: int
    messages_refused: int
    why: str


class RedisLink:
    """Keeps a member on the channels of its homeserver, for ever: each of the two connections by itself.

    The channels are `server_name` and, for each other suffix in `hears`, ``server_name/suffix``. `endpoint`
    makes the client endpoint to a host and port (to a path and 0 for a UNIX socket) in place of the usual
    one, and then nothing is added to it, TLS neither. `chance` is for the jitter of the delays.
    """

    _logger = Logger()

    def __init__(
        self,
        reactor: Any,
        address: RedisAddress,
        member: IRedisMember,
        *,
        server_name: str,
        instance: str,
        metrics: Metrics,
        hears: Collection[str] = ("", "USER_IP"),
        dialect: Dialect = NEWEST,
        keepalive: Keepalive = REDIS_KEEPALIVE,
        endpoint: Callable[[str, int], IStreamClientEndpoint] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        if not hears:
            raise LocalProtocolError("a link hears one channel at least")
        self.reactor = reactor
        self.clock: IClock = reactor
        self.address = address
        self.member = member
        self.instance = instance
        self.metrics = metrics
        self.keepalive = keepalive
        self.endpoint = endpoint
        self.chance = chance or random.Random()
        # The bare one last, as Synapse has it: what comes there may need what comes on the others.
        self.channels = [f"{server_name}/{suffix}" for suffix in hears if suffix]
        self.channels += [server_name] if "" in hears else []
        self.is_reading = True
        self.sentinels = Sentinels(address) if address.service else None
        self._server_name = server_name
        self._session = Session(BROKER, dialect, name=instance, seconds=self.clock.seconds)
        self._publish_heads: dict[str, bytes] = {}
        self._since = self.clock.seconds()
        self._reconnects = 0
        self._refused = 0
        self._suppressed = 0
        self._complained_at = -COMPLAIN_SECONDS
        self._subscriber = SubscriberLink(self)
        self._publisher = PublisherLink(self)

    # -- what a member asks for ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect; go on until `stop`."""
        for half in (self._subscriber, self._publisher):
            half.start()

    def stop(self) -> "Deferred[None]":
        """Try no more, and close both connections, once Redis has taken what was written.

        Fires when they are closed, after 5 seconds at most. The member hears nothing from here on.
        """
        gone = [half.stop() for half in (self._subscriber, self._publisher)]
        return defer.gatherResults(gone).addCallback(lambda _: None)

    def write(self, data: bytes) -> None:
        """Publish ready-made lines, each ended by a newline: each becomes a message for everybody.

        While mute, it drops them.
        """
        self._publish(self._server_name, data)

    def send(self, command: Command) -> None:
        """Publish one command on the channel that it has. Raises LocalProtocolError if it is none for Redis.

        While mute, it drops it.
        """
        channel = f"{self._server_name}/{command.CHANNEL}" if command.CHANNEL else self._server_name
        self._publish(channel, self._session.lines([command]))

    def fail(self, why: str) -> None:
        """Something is wrong: log it, and drop both connections. They are opened again after a delay."""
        self._logger.warn("dropping the connections to {peer}: {why}", peer=self.address.public, why=why)
        for half in (self._subscriber, self._publisher):
            half.drop(why)

    def established(self) -> None:
        """The connections have proved good: should they be lost, they are opened again soon."""
        for half in (self._subscriber, self._publisher):
            half.prove()

    def pause_reading(self) -> None:
        """Take nothing more from Redis for now. Meanwhile nobody asks whether it still lives."""
        self.is_reading = False
        self._subscriber.read()

    def resume_reading(self) -> None:
        """Go on."""
        self.is_reading = True
        self._subscriber.read()

    def state(self) -> RedisState:
        """How it stands."""
        halves = (self._subscriber, self._publisher)
        return RedisState(
            address=self.address.public,
            hearing=self._subscriber.current is not None,
            speaking=self._publisher.current is not None,
            since=self._since,
            reconnects=self._reconnects,
            messages_refused=self._refused,
            why=next((half.why for half in halves if half.current is None and half.why), ""),
        )

    # -- what the connections tell -------------------------------------------------------------------------

    def changed(self, *, again: bool = False) -> None:
        """A connection came up (`again`: after it was lost) or was lost."""
        self._since = self.clock.seconds()
        if again:
            self._reconnects += 1
            self.metrics.reconnects.inc()

    def heard(self, messages: Sequence[bytes]) -> None:
        """All messages of one read, in one call: that is what makes reading rows fast."""
        joined = b"".join(messages)
        clean = joined.isascii() and b"\r" not in joined and b"\n" not in joined
        for action in self._session.receive(messages, clean=clean):
            match action:
                case Deliver(commands):
                    if not self._deliver(commands):
                        return
                case Warn(why):
                    self._complain(why)
                case Close(why):
                    self.fail(why)
                    return

    def _deliver(self, commands: Sequence[Command | RdataRun]) -> bool:
        """Whether it went well, and the connection is still there."""
        self.metrics.count_commands(commands)
        try:
            self.member.received(commands)
        except RemoteProtocolError as broken:
            self.fail(broken.why)
        except LocalProtocolError as broken:
            self._logger.failure("a rule of the wire was broken here")
            self.fail(f"internal error: {broken.why}")
        return self._subscriber.current is not None and not self._subscriber.current.closed

    def _complain(self, why: str) -> None:
        self._refused += 1
        now = self.clock.seconds()
        if now - self._complained_at < COMPLAIN_SECONDS:
            self._suppressed += 1
            return
        more = f" (and {self._suppressed} more since the last such line)" if self._suppressed else ""
        self._complained_at, self._suppressed = now, 0
        self._logger.warn(
            "passed over a message from {peer}: {why}{more}", peer=self.address.public, why=why, more=more
        )

    def _publish(self, channel: str, data: bytes) -> None:
        speaker = self._publisher.current
        if speaker is None or speaker.closed or not data:
            return
        head = self._publish_heads.get(channel)
        if head is None:
            name = channel.encode()
            head = b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$" % (len(name), name)
            self._publish_heads[channel] = head
        speaker.publish(head, data)
