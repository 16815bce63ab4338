"""Answers of Python's json module that are no JSON: NaN, Infinity, 1e400. It writes and reads them.

One such row must not keep back the page that it is in: the rows are found without being understood, so that
the follower can say which one it is, and keep it as it was sent.
"""

import json
import re
from typing import Any, Final

_decoder: Final = json.JSONDecoder(strict=False)
_space: Final = re.compile(r"[ \t\r\n]*")


def split_page(body: bytes, rows: str) -> tuple[dict[str, Any], list[tuple[Any, bytes]]]:
    """Read an object whose member `rows` is an array of pairs; the second item of each stays text.

    Returns the other members, and the pairs. Raises ValueError if Python would not read it either, or if it
    has another form.
    """
    text = body.decode(errors="surrogateescape")
    members: dict[str, Any] = {}
    pairs: list[tuple[Any, bytes]] = []
    try:
        at = _after(text, 0, "{")
        while True:
            name, at = _decoder.raw_decode(text, _skip(text, at))
            at = _skip(text, _after(text, at, ":"))
            if name == rows:
                at = _read_pairs(text, at, pairs)
            else:
                members[name], at = _decoder.raw_decode(text, at)
            at = _skip(text, at)
            if text[at : at + 1] == "}":
                return members, pairs
            at = _after(text, at, ",")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read_pairs(text: str, at: int, pairs: list[tuple[Any, bytes]]) -> int:
    at = _skip(text, _after(text, at, "["))
    if text[at : at + 1] == "]":
        return at + 1
    while True:
        first, at = _decoder.raw_decode(text, _skip(text, _after(text, at, "[")))
        begin = _skip(text, _after(text, at, ","))
        _, end = _decoder.raw_decode(text, begin)
        pairs.append((first, text[begin:end].encode(errors="surrogateescape")))
        at = _skip(text, _after(text, end, "]"))
        if text[at : at + 1] == "]":
            return at + 1
        at = _skip(text, _after(text, at, ","))


def _skip(text: str, at: int) -> int:
    found = _space.match(text, at)
    assert found is not None
    return found.end()


def _after(text: str, at: int, mark: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"no {mark} at character {at}")
    return at + 1
