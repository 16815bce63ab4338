"""The HTTP site of a daemon, and the parts of the daemon that it serves.

Requests have bounded bodies, and error responses no internal details.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from twisted.python.failure import Failure
from twisted.web.http import RESPONSES, HTTPChannel
from twisted.web.server import Request, Site

from synrepl.files.files import Files
from synrepl.ports.access import Access, Keyring
from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.ports.time import Timer
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.publisher import Publisher
from synrepl.replication.relay.registry import ReplicaRegistry
from synrepl.replication.roles.manager import RoleManager
from synrepl.replication.status import StatusSource
from synrepl.replication.write_forwarder import WriteForwarder
from synrepl.storage.log import Log
from synrepl.streams.table import StreamTable
from synrepl.transports.http.api_error import INTERNAL, ApiError, api_body
from synrepl.transports.http.authorization import AccessCheck
from synrepl.transports.http.uploads import Upload, is_upload
from synrepl.transports.settings import ApiSettings

LENGTH: Final = b"content-length:"
MAX_LENGTH_LINE: Final = 64
"""Limit for the Content-Length line in bytes; its number has 19 digits at most."""

LINGER_SECONDS: Final = 10.0
"""Time that a refused client may continue to send before its connection is aborted."""


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts, around a started log.

    `ingest` brings facts into the log; `is_followed` tells whether those of a stream come from a table.
    `replication` makes the daemon a primary or replica. `clock` is the reactor, except in tests. Catch-up has
    the row shapes of `settings.dialect`; without one, those of the worker's release if it is known, or else
    the newest. `files` must be started. `write_forwarder` takes facts that are posted to a replica.
    """

    log: Log
    publisher: Publisher
    table: StreamTable
    metrics: Metrics
    clock: IClock
    settings: ApiSettings
    ingest: StatusSource | None = None
    is_followed: Callable[[str], bool] = lambda stream: False
    replication: StatusSource | None = None
    files: Files | None = None
    write_forwarder: WriteForwarder | None = None
    roles: RoleManager | None = None
    relays: ReplicaRegistry | None = None
    declared: DeclaredStreams | None = None

    def not_ready_reasons(self) -> list[str]:
        """Return the reasons this daemon is not ready: of the log, of its role, then of its sources."""
        is_healthy, why = self.log.healthy
        reasons = [] if is_healthy else [f"log: {why}"]
        for part in (self.replication, self.ingest):
            if part is not None:
                reasons += [reason for reason, _ in part.not_ready_reasons()]
        return reasons


class ApiChannel(HTTPChannel):
    """A connection that refuses overlong Content-Length values.

    Python raises for a number of 5,000 digits, and Twisted would close without a response.
    """

    def headerReceived(self, line: bytes) -> bool:
        if len(line) > MAX_LENGTH_LINE and line[: len(LENGTH)].lower() == LENGTH:
            assert self.transport is not None
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            self.loseConnection()
            return False
        accepted: bool = super().headerReceived(line)
        return accepted


class ApiSite(Site):
    """A site that bounds bodies, writes no access log and shows no tracebacks.

    `services` has the clock for timeouts, the settings with the limits of bodies and of uploaded files, and
    the store that uploaded files are streamed to.
    """

    displayTracebacks = False
    noisy = False
    protocol = ApiChannel  # type: ignore[assignment]  # the stubs know only the class that speaks HTTP/2 too

    def __init__(self, resource: Any, services: Services, guard: AccessCheck) -> None:
        super().__init__(
            resource,
            requestFactory=ApiRequest,
            reactor=services.clock,
            parsePOSTFormSubmission=False,
            logPath=None,
        )
        self.admitted: set[ApiRequest] = set()
        self.services = services
        self.guard = guard

    def recheck(self) -> None:
        """Abort the requests of peers whose key was revoked."""
        for request in list(self.admitted):
            try:
                self.guard.access(request)
            except ApiError:
                request.channel.transport.abortConnection()

    def logPrefix(self) -> str:
        """The name of this listener in Twisted's log messages."""
        return "http"

    def log(self, request: Any) -> None:
        """Write no access log."""


