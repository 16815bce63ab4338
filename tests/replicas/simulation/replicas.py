"""Daemons that are copies of each other, writers, an operator, and whatever bad luck a seed holds for them.

A primary `a`, its replica `b`, and `c`, a replica of `b`; at times `d`, a replica of `a` that wants only some
streams. An attacker without a secret sends made-up claims, subscriptions and hand-overs. Everything runs on
one fake clock in one thread; chance comes from one seeded source, so a seed is a run that can be repeated:
``python -m tests.replicas.simulation.replicas SEED``."""

import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.base.access import LOCAL, Right
from synrepl.base.history import EpochStart
from synrepl.errors import ConfigError, ReplicationError, StorageError
from synrepl.replicas.relay import leases as leases_module
from synrepl.replicas.replica import join as joining_module
from synrepl.replicas.replica import replica as replica_module
from synrepl.replicas.roles.asking import ANSWER_SECONDS as ASKING_SECONDS
from synrepl.replicas.roles.messages import Claim, HandOver, PeerStatus
from synrepl.replicas.roles.notifier import MAX_NOTIFY_RETRY_SECONDS
from synrepl.replicas.roles.rivals import INQUIRY_INTERVAL
from synrepl.replicas.roles.role_states import Role
from synrepl.replicas.wire.native import Hello, Subscribe
from synrepl.replication.retention import keys_of
from synrepl.replication.serving import feed as feed_module
from synrepl.replication.serving import text_pages as pages_module
from synrepl.storage.schema import end_of_log
from synrepl.streams.atomic_appends import STREAM, last_serial
from synrepl.streams.declaration import stream_of
from synrepl.streams.declared import StreamBody
from synrepl.streams.facts import Fact
from synrepl.streams.table import StreamTable
from synrepl.testing.network import MemoryLink, Network
from synrepl.wire.position import LogPosition
from tests.memory_engine import FaultyEngine
from tests.replicas.nodes import FakeNode
from tests.replicas.simulation.histories import Content, Histories, content
from tests.replicas.simulation.readiness import Readiness
from tests.simulation.seeded import STEP_SECONDS, SeededRun

__all__ = ["AIMS", "ReplicaSimulation"]

AIMS: Final = (
    *(("relay", state) for state in ("ready", "snapshot", "meanwhile", "joined")),
    *(("relay", state) for state in ("admitting", "catching up", "live", "refused")),
    *(("replica", state) for state in ("connecting", "ready", "snapshot", "meanwhile", "adopting")),
    *(("replica", state) for state in ("catching up", "live", "disconnected", "refused", "stopped")),
)
"""Where lightning strikes: every state in which there is something to break. A relay is never seen in
``greeting``, since it is made when HELLO has come."""

_GROUP: Final = re.compile(rb"@group[0-9]+-[0-9]+")
_GROUPED: Final = ("push_rules", "to_device")
_ROWS_OF_APPENDS: Final = (
    f"SELECT stream, serial, rows FROM facts WHERE stream IN {(STREAM, *_GROUPED)} ORDER BY serial"
)

DISK_FULL: Final = StorageError(op="commit", why="the disk is full", retryable=True)
ANSWER_SECONDS: Final = 2.0
MET_SECONDS: Final = max(MAX_NOTIFY_RETRY_SECONDS, INQUIRY_INTERVAL) + ASKING_SECONDS
"""How long two primaries that can reach each other may both take facts: until the next notification or
question, and its answer."""
MOST_BUFFERED: Final = 1024 * 1024
PARTED: Final = ("ahead", "fork", "other_history", "other_epoch")

_ROWS: Final[dict[str, Callable[[int], list[Any]]]] = {
    "events": lambda n: ["ev", [f"$e{n}", "!r", "m.room.message", None, None, None, None, False, False]],
    "receipts": lambda n: [f"!r{n % 5}", "m.read", "@u:hs", f"$e{n}", None, {"ts": n}],
    "to_device": lambda n: [f"@u{n}:hs"],
    "account_data": lambda n: [f"@u{n % 7}:hs", None, f"m.direct{n}"],
    "push_rules": lambda n: [f"@u{n}:hs"],
    "typing": lambda n: [f"!r{n % 5}", [f"@u{n}:hs"]],
}

_DECLARED: Final = {
    "inventory": StreamBody("inventory", key="place", columns={"place": "str", "count": "int"}),
    "cursors": StreamBody("cursors", kind="ephemeral"),
}
"""Streams of one's own, which operators declare at times, and at times otherwise."""

_DECLARED_ROWS: Final[dict[str, Callable[[int], list[Any]]]] = {
    "inventory": lambda n: [f"shelf {n % 5}", n],
    "cursors": lambda n: [{"n": n}],
}


