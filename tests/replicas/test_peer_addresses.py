"""Addresses of other daemons: which are used, and what goes there."""

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from synrepl.base.access import Key, Keyring
from synrepl.base.response_errors import NeverSent
from synrepl.replicas.peer_addresses import KIND, PeerAddresses
from synrepl.replication.addresses import Address
from synrepl.transports.credentials import Credentials
from synrepl.transports.tls import TlsFiles

CERTIFIED = TlsFiles(ca_file=Path("ca.pem"), cert_file=Path("cert.pem"), key_file=Path("key.pem"))
LISTED = [
    Address(native="tcp:127.0.0.1:9092"),
    Address(native="tls:paris:9092"),
    Address(http="https://oslo:9093"),
    Address(native="unix:/run/synrepl.sock"),
]


def made(
    secret: str | None = "s", files: TlsFiles | None = None, keys: Keyring | None = None, **more: Any
) -> PeerAddresses:
    """Those of a daemon with this secret and these files, which has listed some."""
    options: dict[str, Any] = {"notes": {}} | more
    clock: Any = Clock()
    return PeerAddresses(LISTED, Credentials(secret, files), keys or Keyring(secret), clock, **options)


def way(addresses: PeerAddresses, url: str) -> str:
    """What goes to this URL, or this endpoint."""
    try:
        native = not url.startswith("http")
        found = addresses.secret_for(url) if native else addresses.credentials_for(url)
    except NeverSent:
        return "unused"
    return "nothing" if found.secret is None else "the key"


@pytest.mark.parametrize(
    ("where", "plain", "certified"),
    [
        ("https://oslo:9093", "the key", "the key"),
        ("https://oslo:9093/below", "the key", "the key"),
        ("https://oslo:90931", "unused", "nothing"),
        ("https://oslo:9093.evil", "unused", "nothing"),
        ("http://oslo:9093", "unused", "unused"),
        ("https://evil", "unused", "nothing"),
        ("http://127.0.0.1:9093", "unused", "unused"),
        ("https://paris:9093", "unused", "nothing"),
        ("tls:paris:9092", "the key", "the key"),
        ("tls:paris:9093", "unused", "nothing"),
        ("tls:evil:9092", "unused", "nothing"),
        ("tls:evil:9092:trustRoots=/tmp/evil.pem", "unused", "unused"),
        ("tls:evil:9092:certificate=/tmp/c.pem:privateKey=/tmp/k.pem", "unused", "unused"),
        ("tls:paris:9092:trustRoots=/tmp/evil.pem", "unused", "unused"),
        ("tls:host=evil:port=9092", "unused", "unused"),
        ("ssl:evil:9092", "unused", "unused"),
        ("tcp:127.0.0.1:9092", "the key", "the key"),
        ("tcp:127.0.0.1:9094", "unused", "unused"),
        ("unix:/tmp/evil.sock", "unused", "unused"),
        ("unix:/run/synrepl.sock", "the key", "the key"),
    ],
)
def test_only_listed_addresses_get_the_key(where: str, plain: str, certified: str) -> None:
    """Others are spoken to with a certificate alone, where our own CAs say who answers."""
    assert way(made(), where) == plain
    assert way(made(files=CERTIFIED), where) == certified
    assert way(made(files=TlsFiles(ca_file=CERTIFIED.ca_file)), where) == plain
    assert way(made(files=TlsFiles(cert_file=Path("c"), key_file=Path("k"))), where) == plain
    assert way(made(secret=None), where) == "nothing"
    guarded = made(secret=None, keys=Keyring(None, [Key(name="paris", secret="p")]))
    assert way(guarded, where) == ("nothing" if plain == "the key" else "unused")


@pytest.mark.parametrize(
    ("native", "http", "is_believed"),
    [
        ("tcp:127.0.0.1:9092", "http://127.0.0.1:9093", True),
        ("tcp:127.0.0.1:9092", "http://localhost:9093", True),
        ("tcp:127.0.0.1:9092", "https://127.0.0.1:9093", True),
        ("tcp:127.0.0.1:9092", "http://evil:9093", False),
        ("tcp:127.0.0.1:9092", "http://127.0.0.1@evil:9093", False),
        ("tcp:127.0.0.1:9092", "", False),
        ("tls:paris:9092", "https://paris:9093", True),
        ("tls:paris:9092", "https://PARIS:9093/", True),
        ("tls:paris:9092", "http://paris:9093", False),
        ("tls:paris:9092", "https://127.0.0.1:9093", False),
        ("tls:evil:9092", "https://evil:9093", False),
        ("unix:/run/synrepl.sock", "http://127.0.0.1:9093", True),
        ("unix:/run/synrepl.sock", "http://paris:9093", False),
        ("", "http://evil:9093", False),
    ],
)
def test_a_listed_upstream_tells_its_own_address(native: str, http: str, is_believed: bool) -> None:
    """At its own host, and over TLS if it is; that holds after a restart, as long as it is listed."""
    first = made()
    first.learned(Address(native=native), http)
    again = made(notes={"told_http": first.told} if first.told else {})
    for addresses in (first, again):
        assert (way(addresses, http.rstrip("/")) == "the key") is is_believed
    again.configured = [Address(http="https://oslo:9093")]

    assert way(again, http) == "unused"


def test_the_status_says_which_address_to_add() -> None:
    """For five minutes after it was of use; what is only asked now and then is not named."""
    addresses = made()
    clock: Any = addresses.clock
    assert addresses.problems() == []
    for url in ("http://a:1", "http://\x1b[2J"):
        assert way(addresses, url) == "unused"
    with pytest.raises(NeverSent, match="add it there to use it"):
        addresses.credentials_for("http://b:1", is_worth_telling=False)
    assert addresses.first_usable("http://c:1", "https://oslo:9093") == "https://oslo:9093"
    assert addresses.first_usable("http://e:1", is_worth_telling=False) == ""
    assert addresses.first_usable("", "http://d:1") == ""
    assert addresses.first_usable("http://127.0.0.1:9093") == ""
    addresses.learned(LISTED[0], "http://127.0.0.1:9093")
    (problem,) = addresses.problems()
    assert problem.text.startswith(f"{KIND}: peers told of http://a:1, ")
    assert "http://d:1" in problem.text
    assert not any(f"http://{name}:1" in problem.text for name in "bce")
    assert "127.0.0.1" not in problem.text
    assert problem.text.isprintable()
    assert not problem.not_ready
    clock.advance(200)
    way(addresses, "http://a:1")
    clock.advance(200)
    assert "http://d:1" not in addresses.problems()[0].text
    clock.advance(200)

    assert addresses.problems() == []


def test_few_addresses_are_named() -> None:
    """A peer can tell as many as it likes."""
    addresses = made()
    for number in range(10_000):
        way(addresses, f"http://evil:{number}")

    assert len(addresses.problems()[0].text) < 2_000


def test_listed_daemons_are_asked_where_they_can_be() -> None:
    """At an HTTP address that is listed, or that a listed upstream has told of itself."""
    addresses = made()
    assert [Address("", "https://oslo:9093")] == addresses.listed
    addresses.learned(LISTED[0], "http://127.0.0.1:9093/")
    addresses.learned(LISTED[1], "https://evil:9093")

    assert [Address("tcp:127.0.0.1:9092", "http://127.0.0.1:9093"), LISTED[2]] == addresses.listed
