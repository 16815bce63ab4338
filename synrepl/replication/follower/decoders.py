"""Decoders of received rows, for each kind of follower."""

from collections.abc import Callable
from typing import Any

from synrepl.errors import RowError
from synrepl.streams.stream import Stream, row
from synrepl.wire import jsontext
from synrepl.wire.dialect import Dialect

__all__ = ["decoder", "untyped"]


@row
class _AnyRow:
    """Placeholder for the rows of an unknown stream, which are not decoded."""

    value: Any


def untyped(name: str) -> Stream[Any]:
    """A stream of which only the name is known, for a follower with `raw`."""
    return Stream(name, _AnyRow)


def decoder(
    stream: Stream[Any], dialect: Dialect, *, raw: bool = False, canonical: bool = False
) -> Callable[[list[bytes]], list[Any]]:
    """What decodes the rows of a stream: to typed rows, to JSON values (`raw`), or to canonical JSON texts.

    It raises `RowError` for a row of no known shape.
    """
    if raw:
        return lambda rows: _decode_raw(stream.name, rows)
    if canonical:
        return lambda rows: [stream.canonical(row, dialect) for row in rows]
    decode, decode_many = stream.decode, stream.decode_many
    # A row alone costs less by itself.
    return lambda rows: [decode(rows[0], dialect)] if len(rows) == 1 else decode_many(rows, dialect)


def _decode_raw(stream: str, rows: list[bytes]) -> list[Any]:
    try:
        return [jsontext.loads(row) for row in rows]
    except ValueError as error:
        raise RowError(stream=stream, why=str(error)) from error
