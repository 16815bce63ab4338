"""Acknowledged facts under a publisher that forges, and the loss of the primary's disk.

A primary a, and its replicas b and c. Somebody publishes promises, atomic marks and declarations under any
name, and ordinary rows. Facts are appended with acks=1; from some moment on c is away, and b alone
acknowledges. Then the disk of a is lost. While b is silent, c must not become primary: what b has
acknowledged would be given up. Once b and c meet, one of them becomes primary, with every fact that was
acknowledged.
``python -m tests.replicas.simulation.forgers SEED``."""

import sys
from collections import Counter
from typing import Any, Final

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.base.metrics import Metrics
from synrepl.errors import ReplicationError
from synrepl.ingest.ingester import Ingester
from synrepl.replicas.roles.messages import CannotPromote
from synrepl.replication.follower.follower import Follower
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.streams.writer import Writer
from synrepl.testing.network import Network
from synrepl.wire import jsontext
from synrepl.wire.acks import Acks
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.dialect import CURRENT
from synrepl.wire.grammar import Command
from tests.ingest.test_ingester import Line
from tests.replicas.nodes import FakeNode
from tests.simulation.seeded import STEP_SECONDS, SeededRun

__all__ = ["ForgerySimulation"]

WRITERS: Final = ("stranger", "a", "b", "master", "earlier")
"""A stranger's name, those of the primary and its replicas, and of a primary before them."""


