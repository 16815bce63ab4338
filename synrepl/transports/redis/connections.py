"""A connection to Redis, and the two kinds that a link has: one subscribes, the other one publishes.

Only here is txredisapi imported. That installs a reactor: whoever needs this imports it late.
"""

from collections.abc import Callable
from typing import Any, Final

import hiredis
import txredisapi
from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.transports.redis.errors import WITHOUT_A_WORD, RedisRefused, explain, told
from synrepl.transports.redis.interfaces import IRedisLink

__all__ = ["RedisConnection", "Lost", "PublisherConnection", "SubscriberConnection"]

Lost: Final = txredisapi.ConnectionError
"""Raised by what waits for an answer when the connection is lost."""

PING: Final = b"*1\r\n$4\r\nPING\r\n"


class RedisConnection(txredisapi.RedisProtocol):  # type: ignore[misc]  # it has no types
    """A connection to Redis. txredisapi brings its commands, one at a time, for the time of greeting.

    What comes in is read here, by hiredis: the reader of txredisapi would make numbers of payloads that look
    like some, text of others, and without hiredis take a turn of the reactor for each.
    """

    transport: Any

    def __init__(self, link: IRedisLink) -> None:
        super().__init__()
        self.closed = False
        self.why = ""
        self.grumble = ""
        """The last error of Redis that was passed over: perhaps why it closes next."""
        self.is_up = False
        self.heard_at = link.clock.seconds()
        self.on_lost: Callable[[RedisConnection], None] = lambda _: None
        self._link = link
        self._clock = link.clock
        self._metrics = link.metrics
        self._keepalive = link.keepalive
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
        """One command of the greeting, and its answer. Raises `RedisRefused` for an error of Redis."""
        try:
            return await self.execute_command(*words)
        except txredisapi.ResponseError as refused:
            raise RedisRefused(explain(str(refused), command=words[0])) from None

    async def log_in(self, username: str, password: str | None) -> None:
        """Prove who we are, if a password is given. Raises `RedisRefused`."""
        if password is not None:
            await self.ask("AUTH", *([username] if username else []), password)

    async def be_called(self, name: str) -> None:
        """Take the name that CLIENT LIST shows, if Redis lets us have one."""
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


class SubscriberConnection(RedisConnection):
    """Hears the channels."""

    role = "subscriber"

    def __init__(self, link: IRedisLink) -> None:
        super().__init__(link)
        self._unconfirmed = len(link.channels)
        self._all_confirmed: Deferred[None] = Deferred()
        self._messages: list[bytes] = []

    async def greet(self) -> None:
        """Subscribe; over when Redis has confirmed every channel. Raises `RedisRefused`."""
        await self.ask("SUBSCRIBE", *self._link.channels)
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
        # SUBSCRIBE has one answer for each channel, of which `ask` waits for the first.
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
            self._all_confirmed.errback(Lost(self.why))


@implementer(IPushProducer)
class PublisherConnection(RedisConnection):
    """Publishes.

    Answers are counted: a Deferred each, as `publish` of txredisapi makes them, would cost several times what
    the message does, and all that is to be known is that none is an error.
    """

    role = "publisher"

    def __init__(self, link: IRedisLink) -> None:
        super().__init__(link)
        self._unanswered = 0
        self._is_closing = False

    async def greet(self) -> None:
        """Make sure that it answers. Raises `RedisRefused`."""
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
