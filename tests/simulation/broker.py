"""Processes of a homeserver on one Redis, ours and Synapse's, and whatever bad luck a seed holds for them.

As in `simulation`, everything runs on one fake clock, and a seed is a run that can be repeated:
``python -m tests.simulation.broker SEED``."""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from twisted.logger import LogLevel

from synrepl.errors import StorageError
from synrepl.replication.follower.updates import ICatchUp
from synrepl.replication.strategies import following
from synrepl.streams import digest
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.streams.table import StreamTable
from synrepl.testing.cluster import DirectCatchUp, FakeWorker, MemoryPositions
from synrepl.testing.network import BUFFER_BYTES, Network
from synrepl.wire import jsontext
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NEWEST, Dialect
from tests.redis.daemon import RedisDaemon
from tests.redis.fake_redis import FakeRedis
from tests.simulation.fake_synapse import FakeSynapse, SynapseDatabase
from tests.simulation.seeded import STEP_SECONDS, SeededRun

__all__ = ["BrokerSimulation"]

QUIET_SECONDS: Final = 30
"""For so long nobody may say anything on the channel when all is told."""

SETTLE_SECONDS: Final = 40
"""Before that: when nothing was said for so long, all is told."""

MESSAGES_EACH: Final = 40
"""So many POSITIONs at most are told for each reason to tell any."""

_ROWS: Final[dict[str, Callable[[int], list[Any]]]] = {
    "events": lambda n: ["ev", [f"$e{n}", "!r", "m.room.message", None, None, None, None, False, False]],
    "backfill": lambda n: [f"$b{n}", "!r", "m.room.message", None, None, None],
    "receipts": lambda n: [f"!r{n % 5}", "m.read", "@u:hs", f"$e{n}", None, {"ts": n}],
    "caches": lambda n: [f"get_{n % 7}", None if n % 5 == 0 else [f"k{n}"], n],
    "device_lists": lambda n: [f"@u{n}:hs", n % 2 == 0, False],
    "to_device": lambda n: [f"@u{n}:hs"],
    "typing": lambda n: [f"!r{n % 5}", [f"@u{n}:hs"]],
    "account_data": lambda n: [f"@u{n}:hs", None, "m.direct"],
    "push_rules": lambda n: [f"@u{n}:hs"],
    "presence": lambda n: [f"@u{n % 9}:hs", "online", n, n, n, None, True],
}

_SYNAPSES: Final = {
    "master": ("to_device", "caches", "device_lists"),
    "persister1": ("events", "backfill", "caches", "receipts", "typing"),
    "persister2": ("events", "backfill", "caches", "receipts", "device_lists"),
}

_DAEMONS: Final = {
    "ours1": ("account_data", "presence"),
    "ours2": ("push_rules",),
    "watcher1": (),
    "watcher2": (),
}

_Place = tuple[str, str, int, bytes]
"""A stream, a writer (none if all tell it), a token and rows."""


class _Life(msgspec.Struct):
    """One life of a worker, and where it began."""

    worker: FakeWorker
    began_at: dict[str, dict[str, int]]


class _Slot:
    """A worker over all its lives."""

    def __init__(self, name: str, dialect: Dialect, daemon: RedisDaemon) -> None:
        self.name = name
        self.dialect = dialect
        self.daemon = daemon
        self.knows_writers = not following(dialect).pushed
        self.positions = MemoryPositions()
        self.lives: list[_Life] = []
        self.seen: Counter[tuple[str, str, int]] = Counter()

    @property
    def worker(self) -> FakeWorker:
        return self.lives[-1].worker

    @property
    def was_away(self) -> bool:
        """Whether it was ever without a connection."""
        connected = [
            event for life in self.lives for event in life.worker.events if event.kind == "connected"
        ]
        return len(connected) > 1

    def place(self, fact: Fact) -> tuple[str, str, int]:
        """What tells a fact from others here."""
        return (fact.stream, fact.writer if self.knows_writers else "", fact.token)


