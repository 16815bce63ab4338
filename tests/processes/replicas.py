"""Daemons that follow each other, each behind proxies that can be broken, and writers and readers at them."""

import itertools
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec

from synrepl.missing_rooms import missing_rooms
from synrepl.storage.engine import SQLEngine
from synrepl.storage.group_commit import AppendRequest, build_group
from synrepl.storage.log_head import LogHead
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact, decode_facts
from tests.processes.channel import eventually, status
from tests.processes.loading import (
    PATIENCE_SECONDS,
    Asker,
    Refused,
    Unanswered,
    changelog,
    ids_of,
    made_rows,
)
from tests.processes.proxy import Proxy
from tests.service.processes import TWISTD, Daemon

__all__ = ["Cluster", "Load", "Member", "Place", "Reading", "code", "fill", "told"]

FRONT: Final = "127.0.0.2"
"""Where the proxies listen, at the ports of the daemons behind them: what a daemon tells others of itself
(`--advertise`) leads there, so that all that daemons say to each other can be broken."""

GROUP: Final = 10_000
AGAIN_SECONDS: Final = 0.05
MAX_ARREARS: Final = 1.0
"""How many seconds of its rate a load makes up for after it had to wait."""
QUICK: Final = ("--ping-seconds", "1", "--timeout-seconds", "3")
QUICK_REPLICAS: Final = ("--heartbeat-seconds", "0.2")


class Place(NamedTuple):
    """Where a daemon stands."""

    epoch: int
    serial: int
    digest: str


class Member:
    """A daemon in a folder of its own, at addresses that stay; `native` and `http` are the proxies before it.

    `upstream` says what it follows when it starts next, and whom it lists, with commas.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *options: str,
        upstream: str | None = None,
        program: tuple[str, ...] = TWISTD,
    ) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(exist_ok=True)
        self.upstream = upstream
        self.options = options
        self._program = program
        self.daemon: Daemon
        self.lines: list[str] = []
        self._ports = (0, 0)
        self.start()
        self.native = Proxy(self._ports[0], host=FRONT, at=self._ports[0])
        self.http = Proxy(self._ports[1], host=FRONT, at=self._ports[1])

    def start(self) -> None:
        """Start it, where it was before."""
        listed = [] if self.upstream is None else self.upstream.split(",")
        upstream = [word for one in listed for word in ("--upstream", one)]
        has_replicas = "replicas" not in missing_rooms()
        named = ("--replica-name", self.name, *QUICK_REPLICAS) if has_replicas else ()
        self.daemon = Daemon(
            self.folder,
            port=self._ports[0],
            http_port=self._ports[1],
            options=(
                *("--instance-name", "master", "--advertise", FRONT, *named),
                *(*QUICK, *upstream, *self.options),
            ),
            program=self._program,
        )
        follow, http = (int(at.rsplit(":", 1)[1]) for at in (self.daemon.follow, self.daemon.url))
        self._ports = follow, http

    def kill(self) -> None:
        """End it, as a crash would."""
        self.daemon.kill()
        self.lines += self.daemon.lines

    def restart(self, *, upstream: str | None = None) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.upstream = upstream or self.upstream
        self.start()

    def list_as_primary(self, replica: "Member", *, over_http: bool = False) -> None:
        """Make this first primary list its replica, as the manual says: without keys it believes no other."""
        self.restart(upstream=replica.front_url if over_http else replica.front)
        self.wait_for(lambda said: said["role"] == "replica", "a replica of its own replica")
        self.ask("POST", "/v1/promote", {"force": True})

    def stop(self) -> None:
        """End it as an operator does."""
        assert self.daemon.terminate() in (0, -signal.SIGTERM)
        assert not any("Traceback" in line for line in self.daemon.lines), self.daemon.lines
        self.kill()

    def close(self) -> None:
        """End it, and what is before it."""
        self.kill()
        self.native.close()
        self.http.close()

    @property
    def url(self) -> str:
        """Its HTTP address; no proxy is before it here."""
        return f"http://127.0.0.1:{self._ports[1]}"

    @property
    def front(self) -> str:
        """Its native address behind the proxy."""
        return f"tcp:{FRONT}:{self._ports[0]}"

    @property
    def front_url(self) -> str:
        """Its HTTP address behind the proxy."""
        return f"http://{FRONT}:{self._ports[1]}"

    @property
    def database(self) -> Path:
        """Its log."""
        return self.folder / "synrepl.db"

    def links(self) -> tuple[Proxy, Proxy]:
        """The proxies before it."""
        return self.native, self.http

    # -- what it says --------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """``/v1/status``."""
        return status(self.url)

    def place(self) -> Place:
        """Where it stands."""
        said = self.status()
        return Place(said["epoch"], said["serial"], said["digest"])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One question, and the JSON of the answer."""
        with Asker(self.url) as asker:
            answer = asker.ask(method, path, None if body is None else msgspec.json.encode(body))
        return json.loads(answer or b"null")

    def post(self, stream: str, *numbers: int, key: str | None = None) -> dict[str, Any]:
        """Append the facts with these numbers."""
        with Asker(self.url) as asker:
            return asker.post(stream, [made_rows(stream, number) for number in numbers], key=key)

    def is_ready(self) -> bool:
        """What ``/readyz`` says."""
        try:
            self.ask("GET", "/readyz")
        except Refused as refused:
            if refused.status != 503:
                raise
            return False
        return True

    def facts(self) -> list[Fact]:
        """All of its log, checked."""
        facts = list(changelog(self.url))
        assert verify(facts, EMPTY) is None, f"{self.name} tells a chain that is broken"
        return facts

    def wait_for(
        self, check: Callable[[dict[str, Any]], Any], what: str, *, seconds: float = PATIENCE_SECONDS
    ) -> Any:
        """Until its status is so."""
        return eventually(
            lambda: check(self.status()),
            lambda: f"{what} at {self.name}:\n{self.describe()}",
            seconds=seconds,
        )

    def describe(self) -> str:
        """What it says of itself, for whoever reads of a failure."""
        try:
            said: Any = {
                key: value for key, value in self.status().items() if key not in ("streams", "recent")
            }
        except (Unanswered, Refused) as error:
            said = repr(error)
        return json.dumps(said, indent=1) + "\n" + "\n".join([*self.lines, *self.daemon.lines][-40:])


