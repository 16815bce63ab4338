"""Codec of a log's metadata: epoch starts, receipts and positions, as lines of JSON (natively in blocks)."""

from collections.abc import Sequence
from typing import Final

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.ports.history import Appended, AppendReceipt, EpochStart, LogPosition, LogSnapshot
from synrepl.wire.blocks import encode_block, encode_blocks

MAX_SNAPSHOT: Final = 640 * 1024 * 1024
"""The most memory in bytes for metadata in a `SnapshotReader`: enough for about 1.3 million receipts."""
LINE_BYTES: Final = 300
"""The memory in bytes counted for each line, in addition to its text."""


class _Receipt(msgspec.Struct):
    key: str
    request: str
    epoch: int
    first_serial: int | None
    tokens: list[int]
    at_ms: int


class _Line(msgspec.Struct, omit_defaults=True):
    """One line: exactly one of these fields is set."""

    position: LogPosition | None = None
    trimmed_upto: LogPosition | None = None
    epoch_start: EpochStart | None = None
    receipt: _Receipt | None = None
    writer_position: tuple[str, str, int] | None = None


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(_Line)


def meta_block(epoch_starts: Sequence[EpochStart] = (), receipts: Sequence[AppendReceipt] = ()) -> bytes:
    """Encode epoch starts and receipts as blocks."""
    lines = (*(_Line(epoch_start=epoch_start) for epoch_start in epoch_starts), *map(_receipt, receipts))
    return encode_blocks("meta", [_encode(line) + b"\n" for line in lines]) or encode_block("meta", 0, b"")


def snapshot_block(snapshot: LogSnapshot) -> bytes:
    """Encode a snapshot's metadata as blocks, for a `SnapshotReader`."""
    return encode_blocks("snapshot", snapshot_lines(snapshot))


def snapshot_lines(snapshot: LogSnapshot) -> list[bytes]:
    """Encode a snapshot's metadata as lines. The position comes last and marks the end."""
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
    """Decode lines with epoch starts and receipts. Raises RemoteProtocolError on an invalid line."""
    lines = _lines(data)
    return [line.epoch_start for line in lines if line.epoch_start], [
        _append_receipt(line) for line in lines if line.receipt
    ]


def read_snapshot(data: bytes) -> LogSnapshot:
    """Decode all lines of a snapshot's metadata. Raises RemoteProtocolError if they are invalid."""
    return _snapshot(_lines(data))


class SnapshotReader:
    """Assembles a snapshot's metadata from its blocks, on a native connection."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._room = MAX_SNAPSHOT

    def feed(self, data: bytes) -> LogSnapshot | None:
        """Add a block. Returns the metadata once it is complete, and None before that.

        Raises RemoteProtocolError on an invalid block, or if more than `MAX_SNAPSHOT` bytes are needed.
        """
        self._room -= len(data) + LINE_BYTES * data.count(b"\n")
        if self._room < 0:
            raise RemoteProtocolError(
                f"the metadata of the snapshot takes more than {MAX_SNAPSHOT} bytes of memory"
            )
        lines = _lines(data)
        self._lines += lines
        if not any(line.position for line in lines):
            return None
        gathered, self._lines, self._room = self._lines, [], MAX_SNAPSHOT
        return _snapshot(gathered)


def _snapshot(lines: Sequence[_Line]) -> LogSnapshot:
    positions = [line.position for line in lines if line.position]
    starts = [line.trimmed_upto for line in lines if line.trimmed_upto]
    if len(positions) != 1 or len(starts) != 1:
        counts = f"{len(positions)} positions and {len(starts)} trim positions"
        raise RemoteProtocolError(f"the metadata of the snapshot has {counts}, not one of each")
    return LogSnapshot(
        position=positions[0],
        trimmed_upto=starts[0],
        epoch_starts=[line.epoch_start for line in lines if line.epoch_start],
        positions={
            line.writer_position[:2]: line.writer_position[2] for line in lines if line.writer_position
        },
        receipts=[_append_receipt(line) for line in lines if line.receipt],
    )


def _receipt(receipt: AppendReceipt) -> _Line:
    result = receipt.appended
    return _Line(
        receipt=_Receipt(
            receipt.key, receipt.request, result.epoch, result.first_serial, result.tokens, receipt.at_ms
        )
    )


def _append_receipt(line: _Line) -> AppendReceipt:
    receipt = line.receipt
    assert receipt is not None
    appended = Appended(receipt.epoch, receipt.first_serial, receipt.tokens)
    return AppendReceipt(receipt.key, receipt.request, appended, receipt.at_ms)


def _lines(data: bytes) -> list[_Line]:
    try:
        return _decoder.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"the upstream sent an invalid line of metadata: {error}") from error
