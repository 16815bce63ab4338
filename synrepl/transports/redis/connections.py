"""Connections to Redis: one kind subscribes, the other publishes.

Only this module imports txredisapi, which installs a reactor: import this module late.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import hiredis
import txredisapi
from OpenSSL import SSL
from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.base.time import Timer
from synrepl.errors import RemoteProtocolError
from synrepl.transports.failures import describe_failure
from synrepl.transports.redis.address import URL_WORDS, RedisWords
from synrepl.transports.tls import TlsWords, tls_trouble
from synrepl.wire.reply_heads import ReplyHeads
from synrepl.wire.text import printable

if TYPE_CHECKING:
    from synrepl.transports.redis.link import RedisChannels

Lost: Final = txredisapi.ConnectionError
"""Raised by commands that wait for a reply when the connection is lost."""

PING: Final = b"*1\r\n$4\r\nPING\r\n"
ROLE: Final = b"*1\r\n$4\r\nROLE\r\n"

WITHOUT_A_WORD: Final = "it closed the connection before it sent anything"

_EXPLANATIONS: Final[tuple[tuple[str, str], ...]] = (
    ("NOAUTH", "Redis requires a password: {0.missing_login}"),
    ("WRONGPASS", "Redis refuses the password: {0.wrong_login}"),
    ("ERR invalid password", "Redis refuses the password: {0.wrong_login}"),
    ("ERR AUTH <password> called without any", "Redis has no password: {0.needless_login}"),
    ("ERR Client sent AUTH, but no password", "Redis has no password: {0.needless_login}"),
    ("ERR max number of clients", "Redis has reached its limit of connections: raise its maxclients"),
    ("DENIED", "Redis is in protected mode: set a password on it, or connect from the same machine"),
    ("LOADING", "Redis is still loading its data"),
)


class RedisRefused(Exception):
    """Redis refuses the connection, or is not the server we need; the text is for operators."""


def tls_words(words: RedisWords) -> TlsWords:
    """What messages on TLS call the settings."""
    return TlsWords(
        peer="Redis",
        not_tls=f"the peer does not speak it ({words.use_no_tls})",
        trust=words.give_ca,
        show=words.give_certificate,
    )


_RIGHTS: Final = (
    ("of the channels", "&*"),
    ("access a channel", "&*"),
    ("of the keys", "~*"),
    ("access a key", "~*"),
)
"""What a user lacks, by Redis' words, and what grants it. Since 7 a new user may use no channel."""


def explain(refusal: str, words: RedisWords = URL_WORDS, *, command: str = "") -> str:
    """Describe an error of Redis, and its remedy."""
    for beginning, text in _EXPLANATIONS:
        if refusal.startswith(beginning):
            return text.format(words)
    # The rest would quote our command, perhaps with a password.
    line = printable(" ".join(refusal.partition(", with args")[0].split()), limit=300)
    if refusal.startswith("NOPERM"):
        denied = command or "a command"
        right = next((right for words, right in _RIGHTS if words in line), f"+{denied.lower()}")
        what = denied + {"&*": " on this channel", "~*": " on this key"}.get(right, "")
        given = right if command or right in ("&*", "~*") else "+COMMAND"
        return f"Redis does not allow this user {what}: grant it with ACL SETUSER USER {given} ({line})"
    return f"Redis answers {line}"


def describe_redis_failure(failure: Failure, words: RedisWords = URL_WORDS) -> str:
    """Describe a failure to connect."""
    match failure.value:
        case error.ConnectionDone():
            return "Redis closed the connection"
        case SSL.Error() as trouble:
            return tls_trouble(trouble, tls_words(words))
    return describe_failure(failure)


def master_of_replica(role: Any) -> str:
    """Return the address of the master in a replica's reply to ROLE; of any other reply, an empty text."""
    match role:
        case [b"slave" | b"replica", bytes(host), int(port), *_]:
            return f"{printable(host.decode('utf-8', 'replace'), limit=300)}:{port}"
    return ""


async def ask_for_master(ask: Callable[..., Awaitable[Any]]) -> str | None:
    """Return the address of the master if the server is a replica; an empty text if it is a master.

    None if it does not say, as ROLE is in @dangerous, or is a replica in a Redis Cluster, whose nodes pass on
    to all what is published at any of them. `ask` runs a command and raises `RedisRefused` for an error.
    """
    try:
        master = master_of_replica(await ask("ROLE"))
    except RedisRefused:
        return None
    if not master:
        return ""
    try:
        await ask("CLUSTER", "INFO")
    except RedisRefused as refused:
        return None if "NOPERM" in str(refused) else master
    return None


