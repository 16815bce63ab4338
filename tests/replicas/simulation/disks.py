"""`ReplicaSimulation` in which disks break: the power goes, and bits flip in what is stored.

A power cut ends a daemon with its machine. Of the work that its writing thread had still to do, a drawn part
is on the disk, in order. A copy under construction is not synced, so that its last commits may be gone. A
flipped bit is one bit of one row of a daemon's disk, in whichever table, while the daemon runs or is down.

An operator looks after the daemons, and does what docs/howto/damaged-log.md says: a damaged replica joins
anew with an empty disk; in place of a damaged primary a whole replica is promoted; without one a backup is
restored. The operator knows only what the daemons say. So these break a promise:

* a daemon that refuses, and does not say whose log is damaged and what to do;
* one that complains of damage while its disk is whole;
* one that gives a replica, a worker or a reader of the log a fact that no primary has committed
  (`histories.py`), or leaves one out;
* a fact that was acknowledged and is gone, although not only a broken disk had it.

At rest each flipped bit that nobody has noticed is looked for, as synrepl doctor does: it is found, or has
changed nothing.

``python -m tests.replicas.simulation.disks SEED``."""

import random
import sys
from collections.abc import Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.errors import ReplicationError, StorageError
from synrepl.replicas.backup.restored import begin_restored
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.digest import EMPTY
from synrepl.streams.facts import Fact, decode_facts
from synrepl.wire.filter import ALL, Filter
from tests.memory_engine import DiskDatabase, FaultyEngine, UnsyncedDatabase
from tests.power.row_bits import damage_in, flip_row_bit
from tests.replicas.nodes import FakeNode
from tests.replicas.simulation.histories import content
from tests.replicas.simulation.upstreams import STREAMS, UpstreamSimulation

__all__ = ["DiskSimulation"]

WAY_OUT: Final = "restore it, or join again as a replica"
"""What a daemon must say of its log if it cannot use it."""

WRITES: Final = {
    "_commit_group",
    "commit_followed",
    "_add",
    "restore",
    "adopt_staged",
    "begin_epoch",
    "store",
    "trim",
}
"""The functions of the writing thread that write; `store` is of notes and leases."""

LIMITS: Final = (50, 1_000)
TEXT_BYTES: Final = 100_000
SCANNED: Final = 400

FILTERS: Final = (ALL, Filter(streams=frozenset(STREAMS)), Filter(writers=frozenset({"keyed0", "loose"})))


