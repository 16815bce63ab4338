"""A daemon, writers and followers, and whatever bad luck a seed holds for them.

Everything runs on one fake clock in one thread; chance comes from one seeded source, so a seed is a run
that can be repeated: ``python -m tests.simulation.workers SEED``."""

import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from twisted.internet.task import deferLater

from synrepl.replication.follower.updates import Updates
from synrepl.replication.strategies import following
from synrepl.streams import digest
from synrepl.streams.catalog import RECEIPTS, CacheInvalidation
from synrepl.streams.facts import Fact
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.testing.cluster import FakeDaemon, FakeWorker, MemoryPositions
from synrepl.testing.network import BUFFER_BYTES, Network
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, Dialect
from tests.memory_engine import FaultyEngine
from tests.simulation.cached_reads import CachedReader, CacheTruth, invalidation
from tests.simulation.seeded import STEP_SECONDS, Broken, SeededRun

__all__ = ["Broken", "Simulation"]

MOST_BUFFERED: Final = 1024 * 1024

_Apply = Callable[[FakeWorker, Sequence[Updates[Any]]], Awaitable[None] | None]


class _Life(msgspec.Struct):
    """One life of a worker, from start to stop or kill. It began at the positions, and serial, given."""

    worker: FakeWorker
    reader: CachedReader
    began_at: dict[str, dict[str, int]]
    serial: int


class _Slot:
    """A worker over all its lives: what survives them.

    `starts_anew`: nothing does, and each life begins where the streams are then.
    """

    def __init__(self, name: str, dialect: Dialect, *, starts_anew: bool = False) -> None:
        self.name = name
        self.dialect = dialect
        self.starts_anew = starts_anew
        self.knows_writers = not following(dialect).pushed
        self.positions = MemoryPositions()
        self.lives: list[_Life] = []
        self.seen: set[tuple[str, int]] = set()

    @property
    def worker(self) -> FakeWorker:
        return self.lives[-1].worker

    @property
    def reader(self) -> CachedReader:
        return self.lives[-1].reader


_ROWS: Final[dict[str, Callable[[int], list[Any]]]] = {
    "events": lambda n: (
        ["ev", [f"$e{n}", "!r", "m.room.message", None, None, None, None, False, False]]
        if n % 3
        else ["state", ["!r", "m.room.topic", "", f"$s{n}"]]
    ),
    "receipts": lambda n: [f"!r{n % 5}", "m.read", "@u:hs", f"$e{n}", None, {"ts": n}],
    "caches": invalidation,
    "to_device": lambda n: [f"@u{n}:hs"],
    "backfill": lambda n: [f"$b{n}", "!r", "m.room.message", None, None, None],
    "account_data": lambda n: [f"@u{n}:hs", None, "m.direct"],
    "typing": lambda n: [f"!r{n % 5}", [f"@u{n}:hs"]],
}


# Where the stream is in memory, what was missed when the daemon ended is lost for good.
_LOST_CACHES: Final = Stream("caches", CacheInvalidation, ordered=False, monotonic=False, ephemeral=True)