class Cluster:
    """Members by name."""

    def __init__(self, folder: Path) -> None:
        self.members: dict[str, Member] = {}
        self._folder = folder
        self._stack = ExitStack()

    def add(
        self, name: str, *options: str, upstream: str | None = None, program: tuple[str, ...] = TWISTD
    ) -> Member:
        """One more."""
        member = Member(self._folder, name, *options, upstream=upstream, program=program)
        self._stack.callback(member.close)
        self.members[name] = member
        return member

    def wait_until_same(self, *members: Member, seconds: float = PATIENCE_SECONDS) -> Place:
        """Until all of these (all there are) stand at the same place."""
        chosen = members or tuple(self.members.values())

        def same() -> Any:
            places = {member.place() for member in chosen}
            return places.pop() if len(places) == 1 else None

        found: Place = eventually(
            same,
            lambda: "one place at all\n" + "\n".join(f"{one.name}: {one.describe()}" for one in chosen),
            seconds=seconds,
        )
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def code(refused: Refused) -> str:
    """The word by which programs know what was refused."""
    return str(told(refused).get("error"))


def told(refused: Refused) -> dict[str, Any]:
    """The JSON of a refusal."""
    try:
        found = json.loads(refused.body)
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


# -- those who write ---------------------------------------------------------------------------------------


class Load:
    """Posts facts at members, each of these from a thread of its own; asks again, with the same key and at
    any of them, until there is an answer.

    With `rate` these are so many facts a second, of all threads together, else there is a `pause` of this
    mean between two appends. `first` is the number of the first fact, and all are of the `writer`.
    `acknowledged` are the facts that got an answer, with the number of the member that gave it.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        seed: int = 0,
        pause: float = 0.01,
        rate: float | None = None,
        most: int = 5,
        wait: float = 2,
        first: int = 1,
        writer: str = "master",
    ) -> None:
        self.acknowledged: set[int] = set()
        self.answers: list[tuple[str, int, float]] = []
        self.refusals: set[str] = set()
        self.repeats = 0
        self.trouble: list[str] = []
        self.may_be_misheard = False
        """Whether what is asked may be changed on its way between daemons: then it is asked again."""
        self._members = members
        self._pause = pause
        self._rate = None if rate is None else rate / len(members)
        self._most = most
        self._wait = wait
        self._seed = seed
        self._writer = writer
        self._numbers = itertools.count(first)
        self._gate = threading.Lock()
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._end.clear()
        for place, member in enumerate(self._members):
            thread = threading.Thread(target=self._run, args=(place, member), daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive() or kind, "an append has no answer yet"
        self._threads.clear()
        assert kind or self.trouble == []

    def wait_for(self, count: int, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Until so many more were acknowledged."""
        want = len(self.acknowledged) + count
        eventually(
            lambda: len(self.acknowledged) >= want or self.trouble,
            lambda: (
                f"{count} more facts ({self.refusals})\n" + "\n".join(map(Member.describe, self._members))
            ),
            seconds=seconds,
        )
        assert self.trouble == [], self.trouble

    def _run(self, place: int, member: Member) -> None:
        chance = random.Random(f"{self._seed} {place}")
        stream = ("events", "receipts", "to_device")[place % 3]
        due = time.monotonic()
        try:
            while not self._end.wait(self._next_pause(chance, due)):
                with self._gate:
                    numbers = [next(self._numbers) for _ in range(chance.randint(1, self._most))]
                if self._rate is not None:
                    due = max(due + len(numbers) / self._rate, time.monotonic() - MAX_ARREARS)
                self._append(member, stream, numbers, chance)
        except BaseException as error:
            self.trouble.append(repr(error))

    def _next_pause(self, chance: random.Random, due: float) -> float:
        return chance.uniform(0, 2 * self._pause) if self._rate is None else due - time.monotonic()

    def _append(self, member: Member, stream: str, numbers: list[int], chance: random.Random) -> None:
        body = msgspec.json.encode(
            {
                "facts": [made_rows(stream, one) for one in numbers],
                "writer": self._writer,
                "idempotency_key": f"{self._seed}-{numbers[0]}",
            }
        )
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with Asker(member.url) as asker:
                    asker.ask("POST", f"/v1/streams/{stream}/facts?timeout={self._wait:g}", body)
                break
            except Refused as refused:
                self.refusals.add(code(refused) or str(refused.status))
                if refused.status < 500 and not self.may_be_misheard:
                    raise
                if time.monotonic() > until:
                    raise
            except Unanswered:
                if time.monotonic() > until:
                    raise
            self.repeats += 1
            time.sleep(AGAIN_SECONDS)
            member = chance.choice(self._members)
        with self._gate:
            self.acknowledged.update(numbers)


