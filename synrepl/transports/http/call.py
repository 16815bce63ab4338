"""One request of a route, as its handler sees it."""

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

import msgspec
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger

from synrepl.base.access import Access
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.rights import route_operation
from synrepl.base.turn_queue import TurnQueue
from synrepl.http_api.route import Route
from synrepl.replication.hooks import ReadRefusal
from synrepl.replication.serving.log_waiters import TooManyWaiting
from synrepl.replication.serving.read_gate import ReadGate
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.authorization import check
from synrepl.transports.http.shared_work import SharedWork
from synrepl.transports.http.site_context import SiteContext

T = TypeVar("T")

_checksum: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class IEndlessChangelog(Protocol):
    """Serves all that follow the changelog."""

    async def serve(self, call: "Call", query: Any) -> None:
        """Answer until the query ends or the client disconnects."""


class IApi(Protocol):
    """What the handlers of all requests share (`Api`)."""

    context: SiteContext
    queue: TurnQueue
    started_at: float
    endless: IEndlessChangelog | None
    limited_logger: LimitedLogger
    shared: SharedWork

    async def decode_large(self, decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
        """Decode a large JSON body in a thread. Raises `ApiError`."""
        ...

    def as_refusal(self, request: Any, error: Exception) -> ApiError:
        """Return the error that the client is told."""
        ...


class Call:
    """A request. `path` has the variable parts of its path, `query` its parameters and headers, by name."""

    _logger = Logger()

    def __init__(self, api: IApi, route: Route, request: Any, path: Mapping[str, str]) -> None:
        self.api = api
        self.context = api.context
        self.route = route
        self.request = request
        self.path = path
        self.query: dict[str, Any] = {}

    @property
    def access(self) -> Access:
        """The rights of the peer; None on a public route if the request was not authenticated."""
        access: Access = self.request.access
        return access

    def check_streams(self, *names: str) -> None:
        """Raises `ApiError` unless the peer may make this request for these streams, which it names."""
        check(self.access, route_operation(self.route), names)

    @property
    def read_gate(self) -> ReadGate:
        """The streams and writers that this daemon holds."""
        return self.context.publisher.read_gate

    def check_readable(self) -> None:
        """Raises `ApiError` while this daemon has no complete copy, is fenced, or is a stopped replica."""
        if (refusal := self.read_gate.unreadable()) is not None:
            raise unreadable_error(refusal, self.read_gate)

    def check_fresh(self) -> None:
        """Raises `ApiError` as `check_readable` does, and if reads are refused while this daemon is stale."""
        self.check_readable()
        if why := self.context.hooks.role.staleness():
            raise ApiError("not_ready", why)

    def check_held(self, streams: Iterable[str] = (), writers: Iterable[str] = ()) -> None:
        """Raises `ApiError` if one of these streams or writers is not held by this daemon.

        An empty response would claim that there are no facts.
        """
        if why := self.read_gate.lacks(streams, writers):
            raise self.filtered_error(why)

    def filtered_error(self, why: str) -> ApiError:
        """Make the error for a read of facts that the filter of this copy leaves out."""
        return ApiError("filtered", why, moved_to=self.read_gate.primary_address)

    def set_held_headers(self) -> None:
        """Set headers that list what this copy holds, if it is filtered, of what the peer may see."""
        held = self.read_gate.filter.narrowed(self.access.streams)
        for name, names in (
            (b"synrepl-holds-streams", held.streams),
            (b"synrepl-holds-writers", held.writers),
        ):
            if names is not None:
                self.request.setHeader(name, ",".join(sorted(names)).encode())

    async def read_your_writes(self) -> None:
        """Wait until the log reaches the query's ``min_serial``.

        Raises `ApiError` on timeout, and at the limit of waiters.
        """
        serial, log = self.query["min_serial"], self.context.log
        if not await self._wait_for(serial, self.query["timeout"]):
            why = f"serial {serial} has not arrived in time; this log is at {log.head.serial}"
            raise ApiError("not_here_yet", why, serial=serial, at=log.head.serial)

    async def next_commit(self, timeout: float) -> None:
        """Wait until the log grows, so many seconds at most. Raises `ApiError` at the limit of waiters."""
        await self._wait_for(self.context.log.head.serial + 1, timeout)

    async def _wait_for(self, serial: int, timeout: float) -> bool:
        try:
            return await self.context.publisher.waiters.wait_for(serial, timeout)
        except TooManyWaiting as error:
            raise ApiError("too_many_waiting", str(error)) from error

    @asynccontextmanager
    async def streaming(self, producer: IPushProducer) -> AsyncIterator[None]:
        """Write a response by a producer. An error after its first byte aborts the connection."""
        request = self.request
        request.registerProducer(producer, True)
        try:
            yield
        except CancelledError:
            raise
        except Exception as failure:
            if not request.startedWriting:
                request.unregisterProducer()
                raise
            if isinstance(failure, ApiError):
                self._logger.info("{route} aborted: {why}", route=self.route.path, why=failure.message)
            else:
                self._logger.failure("{route} aborted", route=self.route.path)
            disconnected = request.notifyFinish()
            # A proper end would claim that the response is complete.
            request.channel.transport.abortConnection()
            try:
                await disconnected
            except Exception as error:
                raise CancelledError from error
        else:
            request.unregisterProducer()


def unreadable_error(refusal: ReadRefusal, read_gate: ReadGate) -> ApiError:
    """Make the error for a reader that is not served. Another daemon may serve it."""
    return ApiError(
        refusal.code, refusal.message, status=503, retryable=True, moved_to=read_gate.primary_address
    )


def check_checksum(text: str) -> None:
    """Raises `ApiError` unless this is a SHA-256 checksum in hexadecimal."""
    if not _checksum.fullmatch(text):
        raise ApiError("bad_checksum", "invalid checksum: it must be 64 hexadecimal digits, in lower case")
