"""A real Redis with daemons on it: who listens in, who speaks, and what a daemon says of itself."""

import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import hiredis

from tests.processes.loading import PATIENCE_SECONDS, Recorder, Refused, Unanswered
from tests.servers.redis import RedisServer
from tests.service.processes import Daemon

__all__ = [
    "BY_ALL",
    "SECRET",
    "SERVER",
    "Fact",
    "Heard",
    "Kept",
    "Listener",
    "Speaker",
    "Tail",
    "ascends",
    "ask",
    "compact",
    "described",
    "eventually",
    "kept",
    "metric",
    "on_redis",
    "redis_of",
    "status",
    "wait_until_writing",
]

T = TypeVar("T")

SERVER: Final = "localhost"

SECRET: Final = "s3cret"
"""What a daemon that has a secret is asked with, and asks others with."""

STEP_SECONDS: Final = 0.05

BY_ALL: Final = frozenset(
    # Facts: streams of current Synapse, 3: their rows are not filtered by writer, so that several tell them.
    {
        "account_data",
        "device_lists",
        "profile_updates",
        "push_rules",
        "pushers",
        "quarantined_media",
        "sticky_events",
        "thread_subscriptions",
        "to_device",
    }
)


def eventually(
    check: Callable[[], T], what: str | Callable[[], str], *, seconds: float = PATIENCE_SECONDS
) -> T:
    """What `check` gives as soon as that is something; a process that is not there is asked again.

    `what` is for the one who reads of the failure; a function is called then.
    """
    until = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            if value := check():
                return value
            last = value
        except (OSError, Unanswered, Refused, hiredis.ReplyError) as error:
            last = error
        if time.monotonic() > until:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {seconds:g} seconds for {text}; the last was {last!r}")
        time.sleep(STEP_SECONDS)


# -- what a daemon says ------------------------------------------------------------------------------------


def ask(url: str, path: str) -> bytes:
    """What it answers to this GET. Raises `Unanswered` and `Refused`."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {SECRET}"})
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unanswered(repr(error)) from error
    finally:
        connection.close()
    if answer.status >= 400:
        raise Refused(answer.status, body)
    return body


def status(url: str) -> dict[str, Any]:
    """``/v1/status``."""
    found: dict[str, Any] = json.loads(ask(url, "/v1/status"))
    return found


def redis_of(url: str) -> dict[str, Any]:
    """What ``/v1/status`` has under ``redis``."""
    found: dict[str, Any] = status(url)["redis"]
    return found


def knows(url: str, stream: str, writer: str) -> bool:
    """Whether it has heard where this writer stands: from there on it misses nothing, and what was before it
    does not ask for."""
    return writer in status(url)["streams"][stream]["writers"]


def described(url: str) -> str:
    """The part of the status that matters when something is wrong."""
    had = status(url)
    return json.dumps(
        {key: had[key] for key in ("state", "errors", "redis", "followers", "serial")}, indent=1
    )


def metric(url: str, name: str, **labels: str) -> float:
    """The value of a metric with these labels, the sum if there are several; 0 if there is none."""
    total = 0.0
    for line in ask(url, "/metrics").decode().splitlines():
        said, _, value = line.rpartition(" ")
        if said.partition("{")[0] == name and all(f'{key}="{one}"' in said for key, one in labels.items()):
            total += float(value)
    return total


class Fact(NamedTuple):
    """A fact that can be compared: its rows are one JSON text."""

    stream: str
    writer: str
    token: int
    rows: str


def kept(url: str) -> list[Fact]:
    """Every fact with rows in a daemon's changelog, in the order in which it took them."""
    return Kept(url).read()


class Kept:
    """The facts of a daemon's changelog, of which each is asked for once: it may be a long one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._serial = 0
        self._facts: list[Fact] = []

    def read(self) -> list[Fact]:
        """Every fact with rows until now, in the order in which the daemon took them."""
        for line in ask(self.url, f"/v1/changelog?since={self._serial}").splitlines():
            said = json.loads(line)
            assert said["serial"] == self._serial + 1, "serials are told without holes"
            self._serial = said["serial"]
            if said["rows"]:
                self._facts.append(Fact(said["stream"], said["writer"], said["token"], compact(said["rows"])))
        return list(self._facts)


def compact(value: Any) -> str:
    """JSON, always the same text for the same value."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def wait_until_writing(daemon: Daemon) -> None:
    """Until it has made sure of its name, and tells."""
    eventually(lambda: redis_of(daemon.url)["is_writing"], "a daemon that tells what it writes")


# -- who is on the channel ---------------------------------------------------------------------------------


