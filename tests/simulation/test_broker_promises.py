"""Whatever happens on a Redis, the promises hold: seeded runs of our daemons among Synapse's processes.

A seed that fails says how to see it again."""

import pytest

from tests.simulation.broker import BrokerSimulation
from tests.simulation.seeds import seeds

SHARES = 5


@pytest.mark.parametrize("share", range(SHARES))
def test_the_promises_hold_in_every_seeded_run(share: int) -> None:
    """Cuts, stalls, kills of Redis, of daemons and of writers, and broken HTTP, at every moment."""
    for seed in seeds("broker", share=share, shares=SHARES):
        BrokerSimulation(seed).run()


def test_bad_luck_really_strikes() -> None:
    """A simulation in which nothing happens would prove nothing. These seeds are among those above."""
    words = ""
    gaps = 0
    for seed in range(1, 9):
        run = BrokerSimulation(seed)
        try:
            run.run()
        except AssertionError:
            pass  # told above
        words += " ".join(run.history)
        gaps += sum(int(daemon.metrics.gaps_repaired.value) for daemon in run.daemons)

    for what in (
        "Redis is killed",
        "Redis stalls",
        "loses its subscriber",
        "loses its publisher",
        "watcher1 is killed",
        "persister1 is killed",
        "cannot fetch",
    ):
        assert what in words
    assert gaps > 50
