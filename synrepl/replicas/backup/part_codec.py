"""Codec of the part files of a backup.

A part is a sequence of blocks as they are sent to replicas (`wire/blocks.py`): a line that announces a kind,
a length and a SHA-256, then that many bytes. The first is the ``head``. ``facts``, ``meta`` and ``snapshot``
are those of a conversation with an upstream; ``note`` has notes of the copy as JSON. A ``mark`` ends what
belongs together: everything before it was on the disk before it was written, and it has the SHA-256 of all
bytes of the part before it. So

* what stands behind the last mark never counts: it may be cut anywhere, as after a kill or a power cut;
* what stands before a mark and does not agree with it was damaged later: no write can leave that behind.

The head has the SHA-256 of the whole part before it, so that the parts form a chain, and the state of the
copy at its start (`CopyState`), so that the parts before it need not be read to go on. A finished part never
changes.
"""

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from synrepl.base.history import BEGINNING, EpochStart, LogSnapshot
from synrepl.errors import RemoteProtocolError, ReplicationError
from synrepl.replicas.relay.snapshot_codec import SnapshotDecoder, read_meta
from synrepl.replicas.wire.blocks import MAX_BLOCK, encode_block
from synrepl.wire.position import LogPosition

T = TypeVar("T")

FORMAT: Final = 1

MAX_HEAD: Final = 200
"""The most bytes of a line that announces a block."""

MARK: Final = b"BLOCK mark "
"""With which the line of a mark begins. JSON can have these words, but not the end of such a line."""

_announcement: Final = re.compile(rb"BLOCK ([a-z]{1,20}) ([0-9]{1,20}) ([0-9]{1,20}) ([0-9a-f]{64})\n")


class CopyState(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy in a backup knows besides its facts.

    `begin` is the position of its snapshot, before which nothing can be restored, and `begin_ms` the time of
    the newest fact up to there; None as long as the snapshot is incomplete. `token` is the highest one of all
    streams, `committed_ms` the time of the newest fact, `written_ms` when that was written.
    """

    position: LogPosition = BEGINNING
    trimmed_upto: LogPosition = BEGINNING
    epoch_starts: tuple[EpochStart, ...] = ()
    notes: dict[str, str] = {}
    begin: LogPosition | None = None
    begin_ms: int = 0
    token: int = 0
    committed_ms: int = 0
    written_ms: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the copy is complete up to its position, as a replica's that has joined."""
        return "joined" in self.notes

    def noted(self, changes: dict[str, str | None]) -> "CopyState":
        """Return the state after these changes of notes; None deletes a note."""
        notes = {name: text for name, text in {**self.notes, **changes}.items() if text is not None}
        return msgspec.structs.replace(self, notes=notes)

    def with_snapshot(self, snapshot: LogSnapshot) -> "CopyState":
        """Return the state after the metadata of the snapshot."""
        return msgspec.structs.replace(
            self,
            position=snapshot.position,
            begin=snapshot.position,
            begin_ms=self.committed_ms,
            trimmed_upto=snapshot.trimmed_upto,
            epoch_starts=tuple(snapshot.epoch_starts),
            token=max([self.token, *snapshot.positions.values()]),
        )


class PartHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first block of a part.

    `number` counts the parts, `copy` the copies: a backup begins another one if its upstream has trimmed what
    it lacks. `before` is the SHA-256 of the whole part with the number before; empty in the first one.
    """

    format: int
    number: int
    copy: int
    before: str
    state: CopyState


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Everything before this block is whole, and on the disk. `sha256` is that of all bytes before it."""

    position: LogPosition
    token: int
    committed_ms: int
    written_ms: int
    sha256: str


class Damage(ReplicationError):
    """A part is damaged at this offset."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"damaged at byte {offset}: {why}")
        self.offset = offset
        self.why = why


def json_block(kind: str, value: Any) -> bytes:
    """Encode a block with one line of JSON."""
    return encode_block(kind, 1, msgspec.json.encode(value) + b"\n")


def decode(data: bytes, kind: type[T]) -> T:
    """Decode the JSON of a block. Raises `RemoteProtocolError`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"it is not what a backup writes: {error}") from error


