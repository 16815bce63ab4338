"""Bytes that appends may name by their checksum: what a room that stores some offers."""

from collections.abc import Collection
from typing import Any, Final, Protocol

from synrepl.streams.stream import Stream


class IStoredBytes(Protocol):
    """Bytes that this daemon stores under their checksums: facts name some, and requests others."""

    def named_by(self, stream: Stream[Any], facts: Collection[bytes]) -> frozenset[str]:
        """Return the checksums that the rows of these facts name."""
        return frozenset()

    async def read_stored(self, sha256: str, most: int) -> bytes | None:
        """Read bytes by their checksum; None if they are not here.

        Raises a `ReplicationError`, also if there are more than `most`.
        """
        return None


class _NoBytes(IStoredBytes):
    """A daemon that stores no bytes answers as the protocol does by itself."""


NO_BYTES: Final[IStoredBytes] = _NoBytes()
"""The stored bytes of a daemon that stores none."""