class ApiRequest(Request):
    """A request that refuses a body as soon as it is known to exceed the site's limit.

    The rest of such a body, and the whole body of an unauthenticated peer, is dropped as it arrives.
    """

    access: Access | None = None
    """Rights of the peer; None before authentication, and if that fails."""

    _limit = 0
    _room = 0
    _is_complete = False
    _is_dropping = False
    _is_refused = False
    _linger: Timer | None = None
    _admitted: "set[ApiRequest]" = set()
    channel: Any
    content: Any

    def gotLength(self, length: int | None) -> None:
        site: ApiSite = self.channel.site
        # The channel has these already, and sets them only when the request is complete.
        self.method, self.client = self.channel._command, self.channel.getPeer()
        try:
            self.access = site.guard.access(self)
        except ApiError:
            self._is_dropping = True
        else:
            self._admitted = site.admitted
            site.admitted.add(self)
        services, settings = site.services, site.services.settings
        files = services.files if is_upload(self.method, self.channel._path) else None
        self._room = self._limit = settings.max_body_bytes if files is None else settings.max_file_bytes
        if length is not None and length > self._limit:
            self._refuse_body(self._too_large())
        if files is None or self._is_refused or self._is_dropping:
            super().gotLength(0 if self._is_refused or self._is_dropping else length)
        else:
            self.content = Upload(files, self.channel.transport, self._upload_failed)

    def handleContentChunk(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._room -= len(data)
        if self._room < 0:
            self.content.truncate(0)
            self._refuse_body(self._too_large())
        elif not self._is_dropping:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        self._is_complete = True
        if self._is_refused:
            self.channel.loseConnection()
        else:
            super().requestReceived(command, path, version)

    def process(self) -> None:
        """Handle the request, unless its method, path or Host is malformed."""
        try:
            self.method.decode("ascii")
            unquote_to_bytes(self.path).decode("utf-8")
            (self.getRequestHostname() or b"").decode("utf-8").partition(":")[0].encode("idna")
        except UnicodeError:
            self.prepath, self.postpath = [], []
            self.site = self.channel.site
            why = "the method must be ASCII, the path UTF-8, and Host a host name"
            self._answer(ApiError("bad_request", why))
        else:
            super().process()

    def processingFailed(self, reason: Failure) -> Failure:
        self._log.failure("a request for {uri} failed", failure=reason, uri=self.uri)
        if not self.startedWriting:
            self._answer(INTERNAL)
        elif self.channel is not None:
            self.channel.transport.abortConnection()
        return reason

    def finish(self) -> None:
        self._admitted.discard(self)
        super().finish()

    def connectionLost(self, reason: Failure) -> None:
        self._admitted.discard(self)
        if self._linger is not None:
            self._linger.stop()
        super().connectionLost(reason)

    def _answer(self, error: ApiError) -> None:
        body = api_body(error)
        self.setResponseCode(error.status)
        self.setHeader(b"Content-Type", b"application/json")
        self.setHeader(b"Content-Length", b"%d" % len(body))
        self.write(body)
        self.finish()

    def _too_large(self) -> ApiError:
        return ApiError("too_large", f"the body is longer than the limit of {self._limit} bytes")

    def _upload_failed(self, error: ApiError) -> None:
        if self.channel is not None and not self._is_complete and not self._is_refused:
            self._refuse_body(error)

    def _refuse_body(self, error: ApiError) -> None:
        """Send the error at once, and let the client finish sending: a close would lose the response."""
        site: ApiSite = self.channel.site
        self._is_refused = True
        # Otherwise the channel would send 100 Continue.
        self.requestHeaders.removeHeader(b"expect")
        body = api_body(error)
        self.channel.transport.write(
            b"HTTP/1.1 %d %b\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (error.status, RESPONSES[error.status], len(body), body)
        )
        self._linger = Timer(site.services.clock, self.channel.transport.abortConnection)
        self._linger.start(LINGER_SECONDS)


def make_site(services: Services, *, keys: Keyring | None = None) -> ApiSite:
    """Make a site that serves these services.

    With `keys`, every route with a right needs one of them, as ``Authorization: Bearer`` or as a certificate.
    Without keys, requests for host names of other sites are refused (`AccessCheck`).
    """
    from synrepl.transports.http.api import Api  # it imports this module

    guard = AccessCheck(
        keys if keys is not None else Keyring(), lambda: services.settings.hosts(services.log.notes)
    )
    return ApiSite(Api(services, guard), services, guard)
