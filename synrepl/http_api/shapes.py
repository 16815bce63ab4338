"""Shapes of JSON responses: the parts that clients use, checked where a response is read.

A shape is a type; ``[shape]``, a list; a dict of shapes, an object with at least these members, or with any
names if the only key is ``...``; or a tuple of shapes, any of which may match, with None for null. `float`
matches every finite number, `int` only whole ones of 64 bits.
"""

import math
from typing import Any, Final

Shape = Any

MAX_INTEGER: Final = 2**63 - 1

NAME_LENGTH: Final = 40
"""How much of a name is quoted: it is the peer's."""


def find_mismatch(value: Any, shape: Shape, place: str = "") -> str:
    """Return the place of the first part that does not have its shape, and what it should be; else empty.

    >>> find_mismatch({"tokens": [4, "x"]}, {"tokens": [int]})
    'tokens[1] should be an integer'
    >>> find_mismatch({"serial": 4}, {"serial": (int, None)})
    ''
    """
    match shape:
        case tuple():
            return "" if any(not find_mismatch(value, one) for one in shape) else _expected(place, shape)
        case [of_items]:
            if not isinstance(value, list):
                return _expected(place, shape)
            parts = ((item, of_items, f"{place}[{number}]") for number, item in enumerate(value))
        case dict():
            if not isinstance(value, dict):
                return _expected(place, shape)
            of_any = shape.get(...)
            members = value if of_any is not None else shape
            parts = (
                (value.get(name), of_any or shape[name], f"{place}.{name[:NAME_LENGTH]}".lstrip("."))
                for name in members
            )
        case _:
            return "" if _matches(value, shape) else _expected(place, shape)
    return next((why for part in parts if (why := find_mismatch(*part))), "")


def _matches(value: Any, shape: Shape) -> bool:
    if shape is None:
        return value is None
    if shape in (int, float) and isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= MAX_INTEGER
    return isinstance(value, shape) and (shape is not float or math.isfinite(value))


def _expected(place: str, shape: Shape) -> str:
    return f"{place or 'the value'} should be {_words(shape)}"


def _words(shape: Shape) -> str:
    if isinstance(shape, tuple):
        return " or ".join(map(_words, shape))
    kind = type(shape) if isinstance(shape, list | dict) else shape
    return _WORDS[kind]


_WORDS: Final[dict[Any, str]] = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    None: "null",
    list: "a list",
    dict: "an object",
}

SECONDS: Final = (float, None)
"""A time that may be unknown, or infinite."""

_GAP: Final = {"stream": str, "writer": str}

SOURCE: Final = {
    "why": str,
    "lag_rows": int,
    "lag_seconds": SECONDS,
    "gaps": [_GAP],
    "lost": [_GAP],
}

REFUSED: Final = {
    "stream": str,
    "writer": str,
    "token": int,
    "publisher": (str, None),
    "why": str,
    "rows": [str],
    "serial": int,
    "at": float,
}

EXTENT: Final = {
    "since": int,
    "serial": int,
    "epoch": int,
    "digest": (str, None),
    "history": str,
    "facts": int,
    "bytes": int,
    "clock": {...: {...: int}},
    "trimmed_upto": int,
    "head": int,
}

STATUS: Final = {
    # Some rooms, whose keys are left out, may be missing at the daemon that answers.
    "role": str,
    "state": str,
    "errors": [{"what": str, "since": float}],
    "warnings": [str],
    "what_to_do": [str],
    "server_name": str,
    "instance": str,
    "epoch": int,
    "serial": int,
    "digest": str,
    "history": str,
    "trimmed_upto": int,
    "lag_rows": int,
    "lag_seconds": SECONDS,
    "refused": (
        None,
        {
            "facts": int,
            "bytes": int,
            "unkept": [{"stream": str, "writer": str, "facts": int, "first": int, "last": int}],
        },
    ),
    "followers": [
        {
            "name": str,
            "dialect": (str, None),
            "behind": bool,
            "lag_rows": int,
            "lag_seconds": SECONDS,
            "serial": (int, None),
            "connected_seconds": float,
        }
    ],
    "streams": {...: {"kept": bool, "writers": {...: int}}},
    "redis": (None, {"address": str, "subscribed": bool, **SOURCE}),
    "following": [{"endpoint": str, "connected": bool, **SOURCE}],
    "stuck": [{"stream": str, "writer": str, "token": int, "behind": int, "seconds": SECONDS}],
}
