"""Whether a body came as it was sent: `Content-Digest` (RFC 9530), between daemons.

TCP lets a changed byte through now and then, and so does a bad proxy; facts that are passed on have no digest
of their own yet.
"""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

__all__ = ["HEADER", "WANTED", "content_digest", "is_intact", "is_wanted"]

HEADER: Final = "content-digest"
WANTED: Final = "want-content-digest"

_SHA256: Final = "sha-256="


def content_digest(body: bytes) -> str:
    """The header's value for this body."""
    return f"{_SHA256}:{b64encode(sha256(body).digest()).decode('ascii')}:"


def is_intact(body: bytes, said: Sequence[str] | None) -> bool:
    """Whether nothing that was said of the body is wrong; of other digests than ours nothing is known."""
    ours = content_digest(body)
    parts = [part.strip() for value in said or () for part in value.split(",")]
    return all(part == ours for part in parts if part.lower().startswith(_SHA256))


def is_wanted(headers: Any) -> bool:
    """Whether the client asks for the digest of the answer."""
    return bool(headers.hasHeader(WANTED))
