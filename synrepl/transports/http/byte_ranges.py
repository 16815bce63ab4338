"""Range and entity-tag headers of requests for files (RFC 9110)."""

import re
from typing import Final

__all__ = ["Unsatisfiable", "matches", "read_range"]

_range: Final = re.compile(
    r"bytes[ \t]*=[ \t]*([0-9]{0,19})[ \t]*-[ \t]*([0-9]{0,19})", re.ASCII | re.IGNORECASE
)
_tag: Final = re.compile(r'(?:W/)?"([^"]*)"')


class Unsatisfiable(Exception):
    """The requested range lies outside the file."""


def read_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the offset and length of a requested range, of `size` bytes; None for the whole file.

    A header that is not a single byte range is ignored, as the RFC requires. Raises `Unsatisfiable`.
    """
    match = None if header is None else _range.fullmatch(header.strip(" \t"))
    if match is None:
        return None
    first, last = match[1], match[2]
    if not first:
        if not last:
            return None
        count = min(int(last), size)
        if not count:
            raise Unsatisfiable
        return size - count, count
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size:
        raise Unsatisfiable
    end = min(int(last), size - 1) if last else size - 1
    return start, end - start + 1


def matches(header: str | None, tag: str) -> bool:
    """Whether a list of entity tags, or ``*``, names this one."""
    if header is None:
        return False
    return header.strip() == "*" or tag in _tag.findall(header)
