"""What this process shows to the daemons that it asks, and whom it trusts."""

from typing import TYPE_CHECKING, Any

from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

if TYPE_CHECKING:
    from OpenSSL import SSL

    from synrepl.transports.tls import ClientTls, TlsFiles

__all__ = ["Credentials"]


@implementer(IPolicyForHTTPS)
class Credentials:
    """A secret, and files for ``https://``: the CAs to trust (None: those of the system), our certificate.

    `replace` takes other ones, for requests from then on; files are read anew for each connection.
    """

    def __init__(self, secret: str | None = None, files: "TlsFiles | None" = None) -> None:
        self.secret = secret
        self.files = files
        self._last: dict[bytes, ClientTls] = {}

    def __repr__(self) -> str:
        return "<Credentials>"

    @classmethod
    def of(cls, given: "str | Credentials | None") -> "Credentials":
        """These credentials, or those with this secret alone."""
        return given if isinstance(given, Credentials) else cls(given)

    def with_secret(self, secret: str | None) -> "Credentials":
        """The same trust, and another secret (None: none)."""
        return Credentials(secret, self.files)

    @property
    def headers(self) -> dict[str, list[str]]:
        """What a request shows."""
        return {} if self.secret is None else {"authorization": [f"Bearer {self.secret}"]}

    def replace(self, other: "Credentials") -> None:
        """Show the secret of `other`, and trust whom it trusts."""
        self.secret, self.files = other.secret, other.files

    def creatorForNetloc(self, hostname: bytes, port: int) -> "ClientTls":
        from synrepl.transports.tls import ClientTls, TlsFiles, TlsWords

        words = TlsWords(
            plain="say http:// for a listener without TLS",
            trust="name its CA with ca_file",
            show="name one with certificate_file and private_key_file",
        )
        tls = ClientTls(self.files or TlsFiles(), hostname.decode("ascii"), words)
        self._last[hostname] = tls
        return tls

    def explain(self, hostname: str, error: "SSL.Error") -> str:
        """Why TLS to this host failed last."""
        from synrepl.transports.tls import tls_trouble

        tls: Any = self._last.get(hostname.encode())
        return tls.explain(error) if tls is not None else tls_trouble(error)
