"""A private certificate authority in a folder: a CA, and a server's and a client's certificate that it signs.

Who has the key of the CA can be any daemon and any client. It signs nothing but the certificates of this
folder, and is needed only to renew them: it may be kept elsewhere meanwhile.
"""

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from synrepl.errors import ConfigError
from synrepl.small_files import read_small_file
from synrepl.storage.private_files import replace_private

ALWAYS: Final = ("localhost", "127.0.0.1", "::1")
"""The names and addresses that each server's certificate has."""

CA_DAYS: Final = 3650
"""How long a CA is valid: its certificate is on every machine."""

EARLIER: Final = dt.timedelta(hours=1)
"""How long before now a certificate begins to be valid: the clocks of machines differ."""

_Private = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Issued:
    """What was made: the names of the server, until when its certificates and the CA are valid, and whether
    the CA is a new one, which all peers must get.
    """

    names: tuple[str, ...]
    until: dt.datetime
    ca_until: dt.datetime
    is_new_ca: bool


def init(folder: Path, names: Sequence[str], *, days: int, now: float) -> Issued:
    """Make or renew the certificates of a folder at this Unix time. Without `names`, the server keeps those
    that it has.

    The CA is kept unless it ends before the certificates would. Raises `ConfigError` for a bad name, and for
    a folder that cannot be read or written, or whose CA is not that of its key.
    """
    begin = dt.datetime.fromtimestamp(now, dt.UTC)
    until = begin + dt.timedelta(days=days)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        known = _read(folder, "server.pem")
        chosen = tuple(dict.fromkeys([*(names or _names_of(known)), *ALWAYS]))
        server = x509.SubjectAlternativeName([_general(name) for name in chosen])
        ca = _load_ca(folder, until)
        is_new = ca is None
        if ca is None:
            ca = _make_ca(folder, begin, max(2 * days, CA_DAYS))
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        _sign(folder, "server", ca, _name(chosen[0]), (begin, until), both, server)
        _sign(folder, "client", ca, _name("client"), (begin, until), both[1:], None)
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    return Issued(chosen, until, ca[0].not_valid_after_utc, is_new)


def _load_ca(folder: Path, until: dt.datetime) -> tuple[x509.Certificate, _Private] | None:
    """Load the CA of a folder; None if there is none, or if it ends before `until`."""
    certificate = _read(folder, "ca.pem")
    if certificate is None or certificate.not_valid_after_utc < until:
        return None
    path = folder / "ca.key"
    try:
        key = serialization.load_pem_private_key(read_small_file(path, "the CA's key"), None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is no key in PEM without a passphrase") from error
    if not isinstance(key, _Private) or key.public_key() != certificate.public_key():
        raise ConfigError(f"the key in {path} is not that of ca.pem: move both away to make a new CA")
    return certificate, key


def _make_ca(folder: Path, now: dt.datetime, days: int) -> tuple[x509.Certificate, _Private]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("synrepl CA")
    usage = {one: one in ("key_cert_sign", "crl_sign") for one in _USAGES}
    made = (
        _builder(name, name, key, (now, now + dt.timedelta(days=days)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(folder, "ca", made, key)
    return made, key


_USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def _sign(
    folder: Path,
    stem: str,
    ca: tuple[x509.Certificate, _Private],
    name: x509.Name,
    valid: tuple[dt.datetime, dt.datetime],
    uses: Sequence[x509.ObjectIdentifier],
    names: x509.SubjectAlternativeName | None,
) -> None:
    certificate, ca_key = ca
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    usage = {one: one == "digital_signature" for one in _USAGES}
    builder = (
        _builder(name, certificate.subject, key, valid)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    _write(folder, stem, builder.sign(ca_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: _Private, valid: tuple[dt.datetime, dt.datetime]
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid[0] - EARLIER)
        .not_valid_after(valid[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _write(folder: Path, stem: str, certificate: x509.Certificate, key: _Private) -> None:
    """Replace a certificate and its key, each as a whole; a daemon that reads them checks that they fit."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    replace_private(folder / f"{stem}.key", private)
    replace_private(folder / f"{stem}.pem", certificate.public_bytes(serialization.Encoding.PEM))


def _read(folder: Path, name: str) -> x509.Certificate | None:
    path = folder / name
    if not path.exists():
        return None
    try:
        return x509.load_pem_x509_certificate(read_small_file(path))
    except ValueError as error:
        raise ConfigError(f"{path} is no certificate in PEM: move it away to make another one") from error


def _names_of(certificate: x509.Certificate | None) -> list[str]:
    if certificate is None:
        return []
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(one.value) for one in found]


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        pass
    try:
        ascii_name = name if name.isascii() else name.encode("idna").decode()
        if not re.fullmatch(r"[\w.*-]{1,253}", ascii_name, re.ASCII):
            raise ValueError
        return x509.DNSName(ascii_name)
    except ValueError as error:
        raise ConfigError(f"{name!r} is no name of a host, and no IP address") from error


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])
