"""A seed is a run: a failing one would be of no use otherwise."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("world", ["workers", "broker"])
def test_a_seed_is_a_run_that_can_be_repeated(world: str) -> None:
    """In another process, with other hashes and addresses in memory."""
    check_repeats(f"tests.simulation.{world}")


def check_repeats(module: str) -> None:
    """Run the simulation of this module, three times with one seed."""
    stories = {
        subprocess.run(
            [sys.executable, "-m", module, "9"],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        ).stdout
        for hash_seed in (1, 2, 3)
    }

    assert 1 == len(stories)
    assert "every promise held" in stories.pop()
