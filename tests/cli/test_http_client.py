"""Requests to a daemon: an answer that breaks off is no answer, and a refusal says whether to try again."""

import http.client
import io
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from synrepl.errors import ConfigError
from synrepl.http_api.request_errors import HttpError, read_error
from synrepl.http_api.routes import APPEND, STATUS
from synrepl.http_client import BlockingClient, ConnectError
from synrepl.wire.address_list import Fault
from tests.certificates import Authority

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(data: bytes) -> http.client.HTTPResponse:
    """What a daemon sent, and then it was gone."""

    class Socket:
        def makefile(self, mode: str) -> io.BytesIO:
            return io.BytesIO(data)

    given: Any = Socket()
    made = http.client.HTTPResponse(given)
    made.begin()
    return made


def test_a_whole_answer_is_its_lines() -> None:
    """Parted anywhere; the last one may have no end."""
    data = HEAD + b"4\r\none\n\r\n5\r\ntwo\nt\r\n4\r\nhree\r\n0\r\n\r\n"

    assert [b"one", b"two", b"three"] == list(BlockingClient("http://daemon")._lines(answer(data)))


@pytest.mark.parametrize("data", [b"4\r\none\n\r\n", b"4\r\none\n\r\n5\r\ntw", b"4\r\none\n\r\n5"])
def test_an_answer_that_breaks_off_is_reported(data: bytes) -> None:
    """A changelog that seems to end would be taken for all there is."""
    lines = BlockingClient("http://daemon")._lines(answer(HEAD + data))

    with pytest.raises(ConnectError):
        list(lines)


@pytest.mark.parametrize(
    ("status", "said", "is_retryable"),
    [
        (500, {}, False),
        (507, {}, False),
        (502, {}, True),
        (408, {}, True),
        (429, {}, True),
        (400, {}, False),
        (503, {"retryable": False}, False),
        (409, {"retryable": True}, True),
        (503, {"retryable": "no"}, True),
    ],
)
def test_a_refusal_says_whether_to_try_again(status: int, said: dict[str, Any], is_retryable: bool) -> None:
    """What the daemon says of it goes before what the number says."""
    assert is_retryable is HttpError(status, "code", "message", said).retryable


@pytest.mark.parametrize("url", ["http://ada:pass@daemon:9093/a", "http://ada:p@pass@daemon:9093/a?key=pass"])
def test_a_password_in_the_url_is_not_shown(url: str) -> None:
    """The address is part of every message."""
    assert "http://daemon:9093/a" == BlockingClient(url).url


@pytest.mark.parametrize(
    "url", ["ftp://ada:pass@daemon", "ada:pass@daemon:9093", "http://ada:pa/pass@daemon", "http://ada:pass@"]
)
def test_a_password_in_a_wrong_url_is_not_shown(url: str) -> None:
    """Not even in the message that the URL is wrong."""
    with pytest.raises(ConfigError) as caught:
        BlockingClient(url)

    assert "pass" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (HttpError(503, "fenced", "another one is primary"), Fault.FENCED),
        (HttpError(503, "stopped", "it was refused"), Fault.STOPPED),
        (HttpError(401, "unauthorized", "no"), Fault.REFUSING),
        (ConnectError("refused"), Fault.UNREACHABLE),
        (OSError("broke off"), Fault.UNREACHABLE),
    ],
)
def test_a_failed_request_says_what_is_wrong_with_its_address(error: Exception, fault: Fault) -> None:
    """The next address of a list is chosen by it."""
    client = BlockingClient("http://a,http://b")

    client.leave(error)

    assert {"http://a": fault} == client.addresses.faults


