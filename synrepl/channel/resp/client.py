"""A client of the RESP port: what it has said of itself, its rights, and its channels."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from synrepl.base.access import Access, Key, Right
from synrepl.base.rights import Operation, missing_right
from synrepl.channel import resp_codec as resp
from synrepl.channel.ends import ChannelPublisher, ChannelSubscriber
from synrepl.channel.publish_rights import line_refusal
from synrepl.channel.served_channel import ServedChannel
from synrepl.wire.scope import ALL_STREAMS
from synrepl.wire.text import printable

if TYPE_CHECKING:
    from synrepl.channel.resp.server import RespServer

MAX_CHANNELS: Final = 16
"""The most channels of one client. A homeserver has the channel of its name and a few beside it."""

MAX_CHANNEL_NAME: Final = 255
"""The most bytes of the name of a channel."""

MAX_LISTED: Final = 200
"""The most clients that the status names, or CLIENT LIST."""

OTHER_CLIENTS: Final = Operation("CLIENT LIST", Right.READ, ALL_STREAMS)
"""To see clients with other keys than one's own."""


class RefusedRequest(Exception):
    """The reply is an error, with this text."""


class RespClient:
    """One client, as `commands.answer` uses it. `peer` is its address, for messages.

    `write` sends messages of the channels, and `confirm` a reply at once: messages may follow it.
    `first_access` returns the rights that the client has without AUTH (None: it must authenticate).
    """

    def __init__(
        self,
        server: "RespServer",
        write: Callable[[bytes], object],
        confirm: Callable[[bytes], object],
        first_access: Callable[[], Access | None],
    ) -> None:
        self.server = server
        self.peer = ""
        self.id = next(server.client_ids)
        self.since = self.active_at = server.clock.seconds()
        """When it connected, and when it sent something last."""
        self.access: Access | None = None
        """The rights of the client; None until it has authenticated."""
        self.key: Key | None = None
        self.limits = resp.STRANGER
        """The limits of its requests."""
        self.encoding = resp.RESP2
        """The encoding of its replies, and of its messages."""
        self.name = ""
        """What the client calls itself (CLIENT SETNAME)."""
        self.library: dict[str, str] = {}
        """What it says of its library (CLIENT SETINFO)."""
        self.database = 0
        self.is_touching = True
        """Whether a value that it gets counts as used (CLIENT NO-TOUCH)."""
        self.channels: dict[bytes, None] = {}
        self.subscriber = ChannelSubscriber(write)
        self.publisher = ChannelPublisher()
        self.is_closing = False
        """Whether the connection ends after this reply."""
        self.is_costly = False
        """Whether a request was costly since this was reset."""
        self._confirm = confirm
        self._first_access = first_access
        self._lines: list[bytes] = []
        """Lines of the channel itself that are not passed yet."""

    @property
    def key_name(self) -> str:
        """The name of the client's key; empty if it has none, or the shared secret."""
        return self.key.name if self.key is not None else ""

    @property
    def user(self) -> str:
        """By which name it was given its rights; empty if it was given none, or needs no name for them."""
        return "" if self.access is None else self.access.name

    @property
    def channel(self) -> ServedChannel:
        """The channel of the port, while that serves one."""
        assert self.server.channel is not None
        return self.server.channel

    def end(self) -> None:
        """The client is gone."""
        if self.server.channel is not None:
            for name in self.channels:
                self.channel.unsubscribe(self.subscriber, name)
            self.channel.publisher_lost(self.publisher)

    def describe(self) -> dict[str, Any]:
        """What the status says of this client."""
        channel = self.server.channel
        return {
            "name": self.name or self.user,
            "address": self.peer,
            "subscribes": bool(self.channels),
            "publishes": channel is not None and self.publisher in channel.publishers,
        }

    def seen_clients(self) -> Iterator["RespClient"]:
        """Yield the clients that this one may see: all, or those with its key if that is limited."""
        assert self.access is not None
        sees_all = not missing_right(self.access, OTHER_CLIENTS)
        for one in self.server.clients():
            if sees_all or (one.access is not None and one.user == self.user):
                yield one

    # -- rights --------------------------------------------------------------------------------------------

    def log_in(self) -> None:
        """Give the client the rights that it has without AUTH."""
        self._grant(self._first_access(), None)

    def authenticate(self, user: bytes, password: bytes) -> None:
        """Give the client the rights of the key that this proves."""
        keys = self.server.keys
        if not keys.is_required:
            raise RefusedRequest(
                "ERR AUTH <password> called without any password configured for the default user. Are you"
                " sure your configuration is correct?"
            )
        key = keys.find(password)
        if key is None or user.decode("utf-8", "replace") not in ("default", key.name):
            self.server.complain(f"{self.peer} sent a wrong password")
            raise RefusedRequest("WRONGPASS invalid username-password pair or user is disabled.")
        self._lose_publisher()
        self._grant(keys.access(key), key)

    def reset(self) -> None:
        """Make the client what it was when it had connected."""
        if self.channels:
            self.unsubscribe(list(self.channels))
        self._lose_publisher()
        self.speak(resp.RESP2)
        self.name, self.database, self.is_touching = "", 0, True
        self.log_in()

    def speak(self, encoding: resp.Encoding) -> None:
        """Send all from here on in this encoding."""
        self.encoding = encoding
        self.subscriber.encode = self.server.pushes.encode if encoding is resp.RESP3 else None

    def _grant(self, access: Access | None, key: Key | None) -> None:
        self.access, self.key, self.limits = access, key, resp.STRANGER
        if access is not None:
            self.publisher.owner = access.name
            self.limits = resp.PUBLISHER if Right.WRITE in access.rights else resp.READER

    def _lose_publisher(self) -> None:
        """What it has published counts for the key that it had."""
        if self.server.channel is not None:
            self.channel.publisher_lost(self.publisher)

    # -- channels ------------------------------------------------------------------------------------------

    def subscribe(self, names: Sequence[bytes]) -> None:
        """Subscribe to these channels, and send the confirmations."""
        for name in names:
            self._check_channel(name)
        if len(self.channels.keys() | set(names)) > MAX_CHANNELS:
            raise RefusedRequest(f"ERR a client may subscribe to {MAX_CHANNELS} channels")
        for name in names:
            self.channels[name] = None
            # The confirmation goes before the positions.
            self._confirm(self._confirmation(b"subscribe", name))
            self.channel.subscribe(self.subscriber, name)

    def unsubscribe(self, names: Sequence[bytes]) -> bytes:
        """Unsubscribe from these channels (empty: from all), and return the confirmations."""
        replies: list[bytes] = []
        for name in names or list(self.channels):
            if self.channels.pop(name, self) is None:
                self.channel.unsubscribe(self.subscriber, name)
            replies.append(self._confirmation(b"unsubscribe", name))
        return b"".join(replies) or self._confirmation(b"unsubscribe", None)

    def _confirmation(self, kind: bytes, name: bytes | None) -> bytes:
        named = self.encoding.null if name is None else resp.bulk(name)
        return self.encoding.push([resp.bulk(kind), named, resp.integer(len(self.channels))])

    def publish_line(self, name: bytes, line: bytes) -> int:
        """Publish a line of a channel; return how many subscribe to that here."""
        channel = self.channel
        self._check_channel(name)
        if name != channel.name and (b" " in name or not _is_text(name[len(channel.name) + 1 :])):
            raise RefusedRequest("ERR the name of a channel must be one word of UTF-8 text")
        # On sub-channels too: Synapse takes a line wherever it comes from.
        self._check_line(channel, line)
        if name == channel.name:
            if channel.refuses(self.publisher, line):
                raise RefusedRequest("MISCONF earlier rows are not on disk yet, and resp_ack is durable-only")
            self._lines.append(line)
        else:
            channel.publish_beside(self.publisher, name, line)
        return channel.count(name)

    def _check_line(self, channel: ServedChannel, line: bytes) -> None:
        """Refuse what cannot be passed on to other daemons, and what the key may not say."""
        assert self.access is not None
        if not _is_text(line):
            raise RefusedRequest("ERR a message must be one line of UTF-8 text, and not empty")
        why = line_refusal(self.access, line, channel.runs)
        if why:
            self.server.refused += 1
            self.server.complain(f"{self.peer}: {why}")
            raise RefusedRequest(f"NOPERM {why}")

    def publish(self) -> None:
        """Pass what was published since the last time. Raises `RemoteProtocolError` as the channel does."""
        lines, self._lines = self._lines, []
        if lines and self.server.channel is not None:
            self.channel.publish(self.publisher, lines)

    def _check_channel(self, name: bytes) -> None:
        if len(name) > MAX_CHANNEL_NAME:
            raise RefusedRequest(f"ERR the name of a channel has at most {MAX_CHANNEL_NAME} bytes")
        own = self.channel.name
        if name != own and not name.startswith(own + b"/"):
            raise RefusedRequest(
                f"NOPERM this port has the channels of {own.decode()}, and not {shown_word(name)}"
            )


def _is_text(data: bytes) -> bool:
    """Whether this is one line of text, and not empty."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return bool(text) and "\n" not in text and "\r" not in text


def shown_word(word: bytes) -> str:
    """Return a word of a request as an error shows it."""
    return printable(word.decode("utf-8", "replace"), limit=100)


def whole_number(word: bytes) -> int:
    """Return the number that a word of a request is."""
    if not word.isdigit() or len(word) > 15:
        raise RefusedRequest("ERR value is not an integer or out of range")
    return int(word)
