"""A request whose body is bounded, and whose failures tell nothing about our code."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from twisted.python.failure import Failure
from twisted.web.http import RESPONSES, HTTPChannel
from twisted.web.server import Request, Site

from synrepl.ports.access import Access
from synrepl.ports.interfaces import IClock
from synrepl.transports.http.api_error import INTERNAL, ApiError, ours
from synrepl.transports.http.authorization import AccessCheck

if TYPE_CHECKING:
    # A daemon without files need not have all of this in memory.
    from synrepl.replication.files import Files
    from synrepl.transports.http.uploads import Upload

__all__ = ["ApiRequest", "ApiSite"]

LENGTH: Final = b"content-length:"
MAX_LENGTH_LINE: Final = 64
"""Bytes of such a line: 2**63 has 19 digits."""

LINGER_SECONDS: Final = 10.0
"""How long a client that was refused may go on sending before the connection is cut under it."""


class ApiChannel(HTTPChannel):
    """A connection; Python raises for a length of 5,000 digits, and Twisted would close without an answer."""

    def headerReceived(self, line: bytes) -> bool:
        if len(line) > MAX_LENGTH_LINE and line[: len(LENGTH)].lower() == LENGTH:
            assert self.transport is not None
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            self.loseConnection()
            return False
        accepted: bool = super().headerReceived(line)
        return accepted


class ApiSite(Site):
    """A site that bounds bodies, writes no access log and shows no traceback.

    `clock` does what Twisted's site wants a reactor for: time-outs. A body may have `max_body` bytes, unless
    it is a file, which may have `max_file` and goes to `files` while it comes in.
    """

    displayTracebacks = False
    noisy = False
    protocol = ApiChannel  # type: ignore[assignment]  # the stubs know only the class that speaks HTTP/2 too

    def __init__(
        self,
        resource: Any,
        *,
        clock: IClock,
        guard: AccessCheck,
        max_body: int,
        files: "Files | None" = None,
        max_file: int = 0,
    ) -> None:
        super().__init__(
            resource, requestFactory=ApiRequest, reactor=clock, parsePOSTFormSubmission=False, logPath=None
        )
        self.admitted: set[ApiRequest] = set()
        self.clock = clock
        self.guard = guard
        self.max_body = max_body
        self.files = files
        self.max_file = max_file

    def recheck(self) -> None:
        """End the requests of peers whose key was revoked while they are answered."""
        for request in list(self.admitted):
            try:
                self.guard.access(request)
            except ApiError:
                request.channel.transport.abortConnection()

    def logPrefix(self) -> str:
        """What Twisted calls this listener in the log."""
        return "http"

    def log(self, request: Any) -> None:
        """No access log: there are metrics for that."""

    def files_for(self, method: bytes, uri: bytes) -> "Files | None":
        """Where the body of such a request goes, if it is a file."""
        if self.files is None:
            return None
        from synrepl.transports.http.uploads import uploaded

        return self.files if uploaded(method, uri) else None

    @staticmethod
    def upload(files: "Files", transport: Any, failed: Callable[[ApiError], None]) -> "Upload":
        """Something to write a file to; `failed` is called if that is in vain."""
        from synrepl.transports.http.uploads import Upload

        return Upload(files, transport, failed)


class ApiRequest(Request):
    """Refuses a body over the site's bound as soon as it knows of it, and holds nothing of such a one.

    Nor does it hold the body of a peer that may not ask.
    """

    access: Access | None = None
    """What the peer may do, as far as it may do anything."""

    _limit = 0
    _room = 0
    _is_received = False
    _drops = False
    _is_refused = False
    _linger: Any = None
    _admitted: "set[ApiRequest]" = set()
    channel: Any
    content: Any

    def gotLength(self, length: int | None) -> None:
        site: ApiSite = self.channel.site
        # The channel knows these, and tells the request only when all of it is here.
        self.method, self.client = self.channel._command, self.channel.getPeer()
        try:
            self.access = site.guard.access(self)
        except ApiError:
            self._drops = True
        else:
            self._admitted = site.admitted
            site.admitted.add(self)
        files = site.files_for(self.channel._command, self.channel._path)
        self._room = self._limit = site.max_body if files is None else site.max_file
        if length is not None and length > self._limit:
            self._refuse_body(self._too_large())
        if files is None or self._is_refused or self._drops:
            super().gotLength(0 if self._is_refused or self._drops else length)
        else:
            self.content = site.upload(files, self.channel.transport, self._upload_failed)

    def handleContentChunk(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._room -= len(data)
        if self._room < 0:
            self.content.truncate(0)
            self._refuse_body(self._too_large())
        elif not self._drops:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        self._is_received = True
        if self._is_refused:
            self.channel.loseConnection()
        else:
            super().requestReceived(command, path, version)

    def process(self) -> None:
        """Answer what Klein would answer in plain text, or with a traceback in the log."""
        try:
            self.method.decode("ascii")
            unquote_to_bytes(self.path).decode("utf-8")
            # As Werkzeug does, which answers what fails with 500.
            (self.getRequestHostname() or b"").decode("utf-8").partition(":")[0].encode("idna")
        except UnicodeError:
            self.prepath, self.postpath = [], []
            self.site = self.channel.site
            why = "the method and the path must be UTF-8, and Host the name of a machine"
            self._answer(ApiError(400, "bad_request", why))
        else:
            super().process()

    def processingFailed(self, reason: Failure) -> Failure:
        self._log.failure("a request failed", failure=reason)
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
        if self._linger is not None and self._linger.active():
            self._linger.cancel()
        super().connectionLost(reason)

    def _answer(self, refused: ApiError) -> None:
        body = ours(refused)
        self.setResponseCode(refused.status)
        self.setHeader(b"Content-Type", b"application/json")
        self.setHeader(b"Content-Length", b"%d" % len(body))
        self.write(body)
        self.finish()

    def _too_large(self) -> ApiError:
        return ApiError(413, "too_large", f"a body may have {self._limit} bytes")

    def _upload_failed(self, refused: ApiError) -> None:
        """There is no point in sending the rest."""
        if self.channel is not None and not self._is_received and not self._is_refused:
            self._refuse_body(refused)

    def _refuse_body(self, refused: ApiError) -> None:
        """Say so at once, then let what is under way run out: closing on it would lose the answer."""
        site: ApiSite = self.channel.site
        self._is_refused = True
        # Or the channel would tell the client to go on.
        self.requestHeaders.removeHeader(b"expect")
        body = ours(refused)
        self.channel.transport.write(
            b"HTTP/1.1 %d %b\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (refused.status, RESPONSES[refused.status], len(body), body)
        )
        self._linger = site.clock.callLater(LINGER_SECONDS, self.channel.transport.abortConnection)
