"""Certificates of a private CA: ``synrepl tls init``."""

import datetime as dt
import ipaddress
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from synrepl.errors import ConfigError
from synrepl.transports.authority import ALWAYS, CA_DAYS, init
from synrepl.transports.tls import ServerTls, TlsFiles

NOW = 1_800_000_000.0
DAY = 86_400.0


def load(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / name).read_bytes())


def verify(folder: Path, host: str, *, at: float = NOW, ca: Path | None = None) -> None:
    """As a client does that trusts this CA."""
    store = Store([load(ca or folder, "ca.pem")])
    subject: Any
    try:
        subject = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    when = dt.datetime.fromtimestamp(at, dt.UTC)
    PolicyBuilder().store(store).time(when).build_server_verifier(subject).verify(
        load(folder, "server.pem"), []
    )


def test_a_server_and_a_client_are_certified(tmp_path: Path) -> None:
    """Only their owner can read the files, and what listens can use them."""
    folder = tmp_path / "new" / "tls"
    made = init(folder, ["berlin", "10.0.0.1", "berlin"], days=90, now=NOW)

    assert made.names == ("berlin", "10.0.0.1", *ALWAYS)
    assert made.is_new_ca
    for host in made.names:
        verify(folder, host)
    for host in ("paris", "10.0.0.2"):
        with pytest.raises(VerificationError):
            verify(folder, host)
    client = load(folder, "client.pem")
    when = dt.datetime.fromtimestamp(NOW, dt.UTC)
    builder = PolicyBuilder().store(Store([load(folder, "ca.pem")])).time(when)
    builder.build_client_verifier().verify(load(folder, "server.pem"), [])
    assert client.subject.rfc4514_string() == "CN=client"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {
        f"{stem}.{end}" for stem in ("ca", "server", "client") for end in ("pem", "key")
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    names = {"ca_file": "ca.pem", "cert_file": "server.pem", "key_file": "server.key"}
    ServerTls(TlsFiles(**{kind: folder / name for kind, name in names.items()}))


def test_the_same_command_renews(tmp_path: Path) -> None:
    """The CA stays, so that nobody else needs anything, and so do the names unless others are given."""
    init(tmp_path, ["berlin", "::2"], days=90, now=NOW)
    before = {name: load(tmp_path, name) for name in ("ca.pem", "server.pem", "client.pem")}
    later = NOW + 89 * DAY
    made = init(tmp_path, [], days=90, now=later)
    assert not made.is_new_ca
    assert made.names == ("berlin", "::2", *ALWAYS)
    assert [before[name] == load(tmp_path, name) for name in before] == [True, False, False]
    verify(tmp_path, "berlin", at=later + 89 * DAY)

    init(tmp_path, ["paris"], days=90, now=later)

    verify(tmp_path, "paris", at=later)
    with pytest.raises(VerificationError):
        verify(tmp_path, "berlin", at=later)


def test_a_ca_that_would_end_first_is_replaced(tmp_path: Path) -> None:
    """That is said: everybody needs the new one."""
    init(tmp_path, [], days=365, now=NOW)
    late = NOW + (CA_DAYS - 300) * DAY
    made = init(tmp_path, [], days=365, now=late)

    assert made.is_new_ca
    verify(tmp_path, "localhost", at=late + 364 * DAY)
    longest = [init(tmp_path, [], days=3650, now=late + seconds) for seconds in (1, 2)]
    assert [True, False] == [one.is_new_ca for one in longest]


def test_another_ca_certifies_nothing_here(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        init(tmp_path / name, [], days=90, now=NOW)

    with pytest.raises(VerificationError):
        verify(tmp_path / "theirs", "localhost", ca=tmp_path / "ours")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "https://berlin", "berlin:9092", "x" * 300, "\x1b[2J"])
def test_a_bad_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no name of a host, and no IP address") as error:
        init(tmp_path, [name], days=90, now=NOW)
    assert str(error.value).isprintable()
    assert not (tmp_path / "server.pem").exists()


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("ca.key", "rubbish", "is no key in PEM"),
        ("ca.pem", "rubbish", "is no certificate in PEM"),
        ("server.pem", "rubbish", "is no certificate in PEM"),
        ("ca.key", None, "cannot read the CA's key"),
    ],
)
def test_files_that_cannot_be_used_are_named(name: str, text: str | None, why: str, tmp_path: Path) -> None:
    """Nothing is replaced."""
    init(tmp_path, [], days=90, now=NOW)
    (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
    client = (tmp_path / "client.pem").read_bytes()
    with pytest.raises(ConfigError, match=why):
        init(tmp_path, [], days=90, now=NOW)

    assert (tmp_path / "client.pem").read_bytes() == client


def test_a_key_of_another_ca_is_refused(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        init(tmp_path / name, [], days=90, now=NOW)
    (tmp_path / "theirs" / "ca.key").replace(tmp_path / "ours" / "ca.key")

    with pytest.raises(ConfigError, match=r"is not that of ca\.pem"):
        init(tmp_path / "ours", [], days=90, now=NOW)
