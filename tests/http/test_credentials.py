"""Where a secret may go over HTTP."""

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.web.client import URI

from synrepl.base.response_errors import NeverSent
from synrepl.key_rules import url_exposure
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.http_client import _Endpoints
from synrepl.transports.tls import TlsFiles


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("http://127.0.0.1:9093", True),
        ("http://127.255.0.9", True),
        ("http://[::1]:9093", True),
        ("http://[::ffff:127.0.0.1]:9093", True),
        ("http://localhost:9093/x", True),
        ("http://LOCALHOST", True),
        ("https://evil.example", True),
        ("http://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://127.0.0.1@evil.example", False),
        ("http://localhost@192.0.2.1:9093", False),
        ("http://192.0.2.1", False),
        ("http://[fe80::1%lo]:9093", False),
        ("http://0.0.0.0:9093", False),
        ("http://2130706433", False),
        ("http://0177.0.0.1", False),
        ("http:///path", False),
        ("HTTP://evil.example", False),
    ],
)
def test_a_secret_goes_where_nobody_else_can_read_it(url: str, may: bool) -> None:
    """By the words of the URL: an odd form of an address is a name, and a name may be anything."""
    assert ("" == url_exposure(url, insecure=False)) is may
    assert url_exposure(url, insecure=True) == ""
    credentials = Credentials("rosebud")
    if may:
        assert credentials.headers_for(url) == {"authorization": ["Bearer rosebud"]}
    else:
        with pytest.raises(NeverSent, match="in the clear: use https:// or tls:, or a UNIX socket; "):
            credentials.headers_for(url)
        assert "evil" not in url or "127.0.0.1@" not in url_exposure(url, insecure=False)
    assert credentials.headers_for(url, is_homeserver=True) == {"authorization": ["Bearer rosebud"]}
    assert Credentials().headers_for(url) == {}


class Found:
    """The endpoints of an agent, all of which lead to this address."""

    def __init__(self, peer: Any) -> None:
        self.protocol: Any = type("Protocol", (), {})()
        self.protocol.transport = StringTransport(peerAddress=peer)
        self._endpointFactory = self

    def endpointForURI(self, uri: Any) -> Any:
        return self

    def connect(self, factory: Any) -> "Deferred[Any]":
        return succeed(self.protocol)


@pytest.mark.parametrize(
    ("peer", "secret", "insecure", "may"),
    [
        (IPv4Address("TCP", "127.0.0.1", 1), "s", False, True),
        (IPv6Address("TCP", "::1", 1), "s", False, True),
        (IPv4Address("TCP", "192.0.2.1", 1), "s", False, False),
        (IPv4Address("TCP", "192.0.2.1", 1), "s", True, True),
        (IPv4Address("TCP", "192.0.2.1", 1), None, False, True),
    ],
)
def test_localhost_must_be_this_machine(peer: Any, secret: str | None, insecure: bool, may: bool) -> None:
    """The name may be resolved to anything; nothing is sent there."""
    found = Found(peer)
    endpoints = _Endpoints(Clock(), Credentials(secret, insecure=insecure), found)
    results: list[Any] = []
    for url in (b"http://localhost:1/", b"http://LocalHost:1/"):
        endpoints.endpointForURI(URI.fromBytes(url)).connect(None).addBoth(results.append)

    assert [may] * 2 == [one is found.protocol for one in results]
    assert found.protocol.transport.value() == b""


def test_credentials_without_the_secret_have_the_certificate_of_now() -> None:
    """Who holds them keeps them through a reload."""
    whole = Credentials("secret", TlsFiles(cert_file=Path("old.pem")))
    shown = whole.without_secret()

    whole.replace(Credentials("another", TlsFiles(cert_file=Path("new.pem"))))

    assert (None, TlsFiles(cert_file=Path("new.pem"))) == (shown.secret, shown.files)
    assert whole.without_secret() is shown
