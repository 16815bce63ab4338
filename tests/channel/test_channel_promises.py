"""Whatever happens on the RESP port, no process of Synapse believes what it lacks: seeded runs.

A seed that fails says how to see it again.
"""

from unittest.mock import patch

import pytest

from synrepl.channel.ends import ChannelSubscriber
from synrepl.channel.served_channel import ServedChannel
from tests.channel.simulation import ChannelSimulation
from tests.simulation.seeded import Broken
from tests.simulation.seeds import seeds


def test_the_promises_hold_in_every_seeded_run() -> None:
    """Cuts, stalls and kills of processes and of the daemon, at every moment."""
    for seed in seeds("channel"):
        ChannelSimulation(seed).run()


def test_bad_luck_really_strikes() -> None:
    """A simulation in which nothing happens would prove nothing. These seeds are among those above."""
    runs = [ChannelSimulation(seed).run() for seed in range(1, 21)]
    words = " ".join(" ".join(run.history) for run in runs)

    for what in ("is cut", "stalls", "worker1 is killed", "resp0 is killed", "is promoted"):
        assert what in words
    assert sum(run.demotions for run in runs) > 20
    assert sum(run.held_back for run in runs) > 20


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ServedChannel, "publisher_lost"),
        (ChannelSubscriber, "resume"),
    ],
)
def test_each_rule_is_needed(owner: type, name: str) -> None:
    """Without it some process keeps a hole."""

    def run_all() -> None:
        for seed in range(1, 201):
            ChannelSimulation(seed).run()

    with patch.object(owner, name, lambda *arguments: None), pytest.raises(Broken):
        run_all()
