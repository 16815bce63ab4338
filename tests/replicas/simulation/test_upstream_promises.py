"""Whatever happens to its servers, a worker with several addresses has the facts of the log: seeded runs."""

from collections import Counter

from tests.replicas.simulation.upstreams import UpstreamSimulation
from tests.simulation.seeds import seeds


def test_a_worker_has_each_fact_of_the_log_once_and_gives_up_those_that_are_lost() -> None:
    """With kills, partitions, and promotions by force of copies that were behind."""
    seen: Counter[str] = Counter()
    for seed in seeds("upstreams"):
        seen.update(UpstreamSimulation(seed).run().seen)

    assert seen["killed"]
    assert seen["forced"]
    assert seen["lost tails"], "no worker was ever ahead of a promoted copy"
