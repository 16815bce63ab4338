"""A seed is a run: a failing one would be of no use otherwise."""

import pytest

from tests.simulation.test_seeds import check_repeats


@pytest.mark.parametrize("world", ["replicas", "restarts", "stalls", "disks", "upstreams", "acks"])
def test_a_seed_is_a_run_that_can_be_repeated(world: str) -> None:
    """In another process, with other hashes and addresses in memory."""
    check_repeats(f"tests.replicas.simulation.{world}")
