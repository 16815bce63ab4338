"""`ReplicaSimulation` in which replicas are promoted in order, and their disks stall just then.

Of each promotion it is checked that nothing is left behind which the primary before it has acknowledged.

``python -m tests.replicas.simulation.stalls SEED``."""

import random
import sys
from typing import Final

from tests.replicas.nodes import FakeNode
from tests.replicas.simulation.replicas import ReplicaSimulation

__all__ = ["StallSimulation"]

STALLS: Final = (0.0, 0.0, 0.0, 3.0, 9.0, 20.0)
"""How long a step of the disk lasts at times, in seconds. A hand-over lasts 15."""


class StallSimulation(ReplicaSimulation):
    """One seeded run. `run` raises `Broken` if a promise is."""

    MODULE = "tests.replicas.simulation.stalls"

    def __init__(self, seed: int, *, seconds: float = 40.0) -> None:
        super().__init__(seed, seconds=seconds)
        self.stalls = random.Random(f"stalls {seed}")
        self.restores = self.forces = self.attacks = self.loses = False
        self.promotes = self.lists = True
        self._stalled: dict[str, list[float]] = {}
        """By nodes that are being promoted, how long the next steps of their disks last."""
        for name, node in self.nodes.items():
            node.listed = [other for other in "abc" if other != name]

    def _bad_luck(self) -> None:
        if self.stalls.random() < 0.003:
            self._promote()
        # One thing at a time: a promotion must get as far as its epoch.
        if self.stalls.random() < 0.3:
            super()._bad_luck()

    async def _promote_in_order(self, node: FakeNode) -> None:
        self._stalled[node.name] = [self.stalls.choice(STALLS) for _ in range(4)]
        await super()._promote_in_order(node)

    def _question_delay(self) -> float:
        # None is lost: a hand-over cannot outlive a candidate that is cut off for long.
        return self._malice.choice([0.001, 0.01, 0.01, 1.0])

    def _disk_delay(self, name: str) -> float:
        stalls, node = self._stalled.get(name), self.nodes[name]
        delay = super()._disk_delay(name)
        if stalls and node.is_running and node.roles.role == "replica" and node.roles.replica is None:
            stalled = stalls.pop(0)
            self.seen["disk stalled"] += stalled > 15
            delay += stalled
        return delay


if __name__ == "__main__":
    StallSimulation.main(int(sys.argv[1]))
