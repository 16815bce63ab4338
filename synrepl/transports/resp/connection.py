"""A connection of the RESP port: requests of one client, and messages of the channels it subscribed to."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from typing import Protocol as Interface

from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.errors import RemoteProtocolError
from synrepl.ports.access import LOCAL, REMOTE, Access, Key, Keyring, Right
from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.ports.rights import Operation, refusal
from synrepl.ports.time import Timer
from synrepl.ports.turn_queue import TurnQueue
from synrepl.replication.broker.channel_ends import ChannelPublisher, ChannelSubscriber
from synrepl.replication.broker.publish_rights import line_refusal
from synrepl.replication.broker.served_channel import ServedChannel
from synrepl.transports.credentials import certified_name, is_local
from synrepl.transports.failures import address_text
from synrepl.transports.resp.cache import DEFAULT_MS, MAX_VALUE, ExpiringCache
from synrepl.transports.send_buffer import immediate_write
from synrepl.wire import resp
from synrepl.wire.scope import ALL_STREAMS
from synrepl.wire.text import printable

DATABASES: Final = 16
MAX_CHANNELS: Final = 16
"""The most channels of one client. A homeserver has the channel of its name and a few beside it."""

MAX_CHANNEL_NAME: Final = 255
"""The most bytes of the name of a channel."""

MAX_MS: Final = 10 * 365 * 86_400_000
"""The longest expiry, in milliseconds."""

MAX_CLIENT_NAME: Final = 100

ABORT_SECONDS: Final = 5.0
"""Time between our close and the abort of the connection, for a client that does not read the rest."""

AUTHENTICATE_SECONDS: Final = 30.0
"""Time within which a client must authenticate, if this daemon has keys."""

SUBSCRIBE: Final = Operation("SUBSCRIBE", Right.READ, ALL_STREAMS)
PUBLISH: Final = Operation("PUBLISH", Right.WRITE, ALL_STREAMS)
READ: Final = Operation("GET", Right.READ, ALL_STREAMS)
STORE: Final = Operation("SET", Right.WRITE, ALL_STREAMS)

BEFORE_AUTH: Final = frozenset({b"AUTH", b"HELLO", b"QUIT"})
WHILE_SUBSCRIBED: Final = frozenset({b"SUBSCRIBE", b"UNSUBSCRIBE", b"PING", b"QUIT"})

COSTLY: Final = frozenset({b"AUTH", b"HELLO", b"INFO", b"PUBSUB", b"SUBSCRIBE"})
"""What these cost grows with the keys, the names in them, or the streams and writers of the channel."""

REQUESTS_AT_ONCE: Final = 50
"""The most requests that are answered at once; one of them at most is `COSTLY`."""

REPLY_BYTES: Final = 64 * 1024
"""No more requests are answered at once after replies of so many bytes."""

Words = Sequence[bytes]
Handler = Callable[["RespConnection", Words], bytes]


class IRespServer(Interface):
    """What a connection needs of the port (`RespServer`)."""

    channel: ServedChannel | None
    cache: ExpiringCache
    clock: IClock
    connections: dict["RespConnection", None]
    keys: Keyring
    metrics: Metrics
    queue: TurnQueue
    refused: int
    why_closed: str

    def account(self, connection: "RespConnection") -> None:
        """Count what the connection holds, which may have changed."""

    def is_full(self) -> bool:
        """Whether publishers should wait."""

    def complain(self, what: str) -> None:
        """Log what a client did, not too often."""

    def info(self) -> Mapping[str, Any]:
        """What INFO answers."""


@implementer(IPushProducer)
class RespConnection(Protocol):
    """Answers the requests of one client, in their order.

    Few of them are answered at once, and none while the client does not read, or the log does not keep up.
    The rest takes turns with other connections, and nothing is read until it is answered.
    """

    transport: Any
    _logger = Logger()

    def __init__(self, server: IRespServer) -> None:
        self.access: Access | None = None
        """The rights of the client; None until it has authenticated."""
        self.key: Key | None = None
        self.name = ""
        """What the client calls itself (CLIENT SETNAME)."""
        self.subscriber = ChannelSubscriber(self._write_message)
        self.publisher = ChannelPublisher()
        self._server = server
        self._parser = resp.RequestParser(HANDLERS)
        self._channels: dict[bytes, None] = {}
        self._database = 0
        self._replies: list[bytes] = []
        self._lines: list[bytes] = []
        """Lines of the channel itself that were published by the requests that are answered at once."""
        self.counted = 0
        """The bytes that the port has counted for this connection; see `held_bytes`."""
        self._has_requests = False
        """Whether there may be complete requests that are not answered."""
        self._must_yield = False
        self._is_queued = False
        self._is_lost = False
        """Whether the connection is lost, and its last requests are still to be answered."""
        self._is_closing = False
        self._is_full = False
        self._is_held = False
        self._send: Callable[[bytes], object]
        """Writes messages to the transport, if possible at once."""
        self._timer = Timer(server.clock, self._on_time)

    # -- the transport -------------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        server = self._server
        server.metrics.connections.inc()
        server.connections[self] = None
        if set_no_delay := getattr(self.transport, "setTcpNoDelay", None):
            set_no_delay(True)
        self.transport.registerProducer(self, True)
        self._send = immediate_write(self.transport)
        if server.keys.is_required:
            name = certified_name(self.transport)
            self._grant(None if name is None else server.keys.access_by_certificate(name))
        else:
            self._grant(LOCAL if is_local(self.transport.getPeer()) else REMOTE)
        if self.access is None:
            self._timer.start(AUTHENTICATE_SECONDS)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._is_lost, self._is_full = True, False
        if self._may_answer:
            self._queue_up()
        elif not self._is_queued:
            self._end()

    def _end(self) -> None:
        server = self._server
        self._is_closing = True
        self._drop()
        server.metrics.connections.dec()
        server.connections.pop(self, None)
        self._timer.stop()
        if server.channel is not None:
            for name in self._channels:
                server.channel.unsubscribe(self.subscriber, name)
            server.channel.publisher_lost(self.publisher)

    def dataReceived(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._server.metrics.bytes.counts["in"] += len(data)
        self._parser.feed(data)
        self._has_requests = True
        queue = self._server.queue
        while self._may_answer and not self._is_queued and queue.has_time:
            queue.run(self._answer_some)
            if self._must_yield:
                break
        if self._may_answer:
            self._queue_up()

    # -- turns ---------------------------------------------------------------------------------------------

    @property
    def _may_answer(self) -> bool:
        return self._has_requests and not (self._is_full or self._is_held or self._is_closing)

    def _queue_up(self) -> None:
        """Answer what is left in a later turn."""
        if not self._is_queued:
            self._is_queued = True
            if not self._is_lost:
                self.transport.pauseProducing()
            self._server.queue.run_later(self._go_on)

    def _go_on(self) -> None:
        self._is_queued = False
        try:
            if self._may_answer:
                self._answer_some()
        except Exception:
            # In the poll, Twisted would do the same.
            self._logger.failure("the connection of {peer} failed", peer=self.peer)
            self._is_closing = True
            self.transport.abortConnection()
        self._read_on()

    def _answer_some(self) -> None:
        """Answer the next requests, as many as may be answered at once."""
        self._must_yield = False
        size = 0
        try:
            for _ in range(REQUESTS_AT_ONCE):
                words = self._parser.next()
                if words is None:
                    self._has_requests = False
                    break
                reply = self._answer(words)
                self._replies.append(reply)
                size += len(reply)
                if self._is_closing or self._must_yield or size > REPLY_BYTES:
                    self._has_requests = self._parser.size > 0
                    break
        except RemoteProtocolError as error:
            self._fail(error)
        try:
            # What came before an error too: it was answered.
            self._publish()
        except RemoteProtocolError as error:
            self._fail(error)
        self._send_replies()
        if self._is_closing:
            self._disconnect()
            return
        self._server.account(self)
        if self._server.is_full():
            self.hold()

    @property
    def held_bytes(self) -> int:
        """The bytes that are held of requests and batches that are not complete."""
        return self._parser.size + self.publisher.held_bytes

    def _drop(self) -> None:
        """Hold nothing more: the connection ends, and with it what is not complete."""
        self._has_requests = False
        self._parser.clear()
        self.publisher.drop_held()
        self._server.account(self)

    def _fail(self, error: RemoteProtocolError) -> None:
        self._server.complain(f"closing {self.peer}: {error.why}")
        self._replies.append(resp.error(f"ERR {error.why}"))
        self._is_closing = True

    def pauseProducing(self) -> None:
        """The client does not read: messages wait, and no more requests are read."""
        self._is_full = True
        self.subscriber.pause()
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """The client reads again."""
        self._is_full = False
        if self._server.channel is not None:
            self._server.channel.resumed(self.subscriber)
        self._read_on()

    def stopProducing(self) -> None:
        self.transport.loseConnection()

    def hold(self) -> None:
        """Read no more requests until `release`: the log does not keep up with what is published."""
        self._is_held = True
        if not self._is_lost:
            self.transport.pauseProducing()

    def release(self) -> None:
        """Read requests again."""
        if self._is_held:
            self._is_held = False
            self._read_on()

    def close(self, why: str) -> None:
        """Send an error, and close."""
        if not self._is_closing:
            self._is_closing = True
            self._write(resp.error(why))
            self._disconnect()

    @property
    def peer(self) -> str:
        """The client's address."""
        return address_text(self.transport.getPeer())

    def describe(self) -> dict[str, Any]:
        """What the status says of this client."""
        channel = self._server.channel
        return {
            "name": self.name or ("" if self.access is None else self.access.name),
            "address": self.peer,
            "subscribes": bool(self._channels),
            "publishes": channel is not None and self.publisher in channel.publishers,
        }

    def _read_on(self) -> None:
        """Answer what is left, or read more, unless something is in the way."""
        if self._may_answer:
            self._queue_up()
        elif self._is_lost and not (self._is_queued or self._is_held or self._is_closing):
            self._end()
        elif not (self._is_full or self._is_held or self._is_closing or self._is_lost):
            self.transport.resumeProducing()

    def _send_replies(self) -> None:
        replies, self._replies = self._replies, []
        self._write(b"".join(replies))

    def _write(self, data: bytes) -> None:
        if data:
            self._server.metrics.bytes.counts["out"] += len(data)
            self.transport.write(data)

    def _write_message(self, data: bytes) -> None:
        if not self._is_closing:
            self._server.metrics.bytes.counts["out"] += len(data)
            self._send(data)

    def _disconnect(self) -> None:
        if self._is_lost:
            self._end()
            return
        self._drop()
        self.transport.unregisterProducer()
        self._timer.restart(ABORT_SECONDS)
        self.transport.loseConnection()

    def _on_time(self) -> None:
        if self._is_closing:
            self.transport.abortConnection()
        else:
            self.close(f"ERR authenticate within {AUTHENTICATE_SECONDS:g} seconds")

    # -- requests ------------------------------------------------------------------------------------------

    def _answer(self, words: Words) -> bytes:
        name = words[0].upper()
        handler = HANDLERS.get(name)
        if handler is None:
            shown = printable(words[0].decode("utf-8", "replace"), limit=64)
            return resp.error(f"ERR unknown command '{shown}': this is synrepl, and no Redis")
        if self._channels and name not in WHILE_SUBSCRIBED:
            return resp.error(
                f"ERR Can't execute '{name.decode().lower()}': only SUBSCRIBE / UNSUBSCRIBE / PING / QUIT are"
                " allowed in this context"
            )
        if self._server.channel is None and name not in BEFORE_AUTH:
            # Before authentication too: a proxy that checks the port has no password.
            # Closed, since a client that is refused a subscription may not ask again: it connects again.
            self._is_closing = True
            return resp.error(f"LOADING {self._server.why_closed}")
        if self.access is None and name not in BEFORE_AUTH:
            return resp.error("NOAUTH Authentication required.")
        if name in COSTLY:
            self._must_yield = True
            self._publish()
        try:
            return handler(self, words[1:])
        except _Refused as refused:
            return resp.error(str(refused))

    def _grant(self, access: Access | None, key: Key | None = None) -> None:
        self.access, self.key = access, key
        if access is not None:
            self.publisher.owner = access.name
            self._parser.limits = resp.PUBLISHER if Right.WRITE in access.rights else resp.READER
            self._timer.stop()

    def _check(self, operation: Operation) -> None:
        assert self.access is not None
        if why := refusal(self.access, operation):
            raise _Refused(f"NOPERM {why}")

    def _auth(self, words: Words) -> bytes:
        if len(words) not in (1, 2):
            raise _wrong_number("auth")
        keys = self._server.keys
        if not keys.is_required:
            raise _Refused(
                "ERR AUTH <password> called without any password configured for the default user. Are you"
                " sure your configuration is correct?"
            )
        key = keys.find(words[-1])
        name = words[0].decode("utf-8", "replace") if len(words) == 2 else "default"
        if key is None or name not in ("default", key.name):
            self._server.complain(f"{self.peer} sent a wrong password")
            raise _Refused("WRONGPASS invalid username-password pair or user is disabled.")
        if self._server.channel is not None:
            # What it has published counts for the key that it had.
            self._server.channel.publisher_lost(self.publisher)
        self._grant(keys.access(key), key)
        return resp.OK

    def _hello(self, words: Words) -> bytes:
        if words and words[0] != b"2":
            why = "this port speaks RESP2, set protocol=2 in the client"
            raise _Refused(f"NOPROTO unsupported protocol version: {why}")
        if len(words) > 1:
            if words[1].upper() != b"AUTH" or len(words) != 4:
                raise _Refused("ERR Syntax error in HELLO option")
            self._auth(words[2:])
        if self.access is None:
            raise _Refused("NOAUTH HELLO must be called with the client already authenticated")
        words = [b"server", b"synrepl", b"mode", b"standalone", b"role", b"master", b"proto"]
        return resp.array([*map(resp.bulk, words), resp.integer(2), resp.bulk(b"modules"), resp.array([])])

    def _quit(self, words: Words) -> bytes:
        self._is_closing = True
        return resp.OK

    def _ping(self, words: Words) -> bytes:
        if len(words) > 1:
            raise _wrong_number("ping")
        if self._channels:
            return resp.array([resp.bulk(b"pong"), resp.bulk(words[0] if words else b"")])
        return resp.bulk(words[0]) if words else resp.PONG

    def _select(self, words: Words) -> bytes:
        if len(words) != 1:
            raise _wrong_number("select")
        number = _integer(words[0])
        if not 0 <= number < DATABASES:
            raise _Refused("ERR DB index is out of range")
        self._database = number
        return resp.OK

    def _client(self, words: Words) -> bytes:
        subcommand = words[0].upper() if words else b""
        if subcommand == b"SETNAME" and len(words) == 2:
            self.name = printable(words[1].decode("utf-8", "replace"), limit=MAX_CLIENT_NAME)
            return resp.OK
        if subcommand == b"SETINFO":
            return resp.OK
        raise _Refused("ERR unknown subcommand. Try CLIENT SETNAME or CLIENT SETINFO.")

    def _info(self, words: Words) -> bytes:
        text = "".join(f"{name}:{value}\r\n" for name, value in self._server.info().items())
        return resp.bulk(f"# synrepl\r\n{text}".encode())

    def _get(self, words: Words) -> bytes:
        if len(words) != 1:
            raise _wrong_number("get")
        self._check(READ)
        value = self._server.cache.get((self._database, words[0]))
        return resp.NONE if value is None else resp.bulk(value)

    def _set(self, words: Words) -> bytes:
        if len(words) < 2:
            raise _wrong_number("set")
        self._check(STORE)
        ms = DEFAULT_MS
        if len(words) > 2:
            factor = {b"EX": 1000, b"PX": 1}.get(words[2].upper())
            if factor is None or len(words) != 4:
                raise _Refused("ERR syntax error")
            ms = _integer(words[3]) * factor
            if not 0 < ms <= MAX_MS:
                raise _Refused("ERR invalid expire time in 'set' command")
        if len(words[1]) > MAX_VALUE:
            raise _Refused(f"ERR the value has more than {MAX_VALUE} bytes")
        self._server.cache.set((self._database, words[0]), words[1], ms)
        return resp.OK

    # -- channels ------------------------------------------------------------------------------------------

    def _subscribe(self, words: Words) -> bytes:
        if not words:
            raise _wrong_number("subscribe")
        self._check(SUBSCRIBE)
        channel = self._server.channel
        assert channel is not None
        for name in words:
            self._check_channel(name)
        if len(self._channels.keys() | set(words)) > MAX_CHANNELS:
            raise _Refused(f"ERR a client may subscribe to {MAX_CHANNELS} channels")
        for name in words:
            self._channels[name] = None
            # The confirmation goes before the positions.
            self._replies.append(_confirmation(b"subscribe", name, len(self._channels)))
            self._send_replies()
            channel.subscribe(self.subscriber, name)
        return b""

    def _unsubscribe(self, words: Words) -> bytes:
        channel = self._server.channel
        assert channel is not None
        replies: list[bytes] = []
        for name in words or list(self._channels):
            if self._channels.pop(name, self) is None:
                channel.unsubscribe(self.subscriber, name)
            replies.append(_confirmation(b"unsubscribe", name, len(self._channels)))
        return b"".join(replies) or _confirmation(b"unsubscribe", None, 0)

    def _pubsub(self, words: Words) -> bytes:
        if not words or words[0].upper() != b"NUMSUB":
            raise _Refused("ERR unknown subcommand. Try PUBSUB NUMSUB.")
        self._check(SUBSCRIBE)
        channel = self._server.channel
        assert channel is not None
        return resp.array(
            part for name in words[1:] for part in (resp.bulk(name), resp.integer(channel.count(name)))
        )

    def _publish_line(self, words: Words) -> bytes:
        if len(words) != 2:
            raise _wrong_number("publish")
        self._check(PUBLISH)
        channel, (name, line) = self._server.channel, words
        assert channel is not None
        self._check_channel(name)
        if name != channel.name and (b" " in name or not _is_text(name[len(channel.name) + 1 :])):
            raise _Refused("ERR the name of a channel must be one word of UTF-8 text")
        # On sub-channels too: Synapse takes a line wherever it comes from.
        self._check_line(channel, line)
        if name == channel.name:
            if channel.refuses(self.publisher, line):
                raise _Refused("MISCONF earlier rows are not on disk yet, and resp_ack is durable-only")
            self._lines.append(line)
        else:
            channel.publish_beside(self.publisher, name, line)
        return resp.integer(channel.count(name))

    def _check_line(self, channel: ServedChannel, line: bytes) -> None:
        """Refuse what cannot be passed on to other daemons, and what the key may not say."""
        assert self.access is not None
        if not _is_text(line):
            raise _Refused("ERR a message must be one line of UTF-8 text, and not empty")
        why = line_refusal(self.access, line, channel.runs)
        if why:
            self._server.refused += 1
            self._server.complain(f"{self.peer}: {why}")
            raise _Refused(f"NOPERM {why}")

    def _publish(self) -> None:
        """Pass what was published by these requests."""
        lines, self._lines = self._lines, []
        if lines and self._server.channel is not None:
            self._server.channel.publish(self.publisher, lines)

    def _check_channel(self, name: bytes) -> None:
        channel = self._server.channel
        assert channel is not None
        if len(name) > MAX_CHANNEL_NAME:
            raise _Refused(f"ERR the name of a channel has at most {MAX_CHANNEL_NAME} bytes")
        if name != channel.name and not name.startswith(channel.name + b"/"):
            own, shown = channel.name.decode(), printable(name.decode("utf-8", "replace"), limit=100)
            raise _Refused(f"NOPERM this port has the channels of {own}, and not {shown}")


