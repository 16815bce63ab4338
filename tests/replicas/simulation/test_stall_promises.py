"""However slow its disk is, who is promoted in order has all that was acknowledged: seeded runs.

A seed that fails says how to see it again."""

from collections import Counter

from tests.replicas.simulation.stalls import StallSimulation
from tests.simulation.seeds import seeds


def test_promoted_in_order_nothing_is_left_behind_on_slow_disks() -> None:
    """A commit of the promotion lasts longer than the hand-over."""
    seen: Counter[str] = Counter()
    for seed in seeds("stalls"):
        seen.update(StallSimulation(seed).run().seen)

    assert seen["disk stalled"]
    assert seen["promoted"]
