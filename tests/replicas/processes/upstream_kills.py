"""Readers with several addresses, while primaries are killed and replicas are promoted by force.

A worker of the library, `synrepl tail` over the line protocol and over HTTP, and an unmodified follower
behind a proxy that asks `/readyz`, as HAProxy does (contrib/haproxy); and behind a real HAProxy, where there
is one. Tests of other folders add a Spark stream, and a worker of Synapse 1.66.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from synrepl.streams.facts import Fact
from tests.processes.channel import eventually
from tests.processes.haproxy import HAPROXY, Section
from tests.processes.haproxy import haproxy as running_haproxy
from tests.processes.loading import ids_of, report
from tests.processes.replicas import Cluster, Load, Member
from tests.servers.ports import free_port
from tests.service.processes import ROOT

CHECK_SECONDS: Final = 0.2
ARRIVAL_SECONDS: Final = 300.0
MARKER_SECONDS: Final = 5.0
STREAMS: Final = ("events", "receipts", "to_device")
"""Those that `Load` writes."""

Held = tuple[str, str, int, int]
"""Stream, writer, token, and the number of the fact."""


class Reader:
    """A process that prints facts as lines of JSON; a fact that it gives up is not held any more."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.name = name
        self.gave_up: list[str] = []
        self.ends: list[str] = []
        self._folder = folder
        self._arguments = arguments
        self._starts = 0
        self._process: subprocess.Popen[bytes]
        self._path: Path
        self._start()

    def _start(self) -> None:
        self._starts += 1
        self._path = self._folder / f"{self.name}-{self._starts}.ndjson"
        with self._path.open("wb") as out, self._path.with_suffix(".err").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *self._arguments],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=errors,
                stdin=subprocess.DEVNULL,
            )

    def restart_if_ended(self) -> None:
        """A reader of the changelog ends when facts that it printed are lost: it starts again."""
        if self._process.poll() is not None:
            why = self._path.with_suffix(".err").read_text()
            assert "fork" in why, why
            self.ends.append(why)
            self._start()

    def lines(self) -> list[dict[str, Any]]:
        """All that it printed since it was started."""
        found = []
        for line in self._path.read_bytes().split(b"\n"):
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def held(self) -> list[Held]:
        """What it has: each fact that it printed, but those that it gave up."""
        held: list[Held] = []
        self.gave_up = []
        for line in self.lines():
            if line["type"] == "rdata":
                (number,) = set(ids_of(json.dumps(line["rows"])))
                held.append((line["stream"], line["writer"], line["token"], number))
            elif line["type"] == "begun anew":
                self.gave_up.append(line["message"])
                held = []
            elif "are lost: the server's log lacks them" in line.get("message", ""):
                self.gave_up.append(line["message"])
                key = (line["stream"], line["writer"])
                held = [one for one in held if one[:2] != key or one[2] <= line["token"]]
            assert line["type"] != "restarted", line
        return held

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class ReadyProxy:
    """Passes connections on to the first member that is ready, and ends those to one that is not any more."""

    def __init__(self, members: list[Member], *, leads_to_http: bool = False) -> None:
        self._members = members
        self._leads_to_http = leads_to_http
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._chosen: Member | None = None
        self._open: list[tuple[Member, socket.socket]] = []
        self._end = threading.Event()
        for work in (self._accept, self._check):
            threading.Thread(target=work, daemon=True).start()

    def _check(self) -> None:
        while not self._end.wait(CHECK_SECONDS):
            ready = []
            for member in self._members:
                with suppress(OSError):  # an answer other than 200 is one, too
                    urllib.request.urlopen(f"{member.url}/readyz", timeout=1).close()
                    ready.append(member)
            self._chosen = ready[0] if ready else None
            for member, link in self._open:
                if member is not self._chosen:
                    with suppress(OSError):
                        link.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            chosen = self._chosen
            if chosen is None:
                link.close()
                continue
            try:
                at = chosen.url if self._leads_to_http else chosen.front
                server = socket.create_connection(("127.0.0.1", int(at.rsplit(":", 1)[1])))
            except OSError:
                link.close()  # it was killed since the last check
                continue
            self._open.append((chosen, link))
            for source, target in ((link, server), (server, link)):
                threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()

    def stop(self) -> None:
        """End it."""
        self._end.set()
        self._socket.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def haproxy(folder: Path, members: list[Member]) -> Iterator["Ports"]:
    """A real HAProxy, with the configuration of contrib/haproxy for these members."""
    ports = Ports(free_port(), free_port())
    lines = [_port(member.front) for member in members]
    asked = [_port(member.url) for member in members]
    sections = {"replication": Section(ports.native, lines, asked), "http": Section(ports.http, asked)}
    with running_haproxy(folder, sections):
        yield ports


