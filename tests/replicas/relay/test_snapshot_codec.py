"""What stands beside the facts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.base.history import Appended, AppendKey, AppendReceipt, EpochStart, LogSnapshot
from synrepl.errors import RemoteProtocolError
from synrepl.replicas.relay import snapshot_codec as meta_module
from synrepl.replicas.relay.snapshot_codec import (
    SnapshotDecoder,
    meta_block,
    read_meta,
    snapshot_block,
)
from synrepl.replicas.wire import blocks as blocks_module
from synrepl.replicas.wire.blocks import Payload
from synrepl.streams.writer import Writer
from synrepl.wire.position import LogPosition
from tests.replicas.wire.block_buffer import BlockBuffer

numbers = st.integers(0, 2**63 - 1)
texts = st.text(max_size=10)
places = st.builds(LogPosition, numbers, numbers, texts)
epoch_starts = st.lists(
    st.builds(EpochStart, numbers, numbers, texts, numbers, texts, texts, numbers), max_size=3
)
receipts = st.lists(
    st.builds(
        AppendReceipt,
        st.builds(AppendKey, texts, texts, texts, numbers),
        texts,
        st.builds(Appended, numbers, st.none() | numbers, st.lists(numbers)),
        numbers,
    ),
    max_size=3,
)


def payload(data: bytes) -> Payload:
    (found,) = BlockBuffer().runs(data)
    assert isinstance(found, Payload)
    return found


@given(epoch_starts, receipts)
def test_turns_and_receipts_are_read_as_they_were_written(
    some: list[EpochStart], given_: list[AppendReceipt]
) -> None:
    """Who gets which answer must be the same on every copy."""
    found = payload(meta_block(some, given_))

    assert "meta" == found.kind
    assert len(some) + len(given_) == found.lines
    assert (some, given_) == read_meta(found.data)


@given(
    st.builds(
        LogSnapshot,
        position=places,
        trimmed_upto=places,
        epoch_starts=epoch_starts,
        positions=st.dictionaries(st.tuples(texts, texts), numbers, max_size=3),
        receipts=receipts,
    )
)
def test_a_snapshot_is_read_as_it_was_written(snapshot: LogSnapshot) -> None:
    """All that stands beside its facts."""
    found = payload(snapshot_block(snapshot))

    assert "snapshot" == found.kind
    assert snapshot == SnapshotDecoder().receive(found.data)


@pytest.mark.parametrize(
    "data", [b'{"position":[1,9,"d"]}\n', b'{"position":[]}\n', b'{"epoch_start":5}\n', b"x\n"]
)
def test_what_makes_no_sense_is_told_as_such(data: bytes) -> None:
    """A snapshot has one place and one beginning, for one."""
    with pytest.raises(RemoteProtocolError):
        SnapshotDecoder().receive(data)


def receipt(number: int) -> AppendReceipt:
    return AppendReceipt(AppendKey("s", f"key{number}"), "0" * 64, Appended(1, number, [number]), 0)


SNAPSHOT = LogSnapshot(
    position=LogPosition(1, 9, "d"),
    trimmed_upto=LogPosition(1, 0, "e"),
    epoch_starts=[],
    positions={Writer("receipts", "w"): 9},
    receipts=[receipt(number) for number in range(1, 10)],
)


def test_a_large_snapshot_goes_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day's receipts are more than a block holds; all is there when the place has come."""
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 300)
    payloads = [one for one in BlockBuffer().runs(snapshot_block(SNAPSHOT)) if isinstance(one, Payload)]
    decoder = SnapshotDecoder()

    found = [decoder.receive(one.data) for one in payloads]

    assert len(payloads) > 3
    assert [None] * (len(payloads) - 1) + [SNAPSHOT] == found


def test_a_snapshot_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is held in memory until it is whole."""
    monkeypatch.setattr(meta_module, "MAX_SNAPSHOT", 10_000)
    decoder = SnapshotDecoder()
    data = b'{"writer_position":["receipts","w",1]}\n' * 8
    for _ in range(3):
        assert decoder.receive(data) is None

    with pytest.raises(RemoteProtocolError, match="more than 10000 bytes"):
        decoder.receive(data)


def test_a_snapshot_with_too_many_writers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """300,000 of them took 180 MB of a replica for ever."""
    monkeypatch.setattr(meta_module, "MAX_WRITERS", 3)
    lines = [b'{"writer_position":["receipts","w%d",1]}\n' % number for number in range(4)]
    decoder = SnapshotDecoder()

    assert decoder.receive(b"".join(lines[:3] * 2)) is None
    with pytest.raises(RemoteProtocolError, match="more than 3 writers"):
        decoder.receive(lines[3])
