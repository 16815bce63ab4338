"""The questions of a keyring about issued keys, which no file lists."""

from typing import Protocol


class IKeyAuthority(Protocol):
    """Knows whether the issued keys of a keyring are up to date."""

    def doubt(self) -> str:
        """Return why an issued key may have been revoked without this daemon's knowledge; empty if not."""
        return ""

    def old_record_shown(self, issued: str, secret: str) -> None:
        """Note that a peer has shown the key with this id, whose record is of release 26.11 or before."""
        return


class AllKeysCount(IKeyAuthority):
    """A daemon alone has no doubt of its keys, and answers as the protocol does by itself."""
