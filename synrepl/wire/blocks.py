"""Blocks: many bytes behind one line that says how many."""

from hashlib import sha256
from typing import Final

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.wire.codec import MAX_LENGTH, codec_of
from synrepl.wire.declare import CLIENT, SERVER
from synrepl.wire.dialect import NATIVE
from synrepl.wire.native import Block

__all__ = ["MAX_BLOCK", "BlockReader", "Payload", "block"]

MAX_BLOCK: Final = 256 * 1024 * 1024
"""Bytes in a block. One fact alone may make a block this large; most have a quarter of a megabyte."""

_codec: Final = codec_of(NATIVE, ours=CLIENT, theirs=SERVER)
_HEAD: Final = b"BLOCK "


class Payload(msgspec.Struct, frozen=True):
    """A whole block, its checksum verified."""

    kind: str
    lines: int
    data: bytes


def block(kind: str, lines: int, data: bytes) -> bytes:
    """The line that announces a block, and the block."""
    checksum = sha256(data).hexdigest().encode()
    return b"BLOCK %b %d %d %b\n%b" % (kind.encode(), lines, len(data), checksum, data)


class BlockReader:
    """Cuts what arrives into lines and blocks, however it was parted on the way.

    Holds at most one unfinished line or block.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._block: Block | None = None
        self._parts: list[bytes] = []
        self._lacks = 0

    def feed(self, data: bytes) -> list[bytes | Payload]:
        """The lines, and the blocks, that are now whole. Raises RemoteProtocolError at what makes no sense,
        after which nothing more must be fed."""
        found: list[bytes | Payload] = []
        while data:
            if self._block is not None:
                data = self._take(data, found)
                continue
            line, end, data = (self._rest + data).partition(b"\n")
            if not end:
                self._rest = line
                if len(line) > MAX_LENGTH:
                    raise RemoteProtocolError(f"a line holds {MAX_LENGTH} bytes")
                break
            self._rest = b""
            if line.startswith(_HEAD):
                self._begin(line)
                if not self._lacks:
                    data = self._take(data, found)
            else:
                found.append(line)
        return found

    def _begin(self, line: bytes) -> None:
        announced = _codec.parse(line)
        assert isinstance(announced, Block)
        if not 0 <= announced.size <= MAX_BLOCK:
            raise RemoteProtocolError(f"a block holds up to {MAX_BLOCK} bytes, not {announced.size}")
        self._block, self._lacks = announced, announced.size

    def _take(self, data: bytes, found: list[bytes | Payload]) -> bytes:
        part, rest = data[: self._lacks], data[self._lacks :]
        self._parts.append(part)
        self._lacks -= len(part)
        if not self._lacks:
            announced = self._block
            assert announced is not None
            whole = b"".join(self._parts)
            self._parts, self._block = [], None
            if sha256(whole).hexdigest() != announced.sha256:
                raise RemoteProtocolError(f"a block of {announced.kind} was changed on its way here")
            found.append(Payload(announced.kind, announced.lines, whole))
        return rest
