"""`ReplicaSimulation` in which daemons restart all the time, and primaries lose facts meanwhile.

Old copies of the primary's disk are put back while its replicas are down, or others are promoted by force,
and replicas of replicas come back before the daemon between them reaches anybody. Of each start it is checked
that nobody is ready with a history that is not its upstream's (`readiness.py`).

``python -m tests.replicas.simulation.restarts SEED``."""

import random
import sys

from tests.replicas.simulation.replicas import ReplicaSimulation

__all__ = ["RestartSimulation"]


class RestartSimulation(ReplicaSimulation):
    """One seeded run. `run` raises `Broken` if a promise is."""

    MODULE = "tests.replicas.simulation.restarts"

    def __init__(self, seed: int, *, seconds: float = 12.0) -> None:
        super().__init__(seed, seconds=seconds)
        self.restarts = random.Random(f"restarts {seed}")
        # As in the other worlds, not both: a restored primary knows of no promotion since its copy.
        self.restores = self.restarts.random() < 0.7
        self.forces = self.promotes = not self.restores
        self.attacks, self.lists = False, True
        for name, node in self.nodes.items():
            node.listed = [other for other in "abc" if other != name]

    def _bad_luck(self) -> None:
        super()._bad_luck()
        luck = self.restarts
        if self.restores and luck.random() < 0.02:
            self._copy_or_restore()
        if luck.random() < 0.01:
            for name in luck.choice(["b", "c", "bc", "ab", "abc", "abcd"]):
                if name in self.nodes:
                    self._kill(name)
        for name in sorted(self.nodes):
            if not self.nodes[name].is_running and luck.random() < 0.03:
                self._start(name)


if __name__ == "__main__":
    RestartSimulation.main(int(sys.argv[1]))