class _Writer:
    """Appends, and with a key asks again until it is answered."""

    def __init__(self, run: "ReplicaSimulation", name: str, *, is_keyed: bool) -> None:
        self.name = name
        self.is_keyed = is_keyed
        self.asking: tuple[str, str | None, list[list[Any]], list[Content]] | None = None
        self.acknowledged: dict[Content, str] = {}
        self._run = run
        self._count = 0
        self._asked_at = 0.0
        self._attempt = 0

    def write(self) -> None:
        """Something new, unless it waits for an answer."""
        run = self._run
        if self.asking is not None:
            return
        stream = run.declared_stream() or run.chance.choice(sorted(_ROWS))
        make = (_ROWS | _DECLARED_ROWS)[stream]
        facts: list[list[Any]] = [[make(run.number())] for _ in range(run.chance.choice([1, 1, 2, 3, 9]))]
        self._count += 1
        key = f"{self.name}-{self._count}" if self.is_keyed else None
        declared = run.streams[stream]
        told = [] if declared.ephemeral else [(stream, declared.canonical_fact(rows)) for rows in facts]
        self.asking = (stream, key, facts, told)
        self._ask()

    def ask_again(self) -> None:
        """No answer, or an error: what became of it is not clear."""
        if self.asking is not None and self._run.clock.seconds() >= self._asked_at + ANSWER_SECONDS:
            if self.is_keyed:
                self._ask()
            else:
                self.asking = None

    def _ask(self) -> None:
        assert self.asking is not None
        stream, key, facts, _ = self.asking
        self._asked_at = self._run.clock.seconds()
        self._attempt += 1
        attempt = self._attempt
        node = self._run.somebody_to_write_to()
        # A daemon that does not know a declared stream refuses.
        if node is not None and stream in node.table:
            asked = node.append(stream, facts, writer=self.name, key=key)
            asked.addCallbacks(
                lambda _: self._answered(node.name, attempt), lambda failure: self._failed(failure, attempt)
            )

    def _answered(self, where: str, attempt: int) -> None:
        if attempt == self._attempt and self.asking is not None:
            self.acknowledged.update((one, where) for one in self.asking[3])
            self.asking = None

    def _failed(self, failure: Failure, attempt: int) -> None:
        if failure.check(ReplicationError) is None:
            self._run.failed(failure.getTraceback())
        if attempt == self._attempt:
            self._asked_at -= ANSWER_SECONDS - 0.2


