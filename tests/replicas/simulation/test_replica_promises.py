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


def test_bad_luck_strikes_in_every_state() -> None:
    """A state in which nothing ever broke is one that nobody knows anything of."""
    struck: Counter[tuple[str, str]] = Counter()
    seen: Counter[str] = Counter()
    for seed in range(1, 61):
        run = ReplicaSimulation(seed).run()
        struck.update(run.struck)
        seen.update(run.seen)

    assert [aim for aim in AIMS if not struck[aim]] == []
    rare: tuple[str, ...] = (
        "adopted",
        "killed",
        "cut",
        "stalled",
        "stopped reading",
        "parted",
        "new disk",
        "disk failed",
    )
    rare += ("made-up claim", "made-up subscription", "made-up hand-over")
    rare += ("promoted", "forced", "restored", "resynced", "lost", "trimmed", "flipped")
    assert [what for what in rare if not seen[what]] == []
    refused = ("refused: ahead", "refused: fork", "refused: trimmed", "refused: not_ready")
    assert [what for what in refused if not seen[what]] == []
