"""What all tests of replicas have."""

from collections.abc import Iterator

import pytest

from tests.replicas.clusters import FakeCluster


@pytest.fixture(autouse=True)
def _clusters_end() -> Iterator[None]:
    """So that nothing of one test happens in the middle of another."""
    yield
    while FakeCluster.made:
        for node in FakeCluster.made.pop().nodes.values():
            node.kill()
