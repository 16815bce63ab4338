"""JSON text of rows, byte for byte as Synapse writes it.

Synapse writes rows with Python's json module: escaped to ASCII, and since 1.19 without spaces
(docs/reference/peers.md#json). The log keeps the form without spaces, called canonical.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from synrepl.wire.dialect import Dialect, span

_SPACED: Final = span(until="1.19")
_compact: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_spaced: Final = json.JSONEncoder(allow_nan=False, separators=(", ", ": "))
_loads = msgspec.json.Decoder().decode
_rows: Final = msgspec.json.Decoder(list[msgspec.Raw])
_facts: Final = msgspec.json.Decoder(list[list[msgspec.Raw]])
_items: Final = msgspec.json.Decoder(list[list[list[msgspec.Raw]]])
_tagged_items: Final = msgspec.json.Decoder(list[list[tuple[str, list[msgspec.Raw]]]])

_HIGH: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# The lookbehind for a backslash makes each run of them cost once.
_half_pair: Final = re.compile(rb"(?<!\\)(?:\\\\)*(?:(%b)(?!%b)|(?<!%b)(%b))" % (_HIGH, _LOW, _HIGH, _LOW))
_MAX_SEARCHED: Final = 256 * 1024
"""How many bytes of a refused text are searched for such a string: that takes some 20 ms."""
_HALF_PAIR_ERRORS: Final = ("truncated", "surrogate", "hex escape")
"""How msgspec calls a lone surrogate, beside other things."""

_bracket: Final = re.compile(rb"[][{}]")


def is_spaced(dialect: Dialect) -> bool:
    """Whether this release puts a space after ``,`` and ``:`` (1.19.0 stopped)."""
    return dialect.release in _SPACED


def dumps(value: object, *, spaced: bool = False) -> bytes:
    """Encode a value as ASCII-escaped JSON, as Python's json module does; without spaces it is canonical.

    Raises ValueError or TypeError for NaN, infinities and types that JSON lacks.
    """
    return (_spaced if spaced else _compact).encode(value).encode("ascii")


def is_deeper(text: bytes, most: int) -> bool:
    """Whether arrays and objects of this valid JSON text are nested in more than `most` levels."""
    if len(text) <= 2 * most or text.count(b"[") + text.count(b"{") <= most:
        return False  # as nearly always
    # Escapes stand in strings alone: without them each second part between quotes is outside.
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    depth = 0
    for bracket in _bracket.findall(b"".join(plain.split(b'"')[::2])):
        depth += 1 if bracket in b"[{" else -1
        if depth > most:
            return True
    return False


def loads(text: bytes) -> Any:
    """Decode JSON text. Raises ValueError if the text is invalid, or nested too deeply."""
    try:
        return _loads(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(why_refused(text, error)) from error


def why_refused(text: bytes, error: Exception) -> str:
    """Say why msgspec refused a JSON text: its `error`, or which string has one half of a surrogate pair.

    Python and JavaScript write such strings; msgspec calls the text truncated.
    """
    if any(words in str(error) for words in _HALF_PAIR_ERRORS) and (
        found := _half_pair.search(text, 0, _MAX_SEARCHED)
    ):
        half = 1 if found[1] else 2
        return (
            f"the string with {found[half].decode()} at byte {found.start(half)} is no Unicode text: it has"
            " one half of a surrogate pair"
        )
    return str(error)


def split_raw(rows: bytes) -> list[bytes | msgspec.Raw]:
    """Split a JSON array as `split` does, into views of the texts, which `join` takes too.

    To make bytes of the items of a row takes three times as long as to find them.
    """
    try:
        return _rows.decode(rows)  # type: ignore[return-value]
    except RecursionError:
        raise ValueError("the JSON array is nested too deeply") from None


def split(rows: bytes) -> list[bytes]:
    """Split a JSON array into the unchanged texts of its items, without decoding them.

    Raises ValueError if the text is not an array.
    """
    return list(map(bytes, split_raw(rows)))


def split_all(facts: Sequence[bytes]) -> list[list[bytes]] | None:
    """Split the JSON arrays of several facts into views of the texts of their rows; together that takes a
    third of the time. None if it cannot be done together, such as since one is no array.
    """
    found: list[list[bytes]] | None = _decode_all(_facts, facts)
    return found


def split_all_items(facts: Sequence[bytes], *, tagged: bool) -> list[list[tuple[str, list[bytes]]]] | None:
    """Split the rows of several facts, as `split_all` does, into their tags and views of their items.

    Rows that are not `tagged` have an empty tag.
    """
    found: list[list[Any]] | None = _decode_all(_tagged_items if tagged else _items, facts)
    return found if tagged or found is None else [[("", row) for row in rows] for rows in found]


def _decode_all(decoder: msgspec.json.Decoder[Any], facts: Sequence[bytes]) -> Any:
    try:
        found = decoder.decode(b"[%b]" % b",".join(facts))
    except (ValueError, RecursionError):
        return None
    return found if len(found) == len(facts) else None


def join(items: Iterable[bytes | msgspec.Raw], *, spaced: bool = False) -> bytes:
    """Join canonical texts to one array; `spaced` as `dumps` writes it, else the reverse of `split`."""
    if not spaced:
        return b"[" + b",".join(items) + b"]"
    text = b", ".join(items)
    # Only arrays and objects among the items have separators of their own.
    has_inner = b"[" in text or b"{" in text
    return dumps(loads(b"[" + text + b"]"), spaced=True) if has_inner else b"[" + text + b"]"


def count_rows(rows: bytes) -> int:
    """Count the rows of a fact. Raises ValueError if the text is not an array."""
    return len(_rows.decode(rows))
