"""What all tests of replication have."""

from collections.abc import Iterator

import pytest

from tests.replication.worlds import World


@pytest.fixture(autouse=True)
def _worlds_end() -> Iterator[None]:
    """So that nothing of one test happens in the middle of another."""
    yield
    while World.made:
        for node in World.made.pop().nodes.values():
            node.kill()
