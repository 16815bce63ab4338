"""JSON text, byte for byte as peers write it (docs/reference/peers.md#json)."""

import json
from typing import Any, Final

import msgspec

from synrepl.wire.dialect import Dialect, span

__all__ = ["dumps", "is_spaced", "loads"]

_SPACED: Final = span(until="1.19")
_compact: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_spaced: Final = json.JSONEncoder(allow_nan=False, separators=(", ", ": "))
_loads = msgspec.json.Decoder().decode


def is_spaced(dialect: Dialect) -> bool:
    """Whether this release puts a space after ``,`` and ``:`` (1.19.0 stopped)."""
    return dialect.release in _SPACED


def dumps(value: object, *, spaced: bool = False) -> bytes:
    """Encode a value as ASCII-escaped JSON, as Python's json module does; without spaces it is canonical.

    Raises ValueError or TypeError for NaN, infinities and types that JSON lacks.
    """
    return (_spaced if spaced else _compact).encode(value).encode("ascii")


def loads(text: bytes) -> Any:
    """Decode JSON text. Raises ValueError, also if it is nested too deeply."""
    try:
        return _loads(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