@pytest.mark.parametrize(
    "url",
    ["http://daemon.example:9093", "http://127.0.0.1.example", "http://192.0.2.1:9093", "http://0.0.0.0"],
)
def test_no_secret_is_sent_where_others_can_read_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is even connected to, and the next address is tried; without a secret, any is."""
    reached: list[str] = []

    def connect(self: http.client.HTTPConnection) -> None:
        reached.append(self.host)
        raise ConnectionRefusedError

    monkeypatch.setattr(http.client.HTTPConnection, "connect", connect)
    refused = BlockingClient(url, secret="s")
    with pytest.raises(ConnectError, match="use https:// or tls:, or a UNIX socket; --insecure") as error:
        refused.json(STATUS.request())
    assert ([], False, True) == (reached, error.value.retryable, error.value.is_unsent)
    both = BlockingClient(f"{url},http://127.0.0.1:1", secret="s")
    for client in (both, BlockingClient(url), BlockingClient(url, secret="s", insecure=True)):
        with pytest.raises(ConnectError, match="is the daemon running"):
            client.json(STATUS.request())

    assert ["127.0.0.1", refused._connection.host, refused._connection.host] == reached


@pytest.mark.parametrize(("peer", "is_sent"), [("127.0.0.1", True), ("::1", True), ("192.0.2.1", False)])
def test_localhost_must_be_this_machine(peer: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name may be resolved to anything."""
    sent: list[str] = []

    class Socket:
        def getpeername(self) -> tuple[str, int]:
            return peer, 1

        def close(self) -> None: ...

    def connect(self: http.client.HTTPConnection) -> None:
        self.sock = Socket()

    def request(self: http.client.HTTPConnection, *what: Any) -> None:
        sent.append(str(what))
        raise ConnectionResetError

    monkeypatch.setattr(http.client.HTTPConnection, "connect", connect)
    monkeypatch.setattr(http.client.HTTPConnection, "request", request)
    with pytest.raises(ConnectError):
        BlockingClient("http://localhost:1", secret="rosebud").json(STATUS.request())

    assert is_sent is ("rosebud" in str(sent))


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (413, b"<html>", "HTTP status 413: a proxy on the way takes no body of this size"),
        (404, b"[]", "HTTP status 404: is it a daemon?"),
        (400, b'{"error":"bad_row"}', "HTTP status 400: no reason given"),
        (400, b'{"error":"bad_row","message":"a\\nb"}', "a b"),
        (404, b'{"errcode":"M_NOT_FOUND","error":"none"}', "none"),
    ],
)
def test_an_error_without_words_of_a_daemon_is_explained(status: int, body: bytes, text: str) -> None:
    """A proxy's page says nothing to people at a terminal."""
    error = read_error(status, body)

    assert str(error).startswith(text)
    assert str(read_error(status, body, url="http://a")).startswith(
        f"http://a answered {status} {error.code}: "
    )


REFUSAL = b'{"error": "too_large", "message": "at most 9 bytes"}'


@contextmanager
def refusing(wrap: Callable[[socket.socket], socket.socket]) -> Iterator[int]:
    """A server that answers 413 when it has read the headers of a request, and ends the connection."""

    def serve() -> None:
        with wrap(listener.accept()[0]) as connection:
            # What waits behind TLS' own records would be lost with the connection.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65_536)
            answer = b"HTTP/1.1 413 Too Long\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            connection.sendall(answer % len(REFUSAL) + REFUSAL)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_refusal_before_all_was_sent_is_read(scheme: str, tmp_path: Path) -> None:
    """A proxy that takes no such body ends the connection, and the rest cannot be sent."""
    authority = Authority(tmp_path, "authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("127.0.0.1"))

    def wrap(one: socket.socket) -> socket.socket:
        return context.wrap_socket(one, server_side=True) if scheme == "https" else one

    with refusing(wrap) as port:
        client = BlockingClient(f"{scheme}://127.0.0.1:{port}", ca_file=authority.ca_file)
        with pytest.raises(HttpError, match="at most 9 bytes") as refused:
            client.json(APPEND.request("push_rules"), bytes(64 * 1024 * 1024))

    assert 413 == refused.value.status


def test_a_kept_connection_that_cannot_be_made_again_is_an_error_of_the_connection() -> None:
    """The daemon was restarting between two requests."""
    body = b"{}"

    def serve() -> None:
        connection, _ = listener.accept()
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        listener.close()
        connection.close()

    listener = socket.create_server(("127.0.0.1", 0))
    thread = Thread(target=serve, daemon=True)
    thread.start()
    client = BlockingClient(f"http://127.0.0.1:{listener.getsockname()[1]}")
    with client._connection_errors():
        client._request(STATUS.request()).read()
    thread.join()

    with pytest.raises(ConnectError, match="is the daemon running"):
        client.json(STATUS.request())
