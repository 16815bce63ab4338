"""Query parameters and headers of requests. The functions raise `ApiError` for invalid values."""

import re
from typing import Any, Final, NoReturn

from synrepl.transports.http.api_error import ApiError
from synrepl.wire.text import MAX_NAME, is_name

__all__ = [
    "MAX_TOKEN",
    "digest",
    "flag",
    "header",
    "headers",
    "integer",
    "integers",
    "is_checksum",
    "is_word",
    "names",
    "reader_of",
    "seconds",
    "text",
    "token_as_synapse",
    "word",
]

MAX_TOKEN: Final = 2**63 - 1
UNREADABLE: Final = "\ufffd"
READER_HEADER: Final = "Synrepl-Reader"

_integer: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_seconds: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_digest: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


def text(request: Any, name: str) -> str | None:
    """Return a parameter; None if it is absent. A repeated one is refused."""
    values = request.args.get(name.encode())
    if not values:
        return None
    if len(values) > 1:
        _refuse(f"{name} occurs {len(values)} times")
    try:
        value: str = values[0].decode("utf-8")
    except UnicodeDecodeError:
        _refuse(f"{name} is not UTF-8")
    return value


def headers(request: Any, name: str) -> list[str]:
    """Return the values of a header, with U+FFFD for bytes that are not UTF-8, where Twisted would raise."""
    value = request.requestHeaders.getRawHeaders(name.encode()) or ()
    return [value.decode("utf-8", "replace") for value in value]


def header(request: Any, name: str) -> str | None:
    """Return the last value of a header; None if it is absent."""
    value = headers(request, name)
    return value[-1] if value else None


def word(request: Any, name: str) -> str | None:
    """Return a parameter that is an instance name; None if it is absent."""
    value = text(request, name)
    if value is not None and not is_word(value):
        raise ApiError(400, "bad_writer", BAD_WORD)
    return value


BAD_WORD: Final = f"a writer must be one word, without control characters, of at most {MAX_NAME} characters"


def reader_of(request: Any) -> str | None:
    """Return the name of a reader with a lease; None if the request has none.

    The name makes a lease, but a GET from a web page must change nothing. So it is sent in a header, which no
    page can send.
    """
    if text(request, "reader") is not None:
        _refuse("send the reader's name in the header Synrepl-Reader, not in the query")
    values = headers(request, READER_HEADER)
    if not values:
        return None
    name = values[0]
    if len(values) > 1 or not is_word(name) or UNREADABLE in name:
        _refuse(f"Synrepl-Reader must occur once, as one word of at most {MAX_NAME} printable characters")
    return name


def is_word(name: str) -> bool:
    """Whether this is a valid instance name."""
    return is_name(name)


def integer(request: Any, name: str, default: int, *, lowest: int = 0, highest: int = MAX_TOKEN) -> int:
    """Return a whole number; values over `highest` are reduced to it."""
    value = text(request, name)
    if value is None:
        return default
    if not _integer.fullmatch(value) or int(value) < lowest or int(value) > MAX_TOKEN:
        _refuse(f"{name} must be a whole number from {lowest} on, not {value[:40]!r}")
    return min(int(value), highest)


def integers(request: Any, name: str, *, max_count: int) -> list[int]:
    """Return whole numbers separated by commas: at least one, at most `max_count`."""
    value = text(request, name)
    parts = [] if value is None else value.split(",")
    if not 0 < len(parts) <= max_count:
        _refuse(f"{name} must be 1 to {max_count} whole numbers, separated by commas")
    for part in parts:
        if not _integer.fullmatch(part) or not 0 <= int(part) <= MAX_TOKEN:
            _refuse(f"{name} must be whole numbers from 0 on, not {part[:40]!r}")
    return [int(part) for part in parts]


def seconds(request: Any, name: str, *, highest: float, lowest: float = 0.0, default: float = 0.0) -> float:
    """Return a time in seconds; values out of bounds are moved to the bound."""
    value = text(request, name)
    if value is None:
        return default
    if not _seconds.fullmatch(value):
        _refuse(f"{name} must be a number of seconds, not {value[:40]!r}")
    return max(lowest, min(float(value), highest))


def names(request: Any, name: str) -> frozenset[str] | None:
    """Return names separated by commas; None if the parameter is absent."""
    value = text(request, name)
    return None if value is None else frozenset(value.split(","))


def flag(request: Any, name: str) -> bool:
    """Return a flag; False if it is absent."""
    value = text(request, name)
    if value not in (None, "true", "false"):
        _refuse(f"{name} must be true or false, not {value[:40]!r}")
    return value == "true"


def digest(request: Any, name: str) -> str | None:
    """Return a digest of the log; None if it is absent."""
    value = text(request, name)
    if value is not None and not _digest.fullmatch(value):
        _refuse(f"{name} must be 64 hexadecimal digits in lower case, not {value[:80]!r}")
    return value


def is_checksum(text: str) -> bool:
    """Whether this is a SHA-256 checksum in hexadecimal."""
    return _digest.fullmatch(text) is not None


def token_as_synapse(request: Any, name: str) -> int:
    """Return a required token; errors have Synapse's wording."""
    values = request.args.get(name.encode())
    if not values:
        raise ApiError(400, "M_MISSING_PARAM", f"Missing required integer query parameter {name}")
    value = values[0].decode("latin-1")
    if not _integer.fullmatch(value) or abs(int(value)) > MAX_TOKEN:
        raise ApiError(400, "M_INVALID_PARAM", f"Query parameter {name} must be an integer")
    if int(value) < 0:
        raise ApiError(400, "M_INVALID_PARAM", f"Query parameter {name} must be a positive integer.")
    return int(value)


def _refuse(why: str) -> NoReturn:
    raise ApiError(400, "bad_request", why)
