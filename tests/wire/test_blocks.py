"""Many bytes behind one line that says how many."""

from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.errors import RemoteProtocolError
from synrepl.wire.blocks import MAX_BLOCK, BlockReader, Payload, block
from synrepl.wire.codec import MAX_LENGTH

STREAM = b"SERVER hs\n" + block("facts", 2, b"one\ntwo\n") + block("held", 0, b"") + b"PING 5\n"
FOUND = [b"SERVER hs", Payload("facts", 2, b"one\ntwo\n"), Payload("held", 0, b""), b"PING 5"]


def announced(size: int, *, digest: str = "0" * 64) -> bytes:
    return f"BLOCK facts 1 {size} {digest}\n".encode()


def test_lines_and_blocks_come_out_in_order() -> None:
    """Whole, and with what comes behind them."""
    assert FOUND == BlockReader().feed(STREAM)


def test_byte_by_byte_is_the_same() -> None:
    """Nobody may count on where pieces end."""
    reader = BlockReader()

    assert FOUND == [found for byte in STREAM for found in reader.feed(bytes([byte]))]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cutting_gives_the_same(places: list[int]) -> None:
    """However it was parted on the way."""
    cuts = [0, *sorted(places), len(STREAM)]
    reader = BlockReader()

    assert FOUND == [found for first, last in pairwise(cuts) for found in reader.feed(STREAM[first:last])]


def test_an_unfinished_line_waits() -> None:
    """Its end may come later, or never."""
    reader = BlockReader()

    assert [] == reader.feed(b"PIN")
    assert [b"PING 1"] == reader.feed(b"G 1\n")


def test_a_changed_block_is_told_from_a_whole_one() -> None:
    """What arrives is what was sent, or the connection ends."""
    data = block("facts", 1, b"abc\n").replace(b"abc", b"abd")

    with pytest.raises(RemoteProtocolError, match="changed on its way"):
        BlockReader().feed(data)


@pytest.mark.parametrize("size", [-1, MAX_BLOCK + 1])
def test_a_block_of_a_size_that_cannot_be_is_refused(size: int) -> None:
    """Nobody makes us wait for more than fits in memory, nor for less than nothing."""
    with pytest.raises(RemoteProtocolError, match="a block holds up to"):
        BlockReader().feed(announced(size))


def test_a_line_without_an_end_is_refused() -> None:
    """Before it fills the memory."""
    with pytest.raises(RemoteProtocolError, match="a line holds"):
        BlockReader().feed(b"x" * (MAX_LENGTH + 1))


def test_an_announcement_that_makes_no_sense_is_refused() -> None:
    """The bytes behind it could not be told from lines."""
    with pytest.raises(RemoteProtocolError):
        BlockReader().feed(b"BLOCK facts one two three\n")


def test_the_checksum_is_that_of_the_bytes() -> None:
    """Anybody can recompute it."""
    data = b"abc\n"

    assert [Payload("facts", 1, data)] == BlockReader().feed(
        announced(len(data), digest=sha256(data).hexdigest()) + data
    )
