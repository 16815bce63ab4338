"""What stands beside the facts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.errors import RemoteProtocolError
from synrepl.ports.history import Appended, Place, Receipt, Snapshot, Turn
from synrepl.replication.relay.meta import meta_block, read_meta, read_snapshot, snapshot_block
from synrepl.wire.blocks import BlockReader, Payload

numbers = st.integers(0, 2**63 - 1)
texts = st.text(max_size=10)
places = st.builds(Place, numbers, numbers, texts)
turns = st.lists(st.builds(Turn, numbers, numbers, texts, numbers, texts, texts, numbers), max_size=3)
receipts = st.lists(
    st.builds(
        Receipt, texts, texts, st.builds(Appended, numbers, st.none() | numbers, st.lists(numbers)), numbers
    ),
    max_size=3,
)


def payload(data: bytes) -> Payload:
    (found,) = BlockReader().feed(data)
    assert isinstance(found, Payload)
    return found


@given(turns, receipts)
def test_turns_and_receipts_are_read_as_they_were_written(some: list[Turn], given_: list[Receipt]) -> None:
    """Who gets which answer must be the same on every copy."""
    found = payload(meta_block(some, given_))

    assert "meta" == found.kind
    assert len(some) + len(given_) == found.lines
    assert (some, given_) == read_meta(found.data)


@given(
    st.builds(
        Snapshot,
        place=places,
        begin=places,
        turns=turns,
        positions=st.dictionaries(st.tuples(texts, texts), numbers, max_size=3),
        receipts=receipts,
    )
)
def test_a_snapshot_is_read_as_it_was_written(snapshot: Snapshot) -> None:
    """All that stands beside its facts."""
    found = payload(snapshot_block(snapshot))

    assert "snapshot" == found.kind
    assert snapshot == read_snapshot(found.data)


@pytest.mark.parametrize("data", [b"", b'{"place":[]}\n', b'{"turn":5}\n', b"x\n"])
def test_what_makes_no_sense_is_told_as_such(data: bytes) -> None:
    """A snapshot has one place and one beginning, for one."""
    with pytest.raises(RemoteProtocolError):
        read_snapshot(data)