class DiskSimulation(UpstreamSimulation):
    """One seeded run. `run` raises `Broken` if a promise is.

    Half of the runs have workers. The others trim their logs, before any worker could have read them.
    """

    MODULE = "tests.replicas.simulation.disks"

    def __init__(self, seed: int, *, seconds: float = 4.0) -> None:
        self._flips: list[tuple[FakeNode, object, str]] = []
        """The nodes, connections to their disks, and places of all bits that are flipped now."""
        self._broken: dict[str, str] = {}
        """By nodes that the operator has stopped, what they said."""
        self._backup: FaultyEngine | None = None
        self._led: dict[str, int] = {}
        """By nodes that were primary last, their epochs."""
        self._promoting: tuple[FakeNode, Log] | None = None
        super().__init__(seed, seconds=seconds)
        self.disks = random.Random(f"disks {seed}")
        self.has_workers = self.disks.random() < 0.5
        self.trims = not self.has_workers
        self.promotes = self.disks.random() < 0.5

    def _fresh_disk(self, node: FakeNode) -> None:
        super()._fresh_disk(node)
        uuid = node.engine.read_note("uuid")
        node.engine = FaultyEngine(DiskDatabase(f"the log of {node.name}"))
        # A new log, whichever daemon it is of.
        node.engine.write_notes(uuid=uuid, history=f"history-of-{uuid}")
        self.histories.note_position(node, EMPTY)

    # -- bad luck ------------------------------------------------------------------------------------------

    def _bad_luck(self) -> None:
        super()._bad_luck()
        luck = self.disks
        running = [name for name in sorted(self.nodes) if self.nodes[name].is_running]
        writing = [name for name in running if WRITES.intersection(self.nodes[name].pending_writes)]
        if writing and luck.random() < 0.008:
            self._kill(luck.choice(writing))
        for name in sorted(self.nodes):
            if name not in running and luck.random() < 0.03:
                self._start(name)
        if self._backup is None:
            self._back_up()
        elif luck.random() < 0.01:
            self._flip(self.nodes[luck.choice(sorted(self.nodes))])
        if running and luck.random() < 0.1:
            self._read(self.nodes[luck.choice(running)])
        if luck.random() < 0.01:
            self._back_up()
        if luck.random() < 0.05:
            self._look_after()

    def _end(self, node: FakeNode) -> None:
        """The power goes: what is written then is true, acknowledged or not."""
        pending = node.pending_writes
        written = self.disks.randint(0, len(pending))
        for number, one in enumerate(pending):
            if one in WRITES:
                self.seen[f"{one} {'is' if number < written else 'is not'} on the disk"] += 1
        staged = node.engine.staged
        node.cut_power(written)
        if staged is not None and node.engine.staged is staged:
            database = staged.database
            assert isinstance(database, UnsyncedDatabase)
            taken_back = self.disks.randrange(len(database.states))
            if taken_back:
                self.seen["a staged copy loses commits"] += 1
                database.go_back(taken_back)
        if node.roles.role != "replica":
            if self._is_readable(node):
                self.histories.add_durable(node)
            else:
                self.histories.add_beyond(node)

    def _flip(self, node: FakeNode) -> None:
        staged = node.engine.staged
        disk = node.engine if staged is None or self.disks.random() < 0.7 else staged
        connection = disk.database.connection
        if not connection.execute("SELECT count(*) FROM facts").fetchone()[0]:
            return
        if node.name in self._starting or any(one[1] is connection for one in self._flips):
            return
        where = flip_row_bit(connection, self.disks)
        if where is not None:
            self.seen[f"flipped in {where.rpartition(' ')[2]}"] += 1
            self._note(f"{node.name}: {where} flips")
            self._flips.append((node, connection, where))
            if node.is_running:
                self._read(node)

    def _is_readable(self, node: FakeNode) -> bool:
        return not any(connection is node.engine.database.connection for _, connection, _ in self._flips)

    # -- readers -------------------------------------------------------------------------------------------

    def _read(self, node: FakeNode) -> None:
        """Somebody reads the log: gets what its history has, or an error."""
        log, asked = node.log, self.disks.choice(FILTERS)
        after, limit = (
            self.disks.choice([0, self.disks.randint(0, log.head.serial)]),
            self.disks.choice(LIMITS),
        )
        way = self.disks.choice(["facts", "text"])
        uuid = log.uuid, log.boots

        async def work() -> None:
            if way == "facts":
                found, last = await log.reads.facts(
                    after=after, upto=log.head.serial, limit=limit, filter=asked
                )
            else:
                text, last = await log.reads.text(
                    after=after,
                    upto=log.head.serial,
                    limit=limit,
                    filter=asked,
                    form="json",
                    size=TEXT_BYTES,
                    scanned=SCANNED,
                )
                found = decode_facts(text)
            if (log.uuid, log.boots) == uuid:
                self._check_read(node, found, after, last, asked)

        self._do(work())

    def _check_read(
        self, node: FakeNode, found: Sequence[Fact], after: int, last: int, asked: Filter
    ) -> None:
        self.seen["read"] += 1
        trimmed, own = node.log.head.trimmed_upto.serial, node.publisher.read_gate.filter
        expected = [
            fact
            for fact in self.histories.chain(node.log.position.digest)
            if max(after, trimmed) < fact.serial <= last and _passes(fact, asked) and _passes(fact, own)
        ]
        actual = [fact for fact in found if fact.serial > trimmed]
        if actual != expected:
            self.failed(f"a reader of {node.name} gets {actual} beyond {after}, not {expected}")
        wrong = [fact for fact in found if not self.histories.has(fact)]
        if wrong:
            self.failed(f"a reader of {node.name} gets {wrong}, which no primary committed")

    # -- the operator --------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        node = self.nodes[name]
        if name in self._broken or node.is_running or name in self._starting:
            return
        if not self._is_readable(node) and not damage_in(node.engine.database.connection):
            # It was overwritten.
            self._forget_flips(node, "without meaning")
        super()._start(name)

    def _forget_flips(self, node: FakeNode, why: str) -> None:
        connection = node.engine.database.connection
        for one in self._flips:
            if one[1] is connection:
                self._note(f"{node.name}: {one[2]} is {why}")
                self.seen[why] += 1
        self._flips = [one for one in self._flips if one[1] is not connection]

    def _start_failed(self, node: FakeNode, failure: Failure) -> None:
        self._starting.discard(node.name)
        node.kill()
        if failure.check(StorageError) is None:
            self.failed(failure.getTraceback())
            return
        self.seen["refused at the start"] += 1
        self._stop_broken(node, str(failure.value))

    def _stop_broken(self, node: FakeNode, said: str) -> None:
        """The operator stops a daemon that says that its log is damaged."""
        self._note(f"{node.name} says: {said}")
        if WAY_OUT not in said:
            self.failed(f"{node.name} does not say what to do: {said}")
        disks = [disk.database.connection for disk in (node.engine, node.engine.staged) if disk is not None]
        if not any(connection is disk for _, connection, _ in self._flips for disk in disks):
            self.failed(f"{node.name} has no damaged disk, and says: {said}")
        self._kill(node.name)
        self._broken[node.name] = said

    def _back_up(self) -> None:
        node = self._running_primary()
        if node is not None and self._is_readable(node):
            self._backup = node.engine.copy()

    def _running_primary(self) -> FakeNode | None:
        found = [node for node in self.nodes.values() if node.is_running and node.roles.role == "primary"]
        return found[0] if found else None

    def _look_after(self) -> None:
        """Look at what each daemon says, and mend one that is broken."""
        for name in sorted(self.nodes):
            node = self.nodes[name]
            if node.is_running:
                self._listen(node)
        for name in sorted(self._broken):
            if name in self._broken and not self._is_promoting():
                self._mend(self.nodes[name])

    def _is_promoting(self) -> bool:
        """Whether a promotion is under way: one that is killed meanwhile never ends."""
        return (
            self._promoting is not None
            and self._promoting[0].log is self._promoting[1]
            and self._promoting[0].is_running
        )

    def _listen(self, node: FakeNode) -> None:
        said = [node.log.healthy[1], node.replica.why if node.replica is not None else ""]
        mine = [one for one in said if f"the log of {node.name}" in one]
        if mine:
            self.seen["refused while serving"] += 1
            self._stop_broken(node, mine[0])

    def _mend(self, node: FakeNode) -> None:
        for name in sorted(self.nodes):
            self._start(name)
        if self._starting:
            return
        others = [one for one in self.nodes.values() if one.name != "d" and one.name not in self._broken]
        if any(one.roles.role == "replica" and one.replica is None for one in others):
            return  # somebody else has it promoted
        # In place of a primary counts who followed it, not one that it had replaced.
        led = self._led.get(node.name, 0)
        primary = max((one for one in others if one.roles.role == "primary"), key=_epoch, default=None)
        # A fenced daemon has no replica: it was primary, and its copy is whole.
        whole = [
            one for one in others if one.roles.role == "fenced" or (one.replica and one.replica.is_whole)
        ]
        if primary is not None and (_epoch(primary) > led or max(map(_epoch, whole), default=0) < led):
            self._join_anew(node, primary)
        elif whole:
            self._promote_instead(max(whole, key=lambda one: (_epoch(one), one.log.head.serial)))
        else:
            self._restore(node)

    def _role_changed(self, node: FakeNode) -> None:
        super()._role_changed(node)
        if node.roles.role == "primary":
            self._led[node.name] = _epoch(node)
        else:
            self._led.pop(node.name, None)

    def _join_anew(self, node: FakeNode, primary: FakeNode) -> None:
        """With an empty disk, as a replica of the primary."""
        self._note(f"{node.name} joins anew, a replica of {primary.name}")
        self.seen["joins anew"] += 1
        if self._led.pop(node.name, 0) >= _epoch(primary):
            # The other one is no successor: it never knew of this one's epoch.
            self._restart_workers()
        self._throw_away(node)
        self._replace_disk(node, primary.name)
        self._broken.pop(node.name)
        self._start(node.name)

    def _promote_instead(self, node: FakeNode) -> None:
        self._note(f"{node.name} is promoted by force, as nobody else is primary")
        self._promoting = node, node.log

        def ended(result: Any) -> None:
            self._promoting = None
            if not isinstance(result, Failure):
                self.seen["promoted instead"] += 1
            elif result.check(ReplicationError) is None:
                self.failed(result.getTraceback())
            elif f"the log of {node.name}" in str(result.value):
                self.seen["refused when promoted"] += 1
                self._stop_broken(node, str(result.value))
            else:
                self._note(f"{node.name} is not promoted: {result.value}")

        Deferred.fromCoroutine(node.promotion.promote(force=True)).addBoth(ended)

    def _restore(self, node: FakeNode) -> None:
        """Nobody else has anything."""
        assert self._backup is not None
        self._note(f"{node.name} is restored from a backup, as nobody else has the log")
        self.seen["restored"] += 1
        self._throw_away(node, self._backup)
        node.engine = FaultyEngine(DiskDatabase(f"the log of {node.name}"))
        self._backup.database.connection.backup(node.engine.database.connection)
        node.engine.write_notes(uuid=f"{self.disks.getrandbits(64):x}")
        self.histories.note_position(node, self._backup.facts[-1].digest if self._backup.facts else EMPTY)
        thread = ImmediateThread()
        log = Log(node.engine, thread, thread, self.clock, ephemeral=(), logger=Logger())

        async def work() -> None:
            await log.start()
            await begin_restored(log, self.clock)
            await log.stop()

        done: list[Any] = []
        Deferred.fromCoroutine(work()).addBoth(done.append)
        if done != [None]:
            self.failed(f"{node.name} cannot be restored: {done}")
        node.upstream = None
        self._known_revoked.pop(node.name, None)
        self._broken.pop(node.name)
        for other in self.nodes.values():
            if other is not node:
                other.upstream = node.name
        self._restart_workers()
        self._start(node.name)

    def _restart_workers(self) -> None:
        """Facts are gone that no epoch tells of: a worker cannot know (the limit of G9 in guarantees.md)."""
        for worker in self.workers:
            worker.stop()
        self.workers.clear()

    def _throw_away(self, node: FakeNode, backup: FaultyEngine | None = None) -> None:
        """Note which facts only this disk had."""
        kept = {
            content(fact)
            for other in self.nodes.values()
            if other is not node and other.name != "d"
            for fact in self.histories.chain(self.histories.position(other))
        }
        if backup is not None:
            kept |= set(map(content, backup.facts))
        had = {content(fact) for fact in self.histories.chain(self.histories.position(node))}
        if had - kept:
            self.seen["lost with the disk"] += 1
            self._note(f"{node.name} alone had {len(had - kept)} facts")
        self.lost_by_restore |= had - kept
        self._flips = [one for one in self._flips if one[0] is not node]

    def _operate(self) -> None:
        self._look_after()
        if not self._broken:
            super()._operate()

    # -- at rest -------------------------------------------------------------------------------------------

    def _is_at_rest(self) -> bool:
        if self._broken or not super()._is_at_rest():
            return False
        for node in self.nodes.values():
            if self._is_readable(node):
                continue
            if damage := damage_in(node.engine.database.connection):
                # As synrepl doctor does, on a copy.
                self.seen["found by the doctor"] += 1
                self._stop_broken(node, f"{damage}; {WAY_OUT}")
                return False
            self._forget_flips(node, "without meaning")
        return True


def _epoch(node: FakeNode) -> int:
    return node.log.head.epoch


def _passes(fact: Fact, query: Filter) -> bool:
    return (query.streams is None or fact.stream in query.streams) and (
        query.writers is None or fact.writer in query.writers
    )


if __name__ == "__main__":
    DiskSimulation.main(int(sys.argv[1]))
