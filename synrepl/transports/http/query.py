"""What stands in the query of a URL, and in headers."""

import re
from typing import Any, Final, NoReturn

from synrepl.transports.http.api_error import ApiError
from synrepl.wire.peer_names import MAX_NAME, is_name

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
    """The parameter of this name; None if there is none. Said twice it is refused."""
    values = request.args.get(name.encode())
    if not values:
        return None
    if len(values) > 1:
        _refuse(f"{name} is given {len(values)} times")
    try:
        given: str = values[0].decode("utf-8")
    except UnicodeDecodeError:
        _refuse(f"{name} is not UTF-8")
    return given


def headers(request: Any, name: str) -> list[str]:
    """The values of this header, with U+FFFD in place of what is not UTF-8, where Twisted would raise."""
    given = request.requestHeaders.getRawHeaders(name.encode()) or ()
    return [value.decode("utf-8", "replace") for value in given]


def header(request: Any, name: str) -> str | None:
    """The value of this header, the last one of several; None if there is none."""
    given = headers(request, name)
    return given[-1] if given else None


def word(request: Any, name: str) -> str | None:
    """The parameter of this name, which is an instance's name; None if there is none."""
    given = text(request, name)
    if given is not None and not is_word(given):
        raise ApiError(400, "bad_writer", BAD_WORD)
    return given


BAD_WORD: Final = f"a writer is one word, without control characters, of at most {MAX_NAME} characters"


def reader_of(request: Any) -> str | None:
    """The name under which the log is kept for this reader; None if it gives none.

    It makes a lease, and GET from a web page must change nothing: no page can send this header.
    """
    if text(request, "reader") is not None:
        _refuse("the name of a reader is sent in the header Synrepl-Reader, not in the query")
    shown = headers(request, READER_HEADER)
    if not shown:
        return None
    name = shown[0]
    if len(shown) > 1 or not is_word(name) or UNREADABLE in name:
        _refuse(f"Synrepl-Reader is one word, once, of at most {MAX_NAME} printable characters")
    return name


def is_word(name: str) -> bool:
    """Whether this can be the name of an instance."""
    return is_name(name)


def integer(request: Any, name: str, default: int, *, lowest: int = 0, highest: int = MAX_TOKEN) -> int:
    """A whole number; what is over `highest` counts as that."""
    given = text(request, name)
    if given is None:
        return default
    if not _integer.fullmatch(given) or int(given) < lowest or int(given) > MAX_TOKEN:
        _refuse(f"{name} must be a whole number from {lowest} on, not {given[:40]!r}")
    return min(int(given), highest)


def integers(request: Any, name: str, *, most: int) -> list[int]:
    """Some whole numbers, parted by commas: at least one, `most` at most."""
    given = text(request, name)
    parts = [] if given is None else given.split(",")
    if not 0 < len(parts) <= most:
        _refuse(f"{name} must be 1 to {most} whole numbers, parted by commas")
    for part in parts:
        if not _integer.fullmatch(part) or not 0 <= int(part) <= MAX_TOKEN:
            _refuse(f"{name} must be whole numbers from 0 on, not {part[:40]!r}")
    return [int(part) for part in parts]


def seconds(request: Any, name: str, *, highest: float, lowest: float = 0.0, default: float = 0.0) -> float:
    """A time; what is out of bounds counts as the bound."""
    given = text(request, name)
    if given is None:
        return default
    if not _seconds.fullmatch(given):
        _refuse(f"{name} must be a number of seconds, not {given[:40]!r}")
    return max(lowest, min(float(given), highest))


def names(request: Any, name: str) -> frozenset[str] | None:
    """Some names, parted by commas; None if the parameter is not there."""
    given = text(request, name)
    return None if given is None else frozenset(given.split(","))


def flag(request: Any, name: str) -> bool:
    """Whether something is wanted, which it is not unless said."""
    given = text(request, name)
    if given not in (None, "true", "false"):
        _refuse(f"{name} must be true or false, not {given[:40]!r}")
    return given == "true"


def digest(request: Any, name: str) -> str | None:
    """A digest as the log has them; None if there is none."""
    given = text(request, name)
    if given is not None and not _digest.fullmatch(given):
        _refuse(f"{name} must be 64 hexadecimal digits in lower case, not {given[:80]!r}")
    return given


def is_checksum(text: str) -> bool:
    """Whether this can be the SHA-256 of something, as hex."""
    return _digest.fullmatch(text) is not None


def token_as_synapse(request: Any, name: str) -> int:
    """A required token, refused in Synapse's words."""
    values = request.args.get(name.encode())
    if not values:
        raise ApiError(400, "M_MISSING_PARAM", f"Missing required integer query parameter {name}")
    given = values[0].decode("latin-1")
    if not _integer.fullmatch(given) or abs(int(given)) > MAX_TOKEN:
        raise ApiError(400, "M_INVALID_PARAM", f"Query parameter {name} must be an integer")
    if int(given) < 0:
        raise ApiError(400, "M_INVALID_PARAM", f"Query parameter {name} must be a positive integer.")
    return int(given)


def _refuse(why: str) -> NoReturn:
    raise ApiError(400, "bad_request", why)
