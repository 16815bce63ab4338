"""RESP2 and RESP3, the protocols of Redis, on the server's side: requests out of bytes, and replies as bytes.

A request is an array of bulk strings, such as ``*1``, ``$4`` and ``PING`` on a line each, or a line of words
(inline), as people and the checks of proxies send them. A web page can send lines too, and arrays after them:
so a line that no client sends ends the connection. What a request claims to be is checked before anything is
held for it: a peer costs what it has sent.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from synrepl.errors import RemoteProtocolError
from synrepl.wire.codec import MAX_MESSAGE
from synrepl.wire.text import printable

MAX_INLINE: Final = 1024
"""The most bytes of a line: an inline request, or the head of a part."""


class RequestLimits(NamedTuple):
    """The most words of a request, and the most bytes of them together."""

    words: int
    bytes: int


STRANGER: Final = RequestLimits(10, 16_384)
"""Of a peer that has not authenticated; as in Redis."""

READER: Final = RequestLimits(64, 65_536)
"""Of a peer that may not publish."""

MAX_PUBLISHED: Final = 4 * 1024 * 1024
"""The most bytes of a line that is published at our port: what one line costs is done in one turn."""

PUBLISHER: Final = RequestLimits(64, MAX_PUBLISHED + 16_384)
"""Of a peer that may: one line of the largest size, and what belongs to it."""

MESSAGE: Final = RequestLimits(3, MAX_MESSAGE + 16_384)
"""Of a message between daemons, which may come from a Redis."""

_END: Final = b"\r\n"
_MESSAGE: Final = b"*3\r\n$7\r\nmessage\r\n"
_PUSH: Final = ord(">")
_HTTP_VERSION: Final = re.compile(rb"HTTP/[0-9.]+", re.IGNORECASE)


class RequestParser:
    """Parses requests out of received bytes.

    Of inline requests it takes those whose first word is in `inline`, in capitals. `limits` bound requests.
    """

    def __init__(self, inline: Collection[bytes] = (), limits: RequestLimits = STRANGER) -> None:
        self.limits = limits
        self._inline = inline
        self._data = bytearray()
        self._at = 0
        self._words: list[bytes] = []
        self._missing = 0
        """How many words of the current request are still to come."""
        self._length = -1
        """The length of the next word; -1 before its head."""
        self._size = 0
        """The bytes of `_words`."""

    @property
    def size(self) -> int:
        """The bytes that are held: of requests that are not complete, or were not taken yet."""
        return len(self._data) - self._at + self._size

    def feed(self, data: bytes) -> None:
        """Take received bytes."""
        self._data += data

    def next(self) -> list[bytes] | None:
        """Return the words of the next complete request; None without one.

        Raises `RemoteProtocolError` in Redis' words.
        """
        while (request := self._next()) is not None:
            if request:
                return request
        # Once for all requests of a read: to move the rest for each would take quadratic time.
        del self._data[: self._at]
        self._at = 0
        return None

    def clear(self) -> None:
        """Drop all that is held."""
        self._data, self._at = bytearray(), 0
        self._words, self._missing, self._length, self._size = [], 0, -1, 0

    def _next(self) -> list[bytes] | None:
        """Return the next request (empty: an empty line); None if it is not complete."""
        if not self._missing:
            line = self._line("too big inline request")
            if line is None:
                return None
            if not line.startswith(b"*"):
                words = line.split()
                self._check_inline(words)
                return _quoted_words(line) if b'"' in line or b"'" in line else words
            self._missing = _number(line, "invalid multibulk length")
            if self._missing > self.limits.words:
                raise RemoteProtocolError(self._too_long("multibulk"))
            if self._missing <= 0:
                self._missing = 0
                return []
        while self._missing:
            word = self._word()
            if word is None:
                return None
            self._words.append(word)
            self._size += len(word)
            self._missing -= 1
        words, self._words, self._size = self._words, [], 0
        return words

    def _check_inline(self, words: list[bytes]) -> None:
        """Raise `RemoteProtocolError` for a line that no client of RESP sends, such as one of HTTP.

        Quotes are seen as any other character here: they hide nothing.
        """
        if words and (words[0].upper() not in self._inline or _HTTP_VERSION.fullmatch(words[-1])):
            shown = printable(words[0].decode("utf-8", "replace"), limit=64)
            why = f"no client of Redis sends a line that begins with '{shown}': this is no port for HTTP"
            raise RemoteProtocolError(f"Protocol error: {why}")

    def _word(self) -> bytes | None:
        if self._length < 0:
            line = self._line("too big bulk count string")
            if line is None:
                return None
            if not line.startswith(b"$"):
                raise RemoteProtocolError(f"Protocol error: expected '$', got {_shown(line)}")
            length = _number(line, "invalid bulk length")
            if length < 0 or self._size + length > self.limits.bytes:
                raise RemoteProtocolError(self._too_long("bulk"))
            self._length = length
        end = self._at + self._length
        if len(self._data) < end + 2:
            return None
        if self._data[end : end + 2] != _END:
            raise RemoteProtocolError("Protocol error: invalid bulk length")
        word = bytes(self._data[self._at : end])
        self._at, self._length = end + 2, -1
        return word

    def _line(self, too_long: str) -> bytes | None:
        end = self._data.find(b"\n", self._at, self._at + MAX_INLINE)
        if end < 0:
            if len(self._data) - self._at >= MAX_INLINE:
                raise RemoteProtocolError(f"Protocol error: {too_long}")
            return None
        line = bytes(self._data[self._at : end]).rstrip(b"\r")
        self._at = end + 1
        return line

    def _too_long(self, what: str) -> str:
        return f"Protocol error: {'unauthenticated' if self.limits is STRANGER else 'invalid'} {what} length"


_QUOTED: Final = re.compile(
    rb"""\s*([^\s"']*)(?:"((?:\\.|[^"\\])*+)"|'((?:\\'|[^'])*+)')?(?=\s|$)""", re.DOTALL
)
"""The next word of a line. A quoted part ends the word."""

_ESCAPED: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROLS: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def _quoted_words(line: bytes) -> list[bytes]:
    """Return the words of a line as Redis does: with escapes in double quotes, and none in single ones."""
    words: list[bytes] = []
    line, at = line.strip(), 0
    while at < len(line):
        found = _QUOTED.match(line, at)
        if found is None or found.end() == at:
            raise RemoteProtocolError("Protocol error: unbalanced quotes in request")
        plain, double, single = found.groups(b"")
        words.append(plain + _ESCAPED.sub(_unescaped, double) + single.replace(b"\\'", b"'"))
        at = found.end()
    return words


def _unescaped(found: re.Match[bytes]) -> bytes:
    code, one = found.groups()
    return _CONTROLS.get(one, one) if code is None else bytes([int(code, 16)])


def _number(line: bytes, error: str) -> int:
    digits = line[1:]
    if not (digits.isdigit() or digits == b"-1") or len(digits) > 10:
        raise RemoteProtocolError(f"Protocol error: {error}")
    return int(digits)


def _shown(line: bytes) -> str:
    return repr(chr(line[0])) if line and 32 <= line[0] < 127 else "another character"


OK: Final = b"+OK\r\n"
PONG: Final = b"+PONG\r\n"


def error(text: str) -> bytes:
    """Encode an error; its first word is a code in capitals."""
    return b"-%b\r\n" % " ".join(text.split()).encode("utf-8", "replace")


def integer(number: int) -> bytes:
    """Encode a number."""
    return b":%d\r\n" % number


def bulk(value: bytes) -> bytes:
    """Encode a value."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def array(items: Iterable[bytes]) -> bytes:
    """Encode an array of encoded replies."""
    found = list(items)
    return _items(b"*", len(found), found)


class Encoding(NamedTuple):
    """How replies look whose form depends on the protocol of the connection. The heads are first bytes."""

    number: int
    null: bytes
    """The reply that there is no such value."""
    null_array: bytes
    push_head: bytes
    map_head: bytes
    set_head: bytes
    text_head: bytes

    def push(self, items: Sequence[bytes]) -> bytes:
        """Encode what is no reply to a request, of encoded replies."""
        return _items(self.push_head, len(items), items)

    def map(self, items: Mapping[bytes, bytes]) -> bytes:
        """Encode a map of names to encoded replies."""
        count = len(items) if self.map_head == b"%" else 2 * len(items)
        parts = [part for name, value in items.items() for part in (bulk(name), value)]
        return _items(self.map_head, count, parts)

    def set(self, items: Sequence[bytes]) -> bytes:
        """Encode a set of encoded replies."""
        return _items(self.set_head, len(items), items)

    def text(self, value: bytes) -> bytes:
        """Encode text for people."""
        return bulk(value) if self.text_head == b"$" else b"=%d\r\ntxt:%b\r\n" % (len(value) + 4, value)


RESP2: Final = Encoding(
    2, b"$-1\r\n", b"*-1\r\n", push_head=b"*", map_head=b"*", set_head=b"*", text_head=b"$"
)
RESP3: Final = Encoding(3, b"_\r\n", b"_\r\n", push_head=b">", map_head=b"%", set_head=b"~", text_head=b"=")

ENCODINGS: Final[Mapping[bytes, Encoding]] = {b"2": RESP2, b"3": RESP3}


def _items(head: bytes, count: int, items: Iterable[bytes]) -> bytes:
    return b"%b%d\r\n%b" % (head, count, b"".join(items))


def read_messages(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the channels and payloads of whole messages, as `message` encodes them.

    Bytes after the last whole message are ignored. Raises `RemoteProtocolError` if the data is something else
    than messages.
    """
    parser = RequestParser(limits=MESSAGE)
    parser.feed(data)
    while (words := parser.next()) is not None:
        if len(words) != 3:
            raise RemoteProtocolError("this is no message of a channel")
        yield words[1], words[2]


def split_messages(data: bytes, most: int) -> Iterator[bytes]:
    """Yield whole messages as they are, in pieces of so many bytes at most, if no message has more."""
    if len(data) <= most:
        yield data
        return
    piece: list[bytes] = []
    size = 0
    for channel, payload in read_messages(data):
        one = message(channel, payload)
        if piece and size + len(one) > most:
            yield b"".join(piece)
            piece, size = [], 0
        piece.append(one)
        size += len(one)
    yield b"".join(piece)


def message(channel: bytes, payload: bytes) -> bytes:
    """Encode a message of a channel to its subscriber, in RESP2."""
    return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (_MESSAGE, len(channel), channel, len(payload), payload)


class PushEncoder:
    """Changes messages, as `message` encodes them, into those of RESP3, which differ in the first byte.

    It keeps the last ones: those that go to many subscribers are changed once.
    """

    def __init__(self) -> None:
        self._messages = b""
        self._pushes = b""

    def encode(self, messages: bytes) -> bytes:
        """Return whole messages in the form of RESP3."""
        if messages is not self._messages:
            self._messages, self._pushes = messages, _pushes(messages)
        return self._pushes


def _pushes(messages: bytes) -> bytes:
    found, size = bytearray(messages), len(messages)
    at, head = 0, b" "
    while at < size:
        found[at] = _PUSH
        if messages.startswith(head, at):
            at += len(head)  # of the same channel
        else:
            end = messages.index(_END, at + len(_MESSAGE))
            end += 4 + int(messages[at + len(_MESSAGE) + 1 : end])
            head, at = messages[at:end], end
        end = messages.index(_END, at)
        at = end + 4 + int(messages[at + 1 : end])
    return bytes(found)
