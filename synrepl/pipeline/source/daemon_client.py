"""What the source asks a daemon, again and again while it does not answer."""

import http.client
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import pyarrow as pa

from synrepl.errors import ReplicationError
from synrepl.http_client import BlockingClient, ConnectError, HttpError, read_secret
from synrepl.pipeline.source.options import SourceOptions

__all__ = ["SourceClient", "DataLoss", "SourceError"]

ARROW: Final = "application/vnd.apache.arrow.stream"
PAUSE_SECONDS: Final = 0.5

T = TypeVar("T")


class SourceError(ReplicationError):
    """The daemon cannot be read as it was asked to be; `code` is its word for that, if it gave one."""

    code = ""


class DataLoss(SourceError):
    """Facts that were to be read are not there any more, or not all of them came."""


class SourceClient:
    """One daemon, for one query or task. Raises `SourceError` and `DataLoss`, in words for a person."""

    def __init__(
        self,
        options: SourceOptions,
        *,
        pause: Callable[[float], None] = time.sleep,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        secret = None if options.secret_file is None else read_secret(options.secret_file)
        self._asking = BlockingClient(options.url, secret=secret)
        self._pause = pause
        self._seconds = seconds

    def get(self, path: str, *, reader: str | None = None, **query: Any) -> Any:
        """What it answers to this, as JSON; under the name `reader` it keeps what comes after."""
        return self._insisting(lambda: self._asking.get_json(_path(path, query), reader=reader))

    def post(self, path: str, body: bytes) -> Any:
        """What it answers to this, which can be asked twice."""
        return self._insisting(lambda: self._asking.post_json(path, body))

    def put(self, path: str, body: bytes) -> Any:
        """Have it keep this."""
        return self._insisting(lambda: self._asking.put_json(path, body))

    def extent(self, **query: Any) -> Mapping[str, Any]:
        """``GET /v1/extent``."""
        found: Mapping[str, Any] = self.get("/v1/extent", **self.choice(), **query)
        return found

    def knows(self, stream: str) -> bool:
        """Whether there can be facts of this stream."""
        try:
            self.get(f"/v1/streams/{quote(stream, safe='')}/allocated")
        except SourceError as error:
            if error.code in ("unknown_stream", "not_found"):
                return False
            raise
        return True

    def choice(self) -> dict[str, str]:
        """The parameters that choose what is read."""
        options = self._options
        chosen = {"streams": options.streams, "writers": options.writers}
        return {name: ",".join(sorted(names)) for name, names in chosen.items() if names is not None}

    def facts(self, *, since: int, upto: int, **query: Any) -> Iterator[Any]:
        """Record batches of the facts with ``since < serial <= upto``, as far as they are chosen.

        Where the answer breaks off it goes on after the last fact that came.
        """
        given = self._options.retry_seconds + self._seconds()
        at = since
        while True:
            try:
                for batch in self._batches(since=at, upto=upto, **query):
                    given = self._options.retry_seconds + self._seconds()
                    at = batch["serial"][len(batch) - 1].as_py()
                    # Those hold for where it began alone.
                    query.pop("digest", None)
                    query.pop("epoch", None)
                    yield batch
                return
            except (ConnectError, HttpError, pa.ArrowInvalid, OSError, http.client.HTTPException) as error:
                self._asking.close()
                if not self._may_pass(error) or self._seconds() >= given:
                    raise self._trouble(error) from error
                self._pause(PAUSE_SECONDS)

    def _batches(self, **query: Any) -> Iterator[Any]:
        answer = self._asking.get_stream(
            _path("/v1/changelog", {**self.choice(), "checksum": "false", **query}), accept=ARROW
        )
        with pa.ipc.open_stream(answer) as stream:
            for batch in stream:
                if len(batch):
                    yield batch
        # To the end of the body, or the connection could not be used again.
        answer.read()

    def _insisting(self, ask: Callable[[], T]) -> T:
        until = self._seconds() + self._options.retry_seconds
        while True:
            try:
                return ask()
            except (ConnectError, HttpError) as error:
                if not self._may_pass(error) or self._seconds() >= until:
                    raise self._trouble(error) from error
                self._pause(PAUSE_SECONDS)

    @staticmethod
    def _may_pass(error: Exception) -> bool:
        if isinstance(error, HttpError):
            return error.is_retryable or bool(error.body.get("retryable"))
        return True

    def _trouble(self, error: Exception) -> SourceError:
        url = self._asking.url
        if isinstance(error, HttpError):
            if error.code == "trimmed":
                return DataLoss(
                    f"{url}: {error.message}. Facts were trimmed before they were read: read under a name"
                    " (option reader) to have them kept, or go on without them (failOnDataLoss=false)"
                )
            refused = SourceError(f"{url} refuses: {error.code}: {error.message}")
            refused.code = error.code
            return refused
        return SourceError(f"{url} does not answer: {error}")


def _path(path: str, query: Mapping[str, Any]) -> str:
    said = {name: value for name, value in query.items() if value is not None and value != ""}
    return f"{path}?{urlencode(said)}" if said else path
