"""JSON text of rows, byte for byte as Synapse writes it.

Synapse writes rows with Python's json module: escaped to ASCII, and since 1.19 without spaces
(docs/reference/peers.md#json). The log keeps the form without spaces, called canonical.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from synrepl.wire.jsontext import dumps, is_spaced, loads

__all__ = ["count_rows", "dumps", "is_spaced", "join", "loads", "split", "split_rows"]

_rows: Final = msgspec.json.Decoder(list[msgspec.Raw])


def split(rows: bytes) -> list[bytes]:
    """Split a JSON array into the unchanged texts of its items, without decoding them.

    Raises ValueError if the text is not an array.
    """
    try:
        return [bytes(raw) for raw in _rows.decode(rows)]
    except RecursionError:
        raise ValueError("nested too deeply") from None


def join(rows: Iterable[bytes]) -> bytes:
    """Join texts to one JSON array; the reverse of `split`."""
    return b"[" + b",".join(rows) + b"]"


def split_rows(rows: bytes) -> list[bytes]:
    """Split the canonical rows of a fact. The usual single row is found without parsing."""
    return [rows[1:-1]] if _is_single(rows) else split(rows)


def count_rows(rows: bytes) -> int:
    """Count the canonical rows of a fact."""
    return 1 if _is_single(rows) else len(_rows.decode(rows))


def _is_single(rows: bytes) -> bool:
    """Whether this is certainly one row: no array in it ends before the row does."""
    return rows[:2] == b"[[" and rows[-2:] == b"]]" and b"]," not in rows and b"] " not in rows
