"""HTTP client of the data source, with retries while the daemon does not respond."""

import http.client
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import pyarrow as pa

from synrepl.errors import ReplicationError
from synrepl.http_api.route import HttpRequest, Route
from synrepl.http_api.routes import ALLOCATED, ARROW, CHANGELOG, EXTENT
from synrepl.http_client import BlockingClient, ConnectError, HttpError, read_secret
from synrepl.pipeline.source.options import SourceOptions

__all__ = ["SourceClient", "DataLoss", "SourceError"]

PAUSE_SECONDS: Final = 0.5

T = TypeVar("T")


class SourceError(ReplicationError):
    """A request that the daemon refuses or does not answer. `code` is its error code, if any."""

    code = ""


class DataLoss(SourceError):
    """Facts of the requested range were trimmed or are missing from the response."""


class SourceClient:
    """A client of one daemon, for one query or task. Raises `SourceError` and `DataLoss`."""

    def __init__(
        self,
        options: SourceOptions,
        *,
        pause: Callable[[float], None] = time.sleep,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        secret = None if options.secret_file is None else read_secret(options.secret_file)
        self._client = BlockingClient(options.url, secret=secret)
        self._pause = pause
        self._seconds = seconds

    def get(self, route: Route, *, reader: str | None = None, **query: Any) -> Any:
        """Return the JSON response to a GET. Under the name `reader` the daemon retains later facts."""
        return self._retry(lambda: self._client.json(_request(route, query), reader=reader or None))

    def send(self, request: HttpRequest, body: bytes) -> Any:
        """Return the JSON response to a request with a body, which must be idempotent."""
        return self._retry(lambda: self._client.json(request, body))

    def extent(self, **query: Any) -> Mapping[str, Any]:
        """Return the extent of the selected facts."""
        found: Mapping[str, Any] = self.get(EXTENT, **self.selection(), **query)
        return found

    def has_stream(self, stream: str) -> bool:
        """Whether the daemon has this stream."""
        try:
            self._retry(lambda: self._client.json(ALLOCATED.request(stream)))
        except SourceError as error:
            if error.code in ("unknown_stream", "not_found"):
                return False
            raise
        return True

    def selection(self) -> dict[str, Any]:
        """Return the query parameters that select streams and writers."""
        return {"streams": self._options.streams, "writers": self._options.writers}

    def facts(self, *, since: int, upto: int, **query: Any) -> Iterator[Any]:
        """Yield record batches of the selected facts with ``since < serial <= upto``.

        If the response breaks off, the client resumes after the last received fact.
        """
        deadline = self._options.retry_seconds + self._seconds()
        at = since
        while True:
            try:
                for batch in self._batches(since=at, upto=upto, **query):
                    deadline = self._options.retry_seconds + self._seconds()
                    at = batch["serial"][len(batch) - 1].as_py()
                    # Digest and epoch describe the start of the range only.
                    query.pop("digest", None)
                    query.pop("epoch", None)
                    yield batch
                return
            except (ConnectError, HttpError, pa.ArrowInvalid, OSError, http.client.HTTPException) as error:
                self._client.close()
                if not self._is_retryable(error) or self._seconds() >= deadline:
                    raise self._source_error(error) from error
                self._pause(PAUSE_SECONDS)

    def _batches(self, **query: Any) -> Iterator[Any]:
        response = self._client.stream(
            _request(CHANGELOG, {**self.selection(), "checksum": False, **query}), accept=ARROW
        )
        with pa.ipc.open_stream(response) as stream:
            for batch in stream:
                if len(batch):
                    yield batch
        # An unread body would keep the connection from being reused.
        response.read()

    def _retry(self, send: Callable[[], T]) -> T:
        deadline = self._seconds() + self._options.retry_seconds
        while True:
            try:
                return send()
            except (ConnectError, HttpError) as error:
                if not self._is_retryable(error) or self._seconds() >= deadline:
                    raise self._source_error(error) from error
                self._pause(PAUSE_SECONDS)

    @staticmethod
    def _is_retryable(error: Exception) -> bool:
        return error.is_retryable if isinstance(error, HttpError) else True

    def _source_error(self, error: Exception) -> SourceError:
        url = self._client.url
        if isinstance(error, HttpError):
            if error.code == "trimmed":
                return DataLoss(
                    f"{url}: {error.message}. Facts were trimmed before they were read: set the option reader"
                    " to retain facts until they are read, or failOnDataLoss=false to skip trimmed facts"
                )
            refused = SourceError(f"{url} refuses the request: {error.code}: {error.message}")
            refused.code = error.code
            return refused
        return SourceError(f"{url} does not respond: {error}")


def _request(route: Route, query: Mapping[str, Any]) -> HttpRequest:
    return route.request(**{name: value for name, value in query.items() if value != ""})
