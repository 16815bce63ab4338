"""What a replica promises of its upstream, over native blocks and over HTTP, as every transport does."""

import pytest

from tests.replicas.transport_pairs import HttpPair, NativePair
from tests.transports.pairs import TransportPair
from tests.transports.test_transport_contract import *  # noqa: F403  # the same tests


@pytest.fixture(params=[NativePair, HttpPair], ids=["native", "http"], name="kind")
def _kind(request: pytest.FixtureRequest) -> type[TransportPair]:
    """A transport."""
    found: type[TransportPair] = request.param
    return found
