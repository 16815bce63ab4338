"""Whatever happens, copies are copies: seeded runs of daemons that replicate each other, meeting bad luck.

``SYNREPL_SEEDS=N`` runs N seeds; ``SYNREPL_LONG=1`` runs many more than by default. A failing one says how
to see it again."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from synrepl.testing.replica_simulation import AIMS, ReplicaSimulation

SEEDS = int(os.environ.get("SYNREPL_SEEDS") or (2_000 if os.environ.get("SYNREPL_LONG") else 60))
SHARES = 5

struck: Counter[tuple[str, str]] = Counter()
seen: Counter[str] = Counter()


@pytest.mark.parametrize("share", range(SHARES))
def test_the_promises_hold_in_every_seeded_run(share: int) -> None:
    """Kills and cuts in every state, partitions, forced promotions, old copies restored, failing disks."""
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
    rare += ("promoted", "forced", "restored", "resynced", "lost", "trimmed", "flipped")
    assert [what for what in rare if not seen[what]] == []
    refused = ("refused: ahead", "refused: fork", "refused: trimmed", "refused: not_ready")
    assert [what for what in refused if not seen[what]] == []


def test_a_seed_is_a_run_that_can_be_repeated() -> None:
    """In another process, with other hashes: or a failing seed would be of no use."""
    stories = {
        subprocess.run(
            [sys.executable, "-m", "synrepl.testing.replica_simulation", "9"],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        ).stdout
        for hash_seed in (1, 2)
    }

    assert 1 == len(stories)
    assert "every promise held" in stories.pop()


def _see_some() -> None:
    """The seeds of a default run, unless they were run in this process."""
    if not seen or SEEDS < 60:
        for seed in range(1, 61):
            run = ReplicaSimulation(seed).run()
            struck.update(run.struck)
            seen.update(run.seen)
