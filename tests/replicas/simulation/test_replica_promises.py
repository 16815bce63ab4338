"""Whatever happens, copies are copies: seeded runs of daemons that replicate each other, meeting bad luck.

A seed that fails says how to see it again."""

from collections import Counter

import pytest

from tests.replicas.simulation.replicas import AIMS, ReplicaSimulation
from tests.simulation.seeds import seeds

SHARES = 5


@pytest.mark.parametrize("share", range(SHARES))
def test_the_promises_hold_in_every_seeded_run(share: int) -> None:
    """Kills and cuts in every state, partitions, forced promotions, old copies restored, failing disks, an
    attacker without a secret."""
    for seed in seeds("replicas", share=share, shares=SHARES):
        ReplicaSimulation(seed).run()


RARE = (
    "adopted",
    "killed",
    "cut",
    "stalled",
    "stopped reading",
    "parted",
    "new disk",
    "disk failed",
    "made-up claim",
    "made-up subscription",
    "made-up hand-over",
    "promoted",
    "forced",
    "restored",
    "resynced",
    "lost",
    "trimmed",
    "flipped",
    "refused: ahead",
    "refused: fork",
    "refused: trimmed",
    "refused: not_ready",
)
STRIKING = (16, 48, 38, 12, 3, 40, 56, 19)
"""Seeds in which all of it happened when this was written. They come first, so that few others are needed."""


def test_bad_luck_strikes_in_every_state() -> None:
    """A state in which nothing ever broke is one that nobody knows anything of."""
    struck: Counter[tuple[str, str]] = Counter()
    seen: Counter[str] = Counter()

    def missing() -> list[object]:
        return [*(aim for aim in AIMS if not struck[aim]), *(what for what in RARE if not seen[what])]

    for seed in dict.fromkeys((*STRIKING, *range(1, 61))):
        if not missing():
            break
        run = ReplicaSimulation(seed).run()
        struck.update(run.struck)
        seen.update(run.seen)

    assert [] == missing()
