"""Whatever happens, the promises hold: seeded runs of a daemon, writers and followers meeting bad luck.

A seed that fails says how to see it again."""

import pytest

from tests.simulation.seeds import seeds
from tests.simulation.workers import Simulation

SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
def test_the_promises_hold_in_every_seeded_run(share: int) -> None:
    """Cuts, stalls, kills, slow readers, failing subscribers and broken HTTP, at every moment."""
    for seed in seeds("workers", share=share, shares=SHARES):
        Simulation(seed).run()


def test_bad_luck_really_strikes() -> None:
    """A simulation in which nothing happens would prove nothing."""
    runs = [Simulation(seed).run() for seed in range(1, 13)]
    words = " ".join(line for run in runs for line in run.history)

    for what in ("is killed", "is cut off", "stalls", "stops reading", "daemon is killed", "stops"):
        assert what in words
    behind = [run.daemon.metrics.readers_demoted.value for run in runs]
    gaps = [
        life.worker.metrics.gaps_repaired.value for run in runs for slot in run.slots for life in slot.lives
    ]
    assert sum(behind) > 0
    assert sum(gaps) > 10
    assert {True, False} == {run.loses_caches for run in runs}
    assert max(run.largest_batch for run in runs) > 10
    readers = [life.reader for run in runs for slot in run.slots for life in slot.lives]
    for name in ("get_topic", "get_users_in_room", "get_receipts", "get_typing"):
        numbers = [reader.caches.caches[name] for reader in readers]
        assert min(sum(one.hits for one in numbers), sum(one.misses for one in numbers)) > 100
