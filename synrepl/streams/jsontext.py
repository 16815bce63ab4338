"""JSON text of rows, byte for byte as Synapse writes it.

Synapse writes rows with Python's json module: escaped to ASCII, and since 1.19 without spaces
(docs/reference/peers.md#json). The log keeps the form without spaces, called canonical.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from synrepl.wire.jsontext import dumps, is_spaced, loads

__all__ = ["dumps", "is_spaced", "join", "loads", "split"]

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
