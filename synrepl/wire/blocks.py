"""Blocks: a line that announces a length and a checksum, then that many bytes."""

from collections.abc import Iterator
from hashlib import sha256
from itertools import groupby
from typing import Any, Final, cast

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.wire.codec import MAX_LENGTH, LineBuffer, codec_of
from synrepl.wire.dialect import NATIVE
from synrepl.wire.grammar import CLIENT, SERVER
from synrepl.wire.native import Block
from synrepl.wire.text import printable

MIB: Final = 1024 * 1024

MAX_FACT: Final = 64 * MIB
"""The most bytes in the rows of one fact, as the log keeps them."""

BLOCK_BYTES: Final = MIB
"""Lines share a block up to this many bytes. A longer line gets a block of its own."""

MAX_BLOCK: Final = MAX_FACT + 8 * MIB
"""The most bytes in a block: the rows of the largest fact, and 8 MiB for its other fields."""

MAX_HELD: Final = MAX_FACT + 64 * MIB
"""The most bytes in a ``held`` block, which cannot be split: a fact, and 8 MiB for each ephemeral stream."""

MAX_LINES: Final = 65_536
"""The most lines in a block; facts of `BLOCK_BYTES` have some thousands at most."""

MAX_HELD_LINES: Final = 4 * MAX_LINES

COUNTED_BYTES: Final = 4 * MIB
"""The lines of blocks with more bytes than this are counted before they are decoded."""

_codec: Final = codec_of(NATIVE, ours=CLIENT, theirs=SERVER)
_HEAD: Final = b"BLOCK "
_NEXT: Final = b"\n" + _HEAD


class Payload(msgspec.Struct, frozen=True):
    """A complete block with a verified checksum.

    `data` is a bytearray if the block arrived in parts, as a copy would double the memory.
    """

    kind: str
    lines: int
    data: bytes


def encode_block(kind: str, lines: int, data: bytes) -> bytes:
    """Encode one block: the line that announces it, then its data."""
    checksum = sha256(data).hexdigest().encode()
    return b"BLOCK %b %d %d %b\n%b" % (kind.encode(), lines, len(data), checksum, data)


def encode_blocks(kind: str, lines: bytes) -> bytes:
    """Encode whole lines, each with its end, as blocks. No lines give no bytes."""
    blocks: list[bytes] = []
    at = 0
    while at < len(lines):
        end = len(lines)
        if end - at > BLOCK_BYTES:
            end = lines.rfind(b"\n", at, at + BLOCK_BYTES) + 1 or lines.find(b"\n", at) + 1
        part = lines[at:end]
        blocks.append(encode_block(kind, part.count(b"\n"), part))
        at = end
    return b"".join(blocks)


class BlockBuffer:
    """Splits received bytes into lines and blocks, at any chunk boundaries. Skips empty lines.

    Buffers at most one unfinished line or block, and never allocates for bytes that have not arrived. Work is
    linear in the received bytes.
    """

    def __init__(self) -> None:
        self._buffer = LineBuffer()
        self._block: Block | None = None
        self._data = bytearray()
        self._checksum: Any = None

    def runs(self, data: bytes) -> Iterator[list[bytes] | Payload]:
        """Yield the blocks that are now complete, and the lines between them as runs.

        Raises RemoteProtocolError for malformed input, once what came before it is yielded. Do not use the
        buffer after that.
        """
        found: list[bytes | Payload] = []
        violation = ""
        at = 0
        try:
            while at < len(data):
                at = self._lines(data, at, found) if self._block is None else self._part(data, at, found)
        except RemoteProtocolError as error:
            violation = error.why
        for kind, items in groupby(found, type):
            if kind is Payload:
                yield from cast("Iterator[Payload]", items)
            else:
                yield cast("list[bytes]", list(items))
        if violation:
            raise RemoteProtocolError(violation)

    def _lines(self, data: bytes, at: int, found: list[bytes | Payload]) -> int:
        """Read lines up to the next block announcement, or all of them; return the end position."""
        if self._buffer.size or data.startswith(_HEAD, at):
            end = data.find(b"\n", at) + 1
        else:
            end = data.find(_NEXT, at) + 1
        end = end or len(data)
        for line in self._buffer.receive(data[at:end]):
            self._line(line, found)
        return end

    def _line(self, line: bytes, found: list[bytes | Payload]) -> None:
        if len(line) > MAX_LENGTH:
            raise RemoteProtocolError(f"line too long: a line has at most {MAX_LENGTH} bytes")
        if not line.startswith(_HEAD):
            if line:
                found.append(line)
            return
        announced = _codec.parse(line)
        assert isinstance(announced, Block)
        is_held = announced.kind == "held"
        most, most_lines = (MAX_HELD, MAX_HELD_LINES) if is_held else (MAX_BLOCK, MAX_LINES)
        if not 0 <= announced.size <= most:
            raise RemoteProtocolError(f"a block has at most {most} bytes, not {announced.size}")
        if not 0 <= announced.lines <= most_lines:
            raise RemoteProtocolError(f"a block has at most {most_lines} lines, not {announced.lines}")
        if announced.size:
            self._block = announced
        else:
            found.append(_verify(announced, b"", sha256()))

    def _part(self, data: bytes, at: int, found: list[bytes | Payload]) -> int:
        announced = self._block
        assert announced is not None
        if not self._data:
            end = at + announced.size
            if end <= len(data):
                whole = data[at:end]
                self._block = None
                found.append(_verify(announced, whole, sha256(whole)))
                return end
            self._checksum = sha256()
        part = data[at : at + announced.size - len(self._data)]
        self._checksum.update(part)
        self._data += part
        if len(self._data) == announced.size:
            complete, self._block, self._data = self._data, None, bytearray()
            found.append(_verify(announced, cast(bytes, complete), self._checksum))
        return at + len(part)


def _verify(announced: Block, data: bytes, checksum: Any) -> Payload:
    if checksum.hexdigest() != announced.sha256:
        raise RemoteProtocolError(
            f"a block of kind {printable(announced.kind)} was corrupted in transit: its checksum differs"
        )
    # Counted before lines become objects. Small blocks are harmless, and counting takes time. Messages of a
    # channel are no lines.
    is_counted = len(data) > COUNTED_BYTES and announced.kind != "channel"
    if is_counted and data.count(b"\n") > announced.lines:
        raise RemoteProtocolError(f"a {printable(announced.kind)} block exceeds its {announced.lines} lines")
    return Payload(announced.kind, announced.lines, data)
