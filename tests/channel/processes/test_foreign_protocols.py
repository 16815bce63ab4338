"""Every port of a daemon without a secret, at every protocol that is not its own: nothing comes of it."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.processes.channel import eventually
from tests.processes.loading import Asker
from tests.replicas.processes.replica_line import HttpPipe
from tests.service.processes import Daemon

SECONDS: Final = 20.0
METHODS: Final = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PING",
    "SET",
    "DEL",
    "RESET",
)


def array(*words: str) -> bytes:
    """A request of RESP."""
    parts = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{parts}".encode()


class Protocol(NamedTuple):
    """What a peer says that takes the port for another one. `own` are the ports for which it is meant."""

    data: bytes
    own: frozenset[str] = frozenset()


def hello() -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def protocols(name: str) -> Iterator[tuple[str, Protocol]]:
    """All of them; each would store a row, set a value, and send a command to every process."""
    row = '["@evil:example"]'
    lines = [
        "POSITION push_rules evil 0 5",
        f"RDATA push_rules evil 6 {row}",
        "USER_SYNC evil @evil:example start 1",
        "REMOTE_SERVER_UP evil.example",
    ]
    requests = [array("PUBLISH", name, line) for line in lines]
    arrays = b"".join([*requests, array("SET", "evil", "value")])
    inline = f"SET evil value\r\nPUBLISH {name} REPLICATE\r\n".encode()
    plain = "".join(f"{line}\n" for line in lines).encode()
    for method in METHODS:
        body = b"\r\n" + arrays + inline + plain
        head = f"{method} /evil HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        origin = "Origin: https://evil.example\r\nContent-Type: text/plain\r\n\r\n"
        yield f"HTTP {method}", Protocol((head + origin).encode() + body, frozenset({"HTTP"}))
    yield "HTTP/2", Protocol(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + arrays + plain)
    yield "RESP arrays", Protocol(arrays, frozenset({"RESP"}))
    yield "RESP inline", Protocol(inline, frozenset({"RESP"}))
    yield "lines", Protocol(plain, frozenset({"lines"}))
    yield "lines, CR LF", Protocol(plain.replace(b"\n", b"\r\n"))
    yield "TLS", Protocol(hello() + arrays + plain)
    yield "nothing", Protocol(b"")
    yield "line ends", Protocol(b"\r\n\n\r\n")


class Watcher:
    """Who is told everything: a follower on the line port, and a subscriber at the RESP port."""

    def __init__(self, daemon: Daemon, resp: str, name: str) -> None:
        self._name = name
        self._follower, self._follower_file = self._open(daemon.follow, b"REPLICATE \n", b"POSITION")
        subscribe = array("SUBSCRIBE", name)
        self._subscriber, self._subscriber_file = self._open(resp, subscribe, b":1")
        self._resp = resp

    @staticmethod
    def _open(address: str, greeting: bytes, answer: bytes) -> tuple[socket.socket, Any]:
        made = connect(address)
        made.sendall(greeting)
        file = made.makefile("rb")
        while not file.readline().startswith(answer):
            pass
        return made, file

    def heard(self) -> list[bytes]:
        """All that was told until now: what a marker has behind it."""
        with connect(self._resp) as publisher:
            publisher.sendall(array("PUBLISH", self._name, "REMOTE_SERVER_UP marker.example"))
            assert publisher.recv(100).startswith(b":")
        found: list[bytes] = []
        for file in (self._follower_file, self._subscriber_file):
            while b"marker.example" not in (line := file.readline()):
                assert line, "disconnected"
                found.append(line)
        return found

    def close(self) -> None:
        """Leave."""
        self._follower.close()
        self._subscriber.close()


def connect(address: str) -> socket.socket:
    """A connection to HOST:PORT."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def say(address: str, data: bytes) -> bytes:
    """Send this, and no more; return all that the daemon answers until it closes."""
    with connect(address) as peer:
        answer = b""
        try:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            while some := peer.recv(65_536):
                answer += some
        except ConnectionError:
            pass  # it closed with our bytes unread
    return answer


def say_natively(url: str, data: bytes) -> None:
    """Send this on a native connection over HTTP."""
    with closing(HttpPipe(url)) as pipe:
        pipe.sendall(data)


def state(daemon: Daemon, resp: str) -> dict[str, Any]:
    """What no peer of a wrong port may change. The status is not asked: it is made once a second."""
    with Asker(daemon.url) as asker:
        facts = asker.ask("GET", "/v1/changelog?since=0")
        found: dict[str, Any] = {
            "facts": [line for line in facts.splitlines() if b'"rows"' in line],
            "syncing": json.loads(asker.ask("GET", "/v1/syncing")),
            "leases": json.loads(asker.ask("GET", "/v1/leases")),
        }
    with connect(resp) as peer:
        peer.sendall(array("INFO"))
        info = peer.recv(65_536).decode()
    for name in ("cache_keys", "lines", "publishers", "held_back"):
        found[name] = int(info.split(f"{name}:")[1].split("\r\n")[0])
    return found


def test_every_port_closes_at_every_other_protocol(tmp_path: Path) -> None:
    """A browser, a scanner and a wrong setting speak to whatever port there is."""
    options = ("--server-name", "example.org", "--resp", "tcp:0:interface=127.0.0.1")
    with Daemon(tmp_path, options=options) as daemon:
        resp = next(line for line in daemon.lines if "RESP: listening at tcp:" in line).split("at tcp:")[1]
        ports = {"lines": daemon.follow, "HTTP": daemon.url.removeprefix("http://"), "RESP": resp}
        with closing(Watcher(daemon, resp, "example.org")) as watcher:
            watcher.heard()
            before = state(daemon, resp)
            answers = {}
            for protocol, (data, own) in protocols("example.org"):
                for port, address in ports.items():
                    if port not in own:
                        answers[protocol, port] = say(address, data)
                if "lines" not in own:
                    say_natively(daemon.url, data)
            after = state(daemon, resp)
            heard = b"".join(watcher.heard())

    assert before == after
    assert b"evil" not in heard
    of_resp = [answer for (_, port), answer in answers.items() if port == "RESP"]
    assert all(answer.count(b"\r\n") <= 1 and not answer.startswith((b"+", b":")) for answer in of_resp)
    assert sum(answer.startswith(b"-ERR Protocol error: ") for answer in of_resp) >= len(METHODS) + 3


@pytest.mark.story
def test_each_protocol_works_at_its_own_port(tmp_path: Path) -> None:
    """The same bytes do what they say, so the other test shows something."""
    options = ("--server-name", "example.org", "--resp", "tcp:0:interface=127.0.0.1")
    with Daemon(tmp_path, options=options) as daemon:
        resp = next(line for line in daemon.lines if "RESP: listening at tcp:" in line).split("at tcp:")[1]
        with closing(Watcher(daemon, resp, "example.org")) as watcher:
            watcher.heard()
            before = state(daemon, resp)
            known = dict(protocols("example.org"))
            say(resp, known["RESP arrays"].data)
            over_resp = b"".join(watcher.heard())
            say(daemon.follow, b"REPLICATE \nREMOTE_SERVER_UP evil.example\n")
            over_line = b"".join(watcher.heard())
            after = state(daemon, resp)
        eventually(lambda: any(b"@evil" in fact for fact in state(daemon, resp)["facts"]), "the row")

    assert b"evil.example" in over_resp
    assert b"REMOTE_SERVER_UP evil.example" in over_line
    assert (before["cache_keys"], after["cache_keys"]) == (0, 1)
    assert after["lines"] > before["lines"] + 3
