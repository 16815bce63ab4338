"""Headers of requests and responses: their values, digests of bodies, byte ranges and entity tags."""

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final


def headers(request: Any, name: str) -> list[str]:
    """Return the values of a header, with U+FFFD for bytes that are not UTF-8, where Twisted would raise."""
    value = request.requestHeaders.getRawHeaders(name.encode()) or ()
    return [value.decode("utf-8", "replace") for value in value]


def header(request: Any, name: str) -> str | None:
    """Return the last value of a header; None if it is absent."""
    value = headers(request, name)
    return value[-1] if value else None


def accepted_type(request: Any, types: Sequence[str]) -> str:
    """Return the first of these types that the request accepts by name; empty if there is none."""
    media = {one.partition(";")[0].strip().lower() for one in (header(request, "accept") or "").split(",")}
    return next((one for one in types if one.partition(";")[0] in media), "")


def forbid_buffering(request: Any) -> None:
    """Ask proxies to pass an answer without an end on as it comes.

    nginx needs X-Accel-Buffering, and holds even the head back without it. Other proxies need only
    Cache-Control, which keeps them from compressing the answer.
    """
    request.setHeader(b"x-accel-buffering", b"no")
    request.setHeader(b"cache-control", b"no-store, no-transform")


# `Content-Digest` (RFC 9530) detects corrupted bodies between daemons: TCP checksums and bad proxies let a
# changed byte through now and then, and forwarded facts have no digest of their own yet.

CONTENT_DIGEST: Final = "content-digest"
WANT_DIGEST: Final = "want-content-digest"

_SHA256: Final = "sha-256="


def content_digest(body: bytes) -> str:
    """Return the value of Content-Digest for this body."""
    return f"{_SHA256}:{b64encode(sha256(body).digest()).decode('ascii')}:"


def matches_digest(body: bytes, received: Sequence[str] | None) -> bool:
    """Whether every SHA-256 digest in these header values is the body's; other algorithms are ignored."""
    expected = content_digest(body)
    parts = [part.strip() for value in received or () for part in value.split(",")]
    return all(part == expected for part in parts if part.lower().startswith(_SHA256))


# Byte ranges and entity tags of requests for files (RFC 9110).

_range: Final = re.compile(
    r"bytes[ \t]*=[ \t]*([0-9]{0,19})[ \t]*-[ \t]*([0-9]{0,19})", re.ASCII | re.IGNORECASE
)
_tag: Final = re.compile(r'(?:W/)?"([^"]*)"')


class Unsatisfiable(Exception):
    """The requested range lies outside the file."""


def read_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the offset and length of the range to send of a file of `size` bytes; None for the whole file.

    A header that is not a single byte range is ignored, as RFC 9110 allows. Raises `Unsatisfiable`.
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
    """Whether a header with a list of entity tags, or ``*``, names this tag."""
    if header is None:
        return False
    return header.strip() == "*" or tag in _tag.findall(header)
