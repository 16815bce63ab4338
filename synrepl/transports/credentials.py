"""Credentials: what a daemon sends to its peers, and the identity of a peer by its connection.

The module of TLS is imported where it is used: most daemons have no TLS.
"""

from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from twisted.internet.address import UNIXAddress
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from synrepl.errors import NotConnected, ReplicationError
from synrepl.http_api.route import public_url
from synrepl.ports.response_errors import ApiResponseError, NeverSent

if TYPE_CHECKING:
    from OpenSSL import SSL

    from synrepl.transports.tls import ClientTls, TlsFiles


@implementer(IPolicyForHTTPS)
class Credentials:
    """A secret, and the files for TLS: trusted CAs (None: the system's) and the own certificate.

    `replace` changes both for later requests. Files are read for each connection.

    With `configured`, the URLs that an operator chose, the secret is sent nowhere else before `prove` has
    succeeded for the URL: peers name addresses too, and whoever listens there would learn the secret.
    """

    def __init__(
        self,
        secret: str | None = None,
        files: "TlsFiles | None" = None,
        *,
        configured: Collection[str] | None = None,
    ) -> None:
        self.secret = secret
        self.files = files
        self.prove: Callable[[str], Awaitable[None]] | None = None
        """Raises a `ReplicationError` unless the daemon at this URL proves that it knows the secret."""
        self._configured = None if configured is None else [url.rstrip("/") for url in configured]
        self._proven: set[str] = set()
        self._last: dict[bytes, ClientTls] = {}

    def __repr__(self) -> str:
        return "<Credentials>"

    @classmethod
    def of(cls, value: "str | Credentials | None") -> "Credentials":
        """Return these credentials, or make some of a secret (None: without one)."""
        return value if isinstance(value, Credentials) else cls(value)

    async def headers_for(self, url: str) -> dict[str, list[str]]:
        """The headers of a request to this URL, or below it.

        Raises `NeverSent` if the secret must not be sent there, `ApiResponseError` if the daemon there does
        not accept it.
        """
        secret = self.secret
        if secret is None:
            return {}
        if not self.is_configured(url) and url not in self._proven:
            await self._check_proof(url)
        return {"authorization": [f"Bearer {secret}"]}

    def is_configured(self, url: str) -> bool:
        """Whether an operator chose this URL, or one above it, so that the secret may be sent there."""
        configured = self._configured
        return configured is None or any(url == one or url.startswith(f"{one}/") for one in configured)

    async def _check_proof(self, url: str) -> None:
        secret = self.secret
        try:
            if self.prove is None:
                raise NotConnected("this daemon has just started")
            await self.prove(url)
        except ApiResponseError:
            raise
        except ReplicationError as error:
            why = f"a peer named {public_url(url)}, and the daemon there must first prove that it knows it"
            raise NeverSent(f"the secret was not sent: {why}: {error}") from error
        if secret == self.secret:
            self._proven.add(url)

    def replace(self, other: "Credentials") -> None:
        """Use the secret and files of `other` from now on."""
        if other.secret != self.secret:
            self._proven.clear()
        self.secret, self.files = other.secret, other.files

    def creatorForNetloc(self, hostname: bytes, port: int) -> "ClientTls":
        from synrepl.transports.tls import ClientTls, TlsFiles, TlsWords

        words = TlsWords(
            not_tls="the peer does not speak it (use http:// for a listener without TLS)",
            trust="name its CA with ca_file, or --ca-file of a command",
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
    return _is_loopback(str(getattr(address, "host", "")))


@lru_cache(maxsize=1_024)
def _is_loopback(host: str) -> bool:
    parsed = ip_of(host)
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
