"""TLS for clients and servers: verification, own certificates, and readable reasons for failures."""

import re
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from cryptography import x509
from OpenSSL import SSL, crypto
from service_identity import CertificateError, VerificationError
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from service_identity.pyopenssl import extract_patterns
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IOpenSSLServerConnectionCreator
from twisted.internet.ssl import (
    Certificate,
    CertificateOptions,
    KeyPair,
    PrivateCertificate,
    optionsForClientTLS,
    trustRootFromCertificates,
)
from zope.interface import implementer

from synrepl.errors import ConfigError
from synrepl.small_files import read_small_file

# OpenSSL's X509_V_ERR numbers.
NOT_YET_VALID: Final = 9
EXPIRED: Final = 10
UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21})
OTHER_FAULTS: Final = {
    7: "the certificate has an invalid signature",
    22: "the chain of certificates is too long",
    23: "the certificate was revoked",
    24: "the chain of certificates has one that is not a CA's",
    26: "the certificate is not valid for this use (server or client)",
}

NOT_TLS: Final = (
    "wrong version number",
    "packet length too long",
    "record layer failure",
    "http request",
    "unexpected message",
)
"""OpenSSL's messages for data that is not TLS."""

HANDSHAKE_REFUSED: Final = (
    "certificate verify failed",
    "wrong version number",
    "http request",
    "certificate required",
    "alert unknown ca",
    "alert bad certificate",
    "alert certificate",
    "alert handshake failure",
    "alert protocol version",
)
"""OpenSSL's messages that show that the peer has read no request.

With TLS 1.3 a server can refuse a client's certificate after the client has sent a request, but it reads no
request before it accepts the certificate.
"""

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files: the CAs that sign the certificates of peers, the own certificate, and its key."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