def _port(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


class Ports(NamedTuple):
    """Where a proxy listens."""

    native: int
    http: int


class BehindProxy(Protocol):
    """A follower that has no mark and one address: it connects again, and asks for positions again."""

    def numbers(self) -> Counter[int]:
        """The numbers of the facts that it got, and how often."""

    def check(self, rounds: int, facts: list[Fact]) -> None:
        """It went on after each promotion, has these facts, and heard nothing that only synrepl knows."""

    def stop(self) -> None:
        """End it."""


class Unmodified:
    """A follower of a few lines, without Synapse."""

    def __init__(self, port: int) -> None:
        self._words: set[str] = set()
        self._numbers: Counter[int] = Counter()
        self._connections = 0
        self._port = port
        self._end = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._end.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1) as link:
                link.settimeout(None)
                link.sendall(b"NAME worker1\nREPLICATE \n")
                with link.makefile("rb") as lines:
                    for line in lines:
                        words = line.decode().split()
                        self._connections += words[0] == "SERVER"
                        self._words.add(words[0])
                        self._numbers.update(set(ids_of(line.decode())) if words[0] == "RDATA" else ())
            self._end.wait(0.1)

    def numbers(self) -> Counter[int]:
        """As `BehindProxy` says."""
        return self._numbers

    def check(self, rounds: int, facts: list[Fact]) -> None:
        """It asks for no facts that it missed."""
        assert not {"EPOCH", "REWIND", "MOVED"} & self._words
        assert self._connections > rounds

    def stop(self) -> None:
        """End it."""
        self._end.set()


class Readers:
    """All readers of two members."""

    def __init__(self, stack: ExitStack, folder: Path, members: list[Member]) -> None:
        fronts = ",".join(one.front for one in members)
        urls = ",".join(one.front_url for one in members)
        following = ("--from", "earliest")
        worker = Reader(folder, "worker", "-m", "tests.replicas.processes.upstreams_worker", fronts, urls)
        tail = Reader(
            folder, "tail", "-m", "synrepl", "tail", fronts, "--http", urls, *following,
            *(part for one in STREAMS for part in ("--stream", one)),
        )  # fmt: skip
        self.http = Reader(folder, "http", "-m", "synrepl", "tail", urls, *following)
        self.all: list[Reader] = []
        self._stack = stack
        for one in (worker, tail, self.http):
            self.add(one)

    def add(self, reader: Reader) -> None:
        """One more, which ends with the others."""
        self.all.append(reader)
        self._stack.callback(reader.stop)

    def gave_up(self) -> dict[str, int]:
        """How many lost tails each reported."""
        return {one.name: len(one.gave_up) + len(one.ends) for one in self.all}

    def wait_for(self, number: int) -> dict[str, float]:
        """Until each has the fact with this number; the seconds that each took."""
        begun, seconds = time.monotonic(), dict[str, float]()

        def check() -> bool:
            self.http.restart_if_ended()
            for one in self.all:
                if one.name not in seconds and any(fact[3] == number for fact in one.held()):
                    seconds[one.name] = time.monotonic() - begun
            return len(seconds) == len(self.all)

        eventually(
            check, lambda: f"fact {number} at all readers, not only {seconds}", seconds=ARRIVAL_SECONDS
        )
        return seconds

    def check(self, member: Member) -> None:
        """Each has what the log has: once, in the order of each stream, and nothing else."""
        expected = []
        for fact in member.facts():
            (number,) = set(ids_of(fact.rows.decode()))
            expected.append((fact.stream, fact.writer, fact.token, number))
        for one in self.all:
            assert sorted(one.held()) == sorted(expected), one.name


class Markers:
    """Facts that are posted until a follower has one of them.

    Such a follower asks for nothing that it missed: a fact may come while it is between two connections, as
    when an answer of `/readyz` took a second on a busy machine.
    """

    def __init__(self, member: Member, last: int, following: int) -> None:
        self.numbers = [last]
        """Those that were posted."""
        self._member = member
        self._next = following
        self._at = time.monotonic()

    def has_reached(self, one: BehindProxy) -> bool:
        """Whether it has one; if not, and some time has passed, another one is posted."""
        if not one.numbers().keys().isdisjoint(self.numbers):
            return True
        if time.monotonic() >= self._at + MARKER_SECONDS:
            self._member.post("to_device", self._next)
            self.numbers.append(self._next)
            self._next += 10
            self._at = time.monotonic()
        return False


