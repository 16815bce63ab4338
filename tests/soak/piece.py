"""A piece of the soak: daemons in a folder that stays, facts, followers, and trouble; then calm, then a look.

Two thirds of the piece are trouble: daemons are killed at drawn moments and come back, their disks are full,
their clocks jump, and the primary is put back to an earlier copy of its log while its replicas are down, so
that they have facts which it has lost. Of each replica `/readyz` is asked from its start on, as often as it
answers: when it says for the first time that it is ready, it must stand where the primary's history has been.
In the last third nobody is killed, so that memory and descriptors can be compared.
"""

import json
import random
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from synrepl.missing_rooms import missing_rooms
from synrepl.streams.facts import decode_facts
from tests.processes.channel import eventually
from tests.processes.loading import Asker, Refused, Unanswered, ids_of, memory
from tests.processes.replicas import Cluster, Load, Member, Place
from tests.processes.wall_clock import CLOCKED, WallClock
from tests.servers.ports import free_port
from tests.service.processes import ROOT

__all__ = ["Outcome", "Piece"]

STREAMS: Final = ("events", "receipts", "to_device")
"""What the load appends to."""
WRITER: Final = "synrepl1"
RETAIN_SECONDS: Final = 300
"""After so long facts are trimmed: the log of a soak stays small."""
KEEPALIVE: Final = ("--ping-seconds", "5", "--timeout-seconds", "30")
"""Each of the followers is asked so often whether it is there."""
TROUBLE_SHARE: Final = 2 / 3
MOST_DOWN_SECONDS: Final = 3.0
FULL_SECONDS: Final = 4.0
JUMPED_SECONDS: Final = 4.0
JUMPS: Final = (-8 * 86_400, -3_600, 3_600, 8 * 86_400)
LOST_FACTS: Final = 20
OWN_NUMBERS: Final = 10**12
"""The first number of facts that are not of the load."""
PATIENT_SECONDS: Final = 180.0
ASK_SECONDS: Final = 0.02
PAGE: Final = 5_000
TINY_FILES: Final = 4096
"""No daemon can write to its log with files as small as that."""


@dataclass
class Outcome:
    """What a piece has found: numbers for the table; `trouble` is what must not be."""

    facts: int = 0
    given_up: int = 0
    restarts: int = 0
    restores: int = 0
    full_disks: int = 0
    clock_jumps: int = 0
    trimmed_upto: int = 0
    became_ready: int = 0
    not_ready_answers: int = 0
    lost: int = 0
    doubled: int = 0
    """Of the acknowledged facts, in the primary's log."""
    resp_messages: int = 0
    usage: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """By daemons, MiB of memory and descriptors: at the begin of the piece, of the calm, and at the end."""
    followers: dict[str, Any] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)


class _Ledger:
    """Reads the primary's changelog all the time: how often each number is in it, and each digest."""

    def __init__(self, primary: Member, serial: int) -> None:
        self.serial = serial
        self.counts: Counter[int] = Counter()
        self.trouble = ""
        self._primary = primary
        self._digests: dict[int, str] = {}
        self._numbers: dict[int, int] = {}
        self._gate = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join(PATIENT_SECONDS)

    def put_back(self, serial: int) -> int:
        """Forget what is beyond this serial, as the primary did; return how many facts that is."""
        with self._gate:
            gone = [one for one in self._digests if one > serial]
            for one in gone:
                del self._digests[one]
                if (number := self._numbers.pop(one, None)) is not None:
                    self.counts[number] -= 1
            self.serial = min(self.serial, serial)
            return len(gone)

    def digest(self, serial: int) -> str:
        """The digest at this serial, once it was read; empty for one from before this piece."""
        eventually(lambda: self.serial >= serial or self.trouble, "the ledger", seconds=PATIENT_SECONDS)
        return self._digests.get(serial, "")

    def _run(self) -> None:
        try:
            while not self._end.wait(0.2):
                with suppress(Unanswered, Refused):
                    while self._read() == PAGE:
                        pass
        except BaseException as error:
            self.trouble = f"ledger: {error!r}"

    def _read(self) -> int:
        with self._gate, Asker(self._primary.url) as asker:
            text = asker.ask("GET", f"/v1/changelog?since={self.serial}&limit={PAGE}")
            facts = decode_facts(text)
            for fact in facts:
                if fact.serial != self.serial + 1:
                    raise AssertionError(f"serial {fact.serial} follows {self.serial}")
                self.serial = fact.serial
                self._digests[fact.serial] = fact.digest
                if numbers := set(ids_of(fact.rows.decode())):
                    self._numbers[fact.serial] = min(numbers)
                    self.counts.update(numbers)
        return len(facts)


