"""What goes over the Redis of a homeserver, as nobody of ours sees it: a socket, hiredis, and splitting.

Nothing of synrepl is used here, so that what synrepl tells can be held against it.
"""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import hiredis

CONNECT_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 0.02  # what is said before we are back is lost
STEP_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Message:
    """Something that was published."""

    at: float
    """On the monotonic clock."""
    channel: str
    payload: str

    @property
    def words(self) -> list[str]:
        """The name of the command, and the rest in one."""
        return self.payload.split(" ", 1)


@dataclass(frozen=True)
class Fact:
    """RDATA of one token: `rows` as JSON texts in one form, so that they can be compared."""

    stream: str
    writer: str
    token: int
    rows: tuple[str, ...]
    at: float = field(default=0.0, compare=False)
    """On the monotonic clock."""


@dataclass(frozen=True)
class Position:
    """A writer says where it stands."""

    stream: str
    writer: str
    previous: int
    token: int


class Recorder:
    """Keeps every message on the channels of a homeserver, from `start` on. Comes back when Redis does."""

    def __init__(self, port: int, server_name: str, password: str = "") -> None:
        self._port = port
        self._password = password
        self._channels = [f"{server_name}/USER_IP", server_name]
        self._changed = threading.Condition()
        self._messages: list[Message] = []
        self._subscribed = 0
        self._is_ending = False
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def subscriptions(self) -> int:
        """How often it has subscribed."""
        with self._changed:
            return self._subscribed

    def start(self) -> None:
        """Begin, and return once every message is heard."""
        self._thread.start()
        self.wait_for_subscription(1)

    def wait_for_subscription(self, number: int, seconds: float = 30.0) -> None:
        """Return once it has subscribed for the first, second, ... time."""
        with self._changed:
            is_there = self._changed.wait_for(lambda: self._subscribed >= number, seconds)
        assert is_there, "the recorder could not subscribe"

    def stop(self) -> None:
        """Record no more."""
        self._is_ending = True
        with suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(CONNECT_SECONDS)

    # What it has heard

    def mark(self) -> int:
        """Here: the other methods can be told to look only at what is said from now on."""
        with self._changed:
            return len(self._messages)

    def messages(self, after: int = 0, name: str | None = None) -> list[Message]:
        """What was published, the commands of this name if it is given."""
        with self._changed:
            found = self._messages[after:]
        return [message for message in found if name is None or message.words[0] == name]

    def facts(self, after: int = 0) -> list[Fact]:
        """The RDATA, batches of one writer put together; a batch that has no end yet is left out."""
        facts = []
        batches: dict[tuple[str, str], list[str]] = {}
        for message in self.messages(after, "RDATA"):
            _, stream, writer, token, row = message.payload.split(" ", 4)
            rows = batches.setdefault((stream, writer), [])
            rows.append(canonical(json.loads(row)))
            if token != "batch":
                facts.append(Fact(stream, writer, int(token), tuple(rows), message.at))
                rows.clear()
        return facts

    def positions(self, after: int = 0) -> list[Position]:
        """The POSITIONs."""
        told = (message.payload.split(" ") for message in self.messages(after, "POSITION"))
        return [
            Position(stream, writer, int(previous), int(token)) for _, stream, writer, previous, token in told
        ]

    def wait_for(self, name: str, after: int = 0, seconds: float = 30.0, containing: str = "") -> Message:
        """The first such command, or the failure of the test when it does not come."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                for message in self._messages[after:]:
                    if message.words[0] == name and containing in message.payload:
                        return message
                left = deadline - time.monotonic()
                assert left > 0, f"no {name} {containing} within {seconds:g} s"
                self._changed.wait(left)

    def wait_until_quiet(self, quiet: float = 2.0, seconds: float = 60.0) -> None:
        """Return once no rows and no positions were told for a while."""
        began = time.monotonic()
        while True:
            now = time.monotonic()
            told = [message.at for message in self.messages() if message.words[0] in ("RDATA", "POSITION")]
            if now - max(told[-1] if told else began, began) >= quiet:
                return
            assert now - began < seconds, f"not quiet within {seconds:g} s: {self.messages()[-5:]}"
            time.sleep(STEP_SECONDS)

    # The thread

    def _run(self) -> None:
        while not self._is_ending:
            with suppress(OSError):
                with socket.create_connection(("127.0.0.1", self._port), CONNECT_SECONDS) as connection:
                    self._socket = connection
                    connection.settimeout(None)
                    self._listen(connection)
            time.sleep(RETRY_SECONDS)

    def _listen(self, connection: socket.socket) -> None:
        reader = hiredis.Reader()
        if self._password:
            connection.sendall(f"AUTH {self._password}\r\n".encode())
        connection.sendall(f"SUBSCRIBE {' '.join(self._channels)}\r\n".encode())
        while octets := connection.recv(1 << 16):
            reader.feed(octets)
            now = time.monotonic()
            with self._changed:
                while (reply := reader.gets()) is not False:
                    self._keep(reply, now)
                self._changed.notify_all()

    def _keep(self, reply: Any, now: float) -> None:
        if reply == b"OK":
            return
        kind, channel, what = reply
        if kind == b"message":
            self._messages.append(Message(now, channel.decode(), what.decode()))
        elif kind == b"subscribe" and what == len(self._channels):
            self._subscribed += 1


def canonical(row: Any) -> str:
    """A row in the one form in which rows are compared."""
    return json.dumps(row, sort_keys=True, separators=(",", ":"))


def table(facts: Iterable[Fact]) -> str:
    """What was told, in Markdown: stream, writers, rows, facts, and how many facts were told before."""
    by_stream: dict[str, list[Fact]] = {}
    for fact in facts:
        by_stream.setdefault(fact.stream, []).append(fact)
    lines = ["| stream | writers | rows | facts | repeated |", "|---|---|---|---|---|"]
    for stream, told in sorted(by_stream.items()):
        writers = ", ".join(sorted({fact.writer for fact in told}))
        repeated = Counter((fact.token, fact.rows) for fact in told)
        lines.append(
            f"| {stream} | {writers} | {sum(len(fact.rows) for fact in told)} | {len(told)} |"
            f" {sum(repeated.values()) - len(repeated)} |"
        )
    return "\n".join(lines) + "\n"
