"""TLS to a Redis: who it must prove to be, who we are, and in plain words why it was refused."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from OpenSSL import SSL, crypto
from service_identity import CertificateError, VerificationError
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from service_identity.pyopenssl import extract_patterns
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.ssl import (
    Certificate,
    KeyPair,
    PrivateCertificate,
    optionsForClientTLS,
    trustRootFromCertificates,
)
from zope.interface import implementer

from synrepl.errors import ConfigError
from synrepl.transports.redis.address import RedisAddress

__all__ = ["RedisTls", "tls_trouble"]

# The numbers of OpenSSL's X509_V_ERR.
NOT_YET_VALID: Final = 9
EXPIRED: Final = 10
UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21})
OTHERS: Final = {
    7: "the certificate was tampered with",
    22: "the chain of certificates is too long",
    23: "the certificate was revoked",
    24: "a CA in the chain of certificates is none",
    26: "the certificate is not one for servers",
}

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@implementer(IOpenSSLClientConnectionCreator)
class RedisTls:
    """How to speak TLS on one connection to `host`. Raises ConfigError if a file that it needs is not good.

    Twisted verifies, and says of most failures only that there was one. So the same questions are put once
    more by a callback of ours, which keeps the answer: `why` is "" until the peer was refused.
    """

    def __init__(self, address: RedisAddress, host: str) -> None:
        self.why = ""
        self.saw_certificate = False
        self._ca_file = address.ca_file
        self._name = address.server_name or host.partition("%")[0]
        extra: dict[str, Any] = {}
        client: PrivateCertificate | None = None
        if address.cert_file is not None and address.key_file is not None:
            first, *chain = _certificates(address.cert_file)
            client = PrivateCertificate.fromCertificateAndKeyPair(first, _key(address.key_file, first))
            if chain:
                extra["extraCertChain"] = [one.original for one in chain]
        trusted = None
        if address.ca_file is not None:
            trusted = trustRootFromCertificates(_certificates(address.ca_file))
        try:
            self._options = optionsForClientTLS(self._name, trusted, client, extraCertificateOptions=extra)  # type: ignore[no-untyped-call,unused-ignore]
        except (SSL.Error, UnicodeError) as error:
            raise ConfigError(f"TLS: cannot be set up for {self._name}: {error}") from error
        is_ip = isIPAddress(self._name) or isIPv6Address(self._name)
        ascii_name = self._name if self._name.isascii() else self._name.encode("idna").decode()
        self._identity = IPAddress_ID(ascii_name) if is_ip else DNS_ID(ascii_name)

    def clientConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        connection: SSL.Connection = self._options.clientConnectionForTLS(tlsProtocol)
        connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, self._verify)
        return connection

    def _verify(
        self, connection: SSL.Connection, certificate: crypto.X509, error: int, depth: int, ok: int
    ) -> bool:
        """Whether this certificate will do; `ok` is what OpenSSL says. Depth 0 has that of Redis itself."""
        self.saw_certificate = True
        if not ok:
            self.why = self._trouble(certificate, error)
            return False
        if depth > 0:
            return True
        try:
            patterns = extract_patterns(certificate)
            verify_service_identity(patterns, [self._identity], [])
        except VerificationError:
            names = [_pattern_text(pattern) for pattern in patterns]
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "nobody"
            self.why = f"TLS: the certificate is for {shown}, not for {self._name}"
            return False
        except CertificateError as malformed:
            self.why = f"TLS: the certificate names nobody properly: {malformed}"
            return False
        return True

    def _trouble(self, certificate: crypto.X509, error: int) -> str:
        details: x509.Certificate = certificate.to_cryptography()
        if error == EXPIRED:
            return f"TLS: the certificate expired on {_day(details.not_valid_after_utc)}"
        if error == NOT_YET_VALID:
            return f"TLS: the certificate is not valid before {_day(details.not_valid_before_utc)}"
        if error in UNTRUSTED:
            hint = "name a ca_file" if self._ca_file is None else f"it is not in {self._ca_file}"
            return f"TLS: the certificate is signed by a CA that is not trusted ({hint})"
        return f"TLS: {OTHERS.get(error, f'the certificate is not good (OpenSSL calls it error {error})')}"


def tls_trouble(error: SSL.Error) -> str:
    """Why TLS failed, when it was not for the certificate of Redis."""
    reasons = [str(part[-1]) for part in (error.args[0] if error.args else ()) if part]
    text = "; ".join(reasons) or "the connection was lost"
    if any(
        word in text for word in ("wrong version number", "packet length too long", "record layer failure")
    ):
        return "TLS: the peer does not speak it (redis:// is without TLS)"
    if "certificate required" in text:
        return "TLS: Redis wants a certificate of its clients: name a cert_file and a key_file"
    if "alert" in text and ("certificate" in text or "unknown ca" in text):
        return f"TLS: Redis refuses our certificate: {text}"
    return f"TLS: {text}"


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from error


def _certificates(path: Path) -> list[Certificate]:
    blocks = _PEM.findall(_read(path, "certificates in"))
    try:
        found = [Certificate.loadPEM(block) for block in blocks]
    except (crypto.Error, ValueError) as error:
        raise ConfigError(f"{path} holds a broken certificate") from error
    if not found:
        raise ConfigError(f"{path} holds no certificate in PEM")
    return found


def _key(path: Path, certificate: Certificate) -> KeyPair:
    data = _read(path, "key")
    try:
        # With a passphrase, though an empty one, OpenSSL does not ask for one at the terminal.
        key = crypto.load_privatekey(crypto.FILETYPE_PEM, data, passphrase=b"")
    except (crypto.Error, ValueError, TypeError) as error:
        raise ConfigError(f"{path} holds no key in PEM that can be read without a passphrase") from error
    private: Any = key.to_cryptography_key()
    if private.public_key() != certificate.original.get_pubkey().to_cryptography_key():
        raise ConfigError(f"the key in {path} does not belong to the certificate")
    return KeyPair(key)


def _pattern_text(pattern: Any) -> str:
    found = pattern.pattern
    return found.decode("ascii", "replace") if isinstance(found, bytes) else str(found)


def _day(at: datetime) -> str:
    return at.strftime("%Y-%m-%d")
