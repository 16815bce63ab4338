"""A blocking HTTP client of a daemon: one request after another.

It is blocking on purpose: commands and Spark tasks need no reactor, and requests stay in order. Of synrepl it
may import only modules that `pipeline.source` sends to Spark executors: errors, error codes, `address_list`
and routes.
"""

import http.client
import json
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from synrepl.errors import ConfigError
from synrepl.http_api.request_errors import RequestError, read_error
from synrepl.http_api.route import HttpRequest, public_url
from synrepl.http_api.routes import READER_HEADER
from synrepl.http_api.shapes import find_mismatch
from synrepl.key_rules import LOCALHOST, localhost_exposure, url_exposure
from synrepl.small_files import read_small_file
from synrepl.wire.address_list import AddressList

TIMEOUT_SECONDS: Final = 60.0

CHUNK_BYTES: Final = 65_536

NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING"})
"""OpenSSL's reasons for a peer that does not speak TLS."""

Response = http.client.HTTPResponse


class NotADaemon(ConfigError):
    """This is not the URL of a daemon."""


class ConnectError(RequestError):
    """There was no complete response."""

    def __init__(self, why: str, *, retryable: bool = True, is_unsent: bool = False) -> None:
        super().__init__(why)
        self.retryable = retryable
        self.is_unsent = is_unsent


class BlockingClient:
    """A kept-alive connection to one daemon. `clean` is applied to every JSON response.

    `url` may be several URLs of daemons of one log, separated by commas, in order of preference: a request
    goes to the first that can answer it, and the next one begins there. Without `tries_all`, a request goes
    to one address, until the caller lets the client `leave` it. A user and a password in a URL are not sent,
    and not in the attribute `url`, which is that of the daemon in use: `secret` authenticates. `ca_file` is a
    PEM file of the CAs to trust (None: the system's). `insecure`: the secret may also go where others can
    read it (`synrepl.key_rules`). `advice` has messages by error code, for errors where the caller knows
    better than the daemon what to do. Raises `NotADaemon` for an invalid URL, `ConfigError`
    for an unusable `ca_file`.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        timeout: float = TIMEOUT_SECONDS,
        advice: Mapping[str, str] = MappingProxyType({}),
        clean: Callable[[Any], Any] = lambda content: content,
        tries_all: bool = True,
    ) -> None:
        self._clean = clean
        self._advice = advice
        self._ca_file = ca_file
        self._secret = secret
        self._insecure = insecure
        self._timeout = timeout
        self._tries_all = tries_all
        self._parts = dict(map(_parse, split_urls(url)))
        self.addresses = AddressList(list(self._parts))
        self._use()

    @property
    def has_several(self) -> bool:
        """Whether there are several addresses."""
        return len(self.addresses.addresses) > 1

    def _use(self) -> None:
        """Connect to the current address with the next request."""
        self.url = self.addresses.current
        parts, port = self._parts[self.url]
        self._path = parts.path.rstrip("/")
        self._headers = {} if self._secret is None else {"Authorization": f"Bearer {self._secret}"}
        host, timeout = parts.hostname or "", self._timeout
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = _tls_context(self._ca_file)
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout)

    def leave(self, error: Exception) -> None:
        """Connect to another address with the next request: this one failed with `error`."""
        self.close()
        known = error if isinstance(error, RequestError) else RequestError()
        self.addresses.failed(known.fault, moved_to=[one.rstrip("/") for one in known.moved_to.split()])
        self._use()

    def json(self, request: HttpRequest, body: bytes | None = None, *, reader: str | None = None) -> Any:
        """Send a request with this body; return the JSON response.

        `reader` names a lease: with it the daemon retains the facts after ``since`` of the request. Raises
        `ConnectError` and `HttpError`; `NotADaemon` for a response that is not JSON, or not the `answer` of
        the request.
        """
        response = self._request(request, body, {} if reader is None else {READER_HEADER: reader})
        with self._connection_errors():
            found = response.read()
        try:
            content = self._clean(json.loads(found))
        except (ValueError, RecursionError) as error:
            raise NotADaemon(f"{self.url} is not a synrepl daemon: its response is not JSON") from error
        if request.answer is not None and (why := find_mismatch(content, request.answer)):
            raise NotADaemon(f"{self.url} is not a synrepl daemon of this release: in its response, {why}")
        return content

    def lines(self, request: HttpRequest) -> tuple[http.client.HTTPMessage, Iterator[bytes]]:
        """Send a request for lines; return the headers of the response and an iterator of its lines.

        Raises `ConnectError` and `HttpError`; the iterator raises `ConnectError` if the response ends early.
        """
        response = self._request(request)
        return response.headers, self._lines(response)

    def stream(self, request: HttpRequest, *, accept: str) -> Response:
        """Send a request for a response of this type, to be read to its end.

        Raises `ConnectError` and `HttpError`. If the response ends early, reading raises `OSError` or
        `HTTPException`.
        """
        return self._request(request, None, {"Accept": accept})

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def _request(
        self,
        request: HttpRequest,
        body: bytes | None = None,
        extra_headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """Send a request, to each address that it may try at most once. Raises the error of the last one."""
        attempts = len(self.addresses.addresses) if self._tries_all else 1
        for left in reversed(range(attempts)):
            try:
                return self._request_here(request, body, extra_headers)
            except RequestError as error:
                if not (left and error.can_try_elsewhere):
                    raise
                self.leave(error)
        raise AssertionError("there is at least one address")

    def _request_here(
        self, request: HttpRequest, body: bytes | None, extra_headers: Mapping[str, str]
    ) -> Response:
        headers = {**self._headers, **extra_headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        is_fresh = self._connection.sock is None
        if is_fresh:
            self._check_key(url_exposure(self.url, insecure=self._insecure))
            with self._connection_errors(is_unsent=True):
                self._connection.connect()
            self._check_peer()
        with self._connection_errors():
            try:
                response = self._send(request, body, headers)
            except (ConnectionError, http.client.BadStatusLine):
                # The daemon may have closed an idle connection: retry on a new one. Repeated requests are
                # harmless: appends have an idempotency key.
                self._connection.close()
                if is_fresh:
                    raise
                response = self._send(request, body, headers)
            if response.status >= 400:
                raise read_error(response.status, response.read(), clean=self._clean, advice=self._advice)
        return response

    def _check_key(self, why: str) -> None:
        """Raise `ConnectError` if the secret may not be sent, for this reason."""
        if self._secret is not None and why:
            self._connection.close()
            raise ConnectError(why, retryable=False, is_unsent=True)

    def _check_peer(self) -> None:
        """Raise `ConnectError` if ``localhost`` is another machine, and the secret may not be sent there."""
        parts, _ = self._parts[self.url]
        if parts.scheme == "http" and parts.hostname == LOCALHOST:
            peer = str(self._connection.sock.getpeername()[0])
            self._check_key(localhost_exposure(peer, insecure=self._insecure))

    def _send(self, request: HttpRequest, body: bytes | None, headers: Mapping[str, str]) -> Response:
        try:
            self._connection.request(request.method, self._path + request.target, body, headers)
        except (ConnectionError, ssl.SSLError):
            if self._connection.sock is None:
                raise  # nobody was connected to
            # Who refuses a long body may end the connection before all of it was sent: the answer is there.
            with suppress(OSError, http.client.HTTPException):
                return self._connection.getresponse()
            raise
        return self._connection.getresponse()

    def _lines(self, response: Response) -> Iterator[bytes]:
        rest = b""
        with self._connection_errors():
            # `readline` would not detect a truncated response.
            while chunk := response.read(CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from filter(None, lines)
        if rest:
            yield rest

    @contextmanager
    def _connection_errors(self, *, is_unsent: bool = False) -> Iterator[None]:
        """Close the connection after an error, and raise `ConnectError`."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._connect_error(error, is_unsent=is_unsent) from error

    def _connect_error(self, error: Exception, *, is_unsent: bool) -> ConnectError:
        """Return the error for a failed request; a wrong port, scheme or certificate is permanent."""
        is_tls = self.url.startswith("https:")
        is_permanent = True
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"TLS: {error.verify_message}; name the CA to trust with --ca-file (in Spark: caFile)"
        elif isinstance(error, ssl.SSLError) and error.reason in NOT_TLS:
            why = "it does not speak TLS; use http:// in place of https://"
        elif isinstance(error, http.client.BadStatusLine) and str(error).startswith("SERVER "):
            why = "this is the port of the line protocol; use that of HTTP (by default 9093)"
        elif isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
            why = "it does not speak HTTP; check the port" + ("" if is_tls else ", or use https://")
        else:
            is_permanent = False
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if isinstance(error, ConnectionRefusedError):
                why += "; is the daemon running, and is this its port for HTTP, by default 9093?"
            elif isinstance(error, http.client.RemoteDisconnected) and not is_tls:
                why += "; if the daemon listens with TLS, use https://"
            elif isinstance(error, TimeoutError):
                why = "no answer in time" + ("; does it speak TLS?" if is_tls and is_unsent else "")
        return ConnectError(why, retryable=not is_permanent, is_unsent=is_unsent or is_permanent)


