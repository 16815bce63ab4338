"""Replication over Redis: two connections, one that hears the channels and one that publishes.

Importing this installs a reactor, because importing txredisapi does: whoever needs it imports it late.
"""

import os
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

import hiredis
import msgspec
import txredisapi
from OpenSSL import SSL
from twisted.internet import defer, error
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, UNIXClientEndpoint
from twisted.internet.interfaces import IProtocolFactory, IPushProducer, IStreamClientEndpoint
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.transports.redis_address import RedisAddress
from synrepl.transports.redis_tls import RedisTls, tls_trouble
from synrepl.wire.declare import BROKER, Command
from synrepl.wire.dialect import NEWEST, Dialect
from synrepl.wire.runs import Rows
from synrepl.wire.session import Close, Complain, Deliver, Keepalive, Session

__all__ = ["REDIS_KEEPALIVE", "Member", "RedisLink", "RedisState"]

REDIS_KEEPALIVE: Final = Keepalive(ping_seconds=5.0, timeout_seconds=15.0)
"""PING a Redis that has said nothing for `ping_seconds`; one silent for `timeout_seconds` is gone."""

FIRST_DELAY_SECONDS: Final = 0.2
LAST_DELAY_SECONDS: Final = 5.0
PROVED_SECONDS: Final = 5.0
"""A connection that has answered for so long has proved good."""
CONNECT_SECONDS: Final = 10.0
"""What connecting may take, all of it: TCP, TLS, AUTH and SUBSCRIBE."""
ASK_SECONDS: Final = 3.0
"""What asking one Sentinel may take, so that one that is gone does not keep us from the next."""
STOP_SECONDS: Final = 5.0
"""A connection that we closed, and whose peer does not take the rest, is cut after this."""
COMPLAIN_SECONDS: Final = 1.0

WITHOUT_A_WORD: Final = "it closed the connection without a word"

T = TypeVar("T")

PING: Final = b"*1\r\n$4\r\nPING\r\n"


class Member(Protocol):
    """Who is on the channel. Called in the reactor's thread, and not after `RedisLink.stop`."""

    def hearing(self) -> None:
        """Redis has confirmed every subscription: from here on nothing that is published is missed."""

    def deaf(self, why: str) -> None:
        """The subscriber's connection was lost: what is published until `hearing` is missed."""

    def speaking(self) -> None:
        """The publisher's connection is up, and takes what is written."""

    def mute(self, why: str) -> None:
        """It was lost, and with it perhaps what was sent last. Ends a `pause` as well."""

    def received(self, commands: Sequence[Command | Rows]) -> None:
        """Commands in the order in which Redis had them. One's own are among them."""

    def pause(self) -> None:
        """The publisher's transport has enough for now."""

    def resume(self) -> None:
        """It takes more."""

    def unreachable(self, why: str) -> None:
        """An attempt to connect failed. It is tried again, for ever; each connection tells for itself."""


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
        member: Member,
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
        self.sentinels = list(address.hosts) if address.service else []
        self._server_name = server_name
        self._session = Session(BROKER, dialect, name=instance, seconds=self.clock.seconds)
        self._publish_heads: dict[str, bytes] = {}
        self._since = self.clock.seconds()
        self._reconnects = 0
        self._refused = 0
        self._suppressed = 0
        self._complained_at = -COMPLAIN_SECONDS
        self._subscriber = _Hearing(self)
        self._publisher = _Speaking(self)

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
                case Complain(why):
                    self._complain(why)
                case Close(why):
                    self.fail(why)
                    return

    def _deliver(self, commands: Sequence[Command | Rows]) -> bool:
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


class _Refused(Exception):
    """Redis does not let us in, or is not what we look for; the text is for people."""


