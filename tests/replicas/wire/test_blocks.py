"""Blocks: a line that announces a length, then that many bytes."""

import tracemalloc
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.errors import RemoteProtocolError
from synrepl.replicas.wire import blocks as blocks_module
from synrepl.replicas.wire.blocks import (
    COUNTED_BYTES,
    MAX_BLOCK,
    MAX_LINES,
    Payload,
    encode_block,
    encode_blocks,
)
from synrepl.wire.codec import MAX_LENGTH
from synrepl.wire.sizes import MAX_HELD
from tests.operations import count_operations
from tests.replicas.wire.block_buffer import BlockBuffer

STREAM = b"SERVER hs\n" + encode_block("facts", 2, b"one\ntwo\n") + encode_block("held", 0, b"") + b"PING 5\n"
FOUND = [b"SERVER hs", Payload("facts", 2, b"one\ntwo\n"), Payload("held", 0, b""), b"PING 5"]


def received(buffer: BlockBuffer, data: bytes) -> list[bytes | Payload]:
    """The lines and blocks that are now complete."""
    found: list[bytes | Payload] = []
    for run in buffer.runs(data):
        found += [run] if isinstance(run, Payload) else run
    return found


def announced(size: int, *, digest: str = "0" * 64, lines: int = 1, kind: str = "facts") -> bytes:
    return f"BLOCK {kind} {lines} {size} {digest}\n".encode()


def test_lines_and_blocks_come_out_in_order() -> None:
    """Complete, and with the lines after them."""
    assert FOUND == received(BlockBuffer(), STREAM)


def test_byte_by_byte_is_the_same() -> None:
    """Chunks may end anywhere."""
    buffer = BlockBuffer()

    assert FOUND == [found for byte in STREAM for found in received(buffer, bytes([byte]))]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_chunks_give_the_same(places: list[int]) -> None:
    """TCP may split the bytes anywhere."""
    cuts = [0, *sorted(places), len(STREAM)]
    buffer = BlockBuffer()

    assert FOUND == [
        found for first, last in pairwise(cuts) for found in received(buffer, STREAM[first:last])
    ]


@pytest.mark.parametrize("bad", [b"x" * (MAX_LENGTH + 1), announced(3) + b"abc", b"BLOCK facts one\n"])
def test_what_comes_before_malformed_bytes_is_read(bad: bytes) -> None:
    """All came in one read: a command is not lost because its peer's next bytes are wrong."""
    runs = BlockBuffer().runs(STREAM + bad)
    found: list[list[bytes] | Payload] = []

    with pytest.raises(RemoteProtocolError):
        found.extend(runs)

    assert [[FOUND[0]], FOUND[1], FOUND[2], [FOUND[3]]] == found


def test_an_unfinished_line_waits() -> None:
    """Its end may come later, or never."""
    buffer = BlockBuffer()

    assert [] == received(buffer, b"PIN")
    assert [b"PING 1"] == received(buffer, b"G 1\n")


def test_a_corrupted_block_is_detected() -> None:
    """The connection ends if a block differs from what was sent."""
    data = encode_block("facts", 1, b"abc\n").replace(b"abc", b"abd")

    with pytest.raises(RemoteProtocolError, match="corrupted in transit"):
        received(BlockBuffer(), data)


@pytest.mark.parametrize("size", [-1, MAX_BLOCK + 1])
def test_a_block_of_an_impossible_size_is_rejected(size: int) -> None:
    """A size beyond memory or below zero must not be waited for."""
    with pytest.raises(RemoteProtocolError, match="a block has at most"):
        received(BlockBuffer(), announced(size))


def test_a_line_without_an_end_is_rejected() -> None:
    """Before it fills the memory."""
    with pytest.raises(RemoteProtocolError, match="a line has at most"):
        received(BlockBuffer(), b"x" * (MAX_LENGTH + 1))


def test_an_invalid_announcement_is_rejected() -> None:
    """The bytes after it could not be distinguished from lines."""
    with pytest.raises(RemoteProtocolError):
        received(BlockBuffer(), b"BLOCK facts one two three\n")


def test_the_checksum_is_that_of_the_bytes() -> None:
    """It can be recomputed from the bytes."""
    data = b"abc\n"

    assert [Payload("facts", 1, data)] == received(
        BlockBuffer(), announced(len(data), digest=sha256(data).hexdigest()) + data
    )


