"""How both ends prove that they know the secret, without saying it, and without clocks."""

import hmac
import secrets
from collections.abc import Mapping
from typing import Final

__all__ = ["PRIMARY", "REPLICA", "Keys", "nonce", "proof", "proves"]

REPLICA: Final = "synrepl replica"
PRIMARY: Final = "synrepl primary"


class Keys:
    """The secrets that replicas can show: one for all (`shared`), and those of single ones by `name`.

    A replica with a key of its own must show that one, so that taking it away shuts this replica out alone.
    """

    def __init__(self, shared: str | None = None, by_name: Mapping[str, str] | None = None) -> None:
        self._shared = shared
        self._by_name = dict(by_name or {})

    def __repr__(self) -> str:
        return f"<Keys of {len(self._by_name)} replicas>"

    @property
    def are_wanted(self) -> bool:
        """Whether anybody must prove anything."""
        return self._shared is not None or bool(self._by_name)

    def of(self, name: str) -> str | None:
        """The secret that a replica of this name must know; None if it cannot know any."""
        return self._by_name.get(name, self._shared)


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
