"""No replica is ready after its start with a history that is not its upstream's: seeded runs.

A seed that fails says how to see it again."""

from collections import Counter

import pytest

from tests.replicas.simulation.restarts import RestartSimulation
from tests.simulation.seeds import seeds

SHARES = 3


@pytest.mark.parametrize("share", range(SHARES))
def test_who_is_ready_has_the_history_of_its_upstream(share: int) -> None:
    """Whoever was restored, killed or promoted while it was down."""
    for seed in seeds("restarts", share=share, shares=SHARES):
        RestartSimulation(seed).run()


def test_replicas_are_ready_and_primaries_have_lost_facts() -> None:
    """A simulation in which nobody is ever ready, or nothing is ever lost, would prove nothing."""
    rare = ("killed", "restored", "adopted", "resynced", "forced", "refused: ahead", "refused: fork")
    seen: Counter[str] = Counter()
    checked = 0
    for seed in range(1, 11):
        if checked >= 20 and all(seen[what] for what in rare):
            break
        run = RestartSimulation(seed).run()
        seen.update(run.seen)
        checked += run.readiness.checked

    assert [what for what in rare if not seen[what]] == []
    assert checked >= 20