class _Refused(Exception):
    """The reply is an error, with this text."""


def _is_text(data: bytes) -> bool:
    """Whether this is one line of text, and not empty."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return bool(text) and "\n" not in text and "\r" not in text


def _wrong_number(name: str) -> _Refused:
    return _Refused(f"ERR wrong number of arguments for '{name}' command")


def _integer(word: bytes) -> int:
    if not word.isdigit() or len(word) > 15:
        raise _Refused("ERR value is not an integer or out of range")
    return int(word)


def _confirmation(kind: bytes, name: bytes | None, count: int) -> bytes:
    named = resp.NONE if name is None else resp.bulk(name)
    return resp.array([resp.bulk(kind), named, resp.integer(count)])


HANDLERS: Final[Mapping[bytes, Handler]] = {
    b"AUTH": RespConnection._auth,
    b"CLIENT": RespConnection._client,
    b"GET": RespConnection._get,
    b"HELLO": RespConnection._hello,
    b"INFO": RespConnection._info,
    b"PING": RespConnection._ping,
    b"PUBLISH": RespConnection._publish_line,
    b"PUBSUB": RespConnection._pubsub,
    b"QUIT": RespConnection._quit,
    b"SELECT": RespConnection._select,
    b"SET": RespConnection._set,
    b"SUBSCRIBE": RespConnection._subscribe,
    b"UNSUBSCRIBE": RespConnection._unsubscribe,
}
"""The commands that Synapse, redis-cli, redis-py and `synrepl inspect` need, and no more."""
