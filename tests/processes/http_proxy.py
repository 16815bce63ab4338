"""A reverse proxy that knows nothing but HTTP: no Upgrade, and HTTP/1.0 to the server, as nginx does."""

import http.client
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

__all__ = ["HttpProxy", "ProxiedRequest"]

HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "te", "transfer-encoding", "upgrade", "host"})
CHUNK: Final = 64 * 1024


class ProxiedRequest(BaseHTTPRequestHandler):
    """A connection of a client; each of its requests goes to the server on a connection of its own."""

    protocol_version = "HTTP/1.1"
    server: "HttpProxy"

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def do_GET(self) -> None:
        self.close_connection = True
        with suppress(OSError, http.client.HTTPException):
            self.pass_on()

    do_POST = do_PUT = do_DELETE = do_GET

    def pass_on(self) -> None:
        """Pass the request on, and the answer back as it comes."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self._ask(body)
        if self.server.repeats:
            # The answer of the first was lost on the way to the proxy.
            answer.close()
            answer = self._ask(body)
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        is_chunked = answer.length is None
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = False
        while data := answer.read1(CHUNK):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)
        if is_chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _ask(self, body: bytes) -> http.client.HTTPResponse:
        server = self.server
        server.requests.append((self.command, self.path))
        connection = http.client.HTTPConnection(server.upstream, timeout=60)
        connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"  # type: ignore[attr-defined]
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        connection.request(self.command, self.path, body or None, headers)
        server.open.add(connection.sock)
        return connection.getresponse()

    def log_message(self, *arguments: Any) -> None:
        """Not on standard error."""


class HttpProxy(ThreadingHTTPServer):
    """Passes requests on to the daemon at `url`.

    `requests` lists the methods and paths that were passed on. With `repeats`, each request is passed on
    twice, as if the server had been lost in between, but for one whose answer has no end.
    """

    daemon_threads = True

    def __init__(self, url: str, handler: type[ProxiedRequest] = ProxiedRequest) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.upstream = url.removeprefix("http://")
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[tuple[str, str]] = []
        self.repeats = False
        self.open: set[socket.socket] = set()

    def cut(self) -> None:
        """End every connection at once, on both sides."""
        for one in list(self.open):
            self.open.discard(one)
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was cut is no trouble."""

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.cut()
        self.server_close()
