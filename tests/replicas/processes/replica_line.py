"""A replica's line to a daemon, on a socket or over HTTP; a test says what it sends."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, Protocol

from synrepl.http_api.routes import OCTETS
from synrepl.replicas.routes import CONNECTION, NATIVE_BYTES, OFFSET
from synrepl.replicas.wire.native import VERSION
from synrepl.wire.codec import LineBuffer
from tests.service.processes import PATIENCE_SECONDS, Daemon

__all__ = ["HttpPipe", "Line", "Pipe", "open_line"]

MOST: Final = NATIVE_BYTES.max_body or 0


class Pipe(Protocol):
    """What carries the bytes: a socket, or `HttpPipe`."""

    def settimeout(self, seconds: float) -> None:
        """How long each of these may take."""

    def sendall(self, data: bytes) -> None:
        """Send these bytes."""

    def recv(self, most: int) -> bytes:
        """Receive some bytes; none at the end."""


class HttpPipe:
    """A native connection over HTTP: what is sent is posted, what is received is the endless answer."""

    def __init__(self, url: str, secret: str = "") -> None:
        host = url.removeprefix("http://")
        self._headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._down, self._up = (http.client.HTTPConnection(host, timeout=PATIENCE_SECONDS) for _ in range(2))
        self._down.request("POST", "/v1/native", None, self._headers)
        self._answer = self._down.getresponse()
        assert self._answer.status == 200, self._answer.read()
        self._name = self._answer.headers[CONNECTION]
        self._sent = 0

    def settimeout(self, seconds: float) -> None:
        """How long a request, or the next piece of the answer, may take."""
        for connection in (self._down, self._up):
            connection.timeout = seconds
            if connection.sock is not None:
                connection.sock.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        """Post these bytes, and wait until they are handled; those after the end go nowhere."""
        for at in range(0, len(data), MOST):
            some = data[at : at + MOST]
            headers = {CONNECTION: self._name, OFFSET: str(self._sent), "Content-Type": OCTETS}
            self._up.request("POST", "/v1/native/bytes", some, self._headers | headers)
            answer = self._up.getresponse()
            said = answer.read()
            assert answer.status == 200 or b"no_connection" in said, said
            self._sent += len(some)

    def recv(self, most: int) -> bytes:
        """Read some of the answer; nothing at its end."""
        return self._answer.read1(most)

    def close(self) -> None:
        """Leave."""
        self._down.close()
        self._up.close()


class Line:
    """The lines of a connection."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._reader = LineBuffer()
        self._heard: list[str] = []

    def say(self, *lines: str) -> None:
        """Send these lines."""
        self._pipe.sendall("".join(f"{line}\n" for line in lines).encode())

    def greet(self, secret: str = "", **hello: Any) -> None:
        """Say HELLO."""
        self.say("HELLO " + json.dumps({"uuid": "u", "version": VERSION, "secret": secret} | hello))

    def hear(self, *words: str) -> str:
        """The next line that begins with one of these words."""
        while True:
            while self._heard:
                if (line := self._heard.pop(0)).startswith(words):
                    return line
            if not (data := self._pipe.recv(65_536)):
                raise AssertionError(f"the connection ended without {' or '.join(words)}")
            self._heard += [line.decode() for line in self._reader.receive(data)]

    def refusal(self) -> dict[str, Any]:
        """Why the replica is refused."""
        found: dict[str, Any] = json.loads(self.hear("REFUSED").partition(" ")[2])
        return found


@contextmanager
def open_line(daemon: Daemon, secret: str = "", *, over_http: bool) -> Iterator[Line]:
    """Connect to the native port of this daemon, or to that of HTTP with this secret."""
    if over_http:
        with closing(HttpPipe(daemon.url, secret)) as pipe:
            yield Line(pipe)
    else:
        host, _, port = daemon.follow.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as made:
            yield Line(made)
