"""Attacks that fill a daemon with names, or a replica with bytes. It answers, and its memory is bounded."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import pytest

from synrepl.replicas.relay.leases import MAX_ANONYMOUS
from synrepl.replicas.wire.blocks import MAX_BLOCK, encode_block
from synrepl.replicas.wire.native import Joining, Welcome, heartbeat_check
from synrepl.streams.digest import EMPTY
from synrepl.streams.facts import Fact, encode_fact
from synrepl.transports.http.append_routes import MAX_WRITERS
from synrepl.wire.position import LogPosition
from tests.processes.channel import eventually, status
from tests.processes.http_proxy import HttpProxy, ProxiedRequest
from tests.processes.loading import MIB, Asker, RawReader, Refused, made_rows, memory, report
from tests.processes.test_flood_attacks import longest_turn
from tests.service.processes import Daemon

TURN_SECONDS: Final = 2.0
"""How much CPU time the reactor may use in one turn, in which nobody else is served."""
LOOK_SECONDS: Final = 0.02
READERS: Final = 5_000
WRITERS: Final = 15_000
APPENDS: Final = 150
ATTACK_SECONDS: Final = 8.0
KEPT_BYTES: Final = 72 * MIB
"""What the allocator of the C library keeps of memory that was let go of: up to 64 MiB."""


class Watch:
    """Asks a daemon for ``/livez`` all along, and looks how large it is.

    `worst` is the longest that an answer took, `turn` the most CPU time of a turn of its reactor, in seconds.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.worst = self.turn = 0.0
        self.trouble: list[str] = []
        self.before = memory(daemon.pid)
        self._daemon = daemon
        self._highest = self.before
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def grown(self) -> int:
        """The bytes by which its memory grew at most."""
        return self._highest - self.before

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive()
        if error == (None, None, None):
            self.turn = longest_turn(self._daemon)

    def _run(self) -> None:
        try:
            with Asker(self._daemon.url) as asker:
                while not self._end.wait(LOOK_SECONDS):
                    began = time.monotonic()
                    asker.ask("GET", "/livez")
                    self.worst = max(self.worst, time.monotonic() - began)
                    self._highest = memory(self._daemon.pid, "VmHWM")
        except Exception as error:
            self.trouble.append(repr(error))

    def check(self, attack: str, most: int) -> None:
        """It answered, no turn was long, and its memory grew by less than `most` bytes."""
        rss = f"RSS {self.before / MIB:.0f}, at most {self._highest / MIB:.0f} MiB"
        report(f"{attack}: {rss}, worst /livez {self.worst:.2f} s, longest turn {self.turn:.2f} s")
        assert self.trouble == []
        assert self.turn < TURN_SECONDS
        assert self.grown < most, self.grown


def test_readers_with_a_new_name_each(tmp_path: Path) -> None:
    """Each held back the log and was looked through for each other one: 5.9 s for a status."""
    codes: dict[int, int] = {}
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker, Watch(daemon) as watch:
        asker.post("receipts", [made_rows("receipts", 1)])
        for number in range(READERS):
            try:
                asker.ask("GET", "/v1/changelog?limit=1", None, {"Synrepl-Reader": f"r{number}"})
                code = 200
            except Refused as refused:
                code = refused.status
            codes[code] = codes.get(code, 0) + 1
            if number % 500 == 0:
                for path in ("/v1/status", "/status", "/metrics", "/v1/leases"):
                    asker.ask("GET", path)
        sizes = {path: len(asker.ask("GET", path)) for path in ("/v1/status", "/v1/leases")}

    watch.check(f"{READERS:,} readers", 30 * MIB)
    assert {200: MAX_ANONYMOUS, 429: READERS - MAX_ANONYMOUS} == codes
    assert sizes["/v1/status"] < MIB / 4


