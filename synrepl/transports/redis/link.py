"""A member's link to the channels of a homeserver on Redis."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Final

import msgspec
from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.metrics import Metrics
from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.replication.membership.member import ChannelMember
from synrepl.transports.redis.address import RedisAddress
from synrepl.transports.redis.connections import PublisherConnection, SubscriberConnection
from synrepl.transports.redis.half_link import HalfLink, query
from synrepl.wire.dialect import NEWEST, Dialect
from synrepl.wire.grammar import BROKER, Command
from synrepl.wire.keepalive import Keepalive
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.session import Close, Deliver, Session, Warn

REDIS_KEEPALIVE: Final = Keepalive(ping_seconds=5.0, timeout_seconds=15.0)
"""PING after `ping_seconds` of silence; the connection is lost after `timeout_seconds`."""


class RedisState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a link, for the status page.

    `since` is the last change of either connection, in Unix seconds. `reconnects` counts connections that
    were opened again, `messages_refused` counts invalid messages. `why` is the reason why a connection is
    down; empty if both are established, or no attempt has failed yet. `replica_of` is the address of the
    master, if this Redis is a replica; empty if it is none, or did not say.
    """

    address: str
    subscribed: bool
    publishing: bool
    since: float
    reconnects: int
    messages_refused: int
    why: str
    replica_of: str = ""


def replica_problem(address: str, master: str) -> str:
    """Describe a Redis at `address` that is a replica of `master`."""
    return (
        f"Redis at {address} is a replica of {master}: what this process publishes there does not reach those"
        " who subscribe at the master"
    )


REPLICA_REMEDY: Final = "give redis the address of the master, or of a proxy or a Sentinel that knows it"


@dataclass(eq=False, repr=False)
class RedisChannels:
    """Keeps a member subscribed and able to publish; reconnects each of its two connections by itself.

    Synapse has the same two connections and channels (docs/reference/peers.md#redis-channels).
    A suffix in `hears` stands for the channel ``server_name/suffix``, the empty suffix for `server_name`.
    If it `only_hears`, there is no publisher's connection.
    `endpoint` replaces the default client endpoint to a host and port (to a path and 0 for a UNIX socket);
    nothing is added to it, not even TLS. `chance` is the source of jitter.
    """

    reactor: Any
    address: RedisAddress
    member: ChannelMember
    _: KW_ONLY
    server_name: str
    instance: str
    metrics: Metrics
    hears: Collection[str] = ("", "USER_IP")
    only_hears: bool = False
    keepalive: Keepalive = REDIS_KEEPALIVE
    endpoint: Callable[[str, int], IStreamClientEndpoint] | None = None
    chance: random.Random = field(default_factory=random.Random)
    _logger: ClassVar = Logger()

    def __post_init__(self) -> None:
        if not self.hears:
            raise LocalProtocolError("`hears` is empty: a Redis link needs at least one channel")
        self.clock: IClock = self.reactor
        # The channel without suffix last, as in Synapse: its messages may need those of the other channels.
        self.channels = [f"{self.server_name}/{suffix}" for suffix in self.hears if suffix]
        self.channels += [self.server_name] if "" in self.hears else []
        self.is_reading = True
        self.sentinels = list(self.address.hosts) if self.address.service else []
        """The Sentinels of the service, the one that responded last first."""
        self._publish_heads: dict[str, bytes] = {}
        self._since = self.clock.seconds()
        self._reconnects = 0
        self._refused = 0
        self._noted_master = ""
        self._subscriber = HalfLink(self, SubscriberConnection)
        self._publisher = HalfLink(self, PublisherConnection)
        self._halves: Sequence[HalfLink[Any]] = (
            (self._subscriber,) if self.only_hears else (self._subscriber, self._publisher)
        )

    def on_messages(self, messages: Sequence[bytes]) -> None:
        """Handle the messages of one read, as they came. A subclass does."""
        raise NotImplementedError

    def start(self) -> None:
        """Connect, and reconnect until `stop`."""
        for half in self._halves:
            half.start()

    def stop(self) -> "Deferred[None]":
        """Stop reconnecting, and close both connections once Redis has processed what was written.

        Fires when they are closed, after 5 seconds at most. The member gets no more calls.
        """
        closed = [half.stop() for half in self._halves]
        return defer.gatherResults(closed).addCallback(lambda _: None)

    async def query(self, *words: str) -> Any:
        """Run a command of Redis over a connection of its own; return the reply. Raises `RedisRefused`."""
        return await query(self, *words)

    def write(self, data: bytes) -> None:
        """Publish encoded lines, each ended by a newline, as one message each.

        Without a publisher's connection the lines are dropped.
        """
        self.publish(self.server_name, data)

    def fail(self, why: str) -> None:
        """Log an error and drop both connections. They are opened again after a delay."""
        self._logger.warn("dropping the connections to {peer}: {why}", peer=self.address.public, why=why)
        for half in self._halves:
            half.drop(why)

    def established(self) -> None:
        """Reset the backoff: the connections work."""
        for half in self._halves:
            half.reset_delay()

    def pause_reading(self) -> None:
        """Stop reading from Redis. Meanwhile the keepalive is suspended."""
        self._read(is_reading=False)

    def resume_reading(self) -> None:
        """Read from Redis again."""
        self._read(is_reading=True)

    def _read(self, *, is_reading: bool) -> None:
        self.is_reading = is_reading
        if self._subscriber.current is not None:
            self._subscriber.current.read()

    def state(self) -> RedisState:
        """Return the current state."""
        return RedisState(
            address=self.address.public,
            subscribed=self._subscriber.current is not None,
            publishing=self._publisher.current is not None,
            since=self._since,
            reconnects=self._reconnects,
            messages_refused=self._refused,
            why=next((half.why for half in self._halves if half.current is None and half.why), ""),
            replica_of=self._publisher.current.master if self._publisher.current is not None else "",
        )

    def note_role(self, master: str) -> None:
        """Log a Redis that has been found to be a replica of this `master`, once, until that changes."""
        if master and master != self._noted_master:
            problem = replica_problem(self.address.public, master)
            self._logger.warn("{problem}; {remedy}", problem=problem, remedy=REPLICA_REMEDY)
        self._noted_master = master

    def changed(self, *, again: bool = False) -> None:
        """Record that a connection was established (`again`: after a loss) or lost."""
        self._since = self.clock.seconds()
        if again:
            self._reconnects += 1
            self.metrics.reconnects.inc()

    def publish(self, channel: str, data: bytes) -> None:
        """Publish encoded lines, each ended by a newline, on this channel; dropped without a connection."""
        connection = self._publisher.current
        if connection is None or connection.closed or not data:
            return
        head = self._publish_heads.get(channel)
        if head is None:
            name = channel.encode()
            head = b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$" % (len(name), name)
            self._publish_heads[channel] = head
        connection.publish(head, data)


