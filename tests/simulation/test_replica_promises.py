"""Whatever happens, copies are copies: seeded runs of daemons that replicate each other, meeting bad luck.

``SYNREPL_SEEDS=N`` runs N seeds; ``SYNREPL_LONG=1`` runs many more than by default. A failing one says how
to see it again."""

import os
from collections import Counter

import pytest

from synrepl.testing.replica_simulation import AIMS, ReplicaSimulation

SEEDS = int(os.environ.get("SYNREPL_SEEDS") or (2_000 if os.environ.get("SYNREPL_LONG") else 60))
SHARES = 5

struck: Counter[tuple[str, str]] = Counter()
seen: Counter[str] = Counter()


@pytest.mark.parametrize("share", range(SHARES))
def test_the_promises_hold_in_every_seeded_run(share: int) -> None:
    """Kills and cuts in every state, partitions, forced promotions, old copies restored, failing disks, an
    attacker without a secret."""
    for seed in range(1 + share, 1 + SEEDS, SHARES):
        run = ReplicaSimulation(seed).run()
        struck.update(run.struck)
        seen.update(run.seen)


def test_lightning_strikes_in_every_state() -> None:
    """A state in which nothing ever broke is one that nobody knows anything of."""
    _see_some()

    assert [aim for aim in AIMS if not struck[aim]] == []


def test_bad_luck_really_strikes() -> None:
    """A simulation in which nothing happens would prove nothing."""
    _see_some()

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


def _see_some() -> None:
    """The seeds of a default run, unless they were run in this process."""
    if not seen or SEEDS < 60:
        for seed in range(1, 61):
            run = ReplicaSimulation(seed).run()
            struck.update(run.struck)
            seen.update(run.seen)