class PartScan:
    """Reads the blocks of a part in order, and verifies them.

    `upto` is the offset behind the last mark so far, and `state` the state there (None before the first
    mark); `digest` is the SHA-256 of the part up to there.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.head: PartHead | None = None
        self.state: CopyState | None = None
        self.upto = 0
        self.digest = ""
        self.is_cut = False
        """Whether something incomplete follows the last mark."""
        self._file = file
        self._hash = sha256()
        self._marked_hash = self._hash
        self._offset = 0
        self._pending: CopyState | None = None
        self._snapshot = SnapshotDecoder()

    def hashed(self) -> Any:
        """The hash of the part up to the last mark, to go on with."""
        return self._marked_hash.copy()

    def blocks(self) -> Iterator[tuple[str, bytes]]:
        """Yield the kind and the data of each block, up to the last mark if nothing is damaged.

        Blocks behind the last mark are yielded too: they count only once their mark is yielded. Raises
        `Damage` for what is damaged before a later mark.
        """
        doubted, state = -1, None
        while True:
            start = self._offset
            line = self._file.readline(MAX_HEAD)
            if not line:
                self.is_cut = self._offset > self.upto
                return
            try:
                kind, data = self._read(line)
                if kind == "mark":
                    state = self._mark(start, data)
                else:
                    self._take(kind, data)
            except RemoteProtocolError as error:
                if not self._has_later_mark(start):
                    self.is_cut = True
                    return
                if doubted == start:
                    raise Damage(start, error.why) from None
                # A running backup may have written the rest since: read it again.
                doubted = start
                self._file.seek(start)
                continue
            self._hash.update(line)
            self._hash.update(data)
            self._offset += len(line) + len(data)
            if kind == "mark":
                self.state = self._pending = state
                self._marked_hash = self._hash.copy()
                self.upto, self.digest = self._offset, self._hash.hexdigest()
            yield kind, data

    def _read(self, line: bytes) -> tuple[str, bytes]:
        found = _announcement.fullmatch(line)
        if found is None:
            raise RemoteProtocolError("there should be a block")
        size = int(found[3])
        if size > MAX_BLOCK:
            raise RemoteProtocolError(f"a block has at most {MAX_BLOCK} bytes, not {size}")
        data = self._file.read(size)
        if len(data) < size:
            raise RemoteProtocolError("the block is cut")
        if sha256(data).hexdigest() != found[4].decode() or data.count(b"\n") != int(found[2]):
            raise RemoteProtocolError("the checksum of the block differs")
        return found[1].decode(), data

    def _mark(self, start: int, data: bytes) -> CopyState:
        """Return the state at a mark."""
        mark = decode(data, Mark)
        if mark.sha256 != self._hash.hexdigest() or self._pending is None:
            raise Damage(start, "the checksum of what is before the mark differs")
        return msgspec.structs.replace(
            self._pending,
            position=mark.position,
            token=mark.token,
            committed_ms=mark.committed_ms,
            written_ms=mark.written_ms,
        )

    def _take(self, kind: str, data: bytes) -> None:
        if kind == "head":
            if self.head is not None:
                raise RemoteProtocolError("a part has two heads")
            head = decode(data, PartHead)
            if head.format != FORMAT:
                raise RemoteProtocolError(f"its format is {head.format}, this release reads {FORMAT}")
            self.head, self._pending = head, head.state
            return
        if self._pending is None:
            raise RemoteProtocolError("there is no head")
        self._pending = advance(self._pending, kind, data, self._snapshot)
        if kind == "snapshot" and self._pending.begin is not None:
            self._snapshot = SnapshotDecoder()

    def _has_later_mark(self, offset: int) -> bool:
        """Whether a mark follows that is whole in itself: what is before it was on the disk once."""
        self._file.seek(offset)
        rest = self._file.read()
        at = -1
        while (at := rest.find(MARK, at + 1)) >= 0:
            end = rest.find(b"\n", at, at + MAX_HEAD) + 1
            found = _announcement.fullmatch(rest[at:end]) if end else None
            if found is not None and at:
                data = rest[end : end + int(found[3])]
                if sha256(data).hexdigest() == found[4].decode():
                    return True
        return False


def advance(state: CopyState, kind: str, data: bytes, snapshots: SnapshotDecoder) -> CopyState:
    """Return the state after a block; the position moves with the next mark. Raises `RemoteProtocolError`."""
    match kind:
        case "facts":
            return state
        case "meta":
            epoch_starts, _ = read_meta(data)
            return msgspec.structs.replace(state, epoch_starts=(*state.epoch_starts, *epoch_starts))
        case "snapshot":
            snapshot = snapshots.receive(data)
            if snapshot is None:
                return state
            return state.with_snapshot(snapshot)
        case "note":
            return state.noted(decode(data, dict[str, str | None]))
    raise RemoteProtocolError(f"a block has the unknown kind {kind}")
