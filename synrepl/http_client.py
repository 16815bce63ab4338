"""A blocking HTTP client of a daemon: one request after the other.

Blocking on purpose: a command, or a task of Spark, that asks and waits needs no reactor, and order is kept by
doing one thing at a time. Of ours it needs the errors alone: it goes to executors that have nothing else.
"""

import http.client
import json
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from synrepl.errors import ConfigError

__all__ = ["Answer", "BlockingClient", "NotADaemon", "HttpError", "ConnectError", "read_secret"]

TIMEOUT_SECONDS: Final = 60.0

CHUNK: Final = 65_536

Answer = http.client.HTTPResponse


class NotADaemon(ConfigError):
    """This is not the address of a daemon."""


class ConnectError(Exception):
    """There was no answer, or only a part of one; whether the question was heard is not known."""


class HttpError(Exception):
    """The answer is an error; `body` is all of it."""

    def __init__(
        self, status: int, code: str, message: str, body: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        super().__init__(message)
        self.body = body
        self.status = status
        self.code = code
        self.message = message

    @property
    def is_retryable(self) -> bool:
        """Whether asking the same again later can help."""
        said = self.body.get("retryable")
        return said if isinstance(said, bool) else self.status >= 500 or self.status in (408, 429)


class BlockingClient:
    """A kept-alive connection to one daemon. `clean` is applied to the JSON of every answer."""

    def __init__(
        self,
        url: str,
        *,
        secret: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        clean: Callable[[Any], Any] = lambda found: found,
    ) -> None:
        self._clean = clean
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise NotADaemon(f"{url!r} is not the address of a daemon; an example is http://127.0.0.1:9093")
        if port is None:
            # http.client would take what follows the last colon of an IPv6 address for the port.
            port = 443 if parts.scheme == "https" else 80
        self.url = url.rstrip("/")
        self._path = parts.path.rstrip("/")
        self._headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(
                parts.hostname, port, timeout=timeout, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout)

    def get_json(self, path: str, *, reader: str | None = None) -> Any:
        """Ask, and read all of the answer. Raises `ConnectError` and `HttpError`.

        Under the name `reader` the daemon keeps what comes after the facts that are asked about.
        """
        more = {} if reader is None else {"Synrepl-Reader": reader}
        return self._json(self._ask("GET", path, None, more))

    def get_lines(self, path: str) -> tuple[http.client.HTTPMessage, Iterator[bytes]]:
        """Ask, and give the head of the answer and its lines as they come. Raises `ConnectError`, also where
        the answer breaks off.
        """
        answer = self._ask("GET", path, None)
        return answer.headers, self._lines(answer)

    def get_stream(self, path: str, *, accept: str) -> Answer:
        """Ask for this type, and give the answer, to be read to its end (OSError and HTTPException where it
        breaks off)."""
        return self._ask("GET", path, None, {"Accept": accept})

    def put_json(self, path: str, body: bytes) -> Any:
        """Put, and read all of the answer."""
        return self._json(self._ask("PUT", path, body))

    def post_json(self, path: str, body: bytes) -> Any:
        """Post, and read all of the answer."""
        return self._json(self._ask("POST", path, body))

    def delete_json(self, path: str) -> Any:
        """Delete, and read all of the answer."""
        return self._json(self._ask("DELETE", path, None))

    def close(self) -> None:
        """Let go of the connection; the next question makes another."""
        self._connection.close()

    def _ask(
        self, method: str, path: str, body: bytes | None, more: Mapping[str, str] = MappingProxyType({})
    ) -> Answer:
        headers = {**self._headers, **more}
        if body is not None:
            headers["Content-Type"] = "application/json"
        is_fresh = self._connection.sock is None
        try:
            try:
                self._connection.request(method, self._path + path, body, headers)
                answer = self._connection.getresponse()
            except (ConnectionError, http.client.BadStatusLine):
                # A connection kept for long may have been closed by the daemon; then ask on a new one. What
                # is posted has an idempotency key, so that asking twice is harmless.
                self._connection.close()
                if is_fresh:
                    raise
                self._connection.request(method, self._path + path, body, headers)
                answer = self._connection.getresponse()
            if answer.status >= 400:
                raise _refused(answer.status, answer.read(), self._clean)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ConnectError(_why(error)) from error
        return answer

    def _lines(self, answer: Answer) -> Iterator[bytes]:
        rest = b""
        try:
            # `readline` would take the end of a broken answer for the end of the answer.
            while chunk := answer.read(CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from filter(None, lines)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ConnectError(_why(error)) from error
        if rest:
            yield rest

    def _json(self, answer: Answer) -> Any:
        try:
            return self._clean(json.loads(answer.read()))
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ConnectError(_why(error)) from error
        except ValueError as error:
            raise NotADaemon(f"{self.url} does not answer as a synrepl daemon does") from error


def _refused(status: int, body: bytes, clean: Callable[[Any], Any]) -> HttpError:
    try:
        found = clean(json.loads(body))
        return HttpError(status, str(found["error"]), str(found["message"]), found)
    except (ValueError, KeyError, TypeError):
        return HttpError(status, "http", f"HTTP status {status}")


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}; name the CA to trust with SSL_CERT_FILE=/path/ca.pem"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def read_secret(path: str | os.PathLike[str]) -> str:
    """The shared secret, from its file: never an argument, which everyone on the machine could see.

    Raises `ConfigError`.
    """
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"cannot read the secret file {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        secret = ""
    if not secret or not secret.isprintable() or not secret.isascii():
        raise ConfigError(f"the secret file {path} does not hold one line of plain characters")
    return secret