class BrokerSimulation(SeededRun):
    """One seeded run. `run` raises `Broken` if a promise is.

    `is_careless`: Synapse's processes lose single messages with their connections, which nobody can notice;
    then only what Redis took of theirs is asked for.
    """

    MODULE = "tests.simulation.broker"

    def __init__(self, seed: int, *, seconds: float = 8.0) -> None:
        super().__init__(seed, seconds)
        chance = self.chance
        self.table = StreamTable.default()
        self._has_begun = False
        self._full_disks: list[RedisDaemon] = []
        slow = chance.choice([0.002, 0.02, 0.2])
        self.crumbles = slow < 0.1 and chance.random() < 0.4
        self.network = Network(
            self.clock,
            delay=lambda: chance.uniform(0.0005, slow),
            piece=self._piece,
            buffer_bytes=chance.choice([300, 4_000, BUFFER_BYTES]),
        )
        self.redis = FakeRedis(self.network)
        self.redis.watch(self._published)
        self.taken: Counter[bytes] = Counter()
        # Up to which token Redis was told of a writer's stream.
        self.told: dict[tuple[str, str], int] = {}
        self.database = SynapseDatabase()
        self.is_careless = chance.random() < 0.2
        self.daemons_write_caches = chance.random() < 0.25
        self.has_rollbacks = chance.random() < 0.5
        self.reasons = 0
        self.peers: dict[str, ICatchUp] = {}
        self.synapses = [
            FakeSynapse(
                self.redis,
                self.database,
                name=name,
                writes=[one for one in writes if one != "caches" or not self.daemons_write_caches],
                chance=chance,
                delay=self._http_delay,
                page_rows=chance.choice([1, 3, 50]),
                likes_to_lose=chance.random() < 0.5,
            )
            for name, writes in list(_SYNAPSES.items())[: chance.choice([2, 3, 3])]
        ]
        ours = ["ours1", *(["ours2"] if chance.random() < 0.5 else [])]
        ours += ["watcher1", *(["watcher2"] if chance.random() < 0.5 else [])]
        self.daemons = [self._daemon(name) for name in ours]
        self.peers.update({synapse.name: synapse for synapse in self.synapses})
        for daemon in self.daemons:
            if daemon.writes:
                self.peers[daemon.name] = DirectCatchUp(
                    daemon, self.clock, self._http_delay, page_rows=chance.choice([1, 3, 50])
                )
        self.slots: list[_Slot] = []
        for daemon in self.daemons:
            if not daemon.writes:
                for number, dialect in enumerate([CURRENT, chance.choice([LEGACY, MIDDLE])], 1):
                    self.slots.append(_Slot(f"{daemon.name}-worker{number}", dialect, daemon))
        # Of each daemon and life: what its follower says of gaps.
        self._gaps: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.clashes = 0

    def _daemon(self, name: str) -> RedisDaemon:
        writes = _DAEMONS[name]
        if writes and self.daemons_write_caches:
            writes = (*writes, "caches")
        return RedisDaemon(
            self.network,
            self.redis,
            name=name,
            table=self.table,
            disk_delay=lambda: self.chance.uniform(0.0002, 0.01),
            ring_bytes=self.chance.choice([300, 2_000, 8_000_000]),
            writes=writes,
            peers=self.peers,
            chance=self.chance,
        )

    # -- running -------------------------------------------------------------------------------------------

    def run(self) -> "BrokerSimulation":
        """Bad luck for a while, then peace until everybody has everything; then look."""
        with self._observed():
            for daemon in self.daemons:
                self._start_daemon(daemon)
            for synapse in self.synapses:
                self._start_synapse(synapse)
            while not all(daemon.is_running for daemon in self.daemons):
                self.clock.advance(STEP_SECONDS)
            for slot in self.slots:
                self._start_worker(slot)
            self._begin()
            end = self.clock.seconds() + self._seconds
            while self.clock.seconds() < end:
                self._write()
                self._bad_luck()
                self._fail_commits()
                self._end_outages()
                self.clock.advance(STEP_SECONDS)
            self._end_outages(all_of_them=True)
            self._rest()
            self._check()
        return self

    def _begin(self) -> None:
        """Let all meet, and everybody write something, as nobody is heard to stand at 0."""
        crumbles, self.crumbles = self.crumbles, False
        self._pass(5)
        writers: list[Any] = [*self.synapses, *self.daemons]
        for writer in writers:
            for stream in writer.writes:
                self._write_one(writer, stream)
        self._pass(3)
        for _ in range(60):
            self._pass(1)
            if next(self._behind(), None) is None:
                break
        self.crumbles = crumbles
        self._has_begun = True

    def _observe(self, event: Any) -> None:
        super()._observe(event)
        if event.get("log_level") == LogLevel.critical and "clash" in event and "log_failure" not in event:
            self.clashes += 1
            self._note(f"{event['clash']}")

    def _piece(self, size: int) -> int:
        if self.crumbles:
            return self.chance.randint(1, min(size, 400))
        return super()._piece(size)

    def _http_delay(self) -> float:
        return self.chance.uniform(0.001, 0.05)

    def _pass(self, seconds: float, step: float = 5 * STEP_SECONDS) -> None:
        self.clock.pump([step] * round(seconds / step))

    def _published(self, channel: bytes, payload: bytes) -> None:
        self.taken[payload] += 1
        kind, *words = payload.decode().split(" ", 5)
        token = words[2:3] if kind == "RDATA" else words[3:4] if kind == "POSITION" else []
        if token and token[0] != "batch":
            at = (words[0], words[1])
            self.told[at] = max(int(token[0]), self.told.get(at, 0))

    def _start_daemon(self, daemon: RedisDaemon) -> None:
        self._note(f"{daemon.name} starts")
        self.reasons += 1
        daemon.start()

    def _start_synapse(self, synapse: FakeSynapse) -> None:
        self._note(f"{synapse.name} starts")
        self.reasons += 1
        synapse.start()

    def _start_worker(self, slot: _Slot) -> None:
        self._note(f"{slot.name} starts ({slot.dialect})")
        worker = FakeWorker(
            self.network,
            slot.daemon,
            name=slot.name,
            dialect=slot.dialect,
            positions=slot.positions,
            start="earliest",
            delay=self._http_delay,
            page_rows=self.chance.choice([1, 3, 50]),
        )
        slot.lives.append(_Life(worker, slot.positions.load()))
        worker.start()

    # -- what happens --------------------------------------------------------------------------------------

    def _write(self) -> None:
        if self.chance.random() > 0.35:
            return
        everybody: list[Any] = [*self.synapses, *self.daemons]
        writers = [one for one in everybody if one.is_running and one.writes]
        if not writers:
            return
        writer = self.chance.choice(writers)
        self._write_one(writer, self.chance.choice(writer.writes))

    def _write_one(self, writer: Any, stream: str) -> None:
        facts = []
        for _ in range(self.chance.choice(self._sizes)):
            rows = []
            is_single = stream in ("typing", "presence", "caches", "backfill") or self.is_careless
            for _ in range(1 if is_single else self.chance.choice([1, 1, 2, 4])):
                self._count += 1
                rows.append(self.table[stream].canonical(_ROWS[stream](self._count)))
            facts.append(rows)
        if isinstance(writer, FakeSynapse):
            seconds = self.chance.choice([0, 0, 0.01, 0.3, 1.5])
            rolls_back = self.has_rollbacks and self.chance.random() < 0.1
            writer.write(stream, facts, seconds=seconds, rolls_back=rolls_back)
            if stream == "backfill" and self._has_begun and self.chance.random() < 0.4:
                # In the middle of it, if luck is bad enough.
                self.clock.callLater(seconds + self.chance.uniform(0, 0.15), self._cut_in_burst)
        else:
            appended = writer.log.append(stream, writer.instance, [jsontext.join(rows) for rows in facts])
            appended.addErrback(lambda failure: None)

    def _bad_luck(self) -> None:
        for chance, happen in (
            (0.004, self._cut_daemon),
            (0.002, self._cut_synapse),
            (0.001, self._cut_all),
            (0.001, self._kill_redis),
            (0.002, self._stall),
            (0.002, self._kill_daemon),
            (0.002, self._kill_synapse),
            (0.002, self._break_catch_up),
            (0.004, self._fail_disk),
            (0.002, self._cut_worker),
            (0.001, self._restart_worker),
        ):
            if self.chance.random() < chance:
                happen()

    def _cut_daemon(self) -> None:
        daemon = self.chance.choice(self.daemons)
        role = self.chance.choice(["subscriber", "publisher", ""])
        self._note(f"{daemon.name} loses its {role or 'subscriber and its publisher'}")
        for one in [role] if role else ["subscriber", "publisher"]:
            self.redis.cut(f"synrepl:{daemon.name}:{one}")
        self.reasons += 1

    def _cut_in_burst(self) -> None:
        daemon = self.chance.choice(self.daemons)
        if self.redis.cut(f"synrepl:{daemon.name}:subscriber"):
            self._note(f"{daemon.name} loses its subscriber in a burst")
            self.reasons += 1

    def _cut_synapse(self) -> None:
        synapse = self.chance.choice(self.synapses)
        roles = ["subscriber", "publisher"]
        # A process of Synapse whose publisher alone is cut says nothing of what it lost.
        if self.chance.random() < 0.5:
            roles = [self.chance.choice(roles) if self.is_careless else "subscriber"]
        self._note(f"{synapse.name} loses its {' and its '.join(roles)}")
        for one in roles:
            self.redis.cut(f"synrepl:{synapse.name}:{one}")
        self.reasons += 1

    def _cut_all(self) -> None:
        self._note("all connections to Redis are cut")
        self.redis.cut()
        self.reasons += len(self.daemons) + len(self.synapses)

    def _kill_redis(self) -> None:
        self._note("Redis is killed")
        self.redis.kill()
        self.reasons += len(self.daemons) + len(self.synapses)
        self._until_later(self.chance.uniform(0.05, 3), self.redis.start)

    def _stall(self) -> None:
        daemon = self.chance.choice(self.daemons)
        role = self.chance.choice(
            ["", f"synrepl:{daemon.name}:subscriber", f"synrepl:{daemon.name}:publisher"]
        )
        # No longer than anybody waits who would lose what it has said.
        seconds = self.chance.uniform(0.1, 20 if role else 6)
        self._note(f"Redis stalls for {role or 'everybody'}, {seconds:.1f} seconds")
        self.redis.stall(role)
        self.reasons += 1
        self._until_later(seconds, self.redis.go_on)

    def _kill_daemon(self) -> None:
        daemon = self.chance.choice(self.daemons)
        if not daemon.is_running:
            return
        self._note(f"{daemon.name} is killed")
        self._note_gaps(daemon)
        daemon.kill()
        self._until_later(self.chance.uniform(0.05, 3), lambda: self._start_daemon(daemon))

    def _kill_synapse(self) -> None:
        synapse = self.chance.choice(self.synapses)
        if not synapse.is_running:
            return
        self._note(f"{synapse.name} is killed")
        synapse.kill()
        self._until_later(self.chance.uniform(0.05, 3), lambda: self._start_synapse(synapse))

    def _break_catch_up(self) -> None:
        side = self.chance.choice(self.daemons).redis_side
        if side is None:
            return
        self._note(f"{side.daemon.name} cannot fetch anything")
        side.catch_up.is_broken = True

        def mend() -> None:
            side.catch_up.is_broken = False

        self._until_later(self.chance.uniform(0.1, 3), mend)

    def _fail_disk(self) -> None:
        daemon = self.chance.choice(self.daemons)
        if daemon.is_running and daemon not in self._full_disks:
            self._note(f"the disk of {daemon.name} is full")
            self._full_disks.append(daemon)
            self._until_later(self.chance.uniform(0, 1.5), lambda: self._full_disks.remove(daemon))

    def _fail_commits(self) -> None:
        for daemon in self._full_disks:
            if daemon.is_running:
                error = StorageError(op="commit", why="the disk is full", retryable=True)
                daemon.engine.fail_next(error, kept=self.chance.random() < 0.1)

    def _cut_worker(self) -> None:
        slot = self.chance.choice(self.slots)
        self._note(f"{slot.name} is cut off")
        for link in slot.worker.links():
            link.cut()

    def _restart_worker(self) -> None:
        slot = self.chance.choice(self.slots)
        self._note(f"{slot.name} is killed")
        slot.worker.kill()
        self._start_worker(slot)

    def _note_gaps(self, daemon: RedisDaemon) -> None:
        for name in ("detected", "repaired", "lost"):
            self._gaps[daemon.name][name] += int(getattr(daemon.metrics, f"gaps_{name}").value)
        if daemon.redis_side is not None:
            for _, gap in daemon.redis_side.follower.lost_gaps:
                if not self.table[gap.stream].ephemeral:
                    self._fail(f"G3: {daemon.name} gave up: {gap}")
            if daemon.redis_side.lost:
                self._fail(f"{daemon.name} began a new epoch, for {daemon.redis_side.lost}")

    # -- at rest -------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Peace, until everybody has all there is (or ten minutes have passed); then nobody says a word."""
        self._note("peace")
        # Time goes in larger steps from here on, each of which carries one piece.
        self.crumbles = False
        for _ in range(600):
            self._pass(1)
            if next(self._behind(), None) is None:
                break
        else:
            self._fail(f"G3: never caught up: {', '.join([*self._behind()][:4])}")
        self._note("everybody has everything")
        # The last of what was said may still be on its way, and be answered; a process may still be away, and
        # announce itself when it is back; and a writer that did not answer is asked again.
        before = -1
        for _ in range(20):
            if self.redis.published == before:
                break
            before = self.redis.published
            self._pass(SETTLE_SECONDS, 0.1)
        before = self.redis.published
        self._pass(QUIET_SECONDS, 0.1)
        if self.redis.published != before:
            last = list(self.taken)[-3:]
            self._fail(f"{self.redis.published - before} messages when there was nothing to say, as {last}")
        if behind := list(self._behind()):
            self._fail(f"G3: fell behind at rest: {', '.join(behind[:4])}")

    def _behind(self) -> Iterator[str]:
        """What a daemon or worker lacks, in words, one thing after the other."""
        reached = self._reached()
        for daemon in self.daemons:
            side = daemon.redis_side
            if not daemon.is_running or side is None or not side.follower.is_connected:
                yield f"{daemon.name} is not there"
                continue
            if waiting := side.follower.waiting_streams():
                yield f"{daemon.name} waits in {waiting}"
            for (stream, writer), token in reached.items():
                at = daemon.log.positions(stream).get(writer, 0)
                if at < token:
                    yield f"{daemon.name} has {stream} of {writer} up to {at}, not {token}"
        for slot in self.slots:
            worker = slot.worker
            if not worker.follower.is_connected or worker.follower.waiting_streams():
                yield f"{slot.name} is not there"
                continue
            positions = worker.follower.positions()
            for (name, writer), token in self._wanted(slot).items():
                at = positions.get(name, {}).get(writer, 0)
                if at < token:
                    yield f"{slot.name} has {name} of {writer} at {at}, not {token}"

    def _wanted(self, slot: _Slot) -> dict[tuple[str, str], int]:
        """Up to where a worker must be: releases that have no means to are not told of silence."""
        known = {stream.name for stream in self.table.known_to(slot.dialect)}
        wanted: dict[tuple[str, str], int] = {}
        for fact in slot.daemon.engine.facts:
            if fact.rows != NO_ROWS and fact.stream in known:
                at = (fact.stream, fact.writer if slot.knows_writers else "master")
                wanted[at] = max(fact.token, wanted.get(at, 0))
        return wanted

    def _reached(self) -> dict[tuple[str, str], int]:
        """Up to where each writer of each stream has written, as far as anybody can know."""
        reached = {
            (stream, synapse.name): token
            for synapse in self.synapses
            for stream, token in synapse.positions().items()
            if token > 1
        }
        for stream, rows in self.database.rows.items():
            for token, (writer, _) in rows.items():
                if stream != "caches":
                    reached[stream, writer] = max(token, reached.get((stream, writer), 0))
        if self.is_careless:
            reached = {at: min(token, self.told.get(at, 0)) for at, token in reached.items()}
        for daemon in self.daemons:
            if daemon.is_running:
                for stream in daemon.writes:
                    reached[stream, daemon.name] = daemon.log.positions(stream).get(daemon.name, 0)
        return reached

    # -- the promises --------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._check_failures()
        if self.clashes:
            self._fail("a clash of names, where every name is one process's")
        required, allowed = self._written()
        for daemon in self.daemons:
            self._check_log(daemon, required, allowed)
            self._note_gaps(daemon)
            gaps = self._gaps[daemon.name]
            if daemon.redis_side is not None and daemon.redis_side.follower.gaps():
                self._fail(f"G3: {daemon.name} still has gaps: {daemon.redis_side.follower.gaps()}")
            self._note(f"{daemon.name}: gaps {dict(gaps)}")
        for slot in self.slots:
            self._check_worker(slot)
        self._check_channel()

    def _written(self) -> tuple[set[_Place], set[_Place]]:
        """Every fact that must be everywhere, and every one that may."""
        allowed: set[_Place] = set()
        required: set[_Place] = set()
        for stream, rows in self.database.rows.items():
            for token, (writer, texts) in rows.items():
                place = self._place(stream, writer, token, jsontext.join(texts))
                allowed.add(place)
                line = f"RDATA {stream} {writer} {token} ".encode() + texts[-1]
                # Of a burst that ends with its writer nobody can know what was still to come.
                is_cut_off = self.table[stream].descends and any(
                    line in one.attempted for one in self.synapses
                )
                if line in self.taken or not (self.is_careless or is_cut_off):
                    required.add(place)
        for daemon in self.daemons:
            for fact in daemon.engine.facts:
                if fact.writer == daemon.name and fact.rows != NO_ROWS:
                    place = self._place(fact.stream, fact.writer, fact.token, fact.rows)
                    allowed.add(place)
                    required.add(place)
        return required, allowed

    def _place(self, stream: str, writer: str, token: int, rows: bytes) -> _Place:
        return (stream, "" if self.table[stream].any_writer else writer, token, rows)

    def _check_log(self, daemon: RedisDaemon, required: set[_Place], allowed: set[_Place]) -> None:
        facts = daemon.engine.facts
        if [fact.serial for fact in facts] != list(range(1, len(facts) + 1)):
            self._fail(f"G5: serials of {daemon.name} are not dense")
        if digest.verify(facts, digest.EMPTY) is not None:
            self._fail(f"G5: the digest chain of {daemon.name} is broken")
        last: defaultdict[tuple[str, str], int] = defaultdict(int)
        found: Counter[_Place] = Counter()
        for fact in facts:
            at = (fact.stream, fact.writer)
            if self.table[fact.stream].ordered:
                # A writer that was heard before it wrote anything is kept at 0.
                is_first = at not in last and fact.token == 0
                if not is_first and (fact.token <= last[at] or fact.prev_token != last[at]):
                    self._fail(f"G1: {daemon.name} has {at} {fact.token} after {last[at]}")
                last[at] = fact.token
            if fact.rows != NO_ROWS:
                found[self._place(fact.stream, fact.writer, fact.token, fact.rows)] += 1
        if missing := sorted(required - found.keys()):
            self._fail(f"G3: {daemon.name} never had {missing[:3]} ({len(missing)} facts)")
        if strange := sorted(found.keys() - allowed):
            self._fail(f"G2: {daemon.name} has {strange[:3]}, which nobody wrote ({len(strange)} facts)")
        if twice := sorted(place for place, times in found.items() if times > 1):
            self._fail(f"G6: {daemon.name} has {twice[:3]} more than once ({len(twice)} facts)")

    def _check_worker(self, slot: _Slot) -> None:
        kept = [fact for fact in slot.daemon.engine.facts if fact.rows != NO_ROWS]
        known = {stream.name for stream in self.table.known_to(slot.dialect)}
        facts: defaultdict[tuple[str, str, int], list[Fact]] = defaultdict(list)
        # Facts that came after later ones: a release that asks by token does not ask for them.
        late: set[tuple[str, str, int]] = set()
        highest: defaultdict[tuple[str, str], int] = defaultdict(int)
        for fact in kept:
            place = slot.place(fact)
            if facts[place] and not slot.knows_writers:
                # Two writers' facts under one token are one to whom does not know writers.
                joined = jsontext.join(jsontext.split(facts[place][0].rows) + jsontext.split(fact.rows))
                facts[place].append(msgspec.structs.replace(fact, rows=joined))
            facts[place].append(fact)
            if fact.token <= highest[place[:2]]:
                late.add(place)
            highest[place[:2]] = max(fact.token, highest[place[:2]])
        for life in slot.lives:
            seen: Counter[tuple[str, str, int]] = Counter()
            last: defaultdict[tuple[str, str], int] = defaultdict(int)
            for name, writers in life.began_at.items():
                for writer, token in writers.items():
                    last[name, writer] = token
            for updates in life.worker.applied:
                stream = self.table[updates.stream]
                if stream.ephemeral:
                    continue
                place = (updates.stream, updates.writer if slot.knows_writers else "", updates.token)
                rows = [
                    [stream.decode(row, slot.dialect) for row in stream.project_fact(fact.rows, slot.dialect)]
                    for fact in facts[place]
                ]
                # What is fetched comes whole.
                whole = [stream.decode_many(jsontext.split(fact.rows), NEWEST) for fact in facts[place]]
                if updates.rows not in rows and updates.rows not in whole:
                    self._fail(f"G2: {slot.name} applied {updates}, where the log has {rows}")
                seen[place] += 1
                if seen[place] > len(rows):
                    self._fail(f"G6: {slot.name} applied {place} twice")
                at = (updates.stream, updates.writer)
                # Who does not know writers hears several as one, which overtake each other.
                if slot.knows_writers and stream.ordered:
                    if updates.token <= last[at]:
                        self._fail(f"G1: {slot.name} applied {place} after {last[at]}")
                    last[at] = updates.token
            slot.seen |= seen
        missing = sorted(
            place
            for place in facts
            if place[0] in known
            and slot.seen[place] < (len(facts[place]) if slot.knows_writers else 1)
            and not (place in late and slot.was_away)
        )
        if missing:
            self._fail(f"G3: {slot.name} ({slot.dialect}) never saw {missing[:5]} ({len(missing)} facts)")
        if lost := slot.worker.metrics.gaps_lost.value:
            gaps = [gap for _, gap in slot.worker.follower.lost_gaps if not self.table[gap.stream].ephemeral]
            if gaps:
                self._fail(f"G3: {slot.name} lost {lost} gaps: {gaps[0]}")

    def _check_channel(self) -> None:
        """Nobody told what was not his to tell, nothing of ours was told twice, and all of it was bounded."""
        attempted: Counter[bytes] = Counter()
        for synapse in self.synapses:
            attempted += synapse.attempted
        ours = {(stream, daemon.name) for daemon in self.daemons for stream in daemon.writes}
        theirs = {synapse.name for synapse in self.synapses}
        kinds: Counter[str] = Counter()
        for line, times in self.taken.items():
            kind, *rest = line.decode().split(" ", 3)
            kinds[kind] += times
            if kind not in ("RDATA", "POSITION"):
                continue
            stream, writer = rest[:2]
            if writer in theirs:
                if times > attempted[line]:
                    self._fail(f"somebody told a fact of {writer}'s: {line.decode()}")
            elif (stream, writer) not in ours:
                self._fail(f"told by nobody: {line.decode()}")
            elif kind == "RDATA" and times > 1 and not self.table[stream].ephemeral:
                self._fail(f"told {times} times: {line.decode()}")
        self._note(f"the channel had {dict(kinds)}, for {self.reasons} reasons and {self._count} rows")
        asked = 4 * self.reasons + 20
        if kinds["REPLICATE"] > asked:
            self._fail(f"{kinds['REPLICATE']} times REPLICATE, for {self.reasons} reasons")
        if kinds["POSITION"] > MESSAGES_EACH * asked + 2 * self._count:
            self._fail(f"{kinds['POSITION']} times POSITION, for {self.reasons} reasons")


if __name__ == "__main__":
    BrokerSimulation.main(int(sys.argv[1]))
