"""A client of the RESP port: its rights, its channels, and the replies to its requests."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from typing import Protocol as Interface

from synrepl.ports.access import Access, Key, Keyring, Right
from synrepl.ports.rights import Operation, refusal
from synrepl.ports.version import daemon_version
from synrepl.replication.broker.channel_ends import ChannelPublisher, ChannelSubscriber
from synrepl.replication.broker.publish_rights import line_refusal
from synrepl.replication.broker.served_channel import ServedChannel
from synrepl.transports.resp.cache import DEFAULT_MS, MAX_VALUE, ExpiringCache
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

SUBSCRIBE: Final = Operation("SUBSCRIBE", Right.READ, ALL_STREAMS)
PUBLISH: Final = Operation("PUBLISH", Right.WRITE, ALL_STREAMS)
READ: Final = Operation("GET", Right.READ, ALL_STREAMS)
STORE: Final = Operation("SET", Right.WRITE, ALL_STREAMS)

BEFORE_AUTH: Final = frozenset({b"AUTH", b"HELLO", b"QUIT"})
WHILE_SUBSCRIBED: Final = frozenset({b"SUBSCRIBE", b"UNSUBSCRIBE", b"PING", b"QUIT"})

COSTLY: Final = frozenset({b"AUTH", b"HELLO", b"INFO", b"PUBSUB", b"SUBSCRIBE"})
"""What these cost grows with the keys, the names in them, or the streams and writers of the channel."""

Words = Sequence[bytes]
Handler = Callable[["RespClient", Words], bytes]


class IClientServer(Interface):
    """What a client needs of the port (`RespServer`)."""

    channel: ServedChannel | None
    cache: ExpiringCache
    client_ids: Iterator[int]
    keys: Keyring
    pushes: resp.PushEncoder
    refused: int
    why_closed: str

    def complain(self, what: str) -> None:
        """Log what a client did, not too often."""

    def info(self) -> Mapping[str, Any]:
        """What INFO answers."""


class RespClient:
    """Answers the requests of one client. `peer` is its address, for messages.

    `write` sends messages of the channels, and `confirm` a reply at once: messages may follow it.
    """

    def __init__(
        self, server: IClientServer, write: Callable[[bytes], object], confirm: Callable[[bytes], object]
    ) -> None:
        self.peer = ""
        self.encoding = resp.RESP2
        """That of its replies, and of its messages."""
        self.id = next(server.client_ids)
        self.access: Access | None = None
        """The rights of the client; None until it has authenticated."""
        self.key: Key | None = None
        self.limits = resp.STRANGER
        """Those of its requests."""
        self.name = ""
        """What the client calls itself (CLIENT SETNAME)."""
        self.subscriber = ChannelSubscriber(write)
        self.publisher = ChannelPublisher()
        self.is_closing = False
        """Whether the connection ends after this reply."""
        self.is_costly = False
        """Whether a request was `COSTLY` since this was reset."""
        self._server = server
        self._confirm = confirm
        self._channels: dict[bytes, None] = {}
        self._database = 0
        self._lines: list[bytes] = []
        """Lines of the channel itself that are not passed yet."""

    @property
    def key_name(self) -> str:
        """The name of the client's key; empty if it has none, or the shared secret."""
        return self.key.name if self.key is not None else ""

    def end(self) -> None:
        """The client is gone."""
        channel = self._server.channel
        if channel is not None:
            for name in self._channels:
                channel.unsubscribe(self.subscriber, name)
            channel.publisher_lost(self.publisher)

    def describe(self) -> dict[str, Any]:
        """What the status says of this client."""
        channel = self._server.channel
        return {
            "name": self.name or ("" if self.access is None else self.access.name),
            "address": self.peer,
            "subscribes": bool(self._channels),
            "publishes": channel is not None and self.publisher in channel.publishers,
        }

    def answer(self, words: Words) -> bytes:
        """Do what a request asks for, and return the reply. Raises `RemoteProtocolError` like `publish`."""
        name = words[0].upper()
        handler = HANDLERS.get(name)
        if handler is None:
            shown = printable(words[0].decode("utf-8", "replace"), limit=64)
            return resp.error(f"ERR unknown command '{shown}': this is synrepl, and no Redis")
        if self._channels and self.encoding is resp.RESP2 and name not in WHILE_SUBSCRIBED:
            return resp.error(
                f"ERR Can't execute '{name.decode().lower()}': only SUBSCRIBE / UNSUBSCRIBE / PING / QUIT are"
                " allowed in this context"
            )
        if self._server.channel is None and name not in BEFORE_AUTH:
            # Before authentication too: a proxy that checks the port has no password.
            # Closed, since a client that is refused a subscription may not ask again: it connects again.
            self.is_closing = True
            return resp.error(f"LOADING {self._server.why_closed}")
        if self.access is None and name not in BEFORE_AUTH:
            return resp.error("NOAUTH Authentication required.")
        if name in COSTLY:
            self.is_costly = True
            self.publish()
        try:
            return handler(self, words[1:])
        except _Refused as refused:
            return resp.error(str(refused))

    def grant(self, access: Access | None, key: Key | None = None) -> None:
        """Give the client these rights, which `key` has proved."""
        self.access, self.key = access, key
        if access is not None:
            self.publisher.owner = access.name
            self.limits = resp.PUBLISHER if Right.WRITE in access.rights else resp.READER

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
        self.grant(keys.access(key), key)
        return resp.OK

    def _hello(self, words: Words) -> bytes:
        encoding = self.encoding
        if words:
            version = words[0]
            if not version.isdigit():
                raise _Refused("ERR Protocol version is not an integer or out of range")
            if version not in resp.ENCODINGS:
                raise _Refused("NOPROTO unsupported protocol version")
            encoding = resp.ENCODINGS[version]
        login, name = _hello_options(words[1:])
        if login:
            self._auth(login)
        if self.access is None:
            raise _Refused(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO"
                " <proto> AUTH <user> <pass> option can be used to authenticate the client and select the"
                " RESP protocol version at the same time"
            )
        if name is not None:
            self.name = name
        self._speak(encoding)
        return encoding.map(
            {
                b"server": resp.bulk(b"synrepl"),
                b"version": resp.bulk(daemon_version().encode()),
                b"proto": resp.integer(encoding.number),
                b"id": resp.integer(self.id),
                b"mode": resp.bulk(b"standalone"),
                b"role": resp.bulk(b"master"),
                b"modules": resp.array([]),
            }
        )

    def _speak(self, encoding: resp.Encoding) -> None:
        """Send all from here on in this encoding."""
        self.encoding = encoding
        self.subscriber.encode = self._server.pushes.encode if encoding is resp.RESP3 else None

    def _quit(self, words: Words) -> bytes:
        self.is_closing = True
        return resp.OK

    def _ping(self, words: Words) -> bytes:
        if len(words) > 1:
            raise _wrong_number("ping")
        if self._channels and self.encoding is resp.RESP2:
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
            self.name = _client_name(words[1])
            return resp.OK
        if subcommand == b"SETINFO":
            return resp.OK
        raise _Refused("ERR unknown subcommand. Try CLIENT SETNAME or CLIENT SETINFO.")

    def _info(self, words: Words) -> bytes:
        text = "".join(f"{name}:{value}\r\n" for name, value in self._server.info().items())
        return self.encoding.text(f"# synrepl\r\n{text}".encode())

    def _get(self, words: Words) -> bytes:
        if len(words) != 1:
            raise _wrong_number("get")
        self._check(READ)
        value = self._server.cache.get((self._database, words[0]))
        return self.encoding.null if value is None else resp.bulk(value)

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
            self._confirm(self._confirmation(b"subscribe", name, len(self._channels)))
            channel.subscribe(self.subscriber, name)
        return b""

    def _unsubscribe(self, words: Words) -> bytes:
        channel = self._server.channel
        assert channel is not None
        replies: list[bytes] = []
        for name in words or list(self._channels):
            if self._channels.pop(name, self) is None:
                channel.unsubscribe(self.subscriber, name)
            replies.append(self._confirmation(b"unsubscribe", name, len(self._channels)))
        return b"".join(replies) or self._confirmation(b"unsubscribe", None, 0)

    def _confirmation(self, kind: bytes, name: bytes | None, count: int) -> bytes:
        named = self.encoding.null if name is None else resp.bulk(name)
        return self.encoding.push([resp.bulk(kind), named, resp.integer(count)])

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

    def publish(self) -> None:
        """Pass what was published since the last time. Raises `RemoteProtocolError` as the channel does."""
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


