"""JSON as the wire has it, down to the byte.

Synapse writes rows with Python's json module: ASCII only, everything else escaped, and since 1.19 without
spaces. The log keeps that newer, unspaced form; it is called canonical.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from synrepl.wire.jsontext import dumps, is_spaced, loads

__all__ = ["dumps", "is_spaced", "join", "loads", "split"]

_rows: Final = msgspec.json.Decoder(list[msgspec.Raw])


def split(rows: bytes) -> list[bytes]:
    """The texts of the items of a JSON array, each as it stands there.

    Looks no further into them than it must to find their ends. Raises ValueError if it is no array.
    """
    try:
        return [bytes(raw) for raw in _rows.decode(rows)]
    except RecursionError:
        raise ValueError("nested too deeply") from None


def join(rows: Iterable[bytes]) -> bytes:
    """One JSON array of these texts; the reverse of `split`."""
    return b"[" + b",".join(rows) + b"]"