def test_writers_with_a_new_name_each(tmp_path: Path) -> None:
    """Each had a series and a POSITION for good: a scrape took 860 ms."""
    with Daemon(tmp_path) as daemon, Asker(daemon.url) as asker, Watch(daemon) as watch:
        refusals, codes = 0, set()
        for first in range(0, WRITERS, APPENDS):
            appends: list[dict[str, Any]] = [
                {
                    "stream": "receipts",
                    "writer": f"w{number}",
                    "facts": [[["!r:a", "m.read", "@a:a", "$e:a", None, {}]]],
                }
                for number in range(first, first + APPENDS)
            ]
            try:
                asker.ask("POST", "/v1/facts", json.dumps({"appends": appends}).encode())
            except Refused as refused:
                codes.add(json.loads(refused.body)["error"])
                refusals += 1
            if first % 1_500 == 0:
                asker.ask("GET", "/metrics")
        scraped = len(asker.ask("GET", "/metrics"))
        reader = RawReader(daemon.follow, "NAME follower", "REPLICATE")
        reader.wait_for(b"POSITION receipts")
        reader.socket.close()

    watch.check(f"{WRITERS:,} writers", 30 * MIB)
    assert {"too_many_writers"} == codes
    assert refusals == (WRITERS - MAX_WRITERS) // APPENDS + 1
    assert scraped < MIB / 8


class HostileUpstream:
    """Lets a replica join, then sends it what `attack` gives, connection after connection, for some seconds.

    `sent` counts the bytes, `attacks` those connections on which it sent any.
    """

    def __init__(self, attack: Callable[[], Iterator[bytes]], *, serial: int = 5) -> None:
        self.sent = 0
        self.attacks = 0
        self.is_over = threading.Event()
        self._attack = attack
        self._place = LogPosition(1, serial, "d" * 64)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        # What waits for a connection is woken by one.
        socket.create_connection(self._listening.getsockname()).close()
        self._thread.join(60.0)
        self._listening.close()
        assert not self._thread.is_alive()

    def _run(self) -> None:
        until = 0.0
        while not self._end.is_set():
            connection, _ = self._listening.accept()
            with connection:
                connection.settimeout(20.0)
                try:
                    self._greet(connection)
                    until = until or time.monotonic() + ATTACK_SECONDS
                    self.attacks += 1
                    for data in self._attack():
                        if time.monotonic() > until or self._end.is_set():
                            break
                        connection.sendall(data)
                        self.sent += len(data)
                except (OSError, EOFError):
                    pass
            if until and time.monotonic() > until:
                self.is_over.set()

    def _greet(self, connection: socket.socket) -> None:
        position = self._place
        welcome = Welcome(
            history="h",
            uuid="hostile",
            instance="master",
            server_name="hs",
            role="primary",
            position=position,
            trimmed_upto=0,
        )
        trimmed_upto = LogPosition(1, 0, EMPTY)
        joining = Joining(
            join="j", history="h", position=position, trimmed_upto=trimmed_upto, after=0, resumed=False
        )
        answers: dict[bytes, tuple[bytes, Any]] = {
            b"HELLO": (b"WELCOME ", welcome),
            b"JOIN": (b"JOINING ", joining),
        }
        with connection.makefile("rb") as heard:
            for text in heard:
                if (answer := answers.get(text.split()[0])) is not None:
                    word, said = answer
                    connection.sendall(word + msgspec.json.encode(said) + b"\n")
                    if word == b"JOINING ":
                        return
        raise EOFError


def newlines() -> Iterator[bytes]:
    """Lines that say nothing."""
    while True:
        yield b"\n" * 262_144


def heartbeats() -> Iterator[bytes]:
    """Signs of life, and nothing else."""
    beat = f"HEARTBEAT 1 0 {EMPTY} 5 0 {heartbeat_check(1, 0, EMPTY, 5, 0)}\n".encode()
    while True:
        yield beat * 1_000


def too_large_a_block() -> Iterator[bytes]:
    """One block of what was allowed once."""
    yield f"BLOCK facts 1 {256 * MIB} {'0' * 64}\n".encode()
    for _ in range(256):
        yield bytes(MIB)


