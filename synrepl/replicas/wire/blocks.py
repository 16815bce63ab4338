"""Blocks: a line that announces a length and a checksum, then that many bytes."""

from hashlib import sha256
from typing import Any, Final, cast

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.replicas.wire.native import Block
from synrepl.replicas.wire.native_codec import native_codec
from synrepl.wire.grammar import CLIENT, SERVER
from synrepl.wire.sizes import MAX_FACT, MAX_HELD, MIB
from synrepl.wire.text import printable

BLOCK_BYTES: Final = MIB
"""Lines share a block up to this many bytes. A longer line gets a block of its own."""

MAX_BLOCK: Final = MAX_FACT + 8 * MIB
"""The most bytes in a block: the rows of the largest fact, and 8 MiB for its other fields."""

MAX_LINES: Final = 65_536
"""The most lines in a block; facts of `BLOCK_BYTES` have some thousands at most."""

MAX_HELD_LINES: Final = 4 * MAX_LINES

COUNTED_BYTES: Final = 4 * MIB
"""The lines of blocks with more bytes than this are counted before they are decoded."""

HEAD: Final = b"BLOCK "
"""With which the line begins that announces a block."""


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


class BlockParser:
    """Takes one block after the other: the line that announces it (`announce`), then its bytes (`receive`).

    It holds at most one unfinished block, and never allocates for bytes that have not arrived. Work is linear
    in the received bytes. Do not use it after an error.
    """

    def __init__(self) -> None:
        self._announced: Block | None = None
        self._data = bytearray()
        self._checksum: Any = None

    def announce(self, line: bytes) -> Payload | None:
        """Take the line that announces a block. Returns the block if it is empty.

        Raises RemoteProtocolError if the block would be too large.
        """
        announced = native_codec(ours=CLIENT, theirs=SERVER).parse(line)
        assert isinstance(announced, Block)
        is_held = announced.kind == "held"
        most, most_lines = (MAX_HELD, MAX_HELD_LINES) if is_held else (MAX_BLOCK, MAX_LINES)
        if not 0 <= announced.size <= most:
            raise RemoteProtocolError(f"a block has at most {most} bytes, not {announced.size}")
        if not 0 <= announced.lines <= most_lines:
            raise RemoteProtocolError(f"a block has at most {most_lines} lines, not {announced.lines}")
        if not announced.size:
            return _verify(announced, b"", sha256())
        self._announced = announced
        return None

    def receive(self, data: bytes) -> tuple[Payload | None, bytes]:
        """Take bytes of the announced block. Returns the block once it is complete, and the bytes behind it.

        Raises RemoteProtocolError if it was corrupted.
        """
        announced = self._announced
        assert announced is not None
        if not self._data:
            if len(data) >= announced.size:
                whole = data[: announced.size]
                self._announced = None
                return _verify(announced, whole, sha256(whole)), data[announced.size :]
            self._checksum = sha256()
        part = data[: announced.size - len(self._data)]
        self._checksum.update(part)
        self._data += part
        if len(self._data) < announced.size:
            return None, b""
        complete, self._announced, self._data = self._data, None, bytearray()
        return _verify(announced, cast(bytes, complete), self._checksum), data[len(part) :]


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
