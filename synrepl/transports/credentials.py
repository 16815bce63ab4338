"""Credentials: what a daemon sends to its peers, and the identity of a peer by its connection.

The module of TLS is imported where it is used: most daemons have no TLS.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from twisted.internet.address import UNIXAddress
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

if TYPE_CHECKING:
    from OpenSSL import SSL

    from synrepl.transports.tls import ClientTls, TlsFiles


@implementer(IPolicyForHTTPS)
class Credentials:
    """A secret, and the files for TLS: trusted CAs (None: the system's) and the own certificate.

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
        """Return these credentials, or make some of a secret (None: without one)."""
        return value if isinstance(value, Credentials) else cls(value)

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
            not_tls="the peer does not speak it (use http:// for a listener without TLS)",
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


def is_local(address: Any) -> bool:
    """Whether this address is on this machine: loopback, or a UNIX socket."""
    if isinstance(address, UNIXAddress):
        return True
    parsed = ip_of(str(getattr(address, "host", "")))
    return parsed is not None and (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


@lru_cache(maxsize=1_024)
def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address that this text is; None for a name."""
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


def certified_name(transport: Any) -> str | None:
    """The common name of the peer's verified certificate; None without one."""
    get = getattr(transport, "getPeerCertificate", None)
    certificate = None if get is None else get()
    return None if certificate is None else certificate.get_subject().CN or ""
