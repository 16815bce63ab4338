"""The forms of URLs under which daemons are asked: by other daemons, and by the commands of people."""

from typing import Any

import pytest
from treq.client import HTTPClient
from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionRefusedError as NobodyThere
from twisted.internet.task import Clock
from twisted.web.client import URI
from twisted.web.iweb import IAgent
from zope.interface import implementer

from synrepl.http_api.routes import CHANGELOG
from synrepl.http_client import BlockingClient, NotADaemon
from synrepl.transports.http.http_client import HttpClient

SHA256 = "a" * 64

# The URL; the scheme, host, port and path under which it is asked.
URLS = [
    ("http://127.0.0.1:9093", ("http", "127.0.0.1", 9093, "")),
    ("http://127.0.0.1", ("http", "127.0.0.1", 80, "")),
    ("http://[::1]:9093", ("http", "::1", 9093, "")),
    ("http://[::1]", ("http", "::1", 80, "")),
    ("http://[::1]/log", ("http", "::1", 80, "/log")),
    ("http://[2001:db8::7]:9093/a/log", ("http", "2001:db8::7", 9093, "/a/log")),
    ("http://[::ffff:127.0.0.1]:9093", ("http", "::ffff:127.0.0.1", 9093, "")),
    ("http://hs.example:9093", ("http", "hs.example", 9093, "")),
    ("http://hs.example/the%20log", ("http", "hs.example", 80, "/the%20log")),
    ("http://localhost:9093", ("http", "localhost", 9093, "")),
    ("https://hs.example", ("https", "hs.example", 443, "")),
    ("https://127.0.0.1:9443/log", ("https", "127.0.0.1", 9443, "/log")),
    ("https://[::1]", ("https", "::1", 443, "")),
    ("https://[::1]:9443/log", ("https", "::1", 9443, "/log")),
]


@implementer(IAgent)
class Asked:
    """Remembers what was asked, and reaches nobody."""

    def __init__(self) -> None:
        self.uris: list[URI] = []

    def request(self, method: bytes, uri: bytes, headers: Any = None, bodyProducer: Any = None) -> Any:
        self.uris.append(URI.fromBytes(uri))
        return fail(NobodyThere())

    def only(self) -> tuple[str, str, int, str]:
        """The scheme, host, port and path of what was asked."""
        [uri] = self.uris
        return uri.scheme.decode(), uri.host.decode(), uri.port, uri.originForm.decode()


def ended(asked: Any) -> BaseException:
    """Why this failed."""
    failures: list[Any] = []
    Deferred.fromCoroutine(asked).addErrback(failures.append)
    error: BaseException = failures[0].value
    return error


@pytest.mark.parametrize(("url", "position"), URLS)
def test_a_daemon_asks_another_at_its_url(url: str, position: tuple[str, str, int, str]) -> None:
    """One without a name is reached by its address, of either version."""
    scheme, host, port, path = position
    agent = Asked()
    http = HttpClient(Clock(), client=HTTPClient(agent))

    error = ended(http.read(CHANGELOG.request(since=0, streams=["a", "b"]), base_url=url))

    assert (scheme, host, port, f"{path}/v1/changelog?since=0&streams=a%2Cb") == agent.only()
    assert f"no response from {url.removesuffix(path)}: connection refused" in str(error)


@pytest.mark.parametrize(("url", "position"), URLS)
def test_a_command_asks_a_daemon_at_its_url(url: str, position: tuple[str, str, int, str]) -> None:
    """The same URL is given to a daemon and to a command."""
    scheme, host, port, path = position
    asking = BlockingClient(url)
    connection = asking._connection

    assert (host, port, path) == (connection.host, connection.port, asking._path)
    assert (scheme == "https") == (connection.default_port == 443)
    assert asking.url == url


@pytest.mark.parametrize(
    "url",
    [
        *("http://[::1", "http://::1]:9093", "http://[::g]:9093", "http://::1:9093"),
        *("http://hs:port", "http://", "hs:9093", "[::1]:9093"),
    ],
)
def test_a_command_says_that_this_is_no_url(url: str) -> None:
    """Brackets are easily forgotten."""
    with pytest.raises(NotADaemon, match="is not the address of a daemon; an example is http:"):
        BlockingClient(url)