class ReplicaSimulation(SeededRun):
    """One seeded run. `run` raises `Broken` if a promise is.

    `struck` counts what was killed or cut in which state.
    """

    MODULE = "tests.replicas.simulation.replicas"

    def __init__(self, seed: int, *, seconds: float = 12.0) -> None:
        super().__init__(seed, seconds)
        chance = self.chance
        # A source of its own: an attack leaves the luck of everybody else as it is.
        self._malice = random.Random(f"malice {seed}")
        self.attacks = self._malice.random() < 0.5
        self._invention = random.Random(f"declared {seed}")
        self.declares = self._invention.random() < 0.4
        self._keyring = random.Random(f"keys {seed}")
        self.issues_keys = self._keyring.random() < 0.5
        self._revoked: dict[str, str] = {}
        """By the ids of revoked keys, the primary that has answered that."""
        self._known_revoked: dict[str, set[str]] = {}
        """By nodes, the ids of the keys that each has known to be revoked."""
        self._groups_checked: dict[str, object] = {}
        """By nodes, what the groups of each were last looked for in."""
        self._grouping = random.Random(f"groups {seed}")
        self._groups = 0
        own = [stream_of(body.declaration()) for body in _DECLARED.values()]
        self.streams = StreamTable([*StreamTable.default(), *own])
        self.struck: Counter[tuple[str, str]] = Counter()
        self.seen: Counter[str] = Counter()
        self.nodes: dict[str, FakeNode] = {}
        self.histories = Histories(self.failed)
        self.readiness = Readiness(self.clock, self.histories, self.failed)
        kind = chance.random()
        self.restores = kind < 0.2
        self.forces = 0.2 <= kind < 0.6
        self.promotes = kind >= 0.2 and chance.random() < 0.7
        self.loses = kind >= 0.6 and chance.random() < 0.4
        # Without keys and promotions by force, a hand-over alone must fence.
        self.lists = self.issues_keys or self.forces or self.restores or self._keyring.random() < 0.5
        self.trims = not self.restores and chance.random() < 0.7
        self.corrupts = chance.random() < 0.4
        self.page_rows = chance.choice([3, 20, 1_000])
        self.commit_facts = chance.choice([1, 10, 8_000])
        self.slow = chance.choice([0.002, 0.01, 0.05])
        self.network = Network(
            self.clock, delay=self._delay, piece=self._piece, corrupt=self._corrupt, reaches=self._reaches
        )
        self._parted: set[str] = set()
        self._strangers: dict[str, PeerStatus] = {}
        self._reigns: set[tuple[int, str]] = set()
        self.settled_after = 0.0
        self._two_since: float | None = None
        self._starting: set[str] = set()
        self._started_at: dict[str, float] = {}
        self._whole: set[str] = set()
        self._not_live_since: dict[object, float] = {}
        self._fresh: Counter[object] = Counter()
        self._copies: dict[str, FaultyEngine] = {}
        self.lost_by_restore: set[Content] = set()
        self._trimmed: set[Content] = set()
        self._aim: tuple[str, str] | None = None
        self._aim_until = 0.0
        self._is_striking = False
        self._is_peace = False
        lease_seconds = chance.choice([1.5, 6.0, 1_000.0])
        wants = chance.choice([["events"], ["events", "typing"], ["receipts", "to_device"]])
        for name, upstream in (("a", None), ("b", "a"), ("c", "b"), ("d", "a")):
            if name == "d" and chance.random() < 0.4:
                continue
            node = FakeNode(
                self.network,
                self.nodes,
                name=name,
                upstream=upstream,
                listed=[other for other in "abc" if other != name and self.lists],
                secret="secret" if self.issues_keys else None,
                upstream_streams=tuple(wants) if name == "d" else None,
                resync_on_fork=chance.random() < 0.2,
                lease_seconds=lease_seconds,
                disk_delay=partial(self._disk_delay, name),
                jitter=lambda: self.chance.uniform(0.7, 1.3),
                ring_bytes=chance.choice([500, 20_000, 8_000_000]),
                can_reach=self._reaches,
                request_delay=self._question_delay,
                strangers=self._strangers,
                role_changed=self._role_changed,
                replica_changed=self.readiness.look,
            )
            self._fresh_disk(node)
        self._keys = keys_of(self.streams)
        self.writers = [_Writer(self, f"keyed{n}", is_keyed=True) for n in range(2)]
        self.writers.append(_Writer(self, "loose", is_keyed=False))

    # -- what others ask -----------------------------------------------------------------------------------

    def number(self) -> int:
        """One that was never given before."""
        self._count += 1
        return self._count

    def declared_stream(self) -> str | None:
        """A stream of one's own, at times."""
        if not self.declares or self._invention.random() > 0.3:
            return None
        return self._invention.choice(sorted(_DECLARED))

    def failed(self, what: str) -> None:
        """Something is wrong; it is told at the next step."""
        self._failures.append(what)

    def somebody_to_write_to(self) -> FakeNode | None:
        """A primary, as far as anybody knows."""
        running = [node for node in self.nodes.values() if node.is_running and node.name != "d"]
        primaries = [node for node in running if node.roles.role == "primary"]
        return self.chance.choice(primaries or running) if running else None

    # -- running -------------------------------------------------------------------------------------------

    def run(self) -> "ReplicaSimulation":
        """Bad luck for a while, then peace until everybody has everything; then look."""
        with self._observed(), self._small_pages(), self._ending():
            for name in sorted(self.nodes):
                self._start(name)
            steps = 0
            while self.clock.seconds() < self._seconds:
                steps += 1
                self._write()
                self._bad_luck()
                self._end_outages()
                self.clock.advance(STEP_SECONDS)
                if steps % 5 == 0:
                    self._look()
            self._rest()
            self._check()
        return self

    @contextmanager
    def _small_pages(self) -> Iterator[None]:
        """So that little has many parts."""
        before = feed_module.PAGE_ROWS, pages_module.PAGE_FACTS
        flushed = joining_module.COMMIT_FACTS, replica_module.FLUSH_FACTS
        leases_module.CHECK_SECONDS, checked = 0.5, leases_module.CHECK_SECONDS  # type: ignore[misc]
        try:
            feed_module.PAGE_ROWS = pages_module.PAGE_FACTS = self.page_rows  # type: ignore[misc]
            joining_module.COMMIT_FACTS = self.commit_facts  # type: ignore[misc]
            replica_module.FLUSH_FACTS = self.commit_facts  # type: ignore[misc]
            yield
        finally:
            leases_module.CHECK_SECONDS = checked  # type: ignore[misc]
            feed_module.PAGE_ROWS, pages_module.PAGE_FACTS = before  # type: ignore[misc]
            joining_module.COMMIT_FACTS, replica_module.FLUSH_FACTS = flushed  # type: ignore[misc]

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """So that nothing of this run happens in the middle of another."""
        try:
            yield
        finally:
            for node in self.nodes.values():
                node.kill()

    def _fresh_disk(self, node: FakeNode) -> None:
        node.engine = FaultyEngine()
        node.engine.write_notes(uuid=f"{self.chance.getrandbits(64):x}", history=f"history-of-{node.name}")

    def _start(self, name: str) -> None:
        node = self.nodes[name]
        if node.is_running or name in self._starting:
            return
        self._note(f"{name} starts")
        self._starting.add(name)

        def started(_: None) -> None:
            self._starting.discard(name)
            self._started_at[name] = self.clock.seconds()
            node.log.subscribe(lambda facts: self._committed(node, facts))
            node.log.copies.on_replaced(lambda: self._replaced(node))
            node.log.epochs.on_started(lambda: self._role_changed(node))
            self._check_copy(node)
            self._role_changed(node)

        node.start().addCallbacks(started, lambda failure: self._start_failed(node, failure))

    def _start_failed(self, node: FakeNode, failure: Failure) -> None:
        self.failed(failure.getTraceback())

    def _is_readable(self, node: FakeNode) -> bool:
        """Whether the disk of a node can be read to look at it."""
        return True

    def _check_copy(self, node: FakeNode) -> None:
        if self._is_readable(node):
            self.histories.check_copy(node)
        else:
            self.histories.note_position(node, node.log.position.digest)

    def _committed(self, node: FakeNode, facts: Sequence[Fact]) -> None:
        self.histories.on_committed(node, facts)
        self.readiness.committed(node)

    def _replaced(self, node: FakeNode) -> None:
        self._note(f"{node.name} is another copy now: {node.log.position.serial}")
        self.seen["adopted"] += 1
        self._check_copy(node)
        self.readiness.began(node)

    def _kill(self, name: str) -> None:
        node = self.nodes[name]
        if not node.is_running:
            return
        self._count_states(node)
        self._note(f"{name} is killed")
        self.seen["killed"] += 1
        self._end(node)
        self.readiness.killed(node)

    def _end(self, node: FakeNode) -> None:
        """End a node, and add what its disk has then to the truth."""
        if node.roles.role != "replica":
            self.histories.add_durable(node)
        node.kill()

    def _count_states(self, node: FakeNode) -> None:
        for relay in node.connected_relays:
            self.struck["relay", relay.state] += 1
        if node.replica is not None:
            self.struck["replica", node.replica.state] += 1

    # -- what happens --------------------------------------------------------------------------------------

    def _write(self) -> None:
        for writer in self.writers:
            if self.chance.random() < 0.15 and not self._is_peace:
                writer.write()
            writer.ask_again()
        if self.declares and self._invention.random() < 0.01:
            self._declare()
        primary = self._primary()
        if self.loses and primary is not None and self.chance.random() < 0.002:
            stream = self.chance.choice(["events", "to_device"])
            upto = max(0, primary.log.linear_position(stream) - self.chance.randint(0, 5))
            self._note(f"{stream} beyond {upto} is lost")
            self.seen["lost"] += 1
            self._do(primary.log.epochs.begin_next("lost", stream=stream, token=upto))
        if not self._is_peace and self._grouping.random() < 0.02:
            self._append_group()
        if self.issues_keys and self._keyring.random() < 0.02:
            self._change_keys()
        if self.trims and self.chance.random() < 0.03:
            node = self._somebody()
            if node is not None and node.roles.role != "fenced":
                self._do(self._trim(node))

    def _declare(self) -> None:
        primaries = [node for node in self.nodes.values() if node.is_running and node.roles.role == "primary"]
        if not primaries:
            return
        node, body = self._invention.choice(primaries), _DECLARED[self._invention.choice(sorted(_DECLARED))]
        if self._invention.random() < 0.2:
            body = msgspec.structs.replace(body, writers=["keyed0", "keyed1", "loose"])
        self._note(f"{node.name} is to declare {body}")
        self.seen["declared"] += 1
        self._do(node.declared.declare(body.declaration()))

    def _append_group(self) -> None:
        """Somebody appends to two streams at once, several facts to each."""
        primaries = [node for node in self.nodes.values() if node.is_running and node.roles.role == "primary"]
        if not primaries:
            return
        self._groups += 1
        node, size = self._grouping.choice(primaries), self._grouping.choice([1, 2, 5])
        users = [f"@group{self._groups}-{size}-{number}:hs" for number in range(size)]
        facts = [f'[["{user}"]]'.encode() for user in users]
        appends = [(stream, "loose", facts) for stream in _GROUPED]
        self._note(f"{node.name} is to append {2 * size} facts at once")
        self.seen["group"] += 1
        self._do(_awaited(node.log.append_atomic(appends, key=f"group{self._groups}")))

    def _check_groups(self, node: FakeNode) -> None:
        """A copy of everything has all facts of an append, or none, whatever was cut or killed."""
        if not node.publisher.read_gate.filter.is_open:
            return
        if not self._is_readable(node):
            return
        head, connection = node.log.head, node.engine.database.connection
        looked_at = (connection, connection.total_changes, head)
        if self._groups_checked.get(node.name) == looked_at:
            return
        self._groups_checked[node.name] = looked_at
        # This is after each commit: only the streams that it is about.
        rows = connection.execute(_ROWS_OF_APPENDS).fetchall()
        trimmed = head.trimmed_upto.serial
        serials: dict[bytes, list[int]] = {}
        for stream, serial, json in rows:
            if stream != STREAM and (match := _GROUP.search(json)):
                serials.setdefault(match[0], []).append(serial)
        # What is trimmed has no groups any more: facts that others replaced are gone.
        found = {group: len(at) for group, at in serials.items() if at[0] > trimmed + 1}
        self._check_openings(node, [(serial, json) for stream, serial, json in rows if stream == STREAM])
        for group, count in found.items():
            if count != 2 * int(group.rpartition(b"-")[2]):
                self._fail(f"{node.name} has {count} facts of {group.decode()}")

    def _check_openings(self, node: FakeNode, openings: Sequence[tuple[int, bytes]]) -> None:
        """Neither the log, nor what was trimmed, nor an epoch ends inside an atomic append."""
        log = node.log
        ends = [
            ("the log", log.position.serial),
            ("what is trimmed", log.head.trimmed_upto.serial),
            *((f"epoch {start.epoch - 1}", start.serial) for start in log.head.epoch_starts),
        ]
        for serial, rows in openings:
            end = last_serial(serial, rows)
            for what, at in ends:
                if serial <= at < end:
                    self._fail(f"{what} of {node.name} ends at {at}, inside the append from {serial} on")

    def _change_keys(self) -> None:
        """Somebody makes a key, or revokes one; names come again."""
        primaries = [node for node in self.nodes.values() if node.is_running and node.roles.role == "primary"]
        if not primaries:
            return
        node, name = self._keyring.choice(primaries), self._keyring.choice(["ada", "bob", "eve"])
        if self._keyring.random() < 0.5:
            self._do(self._issue(node, name))
        else:
            self._do(self._revoke(node, name))

    async def _issue(self, node: FakeNode, name: str) -> None:
        try:
            await node.registry.issued.add(name, [Right.READ])
        except ConfigError:
            return  # there is one
        self._note(f"{node.name} has made the key {name}")
        self.seen["key made"] += 1

    async def _revoke(self, node: FakeNode, name: str) -> None:
        revoked = await node.registry.issued.revoke(name)
        if revoked is not None:
            self._note(f"{node.name} has revoked the key {name}")
            self.seen["key revoked"] += 1
            self._revoked[revoked.record.id] = node.name

    def _check_keys(self, node: FakeNode) -> None:
        """A key that a daemon has known to be revoked is never valid there again."""
        known = self._known_revoked.setdefault(node.name, set())
        for one in node.registry.issued.all:
            if one.revoked_ms is not None:
                known.add(one.record.id)
            elif one.record.id in known:
                self._fail(f"{node.name} accepts the key {one.name} again, which it knew to be revoked")

    async def _trim(self, node: FakeNode) -> None:
        log, lowest = node.log, node.leases.lowest()
        upto = (
            log.head.serial - self.chance.choice([0, 0, 5])
            if lowest is None
            else min(lowest, log.head.serial)
        )
        if upto <= log.head.trimmed_upto.serial:
            return
        before = set(map(content, node.engine.readable_facts))
        await log.trim(upto, self._keys, self.chance.choice([5, 50]))
        gone = before - set(map(content, node.engine.readable_facts))
        self._trimmed |= gone
        self.seen["trimmed"] += len(gone)

    def _do(self, work: Any) -> None:
        """Let it happen; that it may not is part of the story."""

        def failed(failure: Failure) -> None:
            if failure.check(ReplicationError) is None:
                self.failed(failure.getTraceback())

        Deferred.fromCoroutine(work).addErrback(failed)

    def _somebody(self, *, role: str | None = None) -> FakeNode | None:
        nodes = [node for node in self.nodes.values() if node.is_running]
        nodes = [node for node in nodes if role is None or node.roles.role == role]
        return self.chance.choice(nodes) if nodes else None

    def _primary(self) -> FakeNode | None:
        return self._somebody(role="primary")

    def _bad_luck(self) -> None:
        for chance, happen in (
            (0.006, self._cut),
            (0.004, self._stall),
            (0.003, self._stop_reading),
            (0.004, self._kill_somebody),
            (0.004, self._disk_fails),
            (0.003, self._part),
            (0.002, self._wipe),
            (0.004 if self.restores else 0, self._copy_or_restore),
            (0.004 if self.promotes else 0, self._promote),
            (0.003 if self.forces else 0, self._force),
            (0.003, self._tell_to_resync),
        ):
            if self.chance.random() < chance:
                happen()
        if self.attacks and self._malice.random() < 0.02:
            self._attack()
        if self.clock.seconds() >= self._aim_until:
            self._aim = self.chance.choice(AIMS)
            self._aim_until = self.clock.seconds() + 1.0
        for name in sorted(self.nodes):
            if not self.nodes[name].is_running and self.chance.random() < 0.01:
                self._start(name)

    def _links(self) -> list[MemoryLink]:
        node = self._somebody()
        return [] if node is None else node.links()

    def _cut(self) -> None:
        links = self._links()
        if links:
            self._cut_link(self.chance.choice(links))

    def _cut_link(self, link: MemoryLink) -> None:
        ours, theirs = link.client._name, link.server._name
        self._note(f"{ours} is cut off from {theirs}")
        self.seen["cut"] += 1
        node = self.nodes.get(ours)  # else a worker
        replica = None if node is None else node.replica
        if replica is not None:
            self.struck["replica", replica.state] += 1
        for relay in self.nodes[theirs].registry.connected:
            if relay.connection is link.server.protocol:
                self.struck["relay", relay.state] += 1
        link.cut()

    def _stall(self) -> None:
        for link in self._links():
            self.seen["stalled"] += 1
            link.stall()
            self._until_later(self.chance.choice([0.1, 1, 10]), link.go_on)

    def _stop_reading(self) -> None:
        for link in self._links():
            self.seen["stopped reading"] += 1
            link.client.pauseProducing()
            self._until_later(self.chance.uniform(0.1, 5), link.client.resumeProducing)

    def _kill_somebody(self) -> None:
        node = self._somebody()
        if node is not None:
            self._kill(node.name)

    def _disk_fails(self) -> None:
        node = self._somebody()
        if node is not None:
            self.seen["disk failed"] += 1
            engine = self.chance.choice([node.engine, node.engine.staged or node.engine])
            engine.fail_next(
                DISK_FULL, kept=self.chance.random() < 0.5, silent=self.chance.choice([0, 0, 1, 2])
            )

    def _part(self) -> None:
        self._parted = set(self.chance.choice([["a"], ["b"], ["c"], ["b", "c"], ["a", "d"]]))
        self._note(f"{' and '.join(sorted(self._parted))} cannot be reached")
        self.seen["parted"] += 1
        for link in list(self.network.links):
            if link.is_open and not self._reaches(link.client._name, link.server._name):
                self._cut_link(link)
        self._until_later(self.chance.uniform(0.5, 4), self._parted.clear)

    def _reaches(self, ours: str, theirs: str) -> bool:
        return (ours in self._parted) == (theirs in self._parted)

    def _wipe(self) -> None:
        node, primary = self._somebody(role="replica"), self._primary()
        if node is None or primary is None:
            return
        chain = {fact.digest for fact in self.histories.chain(primary.log.position.digest)}
        if node.log.position.digest in chain or node.name == "d":
            self._kill(node.name)
            self._note(f"{node.name} has a new disk, and is to follow {primary.name}")
            self._replace_disk(node, primary.name)

    def _replace_disk(self, node: FakeNode, upstream: str) -> None:
        node.upstream = upstream
        self.seen["new disk"] += 1
        self._known_revoked.pop(node.name, None)
        self._fresh_disk(node)
        self._whole.discard(node.name)

    def _copy_or_restore(self) -> None:
        node = self._primary()
        if node is None:
            return
        if node.name not in self._copies or self.chance.random() < 0.3:
            engine = node.engine.copy()
            self._copies[node.name] = engine
            self._note(f"a copy is made of {node.name}'s disk, at {node.log.head.serial}")
            return
        engine = self._copies.pop(node.name)
        self._kill(node.name)
        had = set(map(content, node.engine.facts))
        self.lost_by_restore |= had - set(map(content, engine.facts))
        self._note(f"{node.name} is restored from its copy")
        self.seen["restored"] += 1
        self._known_revoked.pop(node.name, None)
        node.engine = engine

    def _promote(self) -> None:
        node = self._candidate()
        if node is not None:
            self._note(f"{node.name} is to be promoted")
            self._do(self._promote_in_order(node))

    async def _promote_in_order(self, node: FakeNode) -> None:
        before = node.roles.primary.native
        await node.promotion.promote()
        self._note(f"{node.name} is promoted")
        self.seen["promoted"] += 1
        if not (self.forces or self.restores):
            self._check_nothing_lost(node, before)

    def _check_nothing_lost(self, node: FakeNode, before: str) -> None:
        """Of what the primary before it has acknowledged."""
        held = set(map(content, self.histories.chain(node.log.position.digest)))
        answers = [answer for writer in self.writers for answer in writer.acknowledged.items()]
        lost = {one for one, where in answers if where == before} - held
        if lost:
            self.failed(f"promoted in order, {node.name} lacks {sorted(lost)[:3]}")
        accepted = {one.record.id for one in node.registry.issued.all if one.revoked_ms is None}
        if forgotten := {salt for salt, where in self._revoked.items() if where == before} & accepted:
            self.failed(f"promoted in order, {node.name} accepts revoked keys: {sorted(forgotten)[:3]}")

    def _force(self) -> None:
        node = self._candidate()
        if node is not None:
            self._note(f"{node.name} is promoted by force")
            self.seen["forced"] += 1
            self._do(node.promotion.promote(force=True))

    def _candidate(self) -> FakeNode | None:
        node = self._somebody(role="replica")
        return node if node is not None and node.name != "d" else None

    def _tell_to_resync(self) -> None:
        for name in sorted(self.nodes):
            node = self.nodes[name]
            if not node.is_running:
                continue
            replica = node.replica
            if node.roles.role == "fenced" or (replica is not None and replica.state == "stopped"):
                self._note(f"{name} is told to resync")
                self.seen["resynced"] += 1
                self._do(node.roles.resync())

    # -- the attacker --------------------------------------------------------------------------------------

    def _attack(self) -> None:
        running = [node for node in self.nodes.values() if node.is_running]
        make_up = self._malice.choice(
            [self._make_up_claim, self._make_up_subscription, self._make_up_hand_over]
        )
        if running:
            make_up(self._malice.choice(running))

    def _made_up(self, node: FakeNode) -> tuple[int, str, str]:
        """An epoch, a uuid and an address: of a stranger, or of a daemon that is no primary now."""
        malice, log = self._malice, node.log
        epoch = malice.choice([log.head.epoch, log.head.epoch + 1, log.head.epoch + 2, 999_999, 2**53, 2**70])
        others = [one.name for one in self.nodes.values() if one.is_running and one.roles.role != "primary"]
        name = malice.choice(["", "stranger", "nowhere", *others])
        if name == "stranger":
            position = log.position
            serial = malice.choice([position.serial, max(0, position.serial - 1), position.serial + 1])
            digest = malice.choice([position.digest, "ff" * 32])
            epoch_start = EpochStart(log.head.epoch + 1, serial, digest, 1, "promoted")
            is_caught = position.serial == 0 or digest == position.digest
            self._strangers[name] = PeerStatus(
                history="x" if is_caught and malice.random() < 0.5 else log.history,
                uuid="another" if is_caught else "stranger",
                role="replica" if is_caught else "primary",
                position=LogPosition(
                    log.head.epoch + 1, position.serial, malice.choice([position.digest, "ff" * 32])
                ),
                epoch_starts=(*log.head.epoch_starts, epoch_start)
                if malice.random() < 0.7
                else tuple(log.head.epoch_starts),
                primary=malice.choice(["stranger -", "nowhere -"]),
                promoting=True,
            )
        uuid = self.nodes[name].engine.read_note("uuid") if name in self.nodes else "stranger"
        return epoch, uuid, f"{name} -" if name else ""

    def _make_up_claim(self, node: FakeNode) -> None:
        epoch, uuid, address = self._made_up(node)
        history = self._malice.choice([node.log.history, node.log.history, "", "x"])
        self.seen["made-up claim"] += 1
        self._note(f"{node.name} hears a made-up claim: {uuid} at {address!r} in epoch {epoch}")
        self._do(node.roles.claims.handle(Claim(epoch=epoch, uuid=uuid, address=address, history=history)))

    def _make_up_subscription(self, node: FakeNode) -> None:
        epoch, _, address = self._made_up(node)
        asked = Subscribe(history=node.log.history, position=LogPosition(epoch, 0, ""))
        self.seen["made-up subscription"] += 1
        self._note(f"{node.name} hears a made-up subscription of epoch {epoch} from {address!r}")
        stranger = Hello(uuid="stranger", name="stranger", address=address)
        self._do(node.registry.subscription_refusal(stranger, asked, LOCAL))

    def _make_up_hand_over(self, node: FakeNode) -> None:
        _, uuid, address = self._made_up(node)
        seconds = self._malice.choice([0.0, 15.0, 30.0])
        self.seen["made-up hand-over"] += 1
        self._note(f"{node.name} is to hand over to {uuid} at {address!r}, for {seconds:g} s")
        self._do(self._ask_to_hand_over(node, HandOver(seconds, uuid, address)))

    async def _ask_to_hand_over(self, node: FakeNode, asked: HandOver) -> None:
        await node.roles.handover.handle(asked)
        if asked.seconds and not self.promotes:
            self.failed(f"{node.name} handed over, and nobody was being promoted")

    def _role_changed(self, node: FakeNode) -> None:
        self.readiness.began(node)
        if node.roles.role == "primary":
            self._reigns.add((node.log.head.epoch, node.log.uuid))

    def _check_role(self, node: FakeNode) -> None:
        """It is led by a daemon that really was primary in that epoch."""
        noted = node.roles.store.load()
        if node.roles.role == "primary" or noted is None or noted.role == "primary":
            return
        if (noted.epoch, noted.uuid) not in self._reigns:
            self._fail(f"{node.name} is {node.roles.role}, led by {noted.uuid} of epoch {noted.epoch}: a lie")

    def _check_one_primary(self) -> None:
        """Two primaries that can reach each other do not both take facts for long."""
        open_ = [
            node.name
            for node in self.nodes.values()
            if node.is_running and node.roles.role == "primary" and node.log.gate.is_open
        ]
        now = self.clock.seconds()
        if len(open_) < 2 or not self._is_peace:
            self._two_since = None
        elif self._two_since is None:
            self.seen["two primaries"] += 1
            self._two_since = now
        elif now - self._two_since > MET_SECONDS:
            self._fail(f"{' and '.join(open_)} both take facts, {now - self._two_since:.0f} s after they met")

    # -- lightning -----------------------------------------------------------------------------------------

    def _delay(self) -> float:
        """How long a piece of data is under way; a good moment to look for what is aimed at."""
        if self._aim is not None and not self._is_striking and self._find(self._aim):
            self._is_striking = True
            self.clock.callLater(self.chance.uniform(0, 0.001), self._strike)
        return self.chance.uniform(0.0005, self.slow)

    def _disk_delay(self, name: str) -> float:
        """How long one step of this node's disk lasts."""
        return self.chance.uniform(0.0002, 0.004)

    def _question_delay(self) -> float:
        """How long a question to another daemon, or its answer, is under way; some are lost."""
        if self._is_peace or self._malice.random() > 0.05:
            return self._malice.uniform(0.001, 0.02)
        return self._malice.choice([1.0, 4.0, 60.0])

    def _find(self, aim: tuple[str, str]) -> tuple[FakeNode, MemoryLink | None] | None:
        what, state = aim
        for name in sorted(self.nodes):
            node = self.nodes[name]
            if not node.is_running:
                continue
            if what == "replica":
                if node.replica is not None and node.replica.state == state:
                    links = [link for link in node.links() if link.client._name == name]
                    return node, links[0] if links else None
            else:
                for relay in node.connected_relays:
                    if relay.state == state:
                        links = [link for link in node.links() if link.server.protocol is relay.connection]
                        return node, links[0] if links else None
        return None

    def _strike(self) -> None:
        self._is_striking = False
        aim = self._aim
        found = self._find(aim) if aim is not None else None
        if found is None or self._is_peace or aim is None:
            return
        node, link = found
        self._aim = None
        self._note(f"lightning: a {aim[0]} that is {aim[1]}")
        if link is not None and link.is_open and self.chance.random() < 0.6:
            self._cut_link(link)
        else:
            self._kill(node.name)

    def _corrupt(self, data: bytes) -> bytes:
        if not self.corrupts or self._is_peace or self.chance.random() > 0.01:
            return data
        # Inside a block: of lines TCP and TLS must see to it that they are what was said.
        at = data.find(b'"rows":[')
        if at < 0:
            return data
        at += 9 + self.chance.randrange(8)
        if at >= len(data) or data[at : at + 1] == b"\n":
            return data
        self.seen["flipped"] += 1
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    # -- while it runs -------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._failures:
            self._fail(self._failures[0])
        now = self.clock.seconds()
        readable = [node for node in self.nodes.values() if self._is_readable(node)]
        engines = {node.engine.read_note("uuid"): node for node in readable}
        self._check_one_primary()
        for node in self.nodes.values():
            if not node.is_running:
                continue
            self._check_role(node)
            self._check_keys(node)
            self._check_groups(node)
            for relay in node.connected_relays:
                other = engines.get(relay.uuid)
                if other is not None and relay.state in ("catching up", "live"):
                    kept = end_of_log(other.engine.database.connection, other.engine.bounds).serial
                    if relay.acknowledged > kept:
                        self._fail(
                            f"acks: {node.name} believes {other.name} at {relay.acknowledged}, not {kept}"
                        )
            replica = node.replica
            if replica is None:
                continue
            if replica.is_whole:
                self._whole.add(node.name)
            elif node.name in self._whole:
                self._fail(f"{node.name} had a copy to serve, and has none any more")
            if replica.refusal is not None and replica.state in ("refused", "stopped"):
                code = replica.refusal.code
                self.seen[f"refused: {code}"] += 1
                upstream = self.nodes.get(replica.upstream.where.native)
                is_over = code in PARTED[:3] and not replica.refusal.retryable
                if is_over and upstream is not None and self._has_refused(upstream, replica.since):
                    lease = upstream.leases[node.log.uuid]
                    if (
                        lease is not None
                        and lease.ended_ms is None
                        and lease.serial < upstream.log.head.serial
                    ):
                        self._fail(f"{upstream.name} keeps its log for {node.name}, which it refuses: {code}")
            if replica.state == "live" and not replica.freshness.lag_rows():
                self._not_live_since.pop(replica, None)
            elif now - self._not_live_since.setdefault(replica, now) > 3:
                # That it had everything just now may be true, but not twice.
                self._fresh[replica] = 0 if replica.lag_seconds() else self._fresh[replica] + 1
                if self._fresh[replica] > 1:
                    self._fail(f"{node.name} is {replica.state}, and says that it lags 0 seconds")

    def _has_refused(self, upstream: FakeNode, at: float) -> bool:
        """Whether it still knows that it did: leases are written down a little later."""
        return upstream.is_running and self._started_at[upstream.name] < at

    # -- at rest -------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Peace, until every node has all there is (or two minutes have passed)."""
        self._is_peace = True
        self._end_outages(all_of_them=True)
        self._note("peace")
        began = self.clock.seconds()
        for _ in range(480):
            self._operate()
            for _ in range(5):
                self._write()
                self.clock.pump([STEP_SECONDS] * 5)
            self._look()
            if not self.settled_after and self._has_one_primary():
                self.settled_after = self.clock.seconds() - began
            if self._is_at_rest():
                self.clock.pump([STEP_SECONDS] * 150)
                if self._is_at_rest():
                    return
        told = []
        for node in self.nodes.values():
            replica = node.replica
            state = "" if replica is None else f"{replica.state} {replica.why} of {replica.upstream.where}"
            told.append(f"{node.name}: {node.roles.role} {node.log.position} {state}")
        self._fail("they never came to rest:\n" + "\n".join(told))

    def _operate(self) -> None:
        """What an operator does who looks after things."""
        for name in sorted(self.nodes):
            self._start(name)
        if self._starting:
            return
        nodes = list(self.nodes.values())
        if not any(node.roles.role == "primary" for node in nodes):
            whole = [
                node
                for node in nodes
                if node.replica is not None and node.replica.is_whole and node.name != "d"
            ]
            if whole:
                best = max(whole, key=lambda node: (node.log.head.epoch, node.log.head.serial, node.log.uuid))
                self._note(f"nobody is primary: {best.name} is promoted by force")
                self._do(best.promotion.promote(force=True))
            else:
                # A fenced daemon whose primary is gone for good begins again as one.
                self._fail("nobody can be promoted")
        self._tell_to_resync()
        primary = self._primary()
        lost = [name for node in nodes for name in node.registry.issued.unrevoked]
        if primary is not None and lost:
            self.seen["revocation lost"] += 1
            self._do(self._revoke(primary, lost[0]))

    def _has_one_primary(self) -> bool:
        return [node.is_running and node.roles.role for node in self.nodes.values()].count(Role.PRIMARY) == 1

    def _is_at_rest(self) -> bool:
        nodes = list(self.nodes.values())
        if self._starting or not all(node.is_running for node in nodes):
            return False
        primaries = [node for node in nodes if node.roles.role == "primary"]
        if len(primaries) != 1 or any(writer.asking for writer in self.writers):
            return False
        position = primaries[0].log.position
        return all(
            node is primaries[0]
            or (
                node.replica is not None
                and node.replica.state == "live"
                and node.log.position == position
                and _valid(node) == _valid(primaries[0])
                and not node.registry.issued.unrevoked
                and _positions(node, "typing") == _expected(node, primaries[0])
            )
            for node in nodes
        )

    def _check(self) -> None:
        self._check_failures()
        (primary,) = [node for node in self.nodes.values() if node.roles.role == "primary"]
        chain = self.histories.chain(primary.log.position.digest)
        for node in self.nodes.values():
            self._check_node(node, primary)
        self._check_facts(chain)
        for link in self.network.links:
            if link.server.most_buffered > MOST_BUFFERED:
                self._fail(f"G7: {link.server.most_buffered} bytes waited for a replica")
        if self._failures:
            self._fail(self._failures[0])

    def _check_node(self, node: FakeNode, primary: FakeNode) -> None:
        self.histories.check_copy(node)
        if (replica := node.replica) is not None and (replica.freshness.lag_rows() or replica.lag_seconds()):
            self._fail(
                f"{node.name} lags {replica.freshness.lag_rows()} rows, {replica.lag_seconds()} s at rest"
            )
        if _valid(node) != _valid(primary) or node.registry.issued.unrevoked:
            self._fail(f"{node.name} accepts the keys {_valid(node)}, the primary {_valid(primary)}")
        wanted = node.publisher.read_gate.filter.streams
        declared = primary.declared.declared if wanted is None or "declarations" in wanted else {}
        if node.declared.declared != declared:
            self._fail(f"{node.name} knows the streams {node.declared.declared}, the primary {declared}")
        for stream in (*_ROWS, *declared):
            if wanted is None or stream in wanted:
                ours, theirs = _positions(node, stream), _positions(primary, stream)
                if ours != theirs:
                    self._fail(f"{node.name} has {stream} at {ours}, the primary at {theirs}")
        if wanted is None and node.engine.receipts_by_key != primary.engine.receipts_by_key:
            differ = {
                key
                for key in {*node.engine.receipts_by_key, *primary.engine.receipts_by_key}
                if node.engine.receipts_by_key.get(key) != primary.engine.receipts_by_key.get(key)
            }
            self._fail(f"{node.name} has other receipts than the primary: {sorted(differ)[:5]}")

    def _check_facts(self, chain: Sequence[Fact]) -> None:
        counts = Counter(map(content, chain))
        twice = [one for one, count in counts.items() if count > 1 and one[0] != STREAM]
        if twice:
            self._fail(f"kept twice: {twice[:3]}")
        left = {content(fact) for node in self.nodes.values() for fact in node.leftover_facts}
        known = counts.keys() | left | self.lost_by_restore | self._trimmed
        for writer in self.writers:
            for one, where in writer.acknowledged.items():
                if one not in known:
                    self._fail(f"{where} acknowledged {one}, which is nowhere")


async def _awaited(done: "Deferred[Any]") -> Any:
    return await done


def _valid(node: FakeNode) -> dict[str, str]:
    """The names of the keys that it accepts, by their ids."""
    return {one.record.id: one.name for one in node.registry.issued.all if one.revoked_ms is None}


def _expected(node: FakeNode, primary: FakeNode) -> dict[str, int]:
    """Where writers of what nobody keeps are there, if it wants to know."""
    wanted = node.publisher.read_gate.filter.streams
    return _positions(primary if wanted is None or "typing" in wanted else node, "typing")


def _positions(node: FakeNode, stream: str) -> dict[str, int]:
    return {writer: token for writer, token in node.log.positions(stream).items() if token}


if __name__ == "__main__":
    ReplicaSimulation.main(int(sys.argv[1]))