class _Subscriber(threading.Thread):
    """A client of the RESP port that counts the messages of the channel, and reconnects."""

    def __init__(self, port: int, channel: str) -> None:
        super().__init__(daemon=True)
        self.messages = 0
        self._port = port
        self._channel = channel
        self._end = threading.Event()

    def run(self) -> None:
        """Count until `end`."""
        while not self._end.wait(0.2):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=5) as client:
                client.sendall(f"SUBSCRIBE {self._channel}\r\n".encode())
                while not self._end.is_set() and (data := self._received(client)) is not None:
                    self.messages += data.count(b"\r\nmessage\r\n")

    @staticmethod
    def _received(client: socket.socket) -> bytes | None:
        try:
            return client.recv(1 << 16) or None
        except TimeoutError:
            return b""

    def end(self) -> None:
        """Count no more."""
        self._end.set()
        self.join(PATIENT_SECONDS)


class _Watch(threading.Thread):
    """Asks `/readyz` of a replica from before its start until it is ready, and then where it stands."""

    def __init__(self, member: Member) -> None:
        super().__init__(daemon=True)
        self.member = member
        self.place: Place | None = None
        self.not_ready = 0
        self._end = threading.Event()

    def run(self) -> None:
        """Ask."""
        while self.place is None and not self._end.wait(ASK_SECONDS):
            with suppress(Unanswered, OSError):
                try:
                    with Asker(self.member.url) as asker:
                        asker.ask("GET", "/readyz")
                        self.place = self.member.place()
                except Refused:
                    self.not_ready += 1

    def end(self) -> None:
        """Ask no more."""
        self._end.set()
        self.join(PATIENT_SECONDS)