def changed_block() -> Iterator[bytes]:
    """One block of the largest size, whose checksum is wrong."""
    yield f"BLOCK facts 1 {MAX_BLOCK} {'0' * 64}\n".encode()
    for _ in range(MAX_BLOCK // MIB):
        yield bytes(MIB)


ROWS: Final = b"[" + b'["@a:hs"],' * (3 * MIB) + b'["@a:hs"]]'
LARGE: Final = encode_fact(Fact(1, 1, "push_rules", "master", 0, 1, ROWS, 0, "d" * 64))


def true_block() -> Iterator[bytes]:
    """A fact of 27 MiB, with the right checksum; then a serial that was not announced."""
    yield f"BLOCK facts 1 {len(LARGE)} {sha256(LARGE).hexdigest()}\n".encode()
    for position in range(0, len(LARGE), MIB):
        yield LARGE[position : position + MIB]
    yield encode_block("facts", 1, encode_fact(Fact(99, 1, "push_rules", "master", 0, 1, b"[]", 0, "d" * 64)))


def endless_copy() -> Iterator[bytes]:
    """The facts of a snapshot, again and again."""
    facts = [
        Fact(serial, 1, "push_rules", "master", 0, serial, b'[["@a:hs"]]', 0, "d" * 64)
        for serial in range(1, 6)
    ]
    page = encode_block("facts", len(facts), b"".join(map(encode_fact, facts)))
    while True:
        yield page * 100


@pytest.mark.parametrize(
    ("attack", "most"),
    [
        (newlines, 30 * MIB),
        (heartbeats, 30 * MIB),
        (too_large_a_block, 30 * MIB),
        (changed_block, MAX_BLOCK + 40 * MIB),
        (true_block, 2 * MAX_BLOCK),
        (endless_copy, 40 * MIB),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_hostile_upstream(tmp_path: Path, attack: Callable[[], Iterator[bytes]], most: int) -> None:
    """A replica answers while it is sent what no upstream sends, keeps nothing of it, and its memory comes
    back: one announced block took 832 MB for good."""
    with HostileUpstream(attack) as upstream:
        options = ("--upstream", f"tcp:{upstream.address}", "--server-name", "hs")
        with Daemon(tmp_path, options=options) as daemon, Watch(daemon) as watch:
            assert upstream.is_over.wait(60.0)
            after = memory(daemon.pid)
            with Asker(daemon.url) as asker:
                found = json.loads(asker.ask("GET", "/v1/status"))
            disk = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())

    what = f"{attack.__name__}, {upstream.sent / MIB:,.0f} MiB in {upstream.attacks} connections"
    watch.check(f"{what}, afterwards {after / MIB:.0f} MiB, disk {disk / MIB:.1f} MiB", most)
    assert 0 == found["serial"]
    assert after - watch.before < KEPT_BYTES


class EndlessFiles(HttpProxy):
    """Passes requests on to the daemon at `url`, but answers each request for a file without an end.

    `sent` counts the bytes of these answers.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url, _EndlessAnswer)
        self.sent = 0


class _EndlessAnswer(ProxiedRequest):
    server: EndlessFiles

    def pass_on(self) -> None:
        if self.path.startswith("/v1/files/"):
            self.send_response(200)
            self.end_headers()
            while self.wfile.write(bytes(MIB)):
                self.server.sent += MIB
        super().pass_on()


def test_a_file_that_does_not_end(tmp_path: Path) -> None:
    """Its row states 4 bytes: 1,046 MB were written in 7 s, and again after each wrong checksum."""
    row = ["create", "endless", sha256(b"true").hexdigest(), 4]
    (tmp_path / "primary").mkdir()
    (tmp_path / "replica").mkdir()
    with Daemon(tmp_path / "primary") as primary, EndlessFiles(primary.url) as liar:
        with Asker(primary.url) as asker:
            asker.post("files", [[row]])
        options = ("--upstream", liar.url)
        with Daemon(tmp_path / "replica", options=options) as replica, Watch(replica) as watch:

            def failing() -> Any:
                found = status(replica.url)["files"]["failing"]
                return found and found[0]["tries"] >= 3 and found[0]

            told = eventually(failing, "three failed downloads")
            stored = list((tmp_path / "replica").rglob("partial/*"))

    watch.check(f"a file without an end, {liar.sent / MIB:,.0f} MiB sent, {told['tries']} tries", 30 * MIB)
    assert "sent more than the 4 bytes that the row of endless states" in told["why"]
    assert [] == stored
