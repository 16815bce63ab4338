"""Keys: who may do what, and how a peer proves which key it has."""

import hmac
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

__all__ = ["ALL_RIGHTS", "LOCAL", "REMOTE", "Access", "Key", "Keyring", "Right", "access_of"]


class Right(StrEnum):
    """What a key may allow."""

    READ = "read"
    """Read streams, the changelog, files and the status; follow."""
    WRITE = "write"
    """Append facts, put files, invalidate caches."""
    REPLICATE = "replicate"
    """Join and subscribe as a replica, and acknowledge."""
    ADMINISTER = "administer"
    """Promote, resync, hand over, claim, and manage leases."""


ALL_RIGHTS: Final = frozenset(Right)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the keys file. `streams` are all it may see or write (None: every stream).

    With a `secret` of None the peer proves itself by a TLS certificate with this common name.
    """

    name: str
    secret: str | None
    rights: frozenset[Right] = ALL_RIGHTS
    streams: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"<Key {self.name}>"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What one peer may do here.

    `is_proven` is False where no secret is configured, so that nobody needs one: the peer may then be any
    process that reaches the port.
    """

    name: str = ""
    rights: frozenset[Right] = ALL_RIGHTS
    streams: frozenset[str] | None = None
    is_proven: bool = False

    def sees(self, stream: str) -> bool:
        """Whether this peer may see this stream."""
        return self.streams is None or stream in self.streams

    def lacks(self, right: Right) -> str:
        """Why the peer may not do what takes this right, and what to do; empty if it may."""
        if right in self.rights:
            return ""
        if self.is_proven:
            whose = f"the key {self.name}" if self.name else "this key"
            return f"{whose} lacks the right {right}: add it in keys_file"
        return (
            f"this takes the right {right}, which a peer on another machine has only with a secret:"
            " configure secret_file or keys_file"
        )

    def hides(self, streams: Iterable[str] | None) -> str:
        """Which of these streams (None: all) the peer may not see, in words; empty if it may see them."""
        if self.streams is None:
            return ""
        hidden = None if streams is None else sorted(set(streams) - self.streams)
        if hidden == []:
            return ""
        which = "all streams" if hidden is None else f"the stream {hidden[0]}"
        return f"the key {self.name} may not see {which}: see keys_file"


LOCAL: Final = Access()
"""A process on this machine, where no secret is configured."""

REMOTE: Final = Access(rights=frozenset({Right.READ, Right.WRITE}))
"""A peer on another machine, where no secret is configured (``--insecure``)."""


class Keyring:
    """The secrets that peers can show: one that everybody shares, with all rights, and keys of their own.

    A peer with a key of its own must show that one, so that removing the key shuts out this peer alone.
    """

    def __init__(self, shared: str | None = None, keys: Iterable[Key] = ()) -> None:
        self._shared = None if shared is None else Key(name="", secret=shared)
        self._by_name = {key.name: key for key in keys}

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._by_name)} keys>"

    @property
    def are_wanted(self) -> bool:
        """Whether a peer must prove anything."""
        return self._shared is not None or bool(self._by_name)

    def of(self, name: str) -> Key | None:
        """The key that a peer of this name must know; None if it cannot know any."""
        return self._by_name.get(name, self._shared)

    def shown(self, secret: bytes) -> Key | None:
        """The key with this secret. Takes as long for a near miss as for a far one."""
        found = None
        for key in [*([] if self._shared is None else [self._shared]), *self._by_name.values()]:
            # All are compared, so that the time does not tell which one it was.
            expected = b"" if key.secret is None else key.secret.encode()
            if hmac.compare_digest(secret, expected) and expected and found is None:
                found = key
        return found

    def certified(self, name: str) -> "Access | None":
        """What a peer may do whose TLS certificate has this common name; None if it needs another proof.

        Without any key that is a certificate, and without a secret, the CA alone decides who may do all.
        """
        if not self.are_wanted:
            return Access(name=name, is_proven=True)
        key = self._by_name.get(name)
        return None if key is None or key.secret is not None else access_of(key)

    def replace(self, other: "Keyring") -> None:
        """Take the keys of `other`; those that are missing there are revoked."""
        self._shared, self._by_name = other._shared, other._by_name


def access_of(key: Key) -> Access:
    """What a peer may do that has shown this key."""
    return Access(name=key.name, rights=key.rights, streams=key.streams, is_proven=True)