class RedisConnection(txredisapi.RedisProtocol):  # type: ignore[misc]  # untyped
    """A connection to Redis. txredisapi provides the commands of the handshake, one at a time.

    Incoming data is parsed here with hiredis. The reader of txredisapi would convert payloads that look like
    numbers, decode others to text, and without hiredis take a reactor iteration for each payload.
    """

    transport: Any

    def __init__(self, link: "RedisChannels") -> None:
        super().__init__()
        self.closed = False
        self.why = ""
        self.last_error = ""
        """The last ignored error of Redis: perhaps the reason for a following close."""
        self.is_up = False
        self.received_at = link.clock.seconds()
        self.on_lost: Callable[[RedisConnection], None] = lambda _: None
        self._link = link
        self._words = link.address.words
        self._clock = link.clock
        self._metrics = link.metrics
        self._keepalive = link.keepalive
        self._redis = hiredis.Reader(
            protocolError=txredisapi.InvalidData, replyError=txredisapi.ResponseError
        )
        self._heads = ReplyHeads()
        self._has_received = False
        self._pinged_at = 0.0
        self._ping = PING
        self._timer = Timer(link.clock, self._tick)

    def connectionMade(self) -> None:
        # Replaces txredisapi's version, which never reconnects after a refused password.
        self._metrics.connections.inc()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._metrics.connections.dec()
        self.closed = True
        if not self.why and not self.is_up:
            if self.last_error:
                self.why = explain(self.last_error, self._words)
            elif not self._has_received and reason.check(error.ConnectionDone, error.ConnectionLost):
                self.why = WITHOUT_A_WORD
        self.why = self.why or describe_redis_failure(reason, self._words)
        self._timer.stop()
        super().connectionLost(reason)
        self.on_lost(self)

    def dataReceived(self, data: bytes) -> None:
        self._metrics.bytes_in.value += len(data)
        self.received_at = self._clock.seconds()
        self._has_received = True
        try:
            self._heads.check(data)
        except RemoteProtocolError as refused:
            self.end(f"the server is not Redis: {refused.why}")
            return
        self._redis.feed(data)
        try:
            self.read_replies()
        except txredisapi.InvalidData as broken:
            is_tls = data.startswith(b"\x15\x03")
            use_tls = f"speaks TLS: {self._words.use_tls}"
            self.end(f"the server {use_tls if is_tls else f'is not Redis: {printable(str(broken))}'}")

    def read_replies(self) -> None:
        """Handle all complete replies. Raises `txredisapi.InvalidData`."""
        gets = self._redis.gets
        while (reply := gets()) is not False:
            self.replyReceived(reply)

    async def run_command(self, *words: str) -> Any:
        """Send a command of the handshake and return its reply. Raises `RedisRefused` for an error reply."""
        try:
            return await self.execute_command(*words)
        except txredisapi.ResponseError as refused:
            raise RedisRefused(explain(str(refused), self._words, command=words[0])) from None

    async def log_in(self, username: str, password: str | None) -> None:
        """Authenticate, if there is a password. Raises `RedisRefused`."""
        if password is not None:
            await self.run_command("AUTH", *([username] if username else []), password)

    async def set_name(self, name: str) -> None:
        """Set the name that CLIENT LIST shows, if Redis allows it."""
        try:
            await self.execute_command("CLIENT", "SETNAME", name)
        except txredisapi.ResponseError as refused:
            self.last_error = str(refused)

    def start_watching(self) -> None:
        """Start the keepalive: the handshake is complete."""
        self.is_up = True
        self._arm()

    def send_bytes(self, data: bytes) -> None:
        """Write, and count the bytes."""
        self._metrics.bytes_out.value += len(data)
        self.transport.write(data)

    def end(self, why: str) -> None:
        """Abort the connection in the next reactor iteration. Only its loss is reported from now on."""
        if not self.closed:
            self.closed = True
            self.why = why
            self._clock.callLater(0, self.transport.abortConnection)

    def expects_data(self) -> bool:
        """Whether silence means that the peer is dead."""
        return True

    # Silence counts only after a PING: this process may have been suspended.

    def _is_ping_pending(self) -> bool:
        return self._pinged_at > self.received_at

    def _deadline(self) -> float:
        if self._is_ping_pending():
            return self._pinged_at + (self._keepalive.timeout_seconds - self._keepalive.ping_seconds)
        return self.received_at + self._keepalive.ping_seconds

    def _arm(self) -> None:
        # If the reply to a PING comes at once, the next PING is due before this deadline.
        delay = min(self._keepalive.ping_seconds, max(0.0, self._deadline() - self._clock.seconds()))
        self._timer.restart(delay)

    def _tick(self) -> None:
        if self.closed:
            return
        now = self._clock.seconds()
        if not self.expects_data():
            self.received_at = now
        elif now >= self._deadline():
            if self._is_ping_pending():
                self.end(f"no data from Redis for {self._keepalive.timeout_seconds:g} seconds")
                return
            self._pinged_at = now
            self.send_bytes(self._ping)
        self._arm()


class QueryConnection(RedisConnection):
    """Runs single commands, each of which waits for its reply."""

    role = "query"

    async def greet(self) -> None:
        """Do nothing: the first command shows whether Redis responds."""


