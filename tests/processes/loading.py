"""What these tests share: sizes, facts that can be told apart, a way to post them, what a process says."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import msgspec

from synrepl.streams.facts import Fact, decode_facts
from tests.service.processes import ROOT

__all__ = [
    "LONG",
    "MIB",
    "Asker",
    "Known",
    "RawReader",
    "Recorder",
    "Refused",
    "Unanswered",
    "changelog",
    "ids_of",
    "made_rows",
    "memory",
    "report",
    "size",
]

LONG: Final = os.environ.get("SYNREPL_LONG") == "1"
MIB: Final = 1024 * 1024
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
PATIENCE_SECONDS: Final = 600.0 if LONG else 60.0

PIPE_BYTES: Final = 4096
"""As small as pipes can be, so that whoever does not read soon holds up who writes."""

_ID: Final = re.compile(r"~(\d+)~")


def size(short: int, long: int) -> int:
    """How much, by whether there is time."""
    return long if LONG else short


def drawn_seed() -> int:
    """What a test draws its kills and cuts from: the same in each run, others by night (`scripts/night`)."""
    return int(os.environ.get("SYNREPL_FIRST_SEED") or 20261129)


def report(text: str) -> None:
    """A number worth knowing: shown by ``pytest -s``, and with a failure."""
    print(f"[{'long' if LONG else 'short'}] {text}", flush=True)


def made_rows(stream: str, number: int, *, padding: int = 0) -> list[Any]:
    """The rows of the fact with this number; every tenth fact has three of them."""
    mark = f"~{number}~" + "x" * padding
    row: list[Any]
    match stream:
        case "events":
            row = ["ev", [f"${mark}:a", "!r:a", "m.room.message", None, None, None, None, False, False]]
        case "receipts":
            row = ["!r:a", "m.read", f"@{mark}:a", "$e:a", None, {}]
        case _:
            row = [f"@{mark}:a"]
    return [row] * (3 if number % 10 == 0 and not padding else 1)


def ids_of(text: str) -> list[int]:
    """The numbers of the facts that these rows were made from, one a row."""
    return [int(found) for found in _ID.findall(text)]


def memory(pid: int, what: str = "VmRSS") -> int:
    """The bytes that a process holds in memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{what}:"))) * 1024


class Unanswered(Exception):
    """There was no whole answer; whether the question was heard is not known."""


class Refused(Exception):
    """The answer is an error."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:300]!r}")
        self.status = status
        self.body = body


class Asker:
    """A kept-alive HTTP connection to a daemon."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> bytes:
        """One question. Raises `Unanswered` and `Refused`."""
        try:
            self._connection.request(method, path, body, headers)
            if self._connection.sock is not None:
                self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answer = self._connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Unanswered(repr(error)) from error
        if answer.status >= 400:
            raise Refused(answer.status, data)
        return data

    def post(
        self, stream: str, facts: Sequence[Any], *, writer: str | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """Append facts."""
        body: dict[str, Any] = {"facts": facts}
        if writer is not None:
            body["writer"] = writer
        if key is not None:
            body["idempotency_key"] = key
        answer = self.ask("POST", f"/v1/streams/{stream}/facts", msgspec.json.encode(body))
        found: dict[str, Any] = json.loads(answer)
        return found


def changelog(url: str) -> Iterator[Fact]:
    """Every fact that a daemon keeps, as it tells them."""
    with Asker(url) as asker:
        yield from decode_facts(asker.ask("GET", "/v1/changelog?since=0"))


class Known(NamedTuple):
    """A fact that the daemon acknowledged."""

    stream: str
    writer: str
    token: int
    number: int


class _Printed(msgspec.Struct):
    type: str
    stream: str = ""
    writer: str = ""
    token: int = 0
    rows: msgspec.Raw = msgspec.Raw(b"")


class Recorder:
    """A process whose standard output is JSON lines, and every line of it that is complete.

    The pipe is ours, so what the process wrote before a kill is there after it. `facts` are the facts it
    told, in order; one whose rows are not all there is `trouble`.
    """

    def __init__(self, *arguments: str, cwd: Path) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self.facts: list[Known] = []
        self.others: list[str] = []
        self.trouble: list[str] = []
        self._is_over = False
        self._gate = threading.Event()
        self._gate.set()
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pipesize=PIPE_BYTES,
        )
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        decoder = msgspec.json.Decoder(_Printed)
        rest = b""
        while self._gate.wait() and (chunk := os.read(self._process.stdout.fileno(), PIPE_BYTES)):
            *lines, rest = (rest + chunk).split(b"\n")
            with self._changed:
                for line in lines:
                    self._line(decoder, line)
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _line(self, decoder: msgspec.json.Decoder[_Printed], line: bytes) -> None:
        try:
            told = decoder.decode(line)
            if told.type != "rdata":
                self.others.append(line.decode())
                return
            numbers = ids_of(bytes(told.rows).decode())
            assert len(numbers) == (3 if numbers[0] % 10 == 0 else 1), "not all of a fact's rows"
            assert len(set(numbers)) == 1, "rows of two facts in one"
            self.facts.append(Known(told.stream, told.writer, told.token, numbers[0]))
        except Exception as error:
            self.trouble.append(f"{error!r} in {line[:300]!r}")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self.trouble.append(f"stderr: {line.decode(errors='replace')}")

    def wait_until(self, is_enough: Callable[[], bool], what: str) -> None:
        """Until it has told enough. `is_enough` looks at our lists, and is cheap."""
        with self._changed:
            self._changed.wait_for(
                lambda: is_enough() or self._is_over or bool(self.trouble), PATIENCE_SECONDS
            )
            assert is_enough(), (
                f"waited for {what}; got {len(self.facts)} facts, the last {self.facts[-1:]},"
                f" other lines {self.others[-5:]}, trouble {self.trouble[:5]}"
            )

    def wait_for_line(self, text: str) -> None:
        """Until it has told something that is no fact."""
        self.wait_until(lambda: any(text in line for line in self.others), f"a line with {text}")

    def hold(self, is_held: bool) -> None:
        """Leave what it writes in the pipe, so that its next write has to wait; or go on reading."""
        if is_held:
            self._gate.clear()
        else:
            self._gate.set()

    def kill(self) -> None:
        """End it, now, if it is there; afterwards our lists hold all that it told."""
        self._process.kill()
        self._gate.set()
        self._end()

    def terminate(self) -> int:
        """Ask it to end, and wait until it has."""
        self._gate.set()
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(PATIENCE_SECONDS)
        finally:
            self.kill()

    def _end(self) -> None:
        self._process.wait()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "somebody else holds the pipe"
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


class RawReader:
    """A socket that speaks the line protocol by hand."""

    def __init__(self, address: str, *lines: str, receive_bytes: int | None = None) -> None:
        host, port = address.split(":")
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect((host, int(port)))
        self.socket.sendall("".join(line + "\n" for line in lines).encode())
        self._rest = b""

    def chunk(self) -> list[bytes]:
        """The next lines, at least one chunk's worth; empty when the connection is closed."""
        data = self.socket.recv(MIB)
        if not data:
            raise EOFError(f"the server closed the connection; the last was {self._rest[-300:]!r}")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def lines(self) -> Iterator[bytes]:
        """Every line, as it comes."""
        while True:
            yield from self.chunk()

    def wait_for(self, start: bytes) -> list[bytes]:
        """Read up to the chunk with a line that begins so; gives all lines read."""
        had: list[bytes] = []
        while not any(line.startswith(start) for line in had):
            had += self.chunk()
        return had

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()
