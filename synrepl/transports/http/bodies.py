"""A request whose body is bounded, and whose failures tell nothing about our code."""

from typing import Any, Final
from urllib.parse import unquote_to_bytes

from twisted.python.failure import Failure
from twisted.web.server import Request, Site

from synrepl.ports.interfaces import IClock
from synrepl.transports.http.answers import INTERNAL, Refused, ours
from synrepl.transports.http.authorization import Guard

__all__ = ["ApiRequest", "ApiSite"]

LINGER_SECONDS: Final = 10.0
"""How long a client that was refused may go on sending before the connection is cut under it."""


class ApiSite(Site):
    """A site that bounds bodies, writes no access log and shows no traceback.

    `clock` does what Twisted's site wants a reactor for: time-outs.
    """

    displayTracebacks = False

    def __init__(self, resource: Any, *, clock: IClock, guard: Guard, max_body: int) -> None:
        super().__init__(
            resource, requestFactory=ApiRequest, reactor=clock, parsePOSTFormSubmission=False, logPath=None
        )
        self.clock = clock
        self.guard = guard
        self.max_body = max_body

    def log(self, request: Any) -> None:
        """No access log: there are metrics for that."""


class ApiRequest(Request):
    """Refuses a body over the site's bound as soon as it knows of it, and holds nothing of such a one.

    Nor does it hold the body of somebody who may not ask.
    """

    _room = 0
    _drops = False
    _is_refused = False
    _linger: Any = None
    channel: Any
    content: Any

    def gotLength(self, length: int | None) -> None:
        site: ApiSite = self.channel.site
        self._room = site.max_body
        self._drops = not site.guard.allows(self.requestHeaders)
        if length is not None and length > site.max_body:
            self._refuse_body(site)
        super().gotLength(0 if self._is_refused or self._drops else length)

    def handleContentChunk(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._room -= len(data)
        if self._room < 0:
            self.content.truncate(0)
            self._refuse_body(self.channel.site)
        elif not self._drops:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        if self._is_refused:
            self.channel.loseConnection()
        else:
            super().requestReceived(command, path, version)

    def process(self) -> None:
        """Answer what Klein would answer in plain text, or with a traceback in the log."""
        try:
            self.method.decode("ascii")
            unquote_to_bytes(self.path).decode("utf-8")
            (self.getRequestHostname() or b"").decode("utf-8")
        except UnicodeDecodeError:
            self.prepath, self.postpath = [], []
            self.site = self.channel.site
            self._answer(Refused(400, "bad_request", "the method, the path and Host must be UTF-8"))
        else:
            super().process()

    def processingFailed(self, reason: Failure) -> Failure:
        self._log.failure("a request failed", failure=reason)
        if not self.startedWriting:
            self._answer(INTERNAL)
        elif self.channel is not None:
            self.channel.transport.abortConnection()
        return reason

    def connectionLost(self, reason: Failure) -> None:
        if self._linger is not None and self._linger.active():
            self._linger.cancel()
        super().connectionLost(reason)

    def _answer(self, refused: Refused) -> None:
        body = ours(refused)
        self.setResponseCode(refused.status)
        self.setHeader(b"Content-Type", b"application/json")
        self.setHeader(b"Content-Length", b"%d" % len(body))
        self.write(body)
        self.finish()

    def _refuse_body(self, site: ApiSite) -> None:
        """Say so at once, then let what is under way run out: closing on it would lose the answer."""
        self._is_refused = True
        # Or the channel would tell the client to go on.
        self.requestHeaders.removeHeader(b"expect")
        body = ours(Refused(413, "too_large", f"a body may have {site.max_body} bytes"))
        self.channel.transport.write(
            b"HTTP/1.1 413 Request Entity Too Large\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        self._linger = site.clock.callLater(LINGER_SECONDS, self.channel.transport.abortConnection)
