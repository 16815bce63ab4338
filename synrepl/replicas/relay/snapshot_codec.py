"""Codec of a log's metadata: epoch starts, receipts and positions, as lines of JSON in blocks."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from synrepl.base.history import Appended, AppendKey, AppendReceipt, EpochStart, LogSnapshot
from synrepl.errors import RemoteProtocolError
from synrepl.replicas.wire.blocks import encode_block, encode_blocks
from synrepl.streams.writer import Writer
from synrepl.wire.position import LogPosition

MAX_SNAPSHOT: Final = 640 * 1024 * 1024
"""The most memory in bytes for metadata in a `SnapshotDecoder`: enough for about 1.3 million receipts."""
MAX_WRITERS: Final = 50_000
"""The most writers in a snapshot: posts have 1,000 a stream, and Redis 10,000 in all."""
LINE_BYTES: Final = 300
"""The memory in bytes counted for each line, in addition to its text."""


class _Receipt(msgspec.Struct):
    stream: str
    key: str
    owner: str
    part: int
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
    return encode_blocks("meta", _encode_lines(lines)) or encode_block("meta", 0, b"")


def snapshot_block(snapshot: LogSnapshot) -> bytes:
    """Encode a snapshot's metadata as blocks, for a `SnapshotDecoder`."""
    # The position comes last and marks the end.
    lines = [_Line(trimmed_upto=snapshot.trimmed_upto)]
    lines += [_Line(epoch_start=epoch_start) for epoch_start in snapshot.epoch_starts]
    lines += [
        _Line(writer_position=(stream, writer, token))
        for (stream, writer), token in snapshot.positions.items()
    ]
    lines += map(_receipt, snapshot.receipts)
    lines.append(_Line(position=snapshot.position))
    return encode_blocks("snapshot", _encode_lines(lines))


def _encode_lines(lines: Iterable[_Line]) -> bytes:
    return b"".join(_encode(line) + b"\n" for line in lines)


def read_meta(data: bytes) -> tuple[list[EpochStart], list[AppendReceipt]]:
    """Decode lines with epoch starts and receipts. Raises RemoteProtocolError on an invalid line."""
    lines = _lines(data)
    return [line.epoch_start for line in lines if line.epoch_start], [
        _append_receipt(line) for line in lines if line.receipt
    ]


class SnapshotDecoder:
    """Assembles the metadata of one snapshot from its blocks, or other parts of whole lines."""

    def __init__(self) -> None:
        self._room = MAX_SNAPSHOT
        self._positions: list[LogPosition] = []
        self._starts: list[LogPosition] = []
        self._epoch_starts: list[EpochStart] = []
        self._writers: dict[Writer, int] = {}
        self._receipts: list[AppendReceipt] = []

    def receive(self, data: bytes) -> LogSnapshot | None:
        """Add a part. Returns the metadata once it is complete, and None before that.

        Raises RemoteProtocolError on an invalid part, or if more than `MAX_SNAPSHOT` bytes are needed, or for
        more than `MAX_WRITERS` writers.
        """
        self._room -= len(data) + LINE_BYTES * data.count(b"\n")
        if self._room < 0:
            raise RemoteProtocolError(
                f"the metadata of the snapshot takes more than {MAX_SNAPSHOT} bytes of memory"
            )
        for line in _lines(data):
            if line.writer_position is not None:
                stream, writer, token = line.writer_position
                self._writers[Writer(stream, writer)] = token
            elif line.receipt is not None:
                self._receipts.append(_append_receipt(line))
            elif line.epoch_start is not None:
                self._epoch_starts.append(line.epoch_start)
            elif line.trimmed_upto is not None:
                self._starts.append(line.trimmed_upto)
            elif line.position is not None:
                self._positions.append(line.position)
        if len(self._writers) > MAX_WRITERS:
            raise RemoteProtocolError(f"the snapshot has more than {MAX_WRITERS} writers, the limit")
        return self._snapshot() if self._positions else None

    def _snapshot(self) -> LogSnapshot:
        if len(self._positions) != 1 or len(self._starts) != 1:
            counts = f"{len(self._positions)} positions and {len(self._starts)} trim positions"
            raise RemoteProtocolError(f"the metadata of the snapshot has {counts}, not one of each")
        return LogSnapshot(
            position=self._positions[0],
            trimmed_upto=self._starts[0],
            epoch_starts=self._epoch_starts,
            positions=self._writers,
            receipts=self._receipts,
        )


def _receipt(receipt: AppendReceipt) -> _Line:
    key, result = receipt.key, receipt.appended
    return _Line(
        receipt=_Receipt(
            key.stream,
            key.text,
            key.owner,
            key.part,
            receipt.request,
            result.epoch,
            result.first_serial,
            result.tokens,
            receipt.at_ms,
        )
    )


def _append_receipt(line: _Line) -> AppendReceipt:
    receipt = line.receipt
    assert receipt is not None
    appended = Appended(receipt.epoch, receipt.first_serial, receipt.tokens)
    key = AppendKey(receipt.stream, receipt.key, receipt.owner, receipt.part)
    return AppendReceipt(key, receipt.request, appended, receipt.at_ms)


def _lines(data: bytes) -> list[_Line]:
    try:
        return _decoder.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"the upstream sent an invalid line of metadata: {error}") from error
