"""HTTP client of the data source, with retries of temporary failures."""

import errno
import http.client
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from typing import Any, Final

import pyarrow as pa

from synrepl.errors import ReplicationError
from synrepl.http_api.request_errors import HttpError, RequestError
from synrepl.http_api.route import HttpRequest, Route
from synrepl.http_api.routes import ARROW, CHANGELOG, DIGESTS, EXTENT
from synrepl.http_client import (
    BlockingClient,
    ConnectError,
    Response,
    read_secret,
)
from synrepl.pipeline.source.options import SourceOptions

PAUSE_SECONDS: Final = 0.5

WITHOUT_KEY: Final = "it requires a secret: name the file that has it with the option secretFile"
"""The advice for a daemon that refuses a request without a secret."""

BEHIND: Final = ("ahead_of_log", "fork")
"""The refusals of a log that lacks facts of the query."""

BROKEN: Final = (ConnectionError, TimeoutError, ssl.SSLError)
"""The errors by which an open connection breaks."""
NO_ROUTE: Final = frozenset({errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH})
"""The numbers of the errors of an unreachable network or host."""


class SourceError(ReplicationError):
    """The daemon refuses a request (`code` is its error code), or gives no usable response."""

    code = ""


class DataLoss(SourceError):
    """Facts of a range were trimmed, are missing from the response, or belong to a replaced log."""


class Superseded(SourceError):
    """A daemon in a later epoch lacks facts that the query has: a promotion lost them, so no retry helps."""