class TlsWords(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of messages that name the peer, and settings as the operator's configuration calls them."""

    peer: str = "the server"
    not_tls: str = "the peer does not speak it (say tcp: in place of tls: for a listener without TLS)"
    closed: str = "the connection was lost"
    trust: str = "name its CA with trustRoots="
    show: str = "name one with certificate= and privateKey="


WORDS: Final = TlsWords()
CLIENT_WORDS: Final = TlsWords(
    peer="the client",
    not_tls="the client does not speak it",
    closed="the client closed the connection during the handshake",
)


@implementer(IOpenSSLClientConnectionCreator)
class ClientTls:
    """TLS settings for one connection to `host`. Raises `ConfigError` for an unusable file or host.

    Twisted verifies the certificate, but does not report most reasons. So a second callback repeats the
    checks and keeps the reason: `why` is empty until the peer is refused.
    """

    def __init__(self, files: TlsFiles, host: str, words: TlsWords = WORDS) -> None:
        self.why = ""
        self.saw_certificate = False
        self._ca_file = files.ca_file
        self._words = words
        self._name = host.partition("%")[0]
        extra: dict[str, Any] = {}
        client: PrivateCertificate | None = None
        if files.cert_file is not None and files.key_file is not None:
            first, key, extra = _own_certificate(files.cert_file, files.key_file)
            client = PrivateCertificate.fromCertificateAndKeyPair(first, key)
        trusted = None if files.ca_file is None else trustRootFromCertificates(_certificates(files.ca_file))
        try:
            self._options = optionsForClientTLS(self._name, trusted, client, extraCertificateOptions=extra)  # type: ignore[no-untyped-call,unused-ignore]
        except (SSL.Error, UnicodeError) as error:
            raise ConfigError(f"TLS: cannot set up a connection to {self._name}: {error}") from error
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
        """Verify a certificate; `ok` is OpenSSL's result. Depth 0 is the server's own certificate."""
        self.saw_certificate = True
        if not ok:
            hint = self._words.trust if self._ca_file is None else f"it is not in {self._ca_file}"
            self.why = f"TLS: {_fault(certificate, error, hint)}"
            return False
        if depth > 0:
            return True
        try:
            patterns = extract_patterns(certificate)
            verify_service_identity(patterns, [self._identity], [])
        except VerificationError:
            texts: list[Any] = [getattr(pattern, "pattern", pattern) for pattern in patterns]
            names = [
                text.decode("ascii", "replace") if isinstance(text, bytes) else str(text) for text in texts
            ]
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "no name"
            self.why = f"TLS: the certificate is for {shown}, not for {self._name}"
            return False
        except CertificateError as malformed:
            self.why = f"TLS: the certificate has no valid name: {malformed}"
            return False
        return True

    def explain(self, error: SSL.Error) -> str:
        """Describe why the connection failed."""
        return self.why or tls_trouble(error, self._words)


@implementer(IOpenSSLServerConnectionCreator)
class ServerTls:
    """TLS settings of a listener.

    With a `ca_file`, clients must send a certificate that one of these CAs has signed. `reload` reads the
    files again; open connections keep the old ones. Raises `ConfigError` for an unusable file.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._context: SSL.Context
        self._failures: WeakKeyDictionary[SSL.Connection, str] = WeakKeyDictionary()
        self.reload()

    def reload(self) -> None:
        """Read the files. If one is unusable, raises `ConfigError`, and the previous ones stay in use."""
        files = self._files
        assert files.cert_file is not None
        assert files.key_file is not None
        first, key, extra = _own_certificate(files.cert_file, files.key_file)
        if files.ca_file is not None:
            extra["trustRoot"] = trustRootFromCertificates(_certificates(files.ca_file))
        options = CertificateOptions(privateKey=key.original, certificate=first.original, **extra)
        try:
            self._context = options.getContext()
        except SSL.Error as error:
            raise ConfigError(f"TLS: cannot use {files.cert_file}: {error}") from error

    def serverConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        connection = SSL.Connection(self._context, None)
        if self._files.ca_file is not None:
            connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, self._verify)
        return connection

    def _verify(
        self, connection: SSL.Connection, certificate: crypto.X509, error: int, depth: int, ok: int
    ) -> bool:
        if not ok:
            hint = f"it is not in {self._files.ca_file}"
            self._failures[connection] = (
                f"TLS: the client's {_fault(certificate, error, hint).removeprefix('the ')}"
            )
        return bool(ok)

    def explain(self, connection: Any, error: SSL.Error) -> str:
        """Describe why this connection failed."""
        if why := self._failures.get(connection):
            return why
        if "did not return a certificate" in _reasons(error):
            return "TLS: the client sent no certificate; this listener requires one (trustRoots)"
        return tls_trouble(error, CLIENT_WORDS)


def _fault(certificate: crypto.X509, error: int, hint: str) -> str:
    """Describe the fault of a certificate by OpenSSL's number; `hint` tells how to trust its CA."""
    details: x509.Certificate = certificate.to_cryptography()
    if error == EXPIRED:
        return f"the certificate expired on {details.not_valid_after_utc:%Y-%m-%d}"
    if error == NOT_YET_VALID:
        return f"the certificate is not valid before {details.not_valid_before_utc:%Y-%m-%d}"
    if error in UNTRUSTED:
        return f"the certificate is signed by a CA that is not trusted ({hint})"
    return OTHER_FAULTS.get(error, f"the certificate is invalid (OpenSSL error {error})")


def tls_trouble(error: SSL.Error, words: TlsWords = WORDS) -> str:
    """Describe a TLS failure other than an invalid server certificate."""
    text = _reasons(error) or words.closed
    if any(word in text for word in NOT_TLS):
        return f"TLS: {words.not_tls}"
    if "certificate required" in text:
        return f"TLS: {words.peer} wants a certificate of its clients: {words.show}"
    if "alert" in text and ("certificate" in text or "unknown ca" in text):
        return f"TLS: {words.peer} refuses our certificate: {text}"
    return f"TLS: {text}"


def is_permanent(error: SSL.Error) -> bool:
    """Whether no retry can succeed: the peer does not speak TLS, or one side refuses a certificate."""
    text = _reasons(error)
    return "certificate" in text or "unknown ca" in text or any(word in text for word in NOT_TLS)


def is_handshake_refused(error: SSL.Error) -> bool:
    """Whether the handshake was refused, so that the peer has read no request."""
    text = _reasons(error)
    return any(word in text for word in HANDSHAKE_REFUSED)


def _reasons(error: SSL.Error) -> str:
    return "; ".join(str(part[-1]) for part in (error.args[0] if error.args else ()) if part)


def _read(path: Path, what: str) -> bytes:
    return read_small_file(path, f"the {what}")


MAX_CERTIFICATES: Final = 1_000
"""The most files of a folder of CAs that are read."""


def _certificates(path: Path) -> list[Certificate]:
    """The certificates in a file, or in the files of a folder, as OpenSSL's CApath."""
    try:
        files = sorted(path.iterdir())[:MAX_CERTIFICATES] if path.is_dir() else [path]
    except OSError as error:
        raise ConfigError(f"cannot read the certificates in {path}: {error.strerror}") from error
    texts = [_read(one, "certificates in") for one in files if one == path or one.is_file()]
    blocks = list(dict.fromkeys(block for text in texts for block in _PEM.findall(text)))
    try:
        found = [Certificate.loadPEM(block) for block in blocks]
    except (crypto.Error, ValueError) as error:
        raise ConfigError(f"{path} contains an invalid certificate") from error
    if not found:
        raise ConfigError(f"{path} contains no certificate in PEM")
    return found


def _own_certificate(cert_file: Path, key_file: Path) -> tuple[Certificate, KeyPair, dict[str, Any]]:
    """Read a certificate, its key, and as options of Twisted the rest of its chain."""
    first, *chain = _certificates(cert_file)
    extra = {"extraCertChain": [certificate.original for certificate in chain]} if chain else {}
    return first, _key(key_file, first), extra


def _key(path: Path, certificate: Certificate) -> KeyPair:
    data = _read(path, "key")
    try:
        # With a passphrase, even an empty one, OpenSSL does not prompt at the terminal.
        key = crypto.load_privatekey(crypto.FILETYPE_PEM, data, passphrase=b"")
    except (crypto.Error, ValueError, TypeError) as error:
        raise ConfigError(f"{path} contains no PEM key that is readable without a passphrase") from error
    private: Any = key.to_cryptography_key()
    if private.public_key() != certificate.original.get_pubkey().to_cryptography_key():
        raise ConfigError(f"the key in {path} does not belong to the certificate")
    return KeyPair(key)
