"""Mutual proof that both ends know the secret, without sending it and without clocks."""

import hmac
import secrets
from typing import Final

__all__ = ["PRIMARY", "REPLICA", "nonce", "proof", "proves"]

REPLICA: Final = "synrepl replica"
PRIMARY: Final = "synrepl primary"


def nonce() -> str:
    """Return a random string that was never used before."""
    return secrets.token_hex(16)


def proof(secret: str, side: str, nonces: tuple[str, str], uuid: str, name: str) -> str:
    """Return the proof of one side, an HMAC-SHA256 with the secret as key.

    It covers the proving side, both nonces (the primary's first), and the replica's uuid and name.
    """
    text = "\n".join((side, *nonces, uuid, name))
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()


def proves(
    received: str, secret: str | None, side: str, nonces: tuple[str, str], uuid: str, name: str
) -> bool:
    """Whether `received` is that proof. Compares in constant time."""
    expected = proof(secret if secret is not None else nonce(), side, nonces, uuid, name)
    return hmac.compare_digest(received.encode(), expected.encode()) and secret is not None