class Piece:
    """One run of so many seconds. `folder` and `state` are those of the pieces before it.

    `state` has the number of the next fact.
    """

    def __init__(
        self,
        folder: Path,
        seconds: float,
        *,
        followers: int,
        rate: float,
        seed: int,
        state: dict[str, Any],
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.outcome = Outcome()
        self.state = state
        self._folder = folder
        self._seconds = seconds
        self._followers = followers
        self._rate = rate
        self._seed = seed
        self._chance = random.Random(seed)
        self._say = say
        self._members: list[Member] = []
        self._watches: list[_Watch] = []
        self._ledger: _Ledger
        self._load: Load

    def run(self) -> Outcome:
        """Run it. What must not be is in the `trouble` of the outcome."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._clock = WallClock(self._folder / "clock")
        with Cluster(self._folder) as cluster:
            primary = self._add_members(cluster)
            cluster.wait_until_same(seconds=PATIENT_SECONDS)
            self._load = Load(
                self._members,
                seed=self._seed,
                rate=self._rate,
                first=self.state.get("next_number", 1),
                writer=WRITER,
            )
            self._load.may_be_misheard = True
            subscriber = self._subscriber(primary)
            followers = self._start_followers()
            # From here on: starts take long beside a busy machine.
            began = time.monotonic()
            try:
                with _Ledger(primary, primary.place().serial) as self._ledger:
                    first = self._ledger.serial
                    self._measure()
                    self._make_trouble()
                    while time.monotonic() < began + TROUBLE_SHARE * self._seconds:
                        self._make_trouble()
                    with self._load:
                        time.sleep(5)
                        self._measure()
                        time.sleep(max(0.0, began + self._seconds - time.monotonic()))
                    self._measure()
                    place = cluster.wait_until_same(seconds=PATIENT_SECONDS)
                    self._look(place)
                    self.outcome.facts = place.serial - first
            finally:
                for watch in self._watches:
                    watch.end()
                self._end_followers(followers)
                if subscriber is not None:
                    subscriber.end()
                    self.outcome.resp_messages = subscriber.messages
            for member in self._members:
                member.stop()
        return self.outcome

    def _add_members(self, cluster: Cluster) -> Member:
        common = ("--instance-name", WRITER, "--retain-seconds", str(RETAIN_SECONDS), *KEEPALIVE)
        primary = cluster.add("primary", *common, *self._resp(), program=CLOCKED)
        self._members = [primary]
        if "replicas" not in missing_rooms():
            replica = cluster.add("replica", *common, upstream=primary.front, program=CLOCKED)
            chained = cluster.add("chained", *common, upstream=replica.front, program=CLOCKED)
            self._members += [replica, chained]
        return primary

    def _resp(self) -> tuple[str, ...]:
        if "channel" in missing_rooms():
            return ()
        self._resp_port = free_port()
        return ("--resp", f"tcp:{self._resp_port}:interface=127.0.0.1", "--redis-writes", ",".join(STREAMS))

    def _subscriber(self, primary: Member) -> _Subscriber | None:
        if "channel" in missing_rooms():
            return None
        subscriber = _Subscriber(self._resp_port, primary.status()["server_name"])
        subscriber.start()
        return subscriber

    def _start_followers(self) -> "subprocess.Popen[str]":
        ports = [one.daemon.follow.rsplit(":", 1)[1] for one in self._members]
        options = ("--followers", str(self._followers), "--seed", str(self._seed))
        return subprocess.Popen(
            [sys.executable, "-m", "tests.soak.followers", *ports, *options],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _end_followers(self, followers: "subprocess.Popen[str]") -> None:
        output = followers.communicate("\n", timeout=PATIENT_SECONDS)[0]
        self.outcome.followers = found = json.loads(output)
        if found["lost"] or found["doubled"]:
            self.outcome.trouble.append(f"followers: {found['examples']}")

    # -- trouble -------------------------------------------------------------------------------------------

    def _make_trouble(self) -> None:
        chance = self._chance
        happen = chance.choices(
            [self._restart_one, self._restart_all, self._fill_disk, self._set_clock, self._put_back],
            [8, 3, 2, 2, 3 if len(self._members) > 1 else 0],
        )[0]
        self._say(happen.__name__.strip("_").replace("_", " "))
        if happen == self._put_back:
            self._wait_until_same()
            self._judge()
            happen()
            return
        with self._load:
            time.sleep(chance.uniform(0.5, 4))
            happen()
            self._load.wait_for(5, seconds=PATIENT_SECONDS)

    def _restart_one(self) -> None:
        member = self._chance.choice(self._members)
        self._kill(member)
        time.sleep(self._chance.choice([0, 0, self._chance.uniform(0, MOST_DOWN_SECONDS)]))
        self._start(member)

    def _restart_all(self) -> None:
        members = self._chance.sample(self._members, len(self._members))
        for member in members:
            self._kill(member)
            time.sleep(self._chance.choice([0, self._chance.uniform(0, 0.5)]))
        self._start_all()

    def _start_all(self) -> None:
        """In any order: a replica may come back before its upstream."""
        for member in self._chance.sample(self._members, len(self._members)):
            self._start(member)
            time.sleep(self._chance.choice([0, 0, self._chance.uniform(0, MOST_DOWN_SECONDS)]))

    def _kill(self, member: Member) -> None:
        member.kill()
        self.outcome.restarts += 1
        for watch in self._watches:
            if watch.member is member:
                watch.end()

    def _start(self, member: Member) -> None:
        if member is not self._members[0]:
            watch = _Watch(member)
            self._watches.append(watch)
            watch.start()
        member.start()

    def _fill_disk(self) -> None:
        member = self._chance.choice(self._members)
        self.outcome.full_disks += 1
        unlimited = resource.RLIM_INFINITY
        resource.prlimit(member.daemon.pid, resource.RLIMIT_FSIZE, (TINY_FILES, unlimited))
        time.sleep(FULL_SECONDS)
        resource.prlimit(member.daemon.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))

    def _set_clock(self) -> None:
        self.outcome.clock_jumps += 1
        self._clock.set(self._chance.choice(JUMPS))
        time.sleep(JUMPED_SECONDS)
        self._clock.set(0)

    def _put_back(self) -> None:
        """The primary loses facts that its replicas have: these must stop or join again, and not be ready."""
        primary, *replicas = self._members
        primary.stop()
        kept = self._folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(primary.folder, kept)
        primary.start()
        before = primary.place()
        primary.post("events", *self._own_numbers(LOST_FACTS))
        self._wait_until_same()
        for member in self._chance.sample(self._members, len(self._members)):
            self._kill(member)
        shutil.rmtree(primary.folder)
        shutil.copytree(kept, primary.folder)
        self.outcome.restores += 1
        self.outcome.given_up += self._ledger.put_back(before.serial)
        self._start_all()
        primary.post("events", *self._own_numbers(self._chance.randint(1, 2 * LOST_FACTS)))
        for member in replicas:
            self._resync_when_stopped(member)
        self._wait_until_same()

    def _resync_when_stopped(self, member: Member) -> None:
        def resynced() -> bool:
            said = member.status()
            if said["state"] == "stopped":
                member.ask("POST", "/v1/resync", {})
                return True
            return bool(said["digest"] == self._members[0].status()["digest"])

        eventually(resynced, member.describe, seconds=PATIENT_SECONDS)

    def _own_numbers(self, count: int) -> range:
        """Numbers that the load does not give."""
        first = self.state.get("own_number", OWN_NUMBERS)
        self.state["own_number"] = first + count
        return range(first, first + count)

    def _wait_until_same(self) -> None:
        def same() -> bool:
            return len({member.place() for member in self._members}) == 1

        eventually(same, lambda: "\n".join(map(Member.describe, self._members)), seconds=PATIENT_SECONDS)

    # -- looking -------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Look at the replicas that were ready since the last time: they stood where the primary has been."""
        watches, self._watches = self._watches, []
        serial = self._members[0].place().serial
        for watch in watches:
            if watch.place is None and watch.is_alive():
                self._watches.append(watch)
                continue
            self.outcome.not_ready_answers += watch.not_ready
            if (place := watch.place) is None:
                continue
            self.outcome.became_ready += 1
            digest = "" if place.serial > serial else self._ledger.digest(place.serial)
            if place.serial > serial or digest not in ("", place.digest):
                why = f"{watch.member.name} was ready at serial {place.serial} with another history"
                self.outcome.trouble.append(why)

    def _look(self, place: Place) -> None:
        """At what was acknowledged, and at what is there."""
        self._ledger.digest(place.serial)
        self._judge()
        self.outcome.trouble += [f"{one.member.name} was never ready again" for one in self._watches]
        counts, acknowledged = self._ledger.counts, self._load.acknowledged
        lost = [number for number in acknowledged if counts[number] < 1]
        doubled = [number for number, count in counts.items() if count > 1]
        self.outcome.lost, self.outcome.doubled = len(lost), len(doubled)
        self.state["next_number"] = max([*acknowledged, self.state.get("next_number", 1)]) + 1_000
        self.outcome.trimmed_upto = self._members[0].status()["trimmed_upto"]
        if self._ledger.trouble:
            self.outcome.trouble.append(self._ledger.trouble)
        if lost:
            self.outcome.trouble.append(f"acknowledged facts are lost: {sorted(lost)[:5]}")
        if doubled:
            self.outcome.trouble.append(f"facts are there twice: {sorted(doubled)[:5]}")

    def _measure(self) -> None:
        for member in self._members:
            used = self.outcome.usage.setdefault(member.name, {"mib": [], "descriptors": []})
            used["mib"].append(round(memory(member.daemon.pid) / 2**20))
            used["descriptors"].append(len(list(Path(f"/proc/{member.daemon.pid}/fd").iterdir())))