def _hello_options(words: Words) -> tuple[Words, str | None]:
    """Return the words of AUTH (empty: there is none), and the name of SETNAME, of the options of HELLO."""
    login: Words = ()
    name: str | None = None
    rest = list(words)
    while rest:
        option = rest.pop(0)
        if option.upper() == b"AUTH" and len(rest) >= 2:
            login, rest = rest[:2], rest[2:]
        elif option.upper() == b"SETNAME" and rest:
            name = _client_name(rest.pop(0))
        else:
            shown = printable(option.decode("utf-8", "replace"), limit=64)
            raise _Refused(f"ERR Syntax error in HELLO option '{shown}'")
    return login, name


def _client_name(word: bytes) -> str:
    """Return the name of a client; it must not look like more than one field of CLIENT LIST."""
    if not all(0x21 <= byte <= 0x7E for byte in word[:MAX_CLIENT_NAME]) or len(word) > MAX_CLIENT_NAME:
        raise _Refused(
            "ERR Client names cannot contain spaces, newlines or special characters, nor more than"
            f" {MAX_CLIENT_NAME} bytes."
        )
    return word.decode()


HANDLERS: Final[Mapping[bytes, Handler]] = {
    b"AUTH": RespClient._auth,
    b"CLIENT": RespClient._client,
    b"GET": RespClient._get,
    b"HELLO": RespClient._hello,
    b"INFO": RespClient._info,
    b"PING": RespClient._ping,
    b"PUBLISH": RespClient._publish_line,
    b"PUBSUB": RespClient._pubsub,
    b"QUIT": RespClient._quit,
    b"SELECT": RespClient._select,
    b"SET": RespClient._set,
    b"SUBSCRIBE": RespClient._subscribe,
    b"UNSUBSCRIBE": RespClient._unsubscribe,
}
"""The commands that Synapse, redis-cli, redis-py and `synrepl inspect` need, and no more."""
