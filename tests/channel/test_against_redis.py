"""The port beside a real Redis: the same lines are read as the same words, and answered in the same forms."""

import random
import socket
from collections.abc import Iterator
from typing import Final

import pytest

from synrepl.channel.resp_codec import READER, RequestParser
from synrepl.errors import RemoteProtocolError
from tests.channel.test_connection import Site
from tests.servers.redis import RedisServer

SECONDS: Final = 20.0
SEED: Final = 20261129
LINES: Final = 400
PARTS: Final = [
    "a",
    "b c",
    " ",
    "  ",
    '"',
    '"',
    "'",
    "'",
    "\\",
    "\\'",
    '\\"',
    "\\n",
    "\\x41",
    "\\xg",
    "é",
    "\t",
]

END: Final = "-ERR unknown"


@pytest.fixture(scope="module")
def redis_port() -> Iterator[int]:
    """That of a real Redis."""
    with RedisServer() as server:
        yield server.port


class Peer:
    """A connection to a Redis, which reads until the error that the last request of each question is."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)

    def say(self, data: bytes) -> bytes:
        """Send this; return what is answered."""
        self.socket.sendall(data + b"*1\r\n$3\r\nEND\r\n")
        found = b""
        while END.encode() not in found or not found.endswith(b"\r\n"):
            received = self.socket.recv(65_536)
            if not received:
                break
            found += received
        return found.partition(b"-ERR unknown command")[0]


def words_here(line: bytes) -> list[bytes] | str:
    """How the port reads a line: the words after the first, or why it does not."""
    parser = RequestParser((b"RPUSH",), READER)
    parser.feed(line)
    try:
        words = parser.next()
    except RemoteProtocolError as error:
        return error.why
    assert words is not None
    return words[1:]


def words_there(port: int, line: bytes) -> list[bytes] | str:
    """How Redis does: the list that it makes of them."""
    peer = Peer(port)
    answer = peer.say(b"DEL k\r\n" + line + b"LRANGE k 0 -1\r\n")
    peer.socket.close()
    if b"Protocol error" in answer:
        return answer.partition(b"-ERR ")[2].split(b"\r\n")[0].decode()
    parser = RequestParser(limits=READER)
    parser.feed(answer[answer.index(b"*") :])
    return [b"k", *(parser.next() or [])]


def test_lines_are_read_as_redis_reads_them(redis_port: int) -> None:
    """With quotes and escapes wherever they may be."""
    chance = random.Random(SEED)
    kinds = set()
    for _ in range(LINES):
        text = "".join(chance.choice(PARTS) for _ in range(chance.randint(1, 7)))
        line = f"RPUSH k x {text}\r\n".encode()
        here = words_here(line)
        assert here == words_there(redis_port, line), line
        kinds.add(type(here))
    assert kinds == {list, str}


REQUESTS: Final = (
    "PING",
    "PING x",
    "ECHO x",
    "SELECT 1",
    "SELECT 99",
    "SET k v PX 60000",
    "SET k v NX XX",
    "GET k",
    "GET none",
    "MGET k none",
    "EXISTS k k none",
    "TTL k",
    "PTTL none",
    "TYPE k",
    "TYPE none",
    "DEL k none",
    "CONFIG GET databases",
    "CONFIG GET none",
    "CLIENT GETNAME",
    "CLIENT SETNAME x",
    "CLIENT GETNAME",
    "CLIENT ID",
    "CLIENT INFO",
    "CLIENT LIST",
    "CLIENT LIST TYPE pubsub",
    "COMMAND COUNT",
    "COMMAND INFO get none",
    "INFO",
    "PUBSUB NUMSUB hs",
    "UNSUBSCRIBE",
    "PUBLISH hs x",
    "SUBSCRIBE hs",
    "PING x",
    "UNSUBSCRIBE hs",
    "HELLO",
    "HELLO 4",
    "HELLO 3 AUTH",
    "GET",
    "RESET",
    "GET none",
)


def form(reply: bytes) -> str:
    """What a reply is made of: numbers and texts may be others, and so may how many there are in a text."""
    found: list[str] = []
    rest = reply
    while rest:
        head, _, rest = rest.partition(b"\r\n")
        kind, number = head[:1].decode(), head[1:]
        if kind in "$=" and number != b"-1":
            rest = rest[int(number) + 2 :]
        is_counted = kind in "*%~>" or number == b"-1"
        code = number.split(b" ")[0].decode() if kind == "-" else ""
        found.append(kind + (number.decode() if is_counted else "") + code)
    return " ".join(found)


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_answers_have_the_form_of_redis(redis_port: int, protocol: str) -> None:
    """Of both protocols."""
    here, there = Site().client(), Peer(redis_port)
    for words in (f"HELLO {protocol}", *REQUESTS):
        parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words.split())
        request = f"*{len(words.split())}\r\n{parts}".encode()
        ours, theirs = form(here.say(request).encode()), form(there.say(request))
        if words.startswith("COMMAND INFO"):
            # We name fewer flags and categories.
            ours, theirs = ours[:2], theirs[:2]
        assert ours == theirs, words
    there.socket.close()