def split_urls(text: str) -> list[str]:
    """Split URLs that are separated by commas."""
    return [one.strip() for one in text.split(",") if one.strip()] or [""]


def _parse(url: str) -> tuple[str, tuple[SplitResult, int]]:
    """Return the public form of a URL, its parts and its port. Raises `NotADaemon`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NotADaemon(
            f"{public_url(url)!r} is not the address of a daemon; an example is http://127.0.0.1:9093"
        )
    if port is None:
        # http.client would parse the end of an IPv6 address as the port.
        port = 443 if parts.scheme == "https" else 80
    shown = public_url(parts._replace(query="", fragment="").geturl()).rstrip("/")
    return shown, (parts, port)


def _tls_context(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise ConfigError(f"the CA file {ca_file} must have certificates in PEM: {error.reason}") from error
    except OSError as error:
        raise ConfigError(f"cannot read the CA file {ca_file}: {error.strerror}") from error


def read_secret(path: str | os.PathLike[str], what: str = "the secret file") -> str:
    """Read the shared secret from its file: as an argument it would be visible to all users of the machine.

    Raises `ConfigError`, whose text calls the file `what`.
    """
    secret = read_small_file(path, what).decode("ascii", "replace").strip()
    if not secret or not secret.isprintable() or not secret.isascii():
        raise ConfigError(f"{what} {path} must contain one line of printable ASCII")
    return secret
