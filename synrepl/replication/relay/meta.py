"""What stands beside the facts, as lines of JSON in a block."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.ports.history import Appended, Place, Receipt, Snapshot, Turn
from synrepl.wire.blocks import block

__all__ = ["meta_block", "read_meta", "read_snapshot", "snapshot_block", "snapshot_lines"]


class _Receipt(msgspec.Struct):
    key: str
    request: str
    epoch: int
    first_serial: int | None
    tokens: list[int]
    at_ms: int


class _Line(msgspec.Struct, omit_defaults=True):
    """One of these."""

    place: Place | None = None
    begin: Place | None = None
    turn: Turn | None = None
    receipt: _Receipt | None = None
    position: tuple[str, str, int] | None = None


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(_Line)


def meta_block(turns: Sequence[Turn] = (), receipts: Sequence[Receipt] = ()) -> bytes:
    """A block of turns and receipts, as they come."""
    return _block("meta", [*(_Line(turn=turn) for turn in turns), *map(_receipt, receipts)])


def snapshot_block(snapshot: Snapshot) -> bytes:
    """A block of all that stands beside a snapshot's facts."""
    texts = snapshot_lines(snapshot)
    return block("snapshot", len(texts), b"".join(texts))


def snapshot_lines(snapshot: Snapshot) -> list[bytes]:
    """All that stands beside a snapshot's facts, as lines."""
    lines = [_Line(place=snapshot.place), _Line(begin=snapshot.begin)]
    lines += [_Line(turn=turn) for turn in snapshot.turns]
    lines += [
        _Line(position=(stream, writer, token)) for (stream, writer), token in snapshot.positions.items()
    ]
    lines += map(_receipt, snapshot.receipts)
    return [_encode(line) + b"\n" for line in lines]


def read_meta(data: bytes) -> tuple[list[Turn], list[Receipt]]:
    """The turns and the receipts of a block."""
    lines = _lines(data)
    return [line.turn for line in lines if line.turn], [_given(line) for line in lines if line.receipt]


def read_snapshot(data: bytes) -> Snapshot:
    """What stands beside a snapshot's facts."""
    lines = _lines(data)
    places = [line.place for line in lines if line.place]
    begins = [line.begin for line in lines if line.begin]
    if len(places) != 1 or len(begins) != 1:
        raise RemoteProtocolError("a snapshot has one place and one beginning")
    return Snapshot(
        place=places[0],
        begin=begins[0],
        turns=[line.turn for line in lines if line.turn],
        positions={line.position[:2]: line.position[2] for line in lines if line.position},
        receipts=[_given(line) for line in lines if line.receipt],
    )


def _receipt(receipt: Receipt) -> _Line:
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


def _given(line: _Line) -> Receipt:
    told = line.receipt
    assert told is not None
    appended = Appended(told.epoch, told.first_serial, told.tokens)
    return Receipt(told.key, told.request, appended, told.at_ms)


def _block(kind: str, lines: Iterable[_Line]) -> bytes:
    texts = [_encode(line) + b"\n" for line in lines]
    return block(kind, len(texts), b"".join(texts))


def _lines(data: bytes) -> list[_Line]:
    try:
        return _decoder.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a line makes no sense: {error}") from error
