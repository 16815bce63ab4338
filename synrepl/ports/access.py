"""Access control: keys, their rights, and the proof of a key."""

import hmac
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

import msgspec


class Right(StrEnum):
    """An action that a key may allow."""

    READ = "read"
    """Follow; read streams, the changelog, files, leases and the status."""
    WRITE = "write"
    """Append facts, put files, invalidate caches."""
    REPLICATE = "replicate"
    """Join, subscribe and acknowledge as a replica; forward its followers' commands, and receive commands."""
    ADMINISTER = "administer"
    """Promote, resync, hand over, claim; manage leases; declare streams; read and acknowledge commands;
    invalidate caches of the watched homeserver."""


ALL_RIGHTS: Final = frozenset(Right)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the keys file. `streams` are those it may read and write (None: all).

    If `secret` is None, the peer proves itself by a TLS certificate with `name` as its common name.
    """

    name: str
    secret: str | None
    rights: frozenset[Right] = ALL_RIGHTS
    streams: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"<Key {self.name}>"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of one peer.

    `is_proven` tells whether a secret or a TLS certificate has proved who the peer is.
    """

    name: str = ""
    rights: frozenset[Right] = ALL_RIGHTS
    streams: frozenset[str] | None = None
    is_proven: bool = False

    @property
    def key(self) -> str | None:
        """The name of the key that the peer proved; empty for the shared secret, None if it proved none."""
        return self.name if self.is_proven else None

    def sees(self, stream: str) -> bool:
        """Whether the peer may see this stream."""
        return self.streams is None or stream in self.streams


LOCAL: Final = Access()
"""All rights, unproven: of TCP followers without a certificate, and of local peers if no secret is set."""

REMOTE: Final = Access(rights=frozenset({Right.READ, Right.WRITE}))
"""The rights of a peer on another machine if no secret is configured (``--insecure``)."""


class Keyring:
    """The accepted secrets: a shared one with all rights, and keys of single peers.

    In the native handshake, a replica whose name has a key must prove that key, not the shared secret, unless
    its TLS certificate gives it access.
    """

    def __init__(self, shared: str | None = None, keys: Iterable[Key] = ()) -> None:
        self._shared = None if shared is None else Key(name="", secret=shared)
        self._by_name = {key.name: key for key in keys}

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._by_name)} keys>"

    @property
    def is_required(self) -> bool:
        """Whether there is a secret or a key: then HTTP clients and replicas must prove one."""
        return self._shared is not None or bool(self._by_name)

    def for_name(self, name: str) -> Key | None:
        """The key that a peer of this name must prove: its own, else the shared one; None without either."""
        return self._by_name.get(name, self._shared)

    def find(self, secret: bytes) -> Key | None:
        """Find the key with this secret; None without one. The time does not tell which key matches."""
        return self.find_proven(lambda expected: hmac.compare_digest(secret, expected.encode()))

    def find_proven(self, is_proven: Callable[[str], bool]) -> Key | None:
        """Find the key whose secret `is_proven` accepts; None without one. Every secret is tried."""
        found = None
        for key in [*([] if self._shared is None else [self._shared]), *self._by_name.values()]:
            if is_proven(key.secret or "") and key.secret and found is None:
                found = key
        return found

    def has_own_key(self, name: str) -> bool:
        """Whether a peer of this name has a key of its own."""
        return name in self._by_name

    def named(self, name: str) -> Key | None:
        """The key of this name (empty: the shared secret); None without it."""
        return self._by_name.get(name) if name else self._shared

    def access_by_certificate(self, name: str) -> "Access | None":
        """The rights of a peer by the common name of its TLS certificate; None if that is no proof.

        Without a secret and without keys, every certificate that the CA has signed gives all rights.
        """
        if not self.is_required:
            return Access(name=name, is_proven=True)
        key = self._by_name.get(name)
        return None if key is None or key.secret is not None else access_of(key)

    def replace(self, other: "Keyring") -> None:
        """Take the keys of `other`; keys that are missing there are revoked."""
        self._shared, self._by_name = other._shared, other._by_name


def access_of(key: Key) -> Access:
    """The rights of a peer that has proved this key."""
    return Access(name=key.name, rights=key.rights, streams=key.streams, is_proven=True)


def prove(secret: str, label: str, *texts: bytes) -> bytes:
    """Return a proof that its maker knows the secret: an HMAC-SHA256 over the texts, which have no line ends.

    `label` tells what the proof is for, so that it proves nothing else.
    """
    return hmac.digest(secret.encode(), b"\n".join((label.encode(), *texts)), "sha256")
