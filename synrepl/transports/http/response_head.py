"""Client connections over HTTP/1.1 that bound the head of a response; Twisted does not."""

from typing import Any, Final

from twisted.logger import ILogObserver, Logger
from twisted.python.failure import Failure
from twisted.web._newclient import HTTP11ClientProtocol
from twisted.web.client import _HTTP11ClientFactory
from zope.interface import implementer

from synrepl.errors import RemoteProtocolError

MAX_HEAD_BYTES: Final = 64 * 1024
"""The most bytes before the body of a response: its headers, and any interim responses (1xx) before it."""


@implementer(ILogObserver)
def _ignore(event: Any) -> None:
    """Drop an event."""


_silent: Final = Logger(observer=_ignore)


class BoundedHeadProtocol(HTTP11ClientProtocol):
    """A connection that closes once the head of a response takes more than `MAX_HEAD_BYTES`.

    The request then fails with `RemoteProtocolError` as its reason. Interim responses are not logged: a
    server can send many.
    """

    _head_room = 0

    def request(self, request: Any) -> Any:
        """Send a request. The Deferred fires with its response."""
        self._head_room = MAX_HEAD_BYTES
        sent = super().request(request)
        if self._parser is not None:
            self._parser._log = _silent
        return sent

    def dataReceived(self, data: bytes) -> None:
        if self._is_in_head:
            head, data = data[: self._head_room], data[self._head_room :]
            self._head_room -= len(head)
            super().dataReceived(head)
            if self._is_in_head and not self._head_room:
                why = f"the head of the response has more than {MAX_HEAD_BYTES} bytes"
                self._giveUp(Failure(RemoteProtocolError(why)))
                return
        if data:
            super().dataReceived(data)

    @property
    def _is_in_head(self) -> bool:
        return self._parser is not None and self._parser.bodyDecoder is None


class BoundedHeadFactory(_HTTP11ClientFactory):
    """Makes these connections for a pool, without a log line for each."""

    noisy = False

    def buildProtocol(self, addr: Any) -> BoundedHeadProtocol:
        """Return the protocol of a new connection."""
        return BoundedHeadProtocol(self._quiescentCallback)
