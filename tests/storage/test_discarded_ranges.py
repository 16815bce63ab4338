"""What an epoch discards."""

import pytest

from synrepl.storage.continuity import DiscardedRanges
from synrepl.streams.facts import Fact

RANGES = DiscardedRanges([("events", 2, 5)])


@pytest.mark.parametrize(
    ("stream", "epoch", "token", "is_discarded"),
    [
        ("events", 1, 4, False),
        ("events", 1, 5, False),
        ("events", 1, 6, True),
        ("events", 2, 6, False),
        ("receipts", 1, 6, False),
    ],
)
def test_facts_before_the_epoch_and_beyond_its_token_are_discarded(
    stream: str, epoch: int, token: int, is_discarded: bool
) -> None:
    """The fact at the token itself is the last that the homeserver still has."""
    fact = Fact(
        serial=1,
        epoch=epoch,
        stream=stream,
        writer="w",
        prev_token=0,
        token=token,
        committed_at_ms=0,
        rows=b"[]",
        digest="",
    )

    assert RANGES.contains(fact) is is_discarded