def kill_and_promote(primary: Member, replica: Member, load: Load, readers: Readers, number: int) -> None:
    """As after a crash of the primary's machine, when the replica was away: what came meanwhile is lost.

    All readers had it, up to the fact with this number.
    """
    replica.kill()
    load.wait_for(20)
    primary.post("receipts", number)
    readers.wait_for(number)
    primary.kill()
    replica.start()
    replica.upstream = None  # from now on it knows what it is
    promoted = subprocess.run(
        [sys.executable, "-m", "synrepl", "promote", "--url", replica.url, "--force"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert promoted.returncode == 0, promoted.stderr


def come_back(old: Member, new: Member) -> None:
    """The former primary, which lists the new one, gives up what only it has, and follows that."""
    old.upstream = f"{new.front},{new.front_url}"
    old.start()
    old.wait_for(lambda said: said["state"] in ("fenced", "stopped"), "a daemon with facts of its own")
    old.ask("POST", "/v1/resync", {})
    old.wait_for(lambda said: (said["upstream"] or {}).get("state") == "live", "the old primary as a replica")


More = Callable[[Path, Readers, list[Member], Mapping[str, Ports]], Iterable[BehindProxy]]


def follow_through_kills(folder: Path, rounds: int, *, more: More | None = None) -> None:
    """Kill the primary and promote the replica, so many times, and check what all readers have.

    `more` adds readers, and returns followers that use the proxies.
    """
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder))
        primary = cluster.add("a")
        replica = cluster.add("b", upstream=primary.front)
        cluster.wait_until_same()
        members = [primary, replica]
        readers = Readers(stack, folder, members)
        proxies: dict[str, Ports] = {"stand-in": _stand_in(stack, members)}
        if HAPROXY is not None:
            proxies["haproxy"] = stack.enter_context(haproxy(folder, members))
        behind: list[BehindProxy] = [_started(stack, Unmodified(at.native)) for at in proxies.values()]
        if more is not None:
            behind += [_started(stack, one) for one in more(folder, readers, members, proxies)]
        primary.post("receipts", 1)
        readers.wait_for(1)
        times: list[dict[str, float]] = []
        for number in range(rounds):
            with Load(members, seed=number, pause=0.05) as load:
                load.wait_for(100)
                kill_and_promote(primary, replica, load, readers, 4 * 10**6 + 10 * number + 1)
                marker = 10**6 + 10 * number + 1  # one row, as every tenth fact has three
                replica.post("receipts", marker)
                times.append(readers.wait_for(marker))
                load.wait_for(50)
                come_back(primary, replica)
            cluster.wait_until_same()
            # Synapse takes what comes under tokens of lost facts for known: the last one is above these.
            above = range(2 * 10**6 + 1000 * number + 1, 2 * 10**6 + 1000 * (number + 1), 10)
            replica.post("to_device", *above)
            readers.wait_for(above[-1])
            markers = Markers(replica, above[-1], 3 * 10**6 + 1000 * number + 1)
            for one in behind:
                eventually(
                    partial(markers.has_reached, one),
                    partial("the last fact at {}".format, one),
                    seconds=ARRIVAL_SECONDS,
                )
            readers.wait_for(markers.numbers[-1])
            readers.check(replica)
            primary, replica = replica, primary
        gave_up = readers.gave_up()
        facts = primary.facts()
    for one in behind:
        one.check(rounds, facts)
        assert not [number for number, count in one.numbers().items() if count > 1 and number > 10**6]
    worst = {name: max(found[name] for found in times) for name in times[0]}
    report(
        f"{rounds} kills of a primary, with {', '.join(proxies)}: the longest seconds from the promotion to"
        f" the next fact: {', '.join(f'{name} {seconds:.1f}' for name, seconds in worst.items())};"
        f" lost tails reported: {gave_up}"
    )
    assert all(gave_up.values()), f"each reader had more than a promoted copy: {gave_up}"


def _stand_in(stack: ExitStack, members: list[Member]) -> Ports:
    native, http = (
        _started(stack, ReadyProxy(members, leads_to_http=leads_to_http)) for leads_to_http in (False, True)
    )
    return Ports(native.port, http.port)


def _started(stack: ExitStack, one: Any) -> Any:
    stack.callback(one.stop)
    return one
