"""What stands beside the facts, as lines of JSON in a block."""

from collections.abc import Sequence
from typing import Final

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.ports.history import Appended, AppendReceipt, EpochStart, LogPosition, LogSnapshot
from synrepl.wire.blocks import block, blocks

__all__ = [
    "MAX_SNAPSHOT",
    "SnapshotReader",
    "meta_block",
    "read_meta",
    "read_snapshot",
    "snapshot_block",
    "snapshot_lines",
]

MAX_SNAPSHOT: Final = 640 * 1024 * 1024
"""Bytes of memory for all that stands beside a snapshot's facts: 1.3 million receipts of a day, mostly."""
LINE_BYTES: Final = 300
"""What a line takes in memory beside its text."""


class _Receipt(msgspec.Struct):
    key: str
    request: str
    epoch: int
    first_serial: int | None
    tokens: list[int]
    at_ms: int


class _Line(msgspec.Struct, omit_defaults=True):
    """One of these."""

    position: LogPosition | None = None
    trimmed_upto: LogPosition | None = None
    epoch_start: EpochStart | None = None
    receipt: _Receipt | None = None
    writer_position: tuple[str, str, int] | None = None


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(_Line)


def meta_block(epoch_starts: Sequence[EpochStart] = (), receipts: Sequence[AppendReceipt] = ()) -> bytes:
    """Blocks of turns and receipts, as they come."""
    lines = (*(_Line(epoch_start=epoch_start) for epoch_start in epoch_starts), *map(_receipt, receipts))
    return blocks("meta", [_encode(line) + b"\n" for line in lines]) or block("meta", 0, b"")


def snapshot_block(snapshot: LogSnapshot) -> bytes:
    """Blocks of all that stands beside a snapshot's facts; where it ends, `SnapshotReader` knows."""
    return blocks("snapshot", snapshot_lines(snapshot))


def snapshot_lines(snapshot: LogSnapshot) -> list[bytes]:
    """All that stands beside a snapshot's facts, as lines. The place comes last: then all is there."""
    lines = [_Line(trimmed_upto=snapshot.trimmed_upto)]
    lines += [_Line(epoch_start=epoch_start) for epoch_start in snapshot.epoch_starts]
    lines += [
        _Line(writer_position=(stream, writer, token))
        for (stream, writer), token in snapshot.positions.items()
    ]
    lines += map(_receipt, snapshot.receipts)
    lines.append(_Line(position=snapshot.position))
    return [_encode(line) + b"\n" for line in lines]


def read_meta(data: bytes) -> tuple[list[EpochStart], list[AppendReceipt]]:
    """The turns and the receipts of a block."""
    lines = _lines(data)
    return [line.epoch_start for line in lines if line.epoch_start], [
        _given(line) for line in lines if line.receipt
    ]


def read_snapshot(data: bytes) -> LogSnapshot:
    """What stands beside a snapshot's facts."""
    return _snapshot(_lines(data))


class SnapshotReader:
    """Puts a snapshot together from its blocks, one after the other."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._room = MAX_SNAPSHOT

    def feed(self, data: bytes) -> LogSnapshot | None:
        """One more block: the snapshot, once its place has come. Raises RemoteProtocolError at what makes no
        sense, and where there is too much of it."""
        self._room -= len(data) + LINE_BYTES * data.count(b"\n")
        if self._room < 0:
            raise RemoteProtocolError(
                f"what stands beside a snapshot's facts takes more than {MAX_SNAPSHOT} bytes of memory"
            )
        lines = _lines(data)
        self._lines += lines
        if not any(line.position for line in lines):
            return None
        gathered, self._lines, self._room = self._lines, [], MAX_SNAPSHOT
        return _snapshot(gathered)


def _snapshot(lines: Sequence[_Line]) -> LogSnapshot:
    places = [line.position for line in lines if line.position]
    begins = [line.trimmed_upto for line in lines if line.trimmed_upto]
    if len(places) != 1 or len(begins) != 1:
        raise RemoteProtocolError("a snapshot has one place and one beginning")
    return LogSnapshot(
        position=places[0],
        trimmed_upto=begins[0],
        epoch_starts=[line.epoch_start for line in lines if line.epoch_start],
        positions={
            line.writer_position[:2]: line.writer_position[2] for line in lines if line.writer_position
        },
        receipts=[_given(line) for line in lines if line.receipt],
    )


def _receipt(receipt: AppendReceipt) -> _Line:
    appended = receipt.appended
    return _Line(
        receipt=_Receipt(
            receipt.key,
            receipt.request,
            appended.epoch,
            appended.first_serial,
            appended.tokens,
            receipt.at_ms,
        )
    )


def _given(line: _Line) -> AppendReceipt:
    told = line.receipt
    assert told is not None
    appended = Appended(told.epoch, told.first_serial, told.tokens)
    return AppendReceipt(told.key, told.request, appended, told.at_ms)


def _lines(data: bytes) -> list[_Line]:
    try:
        return _decoder.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a line makes no sense: {error}") from error
