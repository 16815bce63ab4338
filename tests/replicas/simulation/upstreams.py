"""Workers with several addresses, while daemons are killed, parted and promoted by force.

Each worker keeps the facts that it was given, and gives up those that it is told are lost. At rest it must
have exactly the facts of the primary, each once, in the order of each stream and writer.
"""

import random
import sys
from typing import Any

from prometheus_client import CollectorRegistry

from synrepl.base.metrics import Metrics
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, Updates
from synrepl.testing.cluster import DirectCatchUp, MemoryPositions
from synrepl.testing.network import MemoryEndpoint
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire import jsontext
from synrepl.wire.dialect import CURRENT
from tests.replicas.simulation.replicas import ReplicaSimulation
from tests.simulation.seeded import STEP_SECONDS

STREAMS = ("events", "receipts", "to_device")

Held = tuple[int, str]
"""Token and rows."""


def shown(rows: list[Any]) -> str:
    """Rows without the nulls in which the shapes of two releases differ."""
    return str(rows).replace(" None,", "")


class Worker:
    """Follows the first daemon of its list that serves it. A restart keeps its positions and its facts."""

    def __init__(self, run: "UpstreamSimulation", name: str, addresses: list[str]) -> None:
        self.name = name
        self.held: dict[tuple[str, str], list[Held]] = {}
        self.lost = 0
        self.restarted: list[str] = []
        self._run = run
        self._addresses = addresses
        self._positions = MemoryPositions()
        self._factory: FollowerFactory
        self._follower: Follower
        self._start()

    def _start(self) -> None:
        run = self._run
        catch_up = DirectCatchUp(run.nodes[self._addresses[0]], run.clock, run.delay)  # type: ignore[arg-type]
        follower = self._follower = Follower(
            instance=self.name,
            clock=run.clock,
            positions=self._positions,
            catch_up=catch_up,
            start="earliest",
            raw=True,
        )
        for stream in STREAMS:
            follower.on(run.streams[stream])(self._apply)
        follower.on_event(self._watch)

        def use(address: str) -> None:
            catch_up.daemon = run.nodes[address]  # type: ignore[assignment]

        self._factory = FollowerFactory(
            follower,
            dialect=CURRENT,
            expected_server="hs",
            clock=run.clock,
            metrics=Metrics(CollectorRegistry()),
            on_attempt=use,
        )
        self._factory.jitter = 0.0  # Twisted's is not of this run's seed
        self._factory.initialDelay = self._factory.delay = 0.4 * run.luck.uniform(0.7, 1.3)
        self._factory.connect({one: MemoryEndpoint(run.network, self.name, one) for one in self._addresses})

    def restart(self) -> None:
        """Stop in order, and start again from the saved positions."""
        self.stop()
        self._start()

    def stop(self) -> None:
        """Stop in order."""
        self._factory.stop()
        self._follower.stop()

    def _apply(self, updates: Updates[Any]) -> None:
        self.held.setdefault((updates.stream, updates.writer), []).append(
            (updates.token, shown(updates.rows))
        )

    def _watch(self, event: FollowerEvent) -> None:
        if event.kind == "went_back":
            held = self.held.setdefault((event.stream, event.writer), [])
            kept = [one for one in held if one[0] <= event.token]
            self.lost += len(held) - len(kept)
            held[:] = kept
        elif event.kind == "restarted":
            self.restarted.append(f"{event.stream} of {event.writer}")


class UpstreamSimulation(ReplicaSimulation):
    """`ReplicaSimulation` with workers, without what a line protocol cannot survive.

    That is a restored copy (its limit in guarantees.md), a flipped bit, and facts that were trimmed before
    they were read.
    """

    MODULE = "tests.replicas.simulation.upstreams"

    def __init__(self, seed: int, *, seconds: float = 12.0) -> None:
        super().__init__(seed, seconds=seconds)
        self.luck = random.Random(f"upstreams {seed}")
        self.restores = self.corrupts = self.trims = self.loses = self.attacks = self.declares = False
        self.forces = self.promotes = self.lists = True
        for name, node in self.nodes.items():
            # Without keys and without this, nobody fences a primary that another one replaced by force.
            node.listed = [other for other in "abc" if other != name]
        self.has_workers = True
        self.workers: list[Worker] = []

    def delay(self) -> float:
        """How long a request takes on its way."""
        return self.luck.uniform(0.001, 0.02)

    def _write(self) -> None:
        super()._write()
        if self.has_workers and not self.workers:
            for number in range(2):
                addresses = ["a", "b", "c"]
                self.luck.shuffle(addresses)
                self.workers.append(Worker(self, f"worker{number}", addresses))
        if self.workers and not self._is_peace and self.luck.random() < 0.002:
            self.luck.choice(self.workers).restart()

    def _check(self) -> None:
        super()._check()
        (primary,) = [node for node in self.nodes.values() if node.roles.role == "primary"]
        expected: dict[tuple[str, str], list[Held]] = {}
        for fact in self.histories.chain(primary.log.position.digest):
            if fact.stream in STREAMS:
                texts = self.streams[fact.stream].project_fact(fact.rows, CURRENT)
                rows = [jsontext.loads(text) for text in texts]
                expected.setdefault((fact.stream, fact.writer), []).append((fact.token, shown(rows)))
        for worker in self.workers:
            for _ in range(2_000):
                held = {key: facts for key, facts in worker.held.items() if facts}
                if held == expected:
                    break
                self.clock.advance(STEP_SECONDS)
            else:
                self._fail(f"{worker.name} {_difference(held, expected)}; restarted {worker.restarted[:3]}")
            self.seen["lost tails"] += worker.lost > 0
            worker.stop()


def _difference(held: dict[tuple[str, str], list[Held]], expected: dict[tuple[str, str], list[Held]]) -> str:
    for key in sorted(held.keys() | expected.keys()):
        ours, theirs = held.get(key, []), expected.get(key, [])
        if ours != theirs:
            pairs = enumerate(zip(ours, theirs, strict=False))
            at = next((n for n, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
            return f"differs in {key} at {at}: {ours[at : at + 3]}, not {theirs[at : at + 3]}"
    return "differs"


if __name__ == "__main__":
    UpstreamSimulation.main(int(sys.argv[1]))