class Simulation(SeededRun):
    """One seeded run. `run` raises `Broken` if a promise is."""

    MODULE = "tests.simulation.workers"

    def __init__(self, seed: int, *, seconds: float = 8.0) -> None:
        super().__init__(seed, seconds)
        self.acknowledged: list[tuple[str, int]] = []
        slow = self.chance.choice([0.002, 0.02, 0.2])
        self.network = Network(
            self.clock,
            delay=lambda: self.chance.uniform(0.0005, slow),
            piece=self._piece,
            buffer_bytes=self.chance.choice([300, 4_000, BUFFER_BYTES]),
        )
        self.loses_caches = self.chance.random() < 0.25
        table = StreamTable.default()
        if self.loses_caches:
            table = StreamTable([_LOST_CACHES if one.name == "caches" else one for one in table])
        self.truth = CacheTruth()
        self.engine = FaultyEngine()
        self.daemon = FakeDaemon(
            self.network,
            engine=self.engine,
            table=table,
            disk_delay=lambda: self.chance.uniform(0.0002, 0.01),
            ring_bytes=self.chance.choice([300, 2_000, 8_000_000]),
        )
        self.slots = [
            _Slot(f"worker{number}", dialect)
            for number, dialect in enumerate([LEGACY, CURRENT, MIDDLE, CURRENT, LEGACY])
        ]
        self.slots.append(_Slot("reader", self.chance.choice([CURRENT, LEGACY, MIDDLE]), starts_anew=True))
        self.writers = ["master", "w1", "w2"][: self.chance.randint(1, 3)]
        self.subscribers_fail = self.chance.random() < 0.3
        self.subscribers_wait = self.chance.random() < 0.3
        self.largest_batch = 0
        self.has_ephemeral = self.chance.random() < 0.7

    # -- running -------------------------------------------------------------------------------------------

    def run(self) -> "Simulation":
        """Bad luck for a while, then peace until everybody has everything; then look."""
        with self._observed():
            self._start_daemon()
            while not self.daemon.is_running:
                self.clock.advance(STEP_SECONDS)
            for slot in self.slots:
                self._start_worker(slot)
            while self.clock.seconds() < self._seconds:
                self._write()
                self._read()
                self._bad_luck()
                self._end_outages()
                self.clock.advance(STEP_SECONDS)
            self._end_outages(all_of_them=True)
            self._rest()
            for slot in self.slots:
                slot.reader.read_everything()
            self.clock.pump([STEP_SECONDS] * 300)
            self._check()
        return self

    def _start_daemon(self) -> None:
        self._note("daemon starts")
        self.daemon.start().addCallback(self._daemon_started)

    def _daemon_started(self, _: None) -> None:
        ephemeral = [stream.name for stream in self.daemon.table if stream.ephemeral]
        self.truth.begin_life(ephemeral, self.engine.facts)
        self.daemon.log.subscribe(self.truth.committed)

    def _start_worker(self, slot: _Slot) -> None:
        in_batches = self.chance.random() < 0.4
        self._note(f"{slot.name} starts ({slot.dialect}{', with batches' if in_batches else ''})")
        if slot.starts_anew:
            slot.positions = MemoryPositions()
        reader = CachedReader(
            self.truth, self.clock, self.chance, name=slot.name, knows_writers=slot.knows_writers
        )
        apply = self._subscriber(reader)
        streams = [RECEIPTS] if slot.starts_anew else None
        worker = FakeWorker(
            self.network,
            self.daemon,
            name=slot.name,
            dialect=slot.dialect,
            positions=slot.positions,
            start="latest" if slot.starts_anew else "earliest",
            streams=[] if in_batches else streams,
            delay=lambda: self.chance.uniform(0.001, 0.05),
            page_rows=self.chance.choice([1, 3, 50]),
            caches=reader.caches,
            subscriber=lambda worker, updates: apply(worker, [updates]),
        )
        if in_batches:
            for stream in streams or self.daemon.table:
                self._subscribe_batches(worker, stream, apply)
        reader.follow(worker.follower)
        slot.lives.append(_Life(worker, reader, slot.positions.load(), len(self.engine.facts)))
        reader.read_everything()
        worker.start()

    def _subscribe_batches(self, worker: FakeWorker, stream: Stream[Any], apply: _Apply) -> None:
        """Apply batches, on some streams beside a subscriber of single facts, which may fail among them."""

        def apply_batch(batch: Sequence[Updates[Any]]) -> Awaitable[None] | None:
            self.largest_batch = max(self.largest_batch, len(batch))
            return apply(worker, batch)

        done: set[tuple[str, int]] = set()

        def note_single(updates: Updates[Any]) -> None:
            if self.subscribers_fail and self.chance.random() < 0.02:
                raise OSError("database is away")
            key = (updates.stream, updates.token)
            if key in done and not stream.ephemeral:
                self._failures.append(f"G6: {worker.name} gave {key} of a batch twice")
            done.add(key)

        if self.chance.random() < 0.3:
            worker.follower.on(stream)(note_single)
        worker.follower.on_batch(stream, max_facts=self.chance.choice([1, 2, 5, 1000]))(apply_batch)

    def _subscriber(self, reader: CachedReader) -> _Apply:
        """One that reads, remembers, and where this run says so fails or takes its time, now and then."""

        def remember(worker: FakeWorker, batch: Sequence[Updates[Any]]) -> None:
            for updates in batch:
                reader.read_within(updates)
                stream = self.daemon.table[updates.stream]
                if stream.ordered and stream.monotonic:
                    machine = worker.follower.server.streams.executors[updates.stream].machine
                    position = machine.positions.reported.get(updates.writer)
                    if position == updates.token:
                        self._failures.append(f"G4: {worker.name} stood at {updates} before it was applied")
            worker.applied.extend(batch)

        async def slowly(worker: FakeWorker, batch: Sequence[Updates[Any]]) -> None:
            if self.subscribers_fail and self.chance.random() < 0.02:
                raise OSError("database is away")
            if self.subscribers_wait and self.chance.random() < 0.1:
                await deferLater(self.clock, self.chance.uniform(0, 0.1), lambda: None)
            remember(worker, batch)

        return slowly if self.subscribers_fail or self.subscribers_wait else remember

    # -- what happens --------------------------------------------------------------------------------------

    def _write(self) -> None:
        if not self.daemon.is_running or self.chance.random() > 0.3:
            return
        names = sorted(_ROWS) if self.has_ephemeral else sorted(set(_ROWS) - {"typing"})
        stream = self.chance.choice(names)
        facts = []
        for _ in range(self.chance.choice(self._sizes)):
            rows = []
            for _ in range(1 if stream == "typing" else self.chance.choice([1, 1, 2, 4])):
                self._count += 1
                rows.append(_ROWS[stream](self._count))
            facts.append(rows)
        appended = self.daemon.append(stream, facts, writer=self.chance.choice(self.writers))
        appended.addCallbacks(
            lambda answer: self.acknowledged.extend((stream, token) for token in answer.tokens),
            lambda _: None,
        )

    def _read(self) -> None:
        if self.chance.random() < 0.5:
            self._slot().reader.read_something()
        if self.truth.latest and self.chance.random() < 0.1:
            self._slot().reader.read_after(self.chance.choice(self.truth.latest))

    def _bad_luck(self) -> None:
        for chance, happen in (
            (0.004, self._cut),
            (0.003, self._stall),
            (0.003, self._stop_reading),
            (0.0015, self._kill_daemon),
            (0.002, self._restart_worker),
            (0.002, self._break_catch_up),
            (0.006, self._restart_reader),
        ):
            if self.chance.random() < chance:
                happen()

    def _slot(self) -> _Slot:
        return self.chance.choice(self.slots)

    def _cut(self) -> None:
        slot = self._slot()
        self._note(f"{slot.name} is cut off")
        for link in slot.worker.links():
            link.cut()

    def _stall(self) -> None:
        slot = self._slot()
        for link in slot.worker.links():
            self._note(f"{slot.name}'s link stalls")
            link.stall()
            self._until_later(self.chance.uniform(0.1, 4), link.go_on)

    def _stop_reading(self) -> None:
        slot = self._slot()
        for link in slot.worker.links():
            self._note(f"{slot.name} stops reading")
            link.client.pauseProducing()
            self._until_later(self.chance.uniform(0.1, 8), link.client.resumeProducing)

    def _kill_daemon(self) -> None:
        if not self.daemon.is_running:
            return
        self._note("daemon is killed")
        self.daemon.kill()
        self._until_later(self.chance.uniform(0.05, 3), self._start_daemon)

    def _restart_reader(self) -> None:
        self._restart(self.slots[-1])

    def _restart_worker(self) -> None:
        self._restart(self._slot())

    def _restart(self, slot: _Slot) -> None:
        if self.chance.random() < 0.5:
            self._note(f"{slot.name} is killed")
            slot.worker.kill()
        else:
            self._note(f"{slot.name} stops")
            slot.worker.stop()
        self._start_worker(slot)

    def _break_catch_up(self) -> None:
        catch_up = self._slot().worker.catch_up
        catch_up.is_broken = True

        def mend() -> None:
            catch_up.is_broken = False

        self._until_later(self.chance.uniform(0.1, 3), mend)

    # -- at rest -------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Peace, until every follower has all there is (or an hour has passed)."""
        self._note("peace")
        for _ in range(400):
            self.clock.pump([STEP_SECONDS] * 25)
            if self.daemon.is_running and all(self._has_everything(slot) for slot in self.slots):
                self.clock.pump([STEP_SECONDS] * 25)
                return
        for _ in range(3600):
            self.clock.advance(1)
        behind = [slot.name for slot in self.slots if not self._has_everything(slot)]
        if behind:
            self._fail(f"G3: {', '.join(behind)} never caught up")

    def _has_everything(self, slot: _Slot) -> bool:
        worker = slot.worker
        if not worker.follower.is_connected or worker.follower.waiting_streams():
            return False
        positions = worker.follower.positions()
        for stream in self.daemon.table.known_to(slot.dialect):
            if stream.ephemeral or (slot.starts_anew and stream.name not in slot.reader.caches.streams):
                continue
            if slot.knows_writers:
                reached = self.daemon.log.positions(stream.name)
            else:
                reached = {"master": self.daemon.log.linear_position(stream.name)}
            if any(positions.get(stream.name, {}).get(w, 0) != t for w, t in reached.items() if t):
                return False
        return True

    # -- the promises --------------------------------------------------------------------------------------

    def _check(self) -> None:
        facts = self.engine.facts
        self._check_failures()
        if [fact.serial for fact in facts] != list(range(1, len(facts) + 1)):
            self._fail("G5: serials are not dense")
        if digest.verify(facts, digest.EMPTY) is not None:
            self._fail("G5: the digest chain is broken")
        kept = {(fact.stream, fact.token): fact for fact in facts}
        ephemeral = {stream.name for stream in self.daemon.table if stream.ephemeral}
        for stream, token in self.acknowledged:
            if stream not in ephemeral and (stream, token) not in kept:
                self._fail(f"G5: {stream} {token} was acknowledged and is gone")
        for slot in self.slots:
            for life in slot.lives:
                if life.reader.stale:
                    self._fail(f"G4: {life.reader.stale[0]}")
                self._check_life(slot, life, kept)
            if slot.worker.follower.server.waits.waiters.queues:
                self._fail(f"{slot.name} still holds somebody whose time is long over")
            if slot.starts_anew:
                continue
            missing = sorted(set(kept) - slot.seen)
            if missing:
                self._fail(f"G3: {slot.name} never saw {missing[:5]} ({len(missing)} facts)")
            self._check_gaps(slot)
        for link in self.network.links:
            if link.server.most_buffered > MOST_BUFFERED:
                self._fail(f"G7: {link.server.most_buffered} bytes waited for one reader")

    def _check_life(self, slot: _Slot, life: _Life, kept: dict[tuple[str, int], Fact]) -> None:
        table = self.daemon.table
        last: defaultdict[tuple[str, str], int] = defaultdict(int)
        for name, writers in life.began_at.items():
            for writer, token in writers.items():
                last[name, writer] = token
        seen: set[tuple[str, int]] = set()
        for updates in life.worker.applied:
            stream = table[updates.stream]
            if stream.ephemeral:
                continue
            key = (updates.stream, updates.token)
            fact = kept.get(key)
            if fact is None:
                self._fail(f"{slot.name} applied {key}, which is not in the log")
                return
            rows = [stream.decode(row, slot.dialect) for row in stream.project_fact(fact.rows, slot.dialect)]
            if rows != updates.rows:
                self._fail(f"G2: {slot.name} applied {key} as {updates.rows}, not as {rows}")
            if slot.knows_writers and updates.writer != fact.writer:
                self._fail(f"{slot.name} took {key} of {fact.writer} for one of {updates.writer}")
            if (
                slot.starts_anew
                and fact.serial <= life.serial
                and life.worker.follower.server.waits.connections < 2
            ):
                self._fail(f"{slot.name} began at latest, and applied {key}, which was there before")
            if key in seen:
                self._fail(f"G6: {slot.name} applied {key} twice")
            seen.add(key)
            if following(slot.dialect).keeps_order(updates.stream, stream.ordered):
                at = (updates.stream, updates.writer)
                if updates.token <= last[at]:
                    self._fail(f"G1: {slot.name} applied {key} of {updates.writer} after {last[at]}")
                last[at] = updates.token
        slot.seen |= seen

    def _check_gaps(self, slot: _Slot) -> None:
        metrics = slot.worker.metrics
        detected, repaired = metrics.gaps_detected.value, metrics.gaps_repaired.value
        if detected != repaired and not self.has_ephemeral and not self.loses_caches:
            self._fail(f"G3: {slot.name} found {detected} gaps and repaired {repaired}")


if __name__ == "__main__":
    Simulation.main(int(sys.argv[1]))