class SubscriberConnection(RedisConnection):
    """Receives the messages of the channels."""

    role = "subscriber"

    def __init__(self, link: "RedisChannels") -> None:
        super().__init__(link)
        self._unconfirmed = len(link.channels)
        self._all_confirmed: Deferred[None] = Deferred()
        self._messages: list[bytes] = []

    async def greet(self) -> None:
        """Subscribe; return when Redis has confirmed every channel. Raises `RedisRefused`."""
        await self.run_command("SUBSCRIBE", *self._link.channels)
        await self._all_confirmed

    def read_replies(self) -> None:
        gets = self._redis.gets
        messages = self._messages
        try:
            while (reply := gets()) is not False:
                if type(reply) is list and reply[0] == b"message":
                    messages.append(reply[2])
                else:
                    self._handle_reply(reply)
        finally:
            # Messages of a channel that was confirmed first wait for the other channels.
            if self.is_up and messages:
                self._messages = []
                if not self.closed:
                    self._link.on_messages(messages)

    def expects_data(self) -> bool:
        return self._link.is_reading

    def report_up(self) -> None:
        """Report to the member that the connection is established."""
        self.read()
        self._link.member.subscriber_up()

    def report_down(self) -> None:
        """Report to the member that the connection was lost."""
        self._link.member.subscriber_down(self.why)

    def read(self) -> None:
        """Pause or resume reading, as the link says."""
        if self.closed:
            return
        if self._link.is_reading:
            self.received_at = self._clock.seconds()
            self.transport.resumeProducing()
        else:
            self.transport.pauseProducing()

    def _handle_reply(self, reply: Any) -> None:
        if self.is_up:
            if isinstance(reply, Exception):
                self.end(explain(str(reply), self._words))
            return
        is_confirmation = isinstance(reply, list) and reply[0] == b"subscribe"
        # SUBSCRIBE has one reply per channel; `run_command` waits for the first.
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
    """Publishes messages, and asks whether the server is a replica.

    Pub/sub goes from a master to its replicas alone: what is published at a replica does not reach the
    subscribers of the master, and Redis reports no error.

    Replies are counted. A Deferred for each, as in txredisapi's `publish`, would cost several times as much
    as the message, and only error replies matter.
    """

    role = "publisher"

    def __init__(self, link: "RedisChannels") -> None:
        super().__init__(link)
        self.master = ""
        """The address of the master if the server is a replica; empty if it is none, or does not say."""
        self._pending_replies = 0
        self._is_closing = False

    async def greet(self) -> None:
        """Verify that Redis responds, and ask for its role. Raises `RedisRefused`."""
        await self.run_command("PING")
        master = await ask_for_master(self.run_command)
        if master is not None:
            self.master = master
            # The role can change while the connection is open.
            self._ping = ROLE

    def start_watching(self) -> None:
        super().start_watching()
        self.transport.registerProducer(self, True)

    def report_up(self) -> None:
        self._link.note_role(self.master)
        self._link.member.publisher_up()

    def report_down(self) -> None:
        self._link.member.publisher_down(self.why)

    def publish(self, head: bytes, data: bytes) -> None:
        """Publish each line as a message, in a single write: each write would be a packet of its own."""
        lines = data.removesuffix(b"\n").split(b"\n")
        self._pending_replies += len(lines)
        self.send_bytes(b"".join([b"%b%d\r\n%b\r\n" % (head, len(line), line) for line in lines]))

    def read_replies(self) -> None:
        gets = self._redis.gets
        replies = 0
        while (reply := gets()) is not False:
            if not self.is_up:
                self.replyReceived(reply)
            elif type(reply) is int:
                replies += 1
            elif type(reply) is list:
                self._take_role(reply)
            elif isinstance(reply, Exception):
                # A message is lost. End the connection, so that the member can publish it again.
                self.end(explain(str(reply), self._words, command="PUBLISH"))
                return
        self._pending_replies -= replies
        if self._pending_replies < 0:
            self.end("Redis sent more replies than it got commands")
        elif self._is_closing and self._pending_replies == 0:
            self.transport.loseConnection()

    def _take_role(self, role: Any) -> None:
        master = master_of_replica(role)
        if master and not self.master:
            # Connect again: Sentinels know the new master, and a Redis Cluster is asked whether it is one.
            self.end(f"the server has become a replica of {master}")
        elif master != self.master:
            self.master = master
            self._link.changed()
            self._link.note_role(master)

    def end(self, why: str) -> None:
        if self.is_up and not self.closed:
            self.transport.unregisterProducer()
        super().end(why)

    def close(self) -> None:
        """Close when Redis has replied to all messages.

        Closing earlier could lose messages: closing a socket with unread replies discards data that the peer
        has not read.
        """
        if not self.closed:
            self.closed = True
            self.why = "closed by this process"
            self._is_closing = True
            self.transport.unregisterProducer()
            if self._pending_replies == 0:
                self.transport.loseConnection()

    def pauseProducing(self) -> None:
        if not self.closed:
            self._link.member.pause()

    def resumeProducing(self) -> None:
        if not self.closed:
            self._link.member.resume()

    def stopProducing(self) -> None:
        self.transport.loseConnection()
