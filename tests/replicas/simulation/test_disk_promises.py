"""Whatever breaks on a disk, nobody is served what was not written: seeded runs with power cuts and bits.

A seed that fails says how to see it again."""

from collections import Counter

import pytest

from tests.replicas.simulation.disks import DiskSimulation
from tests.simulation.seeds import seeds

SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
def test_a_broken_disk_is_refused_and_replaced(share: int) -> None:
    """Whichever row it is of, with commits, copies, notes and leases on their way to it."""
    for seed in seeds("disks", share=share, shares=SHARES):
        DiskSimulation(seed).run()


def test_everything_happens() -> None:
    """A disk on which nothing ever broke would prove nothing."""
    seen: Counter[str] = Counter()
    for seed in range(1, 41):
        seen.update(DiskSimulation(seed).run().seen)

    writes = ("_commit_group", "commit_followed", "store")
    needed = [f"{write} {what} on the disk" for write in writes for what in ("is", "is not")]
    needed += ["a staged copy loses commits", "read", "adopted", "lost tails", "trimmed"]
    needed += [f"flipped in {table}" for table in ("facts", "receipts", "notes", "positions")]
    needed += ["refused at the start", "refused while serving", "found by the doctor", "without meaning"]
    needed += ["joins anew", "promoted instead", "restored", "lost with the disk"]
    assert [what for what in needed if not seen[what]] == []