@dataclass(eq=False, repr=False)
class RedisLink(RedisChannels):
    """Gives its member the messages as commands of the dialect, and publishes commands."""

    _: KW_ONLY
    dialect: Dialect = NEWEST

    def __post_init__(self) -> None:
        super().__post_init__()
        self._session = Session(BROKER, self.dialect, name=self.instance, seconds=self.clock.seconds)
        self._limited_logger = LimitedLogger(self._logger, self.clock)

    def stop(self) -> "Deferred[None]":
        self._limited_logger.stop()
        return super().stop()

    def send(self, command: Command) -> None:
        """Publish a command on its channel. Raises `LocalProtocolError` as `Session.encode` does.

        Without a publisher's connection the command is dropped.
        """
        channel = f"{self.server_name}/{command.CHANNEL}" if command.CHANNEL else self.server_name
        self.publish(channel, self._session.encode([command]))

    def on_messages(self, messages: Sequence[bytes]) -> None:
        """Handle all messages of one read in one call, which makes reading rows fast."""
        for action in self._session.receive(messages):
            match action:
                case Deliver(commands):
                    if not self._deliver(commands):
                        return
                case Warn(why):
                    self._refused += 1
                    peer = self.address.public
                    self._limited_logger.warn("ignored a bad message from {peer}: {why}", peer=peer, why=why)
                case Close(why):
                    self.fail(why)
                    return

    def _deliver(self, commands: Sequence[Command | RdataRun]) -> bool:
        """Deliver commands; False if that ended the connection."""
        self.metrics.count_commands(commands)
        try:
            self.member.received(commands)
        except RemoteProtocolError as error:
            self.fail(error.why)
        except LocalProtocolError as error:
            self._logger.failure("protocol error of this process on Redis")
            self.fail(f"internal error: {error.why}")
        return self._subscriber.current is not None and not self._subscriber.current.closed
