"""`Content-Digest` (RFC 9530): detects corrupted bodies between daemons.

TCP checksums and bad proxies let a changed byte through now and then, and forwarded facts have no digest of
their own yet.
"""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

__all__ = ["HEADER", "WANTED", "content_digest", "matches_digest", "is_digest_wanted"]

HEADER: Final = "content-digest"
WANTED: Final = "want-content-digest"

_SHA256: Final = "sha-256="


def content_digest(body: bytes) -> str:
    """Return the header's value for this body."""
    return f"{_SHA256}:{b64encode(sha256(body).digest()).decode('ascii')}:"


def matches_digest(body: bytes, received: Sequence[str] | None) -> bool:
    """Whether every SHA-256 digest in these header values is the body's; other algorithms are ignored."""
    expected = content_digest(body)
    parts = [part.strip() for value in received or () for part in value.split(",")]
    return all(part == expected for part in parts if part.lower().startswith(_SHA256))


def is_digest_wanted(headers: Any) -> bool:
    """Whether the client requests the digest of the response."""
    return bool(headers.hasHeader(WANTED))