def on_redis(
    folder: Path,
    redis: RedisServer,
    name: str,
    *options: str,
    writes: str = "",
    port: int = 0,
    http_port: int = 0,
    server: str = SERVER,
) -> Daemon:
    """A daemon of this name, in a folder of this name, that has joined the channel."""
    home = folder / name
    home.mkdir(exist_ok=True)
    told = ("--redis-writes", writes) if writes else ()
    return Daemon(
        home,
        port=port,
        http_port=http_port,
        options=("--server-name", server, "--instance-name", name, "--redis", redis.url, *told, *options),
    )


class Heard(NamedTuple):
    """A message on Redis, and when it came."""

    at: float
    channel: str
    payload: str

    @property
    def command(self) -> str:
        """Its first word."""
        return self.payload.partition(" ")[0]


class Listener:
    """Hears every channel, on a connection that has nothing to do with the code under test."""

    def __init__(self, redis: RedisServer) -> None:
        self.heard: list[Heard] = []
        self._socket = socket.create_connection(("127.0.0.1", redis.port))
        self._socket.sendall(b"PSUBSCRIBE *\r\n")
        self._reader = hiredis.Reader()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def _read(self) -> None:
        while True:
            try:
                data = self._socket.recv(1024 * 1024)
            except OSError:
                return
            if not data:
                return
            self._reader.feed(data)
            while (message := self._reader.gets()) is not False:
                if message[0] == b"psubscribe":
                    self._ready.set()
                else:
                    channel, payload = (part.decode(errors="backslashreplace") for part in message[2:4])
                    self.heard.append(Heard(time.monotonic(), channel, payload))

    def payloads(self, command: str, channel: str | None = None) -> list[str]:
        """Every message of this kind."""
        return [
            one.payload
            for one in list(self.heard)
            if one.command == command and channel in (None, one.channel)
        ]

    def counted(self, since: int = 0) -> Counter[str]:
        """How many messages of each kind came since there were so many."""
        return Counter(one.command for one in self.heard[since:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._socket.close()


class Speaker:
    """Publishes, on a connection of its own; what it has said Redis has taken."""

    def __init__(self, redis: RedisServer, channel: str = SERVER) -> None:
        self._channel = channel
        self._socket = socket.create_connection(("127.0.0.1", redis.port))
        self._socket.settimeout(60)
        self._reader = hiredis.Reader()

    def say(self, *payloads: str | bytes, channel: str | None = None) -> None:
        """These, in this order."""
        self.publish([(channel or self._channel, one) for one in payloads])

    def publish(self, messages: Iterable[tuple[str, str | bytes]]) -> None:
        """Each payload on its channel, in this order."""
        asked = bytearray()
        count = 0
        for channel, payload in messages:
            words = (
                b"PUBLISH",
                channel.encode(),
                payload if isinstance(payload, bytes) else payload.encode(),
            )
            asked += b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
            count += 1
        self._socket.sendall(asked)
        while count:
            answer = self._reader.gets()
            if answer is False:
                data = self._socket.recv(65536)
                if not data:
                    raise ConnectionResetError("Redis closed the connection")
                self._reader.feed(data)
            elif isinstance(answer, hiredis.ReplyError):
                raise answer
            else:
                count -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()


# -- who follows over TCP ----------------------------------------------------------------------------------


class Tail(Recorder):
    """``synrepl tail`` of a daemon: what it printed, whatever the rows are."""

    def __init__(self, daemon: Daemon, dialect: str, *options: str, cwd: Path, name: str = "") -> None:
        self.told: list[Fact] = []
        self.dialect = dialect
        super().__init__(
            *("-m", "synrepl", "tail", f"tcp:{daemon.follow}", "--http", daemon.url, "--dialect", dialect),
            *("--name", name or f"tail-{dialect}", *options),
            cwd=cwd,
        )

    def _line(self, decoder: Any, line: bytes) -> None:
        said = json.loads(line)
        if said["type"] == "rdata":
            self.told.append(Fact(said["stream"], said["writer"], said["token"], compact(said["rows"])))
            self.facts = self.told  # type: ignore[assignment]  # what failures show
        else:
            self.others.append(line.decode())

    def wait_until_live(self) -> None:
        """Until it is told what comes from now on: it was told where each stream stands."""
        self.wait_for_line('"position"')

    def wait_for_facts(self, count: int) -> None:
        """Until it has printed so many."""
        self.wait_until(lambda: len(self.told) >= count, f"{count} facts at {self.dialect}")


def ascends(facts: Sequence[Fact], *, but: Iterable[str] = ("caches",)) -> list[tuple[Fact, Fact]]:
    """The pairs of facts of one stream and writer whose tokens do not go up."""
    last: dict[tuple[str, str], Fact] = {}
    wrong = []
    for fact in facts:
        before = last.get((fact.stream, fact.writer))
        if before is not None and before.token >= fact.token and fact.stream not in but:
            wrong.append((before, fact))
        last[fact.stream, fact.writer] = fact
    return wrong
