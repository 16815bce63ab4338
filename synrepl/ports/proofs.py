"""Proofs that a daemon knows a secret, without sending it: what each side can prove, and check of the other.

Both sides make them over the same texts, which hold a nonce of each, so that no proof is valid twice. With a
shared secret both know the same, and both proofs are an HMAC with it.

An issued key is known to its holder alone. Other daemons have its record, from which the secret cannot be
computed: salt, StoredKey and ServerKey as in RFC 5802 (SCRAM), with SHA-256 and one iteration, as the secret
is no password but 256 random bits. The holder proves that it knows the ClientKey, of which StoredKey is the
hash; a daemon proves that it has the ServerKey. Who has a record can therefore play the daemon towards the
holder; and who also overhears a proof of the holder can play the holder (RFC 5802, section 9).
"""

import hmac
import re
import secrets
from hashlib import sha256
from typing import Final, Protocol

import msgspec

SECRET_BYTES: Final = 32
"""Random bytes of an issued secret."""

SALT_BYTES: Final = 16

_ISSUED: Final = re.compile(r"(?P<name>.{1,255})\.(?P<secret>[A-Za-z0-9_-]{43})", re.DOTALL)
"""An issued key as it is shown: its name, and 256 bits as base64url."""


class IProofs(Protocol):
    """What one side of an exchange proves to the other, and checks of it."""

    def prove(self, label: str, *texts: bytes) -> bytes:
        """Return the proof of this side over the texts, which have no line ends.

        `label` tells what the proof is for, so that it proves nothing else.
        """

    def is_proof(self, received: bytes, label: str, *texts: bytes) -> bool:
        """Whether `received` is the proof of the other side. Runs in constant time."""

    def session_key(self, label: str, *texts: bytes) -> bytes:
        """Return a key that both sides know once each has proved itself. Its length is 32 bytes."""


class SharedSecret(msgspec.Struct, frozen=True):
    """Either side, with a secret that both know."""

    secret: str

    def __repr__(self) -> str:
        return "<SharedSecret>"

    def prove(self, label: str, *texts: bytes) -> bytes:
        """Return an HMAC-SHA256 with the secret."""
        return _mac(self.secret.encode(), label, texts)

    def is_proof(self, received: bytes, label: str, *texts: bytes) -> bool:
        """Whether this is the same HMAC."""
        return hmac.compare_digest(received, self.prove(label, *texts))

    def session_key(self, label: str, *texts: bytes) -> bytes:
        """Return an HMAC-SHA256 with the secret."""
        return _mac(self.secret.encode(), label, texts)


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What daemons keep of an issued key, in hexadecimal digits."""

    salt: str
    stored_key: str
    server_key: str

    def __repr__(self) -> str:
        return "<KeyRecord>"

    def is_of(self, secret: str) -> bool:
        """Whether this is the record of this secret (without the name). Takes one hash."""
        stored = sha256(_holder_keys(secret, self.salt)[0]).digest()
        return hmac.compare_digest(stored, bytes.fromhex(self.stored_key))


class HolderProofs:
    """The holder of an issued key: it knows the secret. Raises `ValueError` for a bad salt."""

    def __init__(self, secret: str, salt: str) -> None:
        self._client_key, self._server_key = _holder_keys(secret, salt)
        self._stored_key = sha256(self._client_key).digest()

    def prove(self, label: str, *texts: bytes) -> bytes:
        """Return the ClientProof of RFC 5802."""
        return _xor(self._client_key, _mac(self._stored_key, label, texts))

    def is_proof(self, received: bytes, label: str, *texts: bytes) -> bool:
        """Whether this is the ServerSignature of RFC 5802."""
        return hmac.compare_digest(received, _mac(self._server_key, label, texts))

    def session_key(self, label: str, *texts: bytes) -> bytes:
        """Return an HMAC with both keys."""
        return _mac(self._client_key + self._server_key, label, texts)


class RecordProofs:
    """A daemon that has the record of a key, towards the holder of the key."""

    def __init__(self, record: KeyRecord) -> None:
        self._stored_key = bytes.fromhex(record.stored_key)
        self._server_key = bytes.fromhex(record.server_key)
        self._client_key = b""

    def prove(self, label: str, *texts: bytes) -> bytes:
        """Return the ServerSignature of RFC 5802."""
        return _mac(self._server_key, label, texts)

    def is_proof(self, received: bytes, label: str, *texts: bytes) -> bool:
        """Whether this is the ClientProof of RFC 5802."""
        if len(received) != len(self._stored_key):
            return False
        client_key = _xor(received, _mac(self._stored_key, label, texts))
        if not hmac.compare_digest(sha256(client_key).digest(), self._stored_key):
            return False
        self._client_key = client_key
        return True

    def session_key(self, label: str, *texts: bytes) -> bytes:
        """Return an HMAC with both keys. The holder must have proved itself."""
        assert self._client_key, "the holder has proved nothing"
        return _mac(self._client_key + self._server_key, label, texts)


def make_secret() -> str:
    """Return a new secret of 256 bits, without the name of its key."""
    return secrets.token_urlsafe(SECRET_BYTES)


def make_record(secret: str) -> KeyRecord:
    """Return a new record of this secret, with a salt of its own."""
    salt = secrets.token_hex(SALT_BYTES)
    client_key, server_key = _holder_keys(secret, salt)
    return KeyRecord(salt=salt, stored_key=sha256(client_key).hexdigest(), server_key=server_key.hex())


def split_issued(text: str) -> tuple[str, str]:
    """Return the name and the secret of an issued key as it is shown; empty texts for other secrets."""
    found = _ISSUED.fullmatch(text)
    return ("", "") if found is None else (found["name"], found["secret"])


def own_proofs(secret: str, salt: str) -> IProofs:
    """Return the proofs of a daemon with this secret; `salt` is that of its record, empty without one.

    Raises `ValueError` for a bad salt, or if the secret is no issued key.
    """
    if not salt:
        return SharedSecret(secret)
    own = split_issued(secret)[1]
    if not own:
        raise ValueError("the secret is not an issued key")
    return HolderProofs(own, salt)


def _holder_keys(secret: str, salt: str) -> tuple[bytes, bytes]:
    """Return the ClientKey and the ServerKey. The SaltedPassword takes one iteration of PBKDF2."""
    salted = hmac.digest(secret.encode(), bytes.fromhex(salt) + b"\x00\x00\x00\x01", "sha256")
    return hmac.digest(salted, b"Client Key", "sha256"), hmac.digest(salted, b"Server Key", "sha256")


def _mac(key: bytes, label: str, texts: tuple[bytes, ...]) -> bytes:
    return hmac.digest(key, b"\n".join((label.encode(), *texts)), "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
