"""A seed of the channel's simulation is a run."""

from tests.channel.simulation import ChannelSimulation
from tests.simulation.test_seeds import check_repeats


def test_a_seed_is_a_run_that_can_be_repeated() -> None:
    """As those of other simulations."""
    check_repeats(ChannelSimulation.MODULE)