@pytest.mark.parametrize("lines", [-1, MAX_LINES + 1])
def test_a_block_of_too_many_lines_is_rejected(lines: int) -> None:
    """Each line becomes objects, which are many times as large as a short line."""
    with pytest.raises(RemoteProtocolError, match="a block has at most 65536 lines"):
        received(BlockBuffer(), announced(100, lines=lines))


def test_a_held_block_may_be_larger_than_a_page() -> None:
    """It cannot be split, as it shows which writers restarted."""
    with pytest.raises(RemoteProtocolError, match="a block has at most"):
        received(BlockBuffer(), announced(MAX_HELD + 1, kind="held"))
    assert [] == received(BlockBuffer(), announced(MAX_HELD, kind="held"))


def test_a_large_block_with_more_lines_than_announced_is_rejected() -> None:
    """Before they are decoded to objects."""
    data = b"\n" * (COUNTED_BYTES + 1)

    with pytest.raises(RemoteProtocolError, match="exceeds its"):
        received(BlockBuffer(), encode_block("facts", 7, data))


def test_messages_of_a_channel_are_no_lines() -> None:
    """Many small ones may wait for a slow replica."""
    data = b"*3\r\n$7\r\nmessage\r\n$2\r\nhs\r\n$1\r\nx\r\n" * 200_000
    assert len(data) > blocks_module.COUNTED_BYTES

    (found,) = received(BlockBuffer(), encode_block("channel", 0, data))

    assert isinstance(found, Payload)
    assert found.data == data


def test_only_received_bytes_of_a_block_take_memory() -> None:
    """An announcement alone must not allocate memory."""
    buffer = BlockBuffer()
    tracemalloc.start()
    try:
        received(buffer, announced(MAX_BLOCK))
        for _ in range(32):
            received(buffer, b"x" * 65_536)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 5 * 2**20


def test_a_block_in_parts_is_joined_without_a_second_copy() -> None:
    """The largest blocks are as large as all other memory of a replica."""
    data = b"x" * 2**24 + b"\n"
    block = encode_block("facts", 1, data)
    parts = [block[position : position + 65_536] for position in range(0, len(block), 65_536)]
    buffer = BlockBuffer()
    tracemalloc.start()
    try:
        found = [one for part in parts for one in received(buffer, part)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [Payload("facts", 1, data)] == found
    assert peak < 1.5 * len(data)


class ReadBytes(bytes):
    """Bytes that count how many of them are looked at or copied."""

    read = 0

    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        self.read += len(part) if isinstance(part, bytes) else 1
        return part

    def find(self, what: Any, start: Any = 0, end: Any = None) -> int:
        found = super().find(what, start, end)
        self.read += (found if found >= 0 else len(self)) - start
        return found

    def startswith(self, prefix: Any, start: Any = 0, end: Any = None) -> bool:
        self.read += len(prefix)
        return super().startswith(prefix, start, end)


@pytest.mark.parametrize("flood", [b"\n", b"HEARTBEAT 1 2 d 3 4 c\n"])
def test_a_flood_of_short_lines_is_split_in_linear_time(flood: bytes) -> None:
    """Not quadratic: a peer that does this must not use up a core (4 s for 8 MiB of line ends)."""

    def cost(size: int) -> int:
        data = ReadBytes(flood * (size // len(flood)))
        operations = count_operations(lambda: received(BlockBuffer(), data))
        return operations + data.read

    # Looking again at, or copying, the rest of the data for each line would cost four times as much.
    assert cost(16_384) < 2.5 * cost(8_192)


def test_empty_lines_are_skipped() -> None:
    """They are dropped before they are parsed."""
    assert [b"PING 1"] == received(BlockBuffer(), b"\n\nPING 1\n\n\n")


@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"") + b"\n")))
def test_lines_are_split_into_blocks(lines: list[bytes]) -> None:
    """Only a block of one line exceeds the limit, and no byte changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK_BYTES", 12)
        found = received(BlockBuffer(), encode_blocks("facts", b"".join(lines)))

    payloads = [one for one in found if isinstance(one, Payload)]
    assert b"".join(lines) == b"".join(one.data for one in payloads)
    assert len(lines) == sum(one.lines for one in payloads)
    assert all(len(one.data) <= 12 for one in payloads)
