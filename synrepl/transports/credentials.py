"""Credentials: what a daemon sends to its peers, and the identity of a peer by its connection.

The module of TLS is imported where it is used: most daemons have no TLS.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from twisted.internet.address import UNIXAddress

from synrepl import key_rules
from synrepl.base.response_errors import NeverSent
from synrepl.key_rules import is_loopback_ip, url_exposure

if TYPE_CHECKING:
    from OpenSSL import SSL

    from synrepl.transports.tls import ClientTls, TlsFiles


class Credentials:
    """A secret, and the files for TLS: trusted CAs (None: the system's) and the own certificate.

    The secret is sent only where nobody else can read it, unless `insecure` is set (`synrepl.key_rules`).
    `replace` changes secret and files for later requests. Files are read for each connection.
    """

    def __init__(
        self,
        secret: str | None = None,
        files: "TlsFiles | None" = None,
        *,
        insecure: bool = False,
    ) -> None:
        self.secret = secret
        self.files = files
        self.insecure = insecure
        self._last: dict[str, ClientTls] = {}
        self._without_secret: Credentials | None = None

    def __repr__(self) -> str:
        return "<Credentials>"

    @classmethod
    def of(cls, value: "str | Credentials | None") -> "Credentials":
        """Return these credentials, or make some of a secret (None: without one)."""
        return value if isinstance(value, Credentials) else cls(value)

    def headers_for(self, url: str, *, is_homeserver: bool = False) -> dict[str, list[str]]:
        """The headers that authenticate a request to this URL.

        `is_homeserver`: the secret is that of Synapse's processes, and goes as the URL says, as Synapse
        sends it. Else raises `NeverSent` if the secret may not be sent there.
        """
        if self.secret is None:
            return {}
        if not is_homeserver and (why := url_exposure(url, insecure=self.insecure)):
            raise NeverSent(why)
        return {"authorization": [f"Bearer {self.secret}"]}

    def without_secret(self) -> "Credentials":
        """Return these credentials without the secret: `replace` changes their files too."""
        if self._without_secret is None:
            self._without_secret = Credentials(None, self.files)
        return self._without_secret

    def replace(self, other: "Credentials") -> None:
        """Use the secret and files of `other` from now on."""
        self.secret, self.files = other.secret, other.files
        if self._without_secret is not None:
            self._without_secret.files = other.files

    def tls_for(self, hostname: str) -> "ClientTls":
        """Make the TLS of a connection to this host."""
        from synrepl.transports.tls import ClientTls, TlsFiles, TlsWords

        words = TlsWords(
            not_tls="the peer does not speak it (use http:// for a listener without TLS)",
            trust="name its CA with ca_file, or --ca-file of a command",
            show="name one with certificate_file and private_key_file",
        )
        tls = ClientTls(self.files or TlsFiles(), hostname, words)
        self._last[hostname] = tls
        return tls

    def explain(self, hostname: str, error: "SSL.Error") -> str:
        """Describe the last TLS failure of this host."""
        from synrepl.transports.tls import tls_trouble

        tls: Any = self._last.get(hostname)
        return tls.explain(error) if tls is not None else tls_trouble(error)


def is_below(url: str, base: str) -> bool:
    """Whether this URL is `base`, or one below it."""
    return url == base or url.startswith(f"{base}/")


def is_local(address: Any) -> bool:
    """Whether this address is on this machine: loopback, or a UNIX socket."""
    return isinstance(address, UNIXAddress) or _is_loopback(str(getattr(address, "host", "")))


_is_loopback = lru_cache(maxsize=1_024)(is_loopback_ip)
ip_of = lru_cache(maxsize=1_024)(key_rules.ip_of)


def certified_name(transport: Any) -> str | None:
    """The common name of the peer's verified certificate; None without one."""
    get = getattr(transport, "getPeerCertificate", None)
    certificate = None if get is None else get()
    return None if certificate is None else certificate.get_subject().CN or ""