class ForgerySimulation(SeededRun):
    """One seeded run. `run` raises `Broken` if an acknowledged fact could be lost.

    `acknowledged` are the rows of the appends that were answered.
    """

    MODULE = "tests.replicas.simulation.forgers"

    def __init__(self, seed: int, *, seconds: float = 2.0) -> None:
        super().__init__(seed, seconds)
        chance = self.chance
        self.seen: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        self.nodes: dict[str, FakeNode] = {}
        self.network = Network(self.clock, delay=lambda: chance.uniform(0.0005, 0.01), piece=self._piece)
        for name in ("a", "b", "c"):
            node = FakeNode(
                self.network,
                self.nodes,
                name=name,
                upstream=None if name == "a" else "a",
                listed=("a", "b", "c"),
                lease_seconds=1_000.0,
                disk_delay=lambda: chance.uniform(0.0005, 0.005),
                request_delay=lambda: chance.uniform(0.001, 0.05),
            )
            node.engine.write_notes(uuid=f"{chance.getrandbits(64):x}", history=f"history-of-{name}")
        self._removed: list[FakeNode] = []
        self._token = 0
        self._published: list[str] = []
        self._announced: set[tuple[str, str]] = set()

    def run(self) -> "ForgerySimulation":
        with self._observed():
            try:
                self._live()
                self._lose_the_disk()
                self._check_failures()
            finally:
                for node in (*self.nodes.values(), *self._removed):
                    node.kill()
        return self

    def _pass(self, seconds: float) -> None:
        self.clock.pump([STEP_SECONDS] * round(seconds / STEP_SECONDS))

    def _start(self, name: str) -> None:
        started = self.nodes[name].start()
        self._pass(0.2)
        assert started.called

    # -- with a primary --------------------------------------------------------------------------------------

    def _live(self) -> None:
        for name in self.nodes:
            self._start(name)
        self._pass(2.0)
        a = self.nodes["a"]
        follower = Follower(instance="a", clock=self.clock, streams=a.table, canonical=True)
        refused = RefusedFacts(a.log, a.table, Metrics(CollectorRegistry()), instance="a")
        ingester = Ingester(a.log, a.table, self.clock, refused=refused)
        ingester.attach(follower)
        follower.server.connected(Line(), CURRENT)
        self._work(a, follower, self._seconds / 2)
        self.nodes["c"].kill()
        self._note("c is away")
        before = len(self.acknowledged)
        self._work(a, follower, self._seconds)
        if len(self.acknowledged) == before:
            self._fail("b acknowledged nothing, alone")
        rows = {row[0] for fact in self._facts(a) for row in fact if row}
        if missing := set(self._published) - rows:
            self._fail(f"ordinary rows were not stored: {missing}")
        ingester.stop()
        follower.stop()

    def _work(self, a: FakeNode, follower: Follower, seconds: float) -> None:
        """Append and forge for so long; wait for the answers."""
        until = self.clock.seconds() + seconds
        self._append(a)
        self._forge(follower)
        while self.clock.seconds() < until:
            if self.chance.random() < 0.3:
                self._append(a)
            if self.chance.random() < 0.2:
                self._forge(follower)
            self._pass(STEP_SECONDS)
        self._forge(follower)
        self._pass(3.0)

    def _append(self, a: FakeNode) -> None:
        self._count += 1
        rows = [f"@u{self._count}.{part}:hs" for part in range(self.chance.randint(1, 5))]

        async def work() -> None:
            wanted, waiting = Acks.parse("1"), a.registry.acknowledgements
            waiting.check(wanted)
            await a.registry.promises.promise(wanted)
            appended = await a.append("push_rules", [[[row]] for row in rows])
            assert appended.first_serial is not None
            await waiting.wait(
                wanted, Writer("push_rules", "master"), appended.first_serial + len(rows) - 1, 2.0
            )

        def answered(result: Any) -> None:
            if not isinstance(result, Failure):
                self.acknowledged.update(rows)
            elif result.check(ReplicationError) is None:
                self._failures.append(result.getTraceback())
            else:
                self.seen["not acknowledged"] += 1

        Deferred.fromCoroutine(work()).addBoth(answered)

    def _forge(self, follower: Follower) -> None:
        """Publish a fact that is the daemon's alone, and an ordinary row beside it."""
        chance, mine = self.chance, self.nodes["c"]
        self._token += chance.randint(1, 10)
        writer = chance.choice(WRITERS)
        stream, row = chance.choice(
            [
                ("promises", ["acks", ["1"], []]),
                ("promises", ["acks", ["1"], [[mine.log.uuid, "c", "c"]]]),
                ("promises", ["acks", [], []]),
                ("atomic_appends", [chance.randint(1, 1000)]),
                ("declarations", [f"evil{self._token}", [], "kept", None, []]),
            ]
        )
        self.seen[f"forged {stream}"] += 1
        user = f"@published{self._token}:hs"
        self._published.append(user)
        for name, text in (
            (stream, jsontext.dumps(row)),
            ("account_data", jsontext.dumps([user, None, "t"])),
        ):
            before = self._token - 1
            first = Position(stream=name, instance=writer, prev_token=before, token=before)
            commands: list[Command] = [] if (name, writer) in self._announced else [first]
            self._announced.add((name, writer))
            follower.server.received(
                [*commands, Rdata(stream=name, instance=writer, token=self._token, row=text)]
            )

    # -- and without -----------------------------------------------------------------------------------------

    def _lose_the_disk(self) -> None:
        self._note("a is lost with its disk, and b is away")
        lost = self.nodes.pop("a")
        lost.kill()
        self._removed.append(lost)
        self.nodes["b"].kill()
        self._start("c")
        self._pass(2.0)
        if (code := self._promote("c")) != "replicas_silent":
            self._fail(f"c was promoted while b was silent: {code or 'without a refusal'}")
        self._start("b")
        self._pass(2.0)
        names = ["b", "c"]
        self.chance.shuffle(names)
        for name in names:
            code = self._promote(name)
            if not code:
                break
            if code != "others_ahead":
                self._fail(f"{name} was refused: {code}")
        else:
            self._fail("neither b nor c was promoted")
        kept = {row[0] for fact in self._facts(self.nodes[name]) for row in fact if row}
        if missing := self.acknowledged - kept:
            self._fail(f"{name} was promoted without acknowledged facts: {missing}")

    def _promote(self, name: str) -> str:
        """Promote a node by force; return the code of the refusal, if it is refused."""
        results: list[Any] = []
        Deferred.fromCoroutine(self.nodes[name].promotion.promote(force=True)).addBoth(results.append)
        for _ in range(3_000):
            if results:
                break
            self._pass(STEP_SECONDS)
        if isinstance(results[0], Failure):
            results[0].trap(CannotPromote)
            error: Any = results[0].value
            self._note(f"{name} is refused: {error}")
            self.seen[f"refused: {error.code}"] += 1
            return str(error.code)
        self._note(f"{name} is promoted")
        self.seen[f"promoted: {name}"] += 1
        return ""

    @staticmethod
    def _facts(node: FakeNode) -> list[list[list[Any]]]:
        """The rows of each fact on a node's disk."""
        facts, _ = node.engine.pages.facts(after=0, upto=node.engine.head().position.serial, limit=1_000_000)
        return [jsontext.loads(fact.rows) for fact in facts]


if __name__ == "__main__":
    ForgerySimulation.main(int(sys.argv[1]))
