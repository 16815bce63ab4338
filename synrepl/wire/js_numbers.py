"""JSON for readers whose only numbers are 64-bit floats, as those of JavaScript's `JSON.parse`."""

import re
from decimal import Decimal
from typing import Final

MAX_SAFE: Final = 2**53 - 1
"""JavaScript's MAX_SAFE_INTEGER: a greater integer may be read as another one."""

_LONGEST: Final = 400
"""No float has more digits that matter to its nearest text; longer numbers are not read to be compared."""

# A float keeps every number of 15 digits whose exponent has two: those are passed over without a call.
_may_change: Final = rb"-?(?=[\d.]{16}|[\d.]{1,16}[eE][+-]?\d{3})\d[\d.eE+-]*"
_suspect: Final = re.compile(_may_change)
_token: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|' + _may_change)


def numbers_as_text(text: bytes) -> bytes:
    """Put each number of a JSON text, or of lines of JSON, in quotes that such a reader would change.

    Those are integers beyond `MAX_SAFE`, and fractions that it would print with other digits.
    """
    return _token.sub(_quoted, text) if _suspect.search(text) else text


def _quoted(found: re.Match[bytes]) -> bytes:
    token = found[0]
    return token if token.startswith(b'"') or _is_exact(token.decode()) else b'"%b"' % token


def _is_exact(number: str) -> bool:
    if number.lstrip("-").isdigit():
        return len(number) <= len(str(-MAX_SAFE)) and abs(int(number)) <= MAX_SAFE
    if len(number) > _LONGEST:
        return False
    try:
        return Decimal(repr(float(number))) == Decimal(number)
    except ArithmeticError:  # an exponent of billions
        return False
