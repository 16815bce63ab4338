"""Issued keys as text, and the records that daemons keep of them.

An issued key is shown once, as ``NAME.SECRET``. The secret is 256 random bits, so that its hash tells nothing
of it and no slow hash would protect it better. Daemons keep the hash.

Up to release 26.11 they kept salt, StoredKey and ServerKey of RFC 5802 (SCRAM). Such a record is still
checked. A primary replaces it when the holder of the key shows the secret (`issued_keys`); the salt stays, as
it tells the key from others of the same name.
"""

import hmac
import re
import secrets
from hashlib import pbkdf2_hmac, sha256
from typing import Final

import msgspec

SECRET_BYTES: Final = 32
"""Random bytes of an issued secret."""

_ISSUED: Final = re.compile(r"(?P<name>.{1,255})\.(?P<secret>[A-Za-z0-9_-]{43})", re.DOTALL)
"""An issued key as it is shown: its name, and 256 bits as base64url."""


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What daemons keep of an issued key, in hexadecimal digits: the SHA-256 of its secret.

    `salt` is that of a record which this one has replaced. One of release 26.11 or before has no `sha256`.
    """

    sha256: str = ""
    salt: str = ""
    stored_key: str = ""
    server_key: str = ""

    def __repr__(self) -> str:
        return "<KeyRecord>"

    @property
    def id(self) -> str:
        """The id of this key, which never changes and differs from that of any other key of the same name."""
        return self.salt or self.sha256

    @property
    def is_old(self) -> bool:
        """Whether this is a record of release 26.11 or before."""
        return not self.sha256

    def is_of(self, secret: str) -> bool:
        """Whether this is the record of this secret (without the name)."""
        if self.is_old:
            return hmac.compare_digest(_stored_key(secret, self.salt), self.stored_key)
        return hmac.compare_digest(sha256(secret.encode()).hexdigest(), self.sha256)

    def check(self) -> None:
        """Raise `ValueError` unless this can be the record of a key."""
        hashes = [bytes.fromhex(one) for one in (self.stored_key, self.sha256) if one]
        if not hashes or any(len(one) != sha256().digest_size for one in hashes):
            raise ValueError("a record needs a hash of 32 bytes")
        bytes.fromhex(self.salt + self.server_key)
        if self.is_old and not self.salt:
            raise ValueError("a record without a sha256 needs a salt")


def make_secret() -> str:
    """Return a new secret of 256 bits, without the name of its key."""
    return secrets.token_urlsafe(SECRET_BYTES)


def make_record(secret: str, *, salt: str = "") -> KeyRecord:
    """Return the record of this secret; `salt` is that of the record which it replaces."""
    return KeyRecord(sha256=sha256(secret.encode()).hexdigest(), salt=salt)


def split_issued(text: str) -> tuple[str, str]:
    """Return the name and the secret of an issued key as it is shown; empty texts for other secrets."""
    found = _ISSUED.fullmatch(text)
    return ("", "") if found is None else (found["name"], found["secret"])


def _stored_key(secret: str, salt: str) -> str:
    """The StoredKey of RFC 5802, with SHA-256 and one iteration."""
    salted = pbkdf2_hmac("sha256", secret.encode(), bytes.fromhex(salt), 1)
    return sha256(hmac.digest(salted, b"Client Key", "sha256")).hexdigest()