class _Connection(txredisapi.RedisProtocol):  # type: ignore[misc]  # it has no types
    """A connection to Redis. txredisapi brings its commands, one at a time, for the time of greeting.

    What comes in is read here, by hiredis: the reader of txredisapi would make numbers of payloads that look
    like some, text of others, and without hiredis take a turn of the reactor for each.
    """

    transport: Any

    def __init__(self, clock: IClock, metrics: Metrics, keepalive: Keepalive) -> None:
        super().__init__()
        self.closed = False
        self.why = ""
        self.grumble = ""
        """The last error of Redis that was passed over: perhaps why it closes next."""
        self.is_up = False
        self.heard_at = clock.seconds()
        self.on_lost: Callable[[_Connection], None] = lambda _: None
        self._clock = clock
        self._metrics = metrics
        self._keepalive = keepalive
        self._redis = hiredis.Reader(
            protocolError=txredisapi.InvalidData, replyError=txredisapi.ResponseError
        )
        self._has_answered = False
        self._asked_at = 0.0
        self._timer: Any = None

    # -- Twisted's side ------------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        # Instead of what txredisapi does here: it gives up for good when a password is refused.
        self._metrics.connections.inc()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._metrics.connections.dec()
        self.closed = True
        if not self.why and not self.is_up:
            if self.grumble:
                self.why = explain(self.grumble)
            elif not self._has_answered and reason.check(error.ConnectionDone, error.ConnectionLost):
                self.why = WITHOUT_A_WORD
        self.why = self.why or told(reason)
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        super().connectionLost(reason)
        self.on_lost(self)

    def dataReceived(self, data: bytes) -> None:
        self._metrics.bytes_in.inc(len(data))
        self.heard_at = self._clock.seconds()
        self._has_answered = True
        self._redis.feed(data)
        try:
            self.read_replies()
        except txredisapi.InvalidData as broken:
            is_tls = data.startswith(b"\x15\x03")
            self.end("it speaks TLS: say rediss://" if is_tls else f"what answers is no Redis: {broken}")

    def read_replies(self) -> None:
        """Take all that is complete. Raises `txredisapi.InvalidData`."""
        gets = self._redis.gets
        while (reply := gets()) is not False:
            self.replyReceived(reply)

    # -- the life of a connection --------------------------------------------------------------------------

    async def ask(self, *words: str) -> Any:
        """One command of the greeting, and its answer. Raises `_Refused` for an error of Redis."""
        try:
            return await self.execute_command(*words)
        except txredisapi.ResponseError as refused:
            raise _Refused(explain(str(refused), command=words[0])) from None

    async def log_in(self, username: str, password: str | None) -> None:
        """Prove who we are, if a password is given. Raises `_Refused`."""
        if password is not None:
            await self.ask("AUTH", *([username] if username else []), password)

    async def be_called(self, name: str) -> None:
        """The name that CLIENT LIST shows, if Redis lets us have one."""
        try:
            await self.execute_command("CLIENT", "SETNAME", name)
        except txredisapi.ResponseError as refused:
            self.grumble = str(refused)

    def go_up(self) -> None:
        """The greeting is over: from here on it is watched."""
        self.is_up = True
        self._arm()

    def send_bytes(self, data: bytes) -> None:
        """Write, and count it."""
        self._metrics.bytes_out.inc(len(data))
        self.transport.write(data)

    def end(self, why: str) -> None:
        """Cut it, in the next turn of the reactor. Nothing more is taken or told but that it is lost."""
        if not self.closed:
            self.closed = True
            self.why = why
            self._clock.callLater(0, self.transport.abortConnection)

    def is_listening(self) -> bool:
        """Whether its silence would be the peer's doing."""
        return True

    # -- whether the peer still lives ----------------------------------------------------------------------

    # A silence counts as Redis's only after it was asked: it may be we who were stopped.

    def _is_asked(self) -> bool:
        return self._asked_at > self.heard_at

    def _due(self) -> float:
        if self._is_asked():
            return self._asked_at + (self._keepalive.timeout_seconds - self._keepalive.ping_seconds)
        return self.heard_at + self._keepalive.ping_seconds

    def _arm(self) -> None:
        # No later than the next PING would be due if an answer came at once.
        delay = min(self._keepalive.ping_seconds, max(0.0, self._due() - self._clock.seconds()))
        self._timer = self._clock.callLater(delay, self._tick)

    def _tick(self) -> None:
        if self.closed:
            return
        now = self._clock.seconds()
        if not self.is_listening():
            self.heard_at = now
        elif now >= self._due():
            if self._is_asked():
                self.end(f"it has said nothing for {self._keepalive.timeout_seconds:g} seconds")
                return
            self._asked_at = now
            self.send_bytes(PING)
        self._arm()


