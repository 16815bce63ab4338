"""Blocks: many bytes behind one line that says how many."""

from hashlib import sha256
from typing import Any, Final, cast

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.wire.codec import MAX_LENGTH, codec_of
from synrepl.wire.dialect import NATIVE
from synrepl.wire.grammar import CLIENT, SERVER
from synrepl.wire.native import Block
from synrepl.wire.text import printable

__all__ = ["MAX_BLOCK", "MAX_FACT", "MAX_HELD", "MAX_LINES", "BlockReader", "Payload", "block", "blocks"]

MIB: Final = 1024 * 1024

MAX_FACT: Final = 64 * MIB
"""Bytes of the rows of one fact, as the log keeps them."""

BLOCK_BYTES: Final = MIB
"""Lines go together into a block up to so many bytes; a longer line alone makes a block of its own."""

MAX_BLOCK: Final = MAX_FACT + 8 * MIB
"""Bytes in a block: one fact of the largest size, what stands around its rows, and a page of small ones."""

MAX_HELD: Final = MAX_FACT + 64 * MIB
"""Bytes in a ``held`` block, which cannot be parted: the largest fact, and 8 MiB of each ephemeral stream."""

MAX_LINES: Final = 65_536
"""Lines in a block; a page of the log has some thousands at most."""

MAX_HELD_LINES: Final = 4 * MAX_LINES

COUNTED_BYTES: Final = 4 * MIB
"""The lines of larger blocks are counted before they are read."""

_codec: Final = codec_of(NATIVE, ours=CLIENT, theirs=SERVER)
_HEAD: Final = b"BLOCK "
_NEXT: Final = b"\n" + _HEAD


class Payload(msgspec.Struct, frozen=True):
    """A whole block, its checksum verified.

    `data` is a bytearray where the block came in parts: copying it would take its size once more.
    """

    kind: str
    lines: int
    data: bytes


def block(kind: str, lines: int, data: bytes) -> bytes:
    """The line that announces a block, and the block."""
    checksum = sha256(data).hexdigest().encode()
    return b"BLOCK %b %d %d %b\n%b" % (kind.encode(), lines, len(data), checksum, data)


def blocks(kind: str, lines: list[bytes]) -> bytes:
    """Blocks of these lines, each with its line end; nothing where there is no line."""
    if not lines:
        return b""
    data = b"".join(lines)
    # A page of the log, mostly.
    if len(data) <= BLOCK_BYTES:
        return block(kind, len(lines), data)
    parts: list[bytes] = []
    together: list[bytes] = []
    size = 0
    for line in lines:
        if together and size + len(line) > BLOCK_BYTES:
            parts.append(block(kind, len(together), b"".join(together)))
            together, size = [], 0
        together.append(line)
        size += len(line)
    parts.append(block(kind, len(together), b"".join(together)))
    return b"".join(parts)


class BlockReader:
    """Cuts what arrives into lines and blocks, however it was parted on the way. Empty lines are left out.

    Holds at most one unfinished line or block, and of a block no more than has arrived. Work is linear in the
    bytes that arrive.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._block: Block | None = None
        self._data = bytearray()
        self._checksum: Any = None

    def feed(self, data: bytes) -> list[bytes | Payload]:
        """The lines, and the blocks, that are now whole. Raises RemoteProtocolError at what makes no sense,
        after which nothing more must be fed."""
        found: list[bytes | Payload] = []
        at = 0
        while at < len(data):
            at = self._lines(data, at, found) if self._block is None else self._part(data, at, found)
        return found

    def _lines(self, data: bytes, at: int, found: list[bytes | Payload]) -> int:
        """Take lines up to the next one that announces a block, or all; gives where that ends."""
        if self._rest:
            end = data.find(b"\n", at)
            if end < 0:
                self._keep(self._rest + data[at:])
                return len(data)
            line, self._rest = self._rest + data[at:end], b""
            self._line(line, found)
            return end + 1
        if data.startswith(_HEAD, at):
            end = data.find(b"\n", at)
            if end < 0:
                self._keep(data[at:])
                return len(data)
            self._line(data[at:end], found)
            return end + 1
        head = data.find(_NEXT, at) + 1
        *lines, rest = data[at : head or len(data)].split(b"\n")
        found += filter(None, lines)
        if not head:
            self._keep(rest)
        return head or len(data)

    def _keep(self, rest: bytes) -> None:
        if len(rest) > MAX_LENGTH:
            raise RemoteProtocolError(f"a line holds {MAX_LENGTH} bytes")
        self._rest = rest

    def _line(self, line: bytes, found: list[bytes | Payload]) -> None:
        if not line.startswith(_HEAD):
            if line:
                found.append(line)
            return
        announced = _codec.parse(line)
        assert isinstance(announced, Block)
        is_held = announced.kind == "held"
        most, most_lines = (MAX_HELD, MAX_HELD_LINES) if is_held else (MAX_BLOCK, MAX_LINES)
        if not 0 <= announced.size <= most:
            raise RemoteProtocolError(f"a block holds up to {most} bytes, not {announced.size}")
        if not 0 <= announced.lines <= most_lines:
            raise RemoteProtocolError(f"a block holds up to {most_lines} lines, not {announced.lines}")
        if announced.size:
            self._block = announced
        else:
            found.append(_whole(announced, b"", sha256()))

    def _part(self, data: bytes, at: int, found: list[bytes | Payload]) -> int:
        """Take what belongs to the block; gives where that ends."""
        announced = self._block
        assert announced is not None
        if not self._data:
            end = at + announced.size
            if end <= len(data):
                whole = data[at:end]
                self._block = None
                found.append(_whole(announced, whole, sha256(whole)))
                return end
            self._checksum = sha256()
        part = data[at : at + announced.size - len(self._data)]
        self._checksum.update(part)
        self._data += part
        if len(self._data) == announced.size:
            gathered, self._block, self._data = self._data, None, bytearray()
            found.append(_whole(announced, cast(bytes, gathered), self._checksum))
        return at + len(part)


def _whole(announced: Block, data: bytes, checksum: Any) -> Payload:
    if checksum.hexdigest() != announced.sha256:
        raise RemoteProtocolError(f"a block of {printable(announced.kind)} was changed on its way here")
    # Before anybody makes objects of them. What a small block can hold is harmless, and counting takes time.
    if len(data) > COUNTED_BYTES and data.count(b"\n") > announced.lines:
        raise RemoteProtocolError(f"a block of {printable(announced.kind)} has more lines than it says")
    return Payload(announced.kind, announced.lines, data)
