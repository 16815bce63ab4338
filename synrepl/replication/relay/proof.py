"""How both ends prove that they know the secret, without saying it, and without clocks."""

import hmac
import secrets
from typing import Final

__all__ = ["PRIMARY", "REPLICA", "nonce", "proof", "proves"]

REPLICA: Final = "synrepl replica"
PRIMARY: Final = "synrepl primary"


def nonce() -> str:
    """Something that was never said before."""
    return secrets.token_hex(16)


def proof(secret: str, who: str, nonces: tuple[str, str], uuid: str, name: str) -> str:
    """HMAC-SHA256 over who proves it, the primary's nonce, the replica's, and the replica's uuid and name."""
    said = "\n".join((who, *nonces, uuid, name))
    return hmac.new(secret.encode(), said.encode(), "sha256").hexdigest()


def proves(shown: str, secret: str | None, who: str, nonces: tuple[str, str], uuid: str, name: str) -> bool:
    """Whether this is that proof. Takes as long for a near miss as for a far one."""
    expected = proof(secret if secret is not None else nonce(), who, nonces, uuid, name)
    return hmac.compare_digest(shown.encode(), expected.encode()) and secret is not None