class _Subscriber(_Connection, txredisapi.SubscriberProtocol):  # type: ignore[misc]  # it has no types
    """Hears the channels."""

    def __init__(self, clock: IClock, metrics: Metrics, keepalive: Keepalive, link: RedisLink) -> None:
        super().__init__(clock, metrics, keepalive)
        self._link = link
        self._unconfirmed = len(link.channels)
        self._all_confirmed: Deferred[None] = Deferred()
        self._messages: list[bytes] = []

    async def greet(self) -> None:
        """Subscribe; over when Redis has confirmed every channel. Raises `_Refused`."""
        try:
            await self.subscribe(self._link.channels)
        except txredisapi.ResponseError as refused:
            raise _Refused(explain(str(refused), command="SUBSCRIBE")) from None
        await self._all_confirmed

    def read_replies(self) -> None:
        gets = self._redis.gets
        messages = self._messages
        try:
            while (reply := gets()) is not False:
                if type(reply) is list and reply[0] == b"message":
                    messages.append(reply[2])
                else:
                    self._note(reply)
        finally:
            # Those of a channel that was confirmed before the others wait for them.
            if self.is_up and messages:
                self._messages = []
                if not self.closed:
                    self._link.heard(messages)

    def is_listening(self) -> bool:
        return self._link.is_reading

    def _note(self, reply: Any) -> None:
        if self.is_up:
            if isinstance(reply, Exception):
                self.end(explain(str(reply)))
            return
        is_confirmation = isinstance(reply, list) and reply[0] == b"subscribe"
        # SUBSCRIBE has one answer for each channel, of which txredisapi waits for the first.
        if not is_confirmation or self.replyQueue.waiting:
            self.replyQueue.put(reply)
        if is_confirmation:
            self._unconfirmed -= 1
            if self._unconfirmed == 0:
                self._all_confirmed.callback(None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        if not self._all_confirmed.called:
            self._all_confirmed.addErrback(lambda _: None)
            self._all_confirmed.errback(txredisapi.ConnectionError(self.why))


@implementer(IPushProducer)
class _Publisher(_Connection):
    """Publishes.

    Answers are counted: a Deferred each, as `publish` of txredisapi makes them, would cost several times what
    the message does, and all that is to be known is that none is an error.
    """

    def __init__(self, clock: IClock, metrics: Metrics, keepalive: Keepalive, link: RedisLink) -> None:
        super().__init__(clock, metrics, keepalive)
        self._link = link
        self._unanswered = 0
        self._is_closing = False

    async def greet(self) -> None:
        """Make sure that it answers. Raises `_Refused`."""
        await self.ask("PING")

    def go_up(self) -> None:
        super().go_up()
        self.transport.registerProducer(self, True)

    def publish(self, head: bytes, data: bytes) -> None:
        """One message a line, all of them in one write: each write would be a packet of its own."""
        lines = data.removesuffix(b"\n").split(b"\n")
        self._unanswered += len(lines)
        self.send_bytes(b"".join([b"%b%d\r\n%b\r\n" % (head, len(line), line) for line in lines]))

    def read_replies(self) -> None:
        gets = self._redis.gets
        answered = 0
        while (reply := gets()) is not False:
            if not self.is_up:
                self.replyReceived(reply)
            elif type(reply) is int:
                answered += 1
            elif isinstance(reply, Exception):
                # A message is lost. The connection ends, so that the member knows, and can say it again.
                self.end(explain(str(reply), command="PUBLISH"))
                return
        self._unanswered -= answered
        if self._unanswered < 0:
            self.end("Redis answered more than it was asked")
        elif self._is_closing and self._unanswered == 0:
            self.transport.loseConnection()

    def end(self, why: str) -> None:
        if self.is_up and not self.closed:
            self.transport.unregisterProducer()
        super().end(why)

    def close(self) -> None:
        """Close it once Redis has answered to what was written.

        Once it is sent would be too soon: a socket that is closed with answers unread throws away what its
        peer has not read.
        """
        if not self.closed:
            self.closed = True
            self.why = "closed here"
            self._is_closing = True
            self.transport.unregisterProducer()
            if self._unanswered == 0:
                self.transport.loseConnection()

    def pauseProducing(self) -> None:
        if not self.closed:
            self._link.member.pause()

    def resumeProducing(self) -> None:
        if not self.closed:
            self._link.member.resume()

    def stopProducing(self) -> None:
        self.transport.loseConnection()


class _Half:
    """One of the two connections: opened whenever it is not there.

    Not a ReconnectingClientFactory: where to connect is asked anew each time, and the delay begins small only
    after a connection has proved good, which an open socket does not.
    """

    role = ""
    _logger = Logger()

    def __init__(self, link: RedisLink) -> None:
        self.current: Any = None
        """The connection, if it is up."""
        self.why = ""
        self._link = link
        self._clock = link.clock
        self._open: set[_Connection] = set()
        """Every connection that is not lost yet, whatever its stage; of an attempt there is one at a time."""
        self._attempt: Deferred[None] | None = None
        self._timer: Any = None
        self._tls: RedisTls | None = None
        self._where = ""
        self._delay = 0.0
        self._times_up = 0
        self._up_at = 0.0
        self._stopped = True
        self._wait_for_end: list[Deferred[None]] = []

    # -- what differs --------------------------------------------------------------------------------------

    def make_connection(self) -> Any:
        """A protocol of this role."""
        raise NotImplementedError

    def tell_up(self) -> None:
        """Tell the member that it is there."""
        raise NotImplementedError

    def tell_down(self, why: str) -> None:
        """Tell the member that it is no more."""
        raise NotImplementedError

    # -- the link's side -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect."""
        if self._stopped:
            self._stopped = False
            self._delay = 0.0
            self._try()

    def stop(self) -> "Deferred[None]":
        """Close what is open, and try no more. Fires when it is closed."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._attempt is not None:
            self._attempt.cancel()
        cut = None
        for connection in list(self._open):
            if isinstance(connection, _Publisher) and connection.is_up:
                connection.close()
                cut = self._clock.callLater(STOP_SECONDS, connection.transport.abortConnection)
            else:
                connection.end("closed here")
        self.current = None
        if not self._open:
            return defer.succeed(None)
        gone: Deferred[None] = Deferred()
        if cut is not None:
            gone.addCallback(lambda _: cut.cancel() if cut.active() else None)
        self._wait_for_end.append(gone)
        return gone

    def drop(self, why: str) -> None:
        """Cut what is open."""
        for connection in list(self._open):
            connection.end(why)

    def prove(self) -> None:
        """The connection, if there is one, is a good one."""
        if self.current is not None:
            self._delay = 0.0

    # -- connecting ----------------------------------------------------------------------------------------

    def _try(self) -> None:
        self._timer = None
        self._tls = None
        self._where = ""
        self._attempt = Deferred.fromCoroutine(self._connect())
        self._attempt.addErrback(self._failed)

    async def _connect(self) -> None:
        address = self._link.address
        password = address.password()
        host, port = await self._find()
        self._where = _place(host, port)
        await self._within(CONNECT_SECONDS, self._open_one(host, port, password))

    async def _open_one(self, host: str, port: int, password: str | None) -> None:
        connection = await self._reach(host, port, self.make_connection)
        await connection.log_in(self._link.address.username, password)
        await connection.be_called(f"synrepl:{self._link.instance}:{self.role}")
        if self._link.sentinels:
            # It may have been demoted since the Sentinel last heard of it.
            role = await connection.ask("ROLE")
            if role[0] != b"master":
                raise _Refused(f"it is not the master now, but a {role[0].decode()}")
        await connection.greet()
        self._came_up(connection)

    async def _reach(self, host: str, port: int, make: Callable[[], Any]) -> Any:
        """What `make` gave, connected to there."""
        link = self._link
        made: list[_Connection] = []

        def build() -> _Connection:
            connection = make()
            connection.on_lost = self._lost
            self._open.add(connection)
            # Kept, as an endpoint with TLS gives something else.
            made.append(connection)
            return made[-1]

        plain = Factory.forProtocol(build)
        plain.noisy = False
        wrapped: IProtocolFactory = plain
        endpoint: IStreamClientEndpoint
        if link.endpoint is not None:
            endpoint = link.endpoint(host, port)
        elif not port:
            endpoint = UNIXClientEndpoint(link.reactor, host, timeout=CONNECT_SECONDS)
        else:
            endpoint = HostnameEndpoint(link.reactor, host, port, timeout=CONNECT_SECONDS)
            if link.address.tls:
                self._tls = RedisTls(link.address, host)
                wrapped = TLSMemoryBIOFactory(self._tls, True, wrapped, link.reactor)
        try:
            await endpoint.connect(wrapped)
        except error.ConnectingCancelledError:
            # A kind of its own, which no time limit takes for its own doing.
            raise defer.CancelledError from None
        except (error.ConnectError, error.DNSLookupError) as failed:
            raise _Refused(told(Failure(failed))) from failed
        if port and (set_no_delay := getattr(made[0].transport, "setTcpNoDelay", None)):
            set_no_delay(True)
        return made[0]

    async def _find(self) -> tuple[str, int]:
        """Where to connect to: a path and 0 for a socket. Raises `_Refused`."""
        address, sentinels = self._link.address, self._link.sentinels
        if address.path:
            return address.path, 0
        if not sentinels:
            return address.hosts[0]
        troubles = []
        for sentinel in list(sentinels):
            try:
                found = await self._within(ASK_SECONDS, self._ask_sentinel(*sentinel))
            except _Refused as failed:
                troubles.append(f"{_place(*sentinel)}: {failed}")
                continue
            # Next time the one that answered comes first.
            sentinels.remove(sentinel)
            sentinels.insert(0, sentinel)
            return found
        raise _Refused(f"no Sentinel knows the master: {'; '.join(troubles)}")

    async def _ask_sentinel(self, host: str, port: int) -> tuple[str, int]:
        link = self._link
        password = link.address.sentinel_password()
        try:
            asker = await self._reach(
                host, port, lambda: _Connection(link.clock, link.metrics, link.keepalive)
            )
            await asker.log_in("", password)
            answer = await asker.ask("SENTINEL", "get-master-addr-by-name", link.address.service)
        except txredisapi.ConnectionError as lost:
            raise _Refused(self._why_lost(Failure(lost))) from None
        finally:
            for connection in list(self._open):
                connection.end("closed here")
        if answer is None:
            raise _Refused(f"it knows no {link.address.service}")
        found_host, found_port = answer
        return found_host.decode(), int(found_port)

    async def _within(self, seconds: float, waited_for: Coroutine[Any, Any, T]) -> T:
        try:
            return await Deferred.fromCoroutine(waited_for).addTimeout(seconds, self._link.reactor)
        except defer.TimeoutError:
            is_shown = self._tls is None or self._tls.saw_certificate
            hint = "" if is_shown else " (perhaps it does not speak TLS)"
            raise _Refused(f"no answer within {seconds:g} seconds{hint}") from None

    # -- what became of it ---------------------------------------------------------------------------------

    def _came_up(self, connection: Any) -> None:
        self._attempt = None
        self.current = connection
        self.why = ""
        self._up_at = self._clock.seconds()
        self._times_up += 1
        self._link.changed(again=self._times_up > 1)
        connection.go_up()
        self.tell_up()

    def _failed(self, failure: Failure) -> None:
        """The attempt under way came to nothing."""
        self._attempt = None
        why = self._reason(failure)
        for connection in list(self._open):
            connection.end(why)
        # If the member itself failed on hearing that it is up, `_lost` will see to the rest.
        if self._stopped or self.current is not None:
            return
        self.why = why
        self._link.member.unreachable(why)
        self._retry()

    def _reason(self, failure: Failure) -> str:
        if failure.check(ConfigError):
            return str(failure.value)
        if failure.check(_Refused):
            why = self._tls_why() or str(failure.value)
        elif failure.check(txredisapi.ConnectionError):
            why = self._why_lost(failure)
        else:
            if not failure.check(defer.CancelledError):
                self._logger.failure("connecting to {peer} failed", failure, peer=self._link.address.public)
            why = told(failure)
        return f"{self._where}: {why}" if self._where else why

    def _why_lost(self, failure: Failure) -> str:
        """What txredisapi says of a lost connection is less than what the connection itself does."""
        why = self._tls_why() or next((one.why for one in self._open if one.why), told(failure))
        if why == WITHOUT_A_WORD and self._tls is None and not self._link.address.path:
            return f"{why} (perhaps it wants TLS: say rediss://)"
        return why

    def _tls_why(self) -> str:
        return self._tls.why if self._tls is not None else ""

    def _lost(self, connection: _Connection) -> None:
        """A connection is no more, at whatever stage."""
        self._open.discard(connection)
        if connection is self.current:
            self.current = None
            self.why = connection.why
            if connection.heard_at - self._up_at >= PROVED_SECONDS:
                self._delay = 0.0
            if not self._stopped:
                self._link.changed()
                self.tell_down(connection.why)
                self._retry()
        if not self._open:
            waiting, self._wait_for_end = self._wait_for_end, []
            for one in waiting:
                one.callback(None)

    def _retry(self) -> None:
        if self._stopped:
            return
        self._delay = min(LAST_DELAY_SECONDS, max(FIRST_DELAY_SECONDS, self._delay * 2))
        # Or all processes would come at once to a Redis that has just been started.
        self._timer = self._clock.callLater(self._delay * self._link.chance.uniform(0.5, 1.0), self._try)


class _Hearing(_Half):
    role = "subscriber"

    def make_connection(self) -> _Subscriber:
        link = self._link
        return _Subscriber(link.clock, link.metrics, link.keepalive, link)

    def tell_up(self) -> None:
        self.read()
        self._link.member.hearing()

    def tell_down(self, why: str) -> None:
        self._link.member.deaf(why)

    def read(self) -> None:
        """Read, or do not, as the link says."""
        if self.current is None or self.current.closed:
            return
        if self._link.is_reading:
            self.current.heard_at = self._clock.seconds()
            self.current.transport.resumeProducing()
        else:
            self.current.transport.pauseProducing()


class _Speaking(_Half):
    role = "publisher"

    def make_connection(self) -> _Publisher:
        link = self._link
        return _Publisher(link.clock, link.metrics, link.keepalive, link)

    def tell_up(self) -> None:
        self._link.member.speaking()

    def tell_down(self, why: str) -> None:
        self._link.member.mute(why)


# -- in plain words ------------------------------------------------------------------------------------------

_EXPLAINED: Final[tuple[tuple[str, str], ...]] = (
    ("NOAUTH", "Redis wants a password: say ?password_file=/path in its URL"),
    ("WRONGPASS", "Redis refuses the password: put the right one into the password_file"),
    ("ERR invalid password", "Redis refuses the password: put the right one into the password_file"),
    ("ERR AUTH <password> called without any", "Redis has no password: leave out the password_file"),
    ("ERR Client sent AUTH, but no password", "Redis has no password: leave out the password_file"),
    ("ERR max number of clients", "Redis has no room for another connection: raise its maxclients"),
    ("DENIED", "Redis is in protected mode: without a password it takes no connection from other machines"),
    ("LOADING", "Redis is still loading its data"),
)


def explain(refusal: str, *, command: str = "") -> str:
    """An error of Redis, and what to do about it."""
    for beginning, text in _EXPLAINED:
        if refusal.startswith(beginning):
            return text
    line = " ".join(refusal.split())[:300]
    if refusal.startswith("NOPERM"):
        did = command or "a command"
        return f"Redis does not let this user do {did}: grant it with ACL SETUSER ({line})"
    return f"Redis answers {line}"


def told(failure: Failure) -> str:
    """Why there is no connection."""
    value = failure.value
    match value:
        case error.ConnectionRefusedError():
            return "connection refused"
        case error.DNSLookupError():
            return "no such host"
        case error.TimeoutError() | error.TCPTimedOutError():
            return "no answer"
        case error.ConnectionDone():
            return "Redis closed the connection"
        case error.ConnectionLost():
            return "the connection was lost"
        case SSL.Error():
            return tls_trouble(value)
        case error.ConnectError(osError=int(number)):
            return os.strerror(number)
    return " ".join(failure.getErrorMessage().split())[:300] or type(value).__name__


def _place(host: str, port: int) -> str:
    return f"{host}:{port}" if port else host