def numbers_of(facts: Iterable[Fact]) -> list[int]:
    """The numbers that facts were made from, in order; each must have all of its rows."""
    numbers = []
    for fact in facts:
        ids = ids_of(fact.rows.decode())
        assert ids, fact
        assert ids == [ids[0]] * (3 if ids[0] % 10 == 0 else 1), f"not all rows of a fact: {fact}"
        numbers.append(ids[0])
    return numbers


# -- those who read ----------------------------------------------------------------------------------------


class Reading:
    """Reads from members all the time; `check` compares what it read with the history as it really was."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.facts = 0
        self.rows = 0
        self.trouble: list[str] = []
        self._seen: set[tuple[str, int, str]] = set()
        self._told: dict[tuple[str, int], set[str]] = {}
        self._end = threading.Event()
        self._members = members
        self._threads = [threading.Thread(target=self._run, args=(one,), daemon=True) for one in members]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive() or kind
        assert kind or self.trouble == []

    def _run(self, member: Member) -> None:
        serial, digest = 0, EMPTY
        token = 0
        try:
            while not self._end.wait(AGAIN_SECONDS):
                with suppress(Unanswered, Refused), Asker(member.url) as asker:
                    text = asker.ask("GET", f"/v1/changelog?since={serial}&limit=2000")
                    facts = decode_facts(text)
                    # The digests say that each is a fact that was, with the rows that it had, in its place.
                    assert verify(facts, digest) is None, f"after {serial} at {member.name}: {facts[:2]}"
                    if facts:
                        assert facts[0].serial == serial + 1, (member.name, serial, facts[0])
                        serial, digest = facts[-1].serial, facts[-1].digest
                        self._seen.add((member.name, serial, digest))
                        self.facts += len(facts)
                    text = asker.ask("GET", f"/v1/streams/events/rows?writer=master&from={token}&limit=500")
                    said = json.loads(text)
                    for at, row in said["updates"]:
                        self._told.setdefault(("events", at), set()).add(json.dumps(row))
                    self.rows += len(said["updates"])
                    token = said["upto"]
        except BaseException as error:
            self.trouble.append(f"{member.name}: {error!r}")

    def check(self, facts: Sequence[Fact]) -> None:
        """All that was read is a part of this history."""
        assert self.trouble == []
        digests = {fact.serial: fact.digest for fact in facts}
        wrong = [seen for seen in self._seen if digests.get(seen[1]) != seen[2]]
        assert wrong == [], "what was read is no part of the history"
        rows = {
            ("events", fact.token): {json.dumps(row) for row in json.loads(fact.rows)}
            for fact in facts
            if fact.stream == "events"
        }
        for at, had in self._told.items():
            assert had <= rows.get(at, set()), f"wrong rows at {at}: {had}"
        assert self.facts, "nothing was read"
        assert self.rows, "no rows were read"


# -- big logs ----------------------------------------------------------------------------------------------


def fill(path: Path, count: int, *, streams: Sequence[str] = ("events",)) -> None:
    """A log with so many facts, of this moment, quickly: as groups that no daemon ever was asked for."""
    at_ms = int(time.time() * 1000)
    engine = SQLEngine(SQLiteDatabase(path))
    standing = LogHead()
    standing.load(engine.open())
    for first in range(standing.serial + 1, standing.serial + count + 1, GROUP):
        numbers = range(first, min(first + GROUP, standing.serial + count + 1))
        requests = [
            AppendRequest(stream, "master", facts, None, "")
            for stream in streams
            if (
                facts := [
                    msgspec.json.encode(made_rows(stream, one)[:1])
                    for one in numbers
                    if streams[one % len(streams)] == stream
                ]
            )
        ]
        group = build_group(standing, requests, at_ms, lambda key: None)
        engine.commit(group.facts, [])
        standing.advance(group.facts)
    engine.close()
