"""Credentials for requests to other daemons: a secret, and TLS files."""

from typing import TYPE_CHECKING, Any

from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

if TYPE_CHECKING:
    from OpenSSL import SSL

    from synrepl.transports.tls import ClientTls, TlsFiles

__all__ = ["Credentials"]


@implementer(IPolicyForHTTPS)
class Credentials:
    """A secret, and files for ``https://``: trusted CAs (None: the system's) and the own certificate.

    `replace` changes both for later requests. Files are read for each connection.
    """

    def __init__(self, secret: str | None = None, files: "TlsFiles | None" = None) -> None:
        self.secret = secret
        self.files = files
        self._last: dict[bytes, ClientTls] = {}

    def __repr__(self) -> str:
        return "<Credentials>"

    @classmethod
    def of(cls, value: "str | Credentials | None") -> "Credentials":
        """Return these credentials, or make some of a secret."""
        return value if isinstance(value, Credentials) else cls(value)

    def with_secret(self, secret: str | None) -> "Credentials":
        """Return a copy with another secret (None: none)."""
        return Credentials(secret, self.files)

    @property
    def headers(self) -> dict[str, list[str]]:
        """The headers of a request."""
        return {} if self.secret is None else {"authorization": [f"Bearer {self.secret}"]}

    def replace(self, other: "Credentials") -> None:
        """Use the secret and files of `other` from now on."""
        self.secret, self.files = other.secret, other.files

    def creatorForNetloc(self, hostname: bytes, port: int) -> "ClientTls":
        from synrepl.transports.tls import ClientTls, TlsFiles, TlsWords

        words = TlsWords(
            plain="use http:// for a listener without TLS",
            trust="name its CA with ca_file",
            show="name one with certificate_file and private_key_file",
        )
        tls = ClientTls(self.files or TlsFiles(), hostname.decode("ascii"), words)
        self._last[hostname] = tls
        return tls

    def explain(self, hostname: str, error: "SSL.Error") -> str:
        """Describe the last TLS failure of this host."""
        from synrepl.transports.tls import tls_trouble

        tls: Any = self._last.get(hostname.encode())
        return tls.explain(error) if tls is not None else tls_trouble(error)
