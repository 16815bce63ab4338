"""Appends that wait for replicas, and primaries whose disks are lost.

A primary, three replicas of it, and one of some streams. Replicas are killed and come back, their disks are
slow, connections are cut, replicas join later and leases are dropped. Then the primary is gone for good, and
an operator promotes whichever replica comes to mind, by force: either it is refused, or it has every fact
that was acknowledged. That happens to two primaries in turn.

``python -m tests.replicas.simulation.acks SEED``."""

import sys
from collections import Counter
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.errors import ReplicationError
from synrepl.replicas.roles.messages import CannotPromote
from synrepl.streams.writer import Writer
from synrepl.testing.network import Network
from synrepl.wire import jsontext
from synrepl.wire.acks import Acks
from tests.replicas.nodes import FakeNode
from tests.simulation.seeded import STEP_SECONDS, SeededRun

__all__ = ["AcksSimulation"]

WAYS: Final = ("1", "1", "2", "3", "b", "c,d")
REPLICAS: Final = ("b", "c", "d", "f")


class AcksSimulation(SeededRun):
    """One seeded run. `run` raises `Broken` if an acknowledged fact is given up."""

    MODULE = "tests.replicas.simulation.acks"

    def __init__(self, seed: int, *, seconds: float = 4.0) -> None:
        super().__init__(seed, seconds)
        chance = self.chance
        self.seen: Counter[str] = Counter()
        self.nodes: dict[str, FakeNode] = {}
        self.network = Network(self.clock, delay=lambda: chance.uniform(0.0005, 0.02), piece=self._piece)
        self.acknowledged: dict[str, str] = {}
        """The facts that were answered, and how many replicas, or which, had to have them."""
        self._ways = chance.choice([WAYS[:2], WAYS[:4], WAYS])
        self._slow = {name: chance.choice([0.001, 0.001, 0.02, 0.3]) for name in ("a", *REPLICAS)}
        streams = chance.choice([("receipts",), ("push_rules",)])
        for name in ("a", *REPLICAS):
            if name == "f" and chance.random() < 0.4:
                continue
            node = FakeNode(
                self.network,
                self.nodes,
                name=name,
                upstream=None if name == "a" else "a",
                listed=("a", *REPLICAS),
                upstream_streams=streams if name == "f" else None,
                lease_seconds=1_000.0,
                disk_delay=lambda name=name: chance.uniform(0.5, 1.5) * self._slow[name],  # type: ignore[misc]
                jitter=lambda: chance.uniform(0.7, 1.3),
                request_delay=lambda: chance.uniform(0.001, 0.05),
            )
            node.engine.write_notes(uuid=f"{chance.getrandbits(64):x}", history=f"history-of-{name}")
        self._removed: list[FakeNode] = []
        self._starting: set[str] = set()
        self._late = chance.choice([(), ("d",), ("c", "d")])
        """Replicas that join in the middle."""

    def run(self) -> "AcksSimulation":
        with self._observed():
            try:
                for name in self.nodes:
                    if name not in self._late:
                        self._start(name)
                self._pass(2.0)
                for _ in range(2):
                    self._live()
                    if not self._lose_the_primary():
                        break
                self._pass(5.0)
                self._check_failures()
            finally:
                for node in self.nodes.values():
                    node.kill()
        return self

    def _pass(self, seconds: float) -> None:
        self.clock.pump([STEP_SECONDS] * round(seconds / STEP_SECONDS))

    def _start(self, name: str) -> None:
        node = self.nodes[name]
        if node.is_running or name in self._starting:
            return
        self._starting.add(name)
        self._note(f"{name} starts")

        def ended(result: Any) -> None:
            self._starting.discard(name)
            if isinstance(result, Failure):
                self._failures.append(result.getTraceback())

        node.start().addBoth(ended)

    def _kill(self, name: str) -> None:
        if self.nodes[name].is_running and name not in self._starting:
            self._note(f"{name} is killed")
            self.seen["killed"] += 1
            self.nodes[name].kill()

    def _remove(self, name: str) -> None:
        """It is gone for good. What it was doing is kept alive: freed coroutines would run their cleanup."""
        node = self.nodes.pop(name)
        node.kill()
        self._removed.append(node)

    def _primary(self) -> FakeNode | None:
        found = [node for node in self.nodes.values() if node.is_running and node.roles.role == "primary"]
        return found[0] if found else None

    # -- with a primary --------------------------------------------------------------------------------------

    def _live(self) -> None:
        until = self.clock.seconds() + self._seconds
        while self.clock.seconds() < until:
            primary = self._primary()
            if primary is not None and self.chance.random() < 0.1:
                self._append(primary)
            self._bad_luck(primary)
            self._end_outages()
            self._pass(STEP_SECONDS)

    def _bad_luck(self, primary: FakeNode | None) -> None:
        chance = self.chance
        if chance.random() < 0.01:
            self._kill(chance.choice(sorted(self.nodes)))
        for name in sorted(self.nodes):
            if chance.random() < (0.01 if name not in self._late else 0.005):
                self._start(name)
        if chance.random() < 0.01:
            self._slow[chance.choice(sorted(self._slow))] = chance.choice([0.001, 0.02, 0.3])
        links = [link for link in self.network.links if link.is_open]
        if links and chance.random() < 0.01:
            chance.choice(links).cut()
        if primary is not None and chance.random() < 0.002:
            names = self.nodes.keys() - self._starting - {primary.name}
            leases = [
                one for one in primary.registry.leases.all() if one.ended_ms is None and one.name in names
            ]
            if leases:
                dropped = chance.choice(leases)
                self.seen["dropped"] += 1
                self._note(f"the lease of {dropped.name} is dropped")
                primary.registry.leases.drop(dropped.uuid)
                # Who drops a lease lets that replica go: it is not to be promoted.
                self._remove(dropped.name)

    def _append(self, primary: FakeNode) -> None:
        self._count += 1
        row, acks = f"@u{self._count}:hs", self.chance.choice(self._ways)
        stream = self.chance.choice(["push_rules", "to_device"])

        async def work() -> None:
            wanted, waiting = Acks.parse(acks), primary.registry.acknowledgements
            waiting.check(wanted)
            await primary.registry.promises.promise(wanted)
            appended = await primary.append(stream, [[[row]]], key=row)
            assert appended.first_serial is not None
            await waiting.wait(wanted, Writer(stream, "master"), appended.first_serial, 2.0)

        def answered(result: Any) -> None:
            if not isinstance(result, Failure):
                self.acknowledged[row] = acks
                self.seen[f"acks={acks}"] += 1
            elif result.check(ReplicationError) is None:
                self._failures.append(result.getTraceback())
            else:
                self.seen["not acknowledged"] += 1

        Deferred.fromCoroutine(work()).addBoth(answered)

    # -- and without -----------------------------------------------------------------------------------------

    def _lose_the_primary(self) -> bool:
        """Promote another one; return whether that could be done."""
        primary = self._primary()
        if primary is None:
            for name in sorted(self.nodes):
                self._start(name)
            self._pass(2.0)
            primary = self._primary()
            assert primary is not None
        epoch = primary.log.head.epoch
        self._note(f"{primary.name} is lost with its disk")
        self._remove(primary.name)
        self._pass(5.0)
        assert not self._starting, self._starting
        for attempt in range(2):
            candidates = [name for name in sorted(self.nodes) if name != "f"]
            self.chance.shuffle(candidates)
            for name in candidates:
                node = self.nodes[name]
                # One that never followed the lost primary may know of no promise: the manual says so.
                if node.is_running and node.log.head.epoch >= epoch and self._promote(name):
                    self._check_promoted(self.nodes[name])
                    self._pass(5.0)
                    return True
            if attempt == 0:
                # Some may be silent: an operator starts them.
                for name in sorted(self.nodes):
                    self._start(name)
                self._pass(3.0)
        self.seen["nobody promoted"] += 1
        is_whole = any(
            node.replica is not None and node.replica.is_whole and node.log.head.epoch >= epoch
            for node in self.nodes.values()
        )
        if is_whole and len(self.nodes) == 3 and not self.seen["dropped"] and "f" not in self.nodes:
            self._fail("all replicas run, and none can be promoted")
        return False

    def _promote(self, name: str) -> bool:
        results: list[Any] = []
        node = self.nodes[name]
        Deferred.fromCoroutine(node.promotion.promote(force=True)).addBoth(results.append)
        for _ in range(3_000):
            if results:
                break
            self._pass(STEP_SECONDS)
        if isinstance(results[0], Failure):
            results[0].trap(CannotPromote)
            error: Any = results[0].value
            self._note(f"{name} is refused: {error}")
            self.seen[f"refused: {error.code}"] += 1
            return False
        self._note(f"{name} is promoted at serial {node.log.head.serial}")
        self.seen["promoted"] += 1
        return True

    def _check_promoted(self, node: FakeNode) -> None:
        facts, _ = node.engine.pages.facts(after=0, upto=node.log.head.serial, limit=1_000_000)
        kept = {row[0] for fact in facts if fact.stream != "promises" for row in jsontext.loads(fact.rows)}
        lost = {row: acks for row, acks in self.acknowledged.items() if row not in kept}
        if lost:
            self._fail(f"{node.name} was promoted without acknowledged facts: {lost}")


if __name__ == "__main__":
    AcksSimulation.main(int(sys.argv[1]))
