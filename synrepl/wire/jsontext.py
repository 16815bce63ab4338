"""JSON as the peers write it, to the byte."""

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
    """Whether this release puts a space after ``,`` and ``:`` (1.19.0 stopped; facts: wire history)."""
    return dialect.release in _SPACED


def dumps(value: object, *, spaced: bool = False) -> bytes:
    """JSON text, ASCII-escaped, as Python's json module writes it; not spaced is our canonical form.

    Raises ValueError for NaN, infinities and what JSON cannot hold.
    """
    return (_spaced if spaced else _compact).encode(value).encode("ascii")


def loads(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError, for nesting too deep as well."""
    try:
        return _loads(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