class SourceClient:
    """A client for one query or task, of the daemons of one log.

    It begins with the daemon number `first`, stays with a daemon that responds, tries all other daemons
    before it pauses, and retries for the option `retry_seconds`. Raises `SourceError` and `DataLoss`, and
    `NotADaemon` for an invalid URL or a response that is not JSON.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        first: int = 0,
        pause: Callable[[float], None] = time.sleep,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._selection: dict[str, Any] = {"streams": options.streams, "writers": options.writers}
        secret = None if options.secret_file is None else read_secret(options.secret_file)
        advice = {} if secret is not None else {"unauthorized": WITHOUT_KEY}
        first %= len(options.url)
        urls = [*options.url[first:], *options.url[:first]]
        self._client = BlockingClient(
            ",".join(urls),
            secret=secret,
            ca_file=options.ca_file,
            insecure=options.insecure,
            advice=advice,
            tries_all=False,
        )
        self._pause = pause
        self._seconds = seconds

    def get(self, route: Route, *, reader: str | None = None, **query: Any) -> Any:
        """Return the JSON response to a GET. With `reader`, a lease retains the facts after ``since``."""
        return self.send(_request(route, query), reader=reader, epoch=query.get("epoch"))

    def send(
        self,
        request: HttpRequest,
        body: bytes | None = None,
        *,
        reader: str | None = None,
        epoch: int | None = None,
    ) -> Any:
        """Return the JSON response to a request, which must be idempotent.

        `epoch` is that of the facts that the query has; None if it does not matter.
        """
        return self._repeat(lambda: self._client.json(request, body, reader=reader or None), epoch)

    def digest_at(self, serial: int, *, epoch: int | None = None) -> str | None:
        """Return the digest at a serial, of a daemon whose log has it; None if it was trimmed.

        `epoch` is that of the log when it had the serial. A daemon that is behind is asked again, as by
        `facts`; the next request is for the same daemon.
        """
        request = _request(DIGESTS, {"serials": [serial]})

        def ask() -> Any:
            found = self._client.json(request)
            _check_head(self._client.url, found["serial"], found["epoch"], serial, epoch)
            return found["digests"][str(serial)]

        digest: str | None = self._repeat(ask, epoch)
        return digest

    def _repeat(self, ask: Callable[[], Any], epoch: int | None) -> Any:
        deadline = self._deadline()
        failed: list[SourceError] = []
        while True:
            try:
                return ask()
            except RequestError as error:
                self._fail(error, failed, deadline, epoch)

    def extent(self, **query: Any) -> Mapping[str, Any]:
        """Return the extent of the selected facts."""
        found: Mapping[str, Any] = self.get(EXTENT, **self._selection, **query)
        return found

    def facts(self, *, since: int, upto: int, epoch: int | None = None, **query: Any) -> Iterator[Any]:
        """Yield record batches of the selected facts with ``since < serial <= upto``.

        `epoch` is that of the log when it had `upto`. If the response breaks off, the client resumes after
        the last received fact.
        """
        deadline = self._deadline()
        failed: list[SourceError] = []
        while True:
            try:
                for batch in self._batches(self._client, since=since, upto=upto, epoch=epoch, **query):
                    deadline, failed = self._deadline(), []
                    since = batch["serial"][len(batch) - 1].as_py()
                    query.pop("digest", None)  # It describes the start of the range only.
                    yield batch
                return
            except (RequestError, pa.ArrowInvalid, OSError, http.client.HTTPException) as error:
                self._fail(error, failed, deadline, epoch)

    def _batches(
        self, daemon: BlockingClient, *, upto: int, epoch: int | None, **query: Any
    ) -> Iterator[Any]:
        if daemon.has_several:
            found = daemon.json(_request(EXTENT, {"limit": 1, "compacted": True}))
            _check_head(daemon.url, found["head"], found.get("epoch"), upto, epoch)
        selected = {**self._selection, "checksum": False, "upto": upto, **query}
        response = daemon.stream(_request(CHANGELOG, selected), accept=ARROW)
        _check_answer(daemon.url, response.headers, upto, epoch)
        if response.headers.get_content_type() != ARROW:
            raise ConnectError("it does not send Arrow; is it a synrepl daemon?", retryable=False)
        body = _Body(response)
        with pa.ipc.open_stream(body) as stream:
            for batch in stream:
                if len(batch):
                    yield batch
        if body.has_ended:
            # A proxy may end its own answer properly when the daemon has died.
            raise ConnectError("the response ended before its end marker")
        # An unread body would keep the connection from being reused.
        response.read()

    def _deadline(self) -> float:
        return self._seconds() + self._options.retry_seconds

    def _fail(self, error: Exception, failed: list[SourceError], deadline: float, epoch: int | None) -> None:
        """Choose the daemon of the next attempt, and pause if all have failed.

        Raises an error if no retry can succeed, or the deadline has passed: the first refusal that lasts, as
        of a query that has facts which the log lacks; else that of the first daemon. That facts were trimmed
        at one daemon says nothing while another one is away. Raises `Superseded` at once.
        """
        failed.append(_source_error(self._client.url, error, epoch))
        if isinstance(failed[-1], Superseded):
            self._client.close()
            raise failed[-1] from error
        self._client.leave(error)
        if len(failed) < len(self._client.addresses.addresses):
            return
        is_final = not any(one.retryable for one in failed)
        if is_final or self._seconds() >= deadline:
            lasting = [
                one for one in failed if not one.retryable and (is_final or not isinstance(one, DataLoss))
            ]
            raise (lasting or failed)[0] from error
        failed.clear()
        self._pause(PAUSE_SECONDS)


class _Body:
    """The body of a response, for Arrow, which takes the end of a file for the end of its stream.

    It `has_ended` if more was asked for than there was: after the marker at the end of a stream nothing is.
    """

    closed = False

    def __init__(self, response: Response) -> None:
        self.has_ended = False
        self._response = response

    def read(self, size: int) -> bytes:
        data = self._response.read(size)
        self.has_ended = len(data) < size
        return data


def _source_error(url: str, error: Exception, epoch: int | None) -> SourceError:
    if not isinstance(error, HttpError):
        found = SourceError(f"no usable response from {url}: {error or type(error).__name__}")
        found.retryable = _can_recover(error)
    elif error.code == "trimmed":
        found = DataLoss(
            f"{url}: {error.message}. Facts were trimmed before they were read: set the option reader"
            " to retain facts until they are read, or failOnDataLoss=false to skip trimmed facts"
        )
    elif error.code in BEHIND and epoch is not None and error.body.get("epoch", 0) > epoch:
        found = Superseded(_superseded(url, f"{error.code}: {error.message}", error.body["epoch"]))
        found.code = error.code
    else:
        found = SourceError(f"{url} refuses the request: {error.code}: {error.message}")
        found.code, found.retryable = error.code, error.retryable
    return found


def _superseded(url: str, why: str, epoch: int) -> str:
    return (
        f"{url}: {why}. It is in epoch {epoch}: the facts that it lacks were lost when it or its primary was"
        " promoted. Begin the query anew, with another checkpointLocation"
    )


def _check_answer(url: str, headers: Message, upto: int, epoch: int | None) -> None:
    """Raise unless the log that answers had `upto`: one URL may stand for several daemons."""
    head, of = (headers.get(f"synrepl-{name}", "") for name in ("serial", "epoch"))
    if head.isdecimal():
        _check_head(url, int(head), int(of) if of.isdecimal() else None, upto, epoch)


def _check_head(url: str, head: int, head_epoch: int | None, upto: int, epoch: int | None) -> None:
    """Raise unless a log with this head has `upto`: `Superseded` if it is in a later epoch without it."""
    if head >= upto:
        return
    why = f"its log ends at serial {head}, before serial {upto}"
    if epoch is not None and head_epoch is not None and head_epoch > epoch:
        raise Superseded(_superseded(url, f"{why} of epoch {epoch}", head_epoch))
    raise ConnectError(why)


def _can_recover(error: Exception) -> bool:
    """Whether a retry can succeed: not after an error of this machine, such as a lack of memory."""
    if isinstance(error, ConnectError):
        return error.retryable
    # Arrow reports a truncated response as an error without a number.
    is_local = isinstance(error, OSError) and error.errno not in (None, *NO_ROUTE)
    return isinstance(error, BROKEN) or not is_local


def _request(route: Route, query: Mapping[str, Any]) -> HttpRequest:
    return route.request(**{name: value for name, value in query.items() if value != ""})
