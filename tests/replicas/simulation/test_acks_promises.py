"""Nothing that replicas have acknowledged is given up when a primary is lost: seeded runs.

A seed that fails says how to see it again."""

from collections import Counter

import pytest

from tests.replicas.simulation.acks import AcksSimulation
from tests.simulation.seeds import seeds

SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
def test_a_promoted_replica_has_everything_that_was_acknowledged(share: int) -> None:
    """Whichever an operator tries, and whoever is killed, slow, cut off or new."""
    for seed in seeds("acks", share=share, shares=SHARES):
        AcksSimulation(seed).run()


def test_everything_happens() -> None:
    """A simulation in which nobody is refused would prove nothing."""
    needed: tuple[str, ...] = (
        "acks=1",
        "acks=2",
        "acks=3",
        "acks=b",
        "acks=c,d",
        "not acknowledged",
        "killed",
        "dropped",
    )
    needed += ("promoted", "refused: others_ahead", "refused: replicas_silent")
    seen: Counter[str] = Counter()
    for seed in range(1, 41):
        if all(seen[what] for what in needed):
            break
        seen.update(AcksSimulation(seed).run().seen)

    assert [what for what in needed if not seen[what]] == []
