"""An endpoint that carries a native connection over HTTP: one endless answer down, and requests up.

It passes proxies that know nothing but HTTP/1.1. What travels are the bytes of a native connection over TCP.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from twisted.internet.address import HostnameAddress
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IConsumer,
    IProtocolFactory,
    IPushProducer,
    IStreamClientEndpoint,
    ITransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss
from zope.interface import implementer

from synrepl.base.time import Timer
from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.route import public_url
from synrepl.http_api.routes import OCTETS
from synrepl.replicas.error_codes import HANDSHAKE_REFUSALS
from synrepl.replicas.replica.conversation import RefusedByUpstream
from synrepl.replicas.routes import CONNECTION, NATIVE, NATIVE_BYTES, OFFSET
from synrepl.replicas.wire.native import refusal
from synrepl.transports.connection import STALLED_SECONDS
from synrepl.transports.credentials import Credentials
from synrepl.transports.failures import describe_error
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.http.response_body import BodyChunks

T = TypeVar("T")

PROXY_SUSPICION: Final = (
    "is there a synrepl daemon, and does a proxy before it hold back the answer until that ends"
    " (nginx: proxy_buffering)?"
)
"""What an operator should ask if the daemon accepts a connection and sends nothing."""

MAX_BYTES: Final = 64 * 1024
"""The most bytes of a request, as the route takes; and of the buffer before its producer is paused."""

PAUSE_SECONDS: Final = 0.05
"""The least time from one request to the next: what is written meanwhile is sent together. A replica
acknowledges each group of facts; a request for each would take much of the upstream's processor."""

POST_SECONDS: Final = STALLED_SECONDS + 30.0
"""Timeout of a request. Its answer waits while the upstream does not read; see `STALLED_SECONDS`."""

LAST_WORDS_SECONDS: Final = 5.0
"""How long the answer may take to bring the upstream's reason after a request failed: the two have
connections of their own, and when an upstream stops, either may be seen to end first."""

_id: Final = re.compile(r"[0-9a-f]{32,128}", re.ASCII)


@implementer(IStreamClientEndpoint)
class NativeHttpEndpoint:
    """Connects to the daemon of an HTTP client.

    `connect` fails with `RefusedByUpstream` if the daemon refuses the secret, and else with `NotConnected` or
    `RemoteProtocolError`.
    """

    def __init__(self, http: HttpClient) -> None:
        self.http = http

    def connect(self, protocolFactory: IProtocolFactory) -> "Deferred[Any]":
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> Any:
        request = NATIVE.request()
        try:
            response = await self.http.open(request)
        except HttpError as error:
            raise _convert_error(error) from error
        found = response.headers.getRawHeaders(CONNECTION) or [""]
        protocol: Any = factory.buildProtocol(_address(self.http.base_url))
        if protocol is None or not _id.fullmatch(found[0]):
            url = public_url(request.url(self.http.base_url))
            BodyChunks.of(response, url).stop()
            raise RemoteProtocolError(f"{url} opened no native connection: {PROXY_SUSPICION}")
        transport = _HttpTransport(self.http, found[0], protocol)
        protocol.makeConnection(transport)
        response.deliverBody(transport)
        return protocol


def upstream_over_http(make: Callable[..., T], reactor: Any, url: str, secret: Credentials) -> T:
    """Call `make`, which makes an upstream over an endpoint, for the daemon at this URL."""
    endpoint = NativeHttpEndpoint(HttpClient(reactor, url, secret=secret))
    # Where the secret may go is decided for the URL.
    return make(endpoint, secret=secret, is_private=lambda peer: True, suspicion=PROXY_SUSPICION)


class _Received(msgspec.Struct):
    received: int


@implementer(ITransport, IConsumer)
class _HttpTransport(Protocol):
    """The transport of a native connection, and the receiver of the answer's body.

    One request is sent at a time; a failure of one ends the connection.
    """

    disconnecting = False
    transport: Any

    def __init__(self, http: HttpClient, name: str, protocol: Any) -> None:
        self._http = http
        self._name = name
        self._protocol = protocol
        self._clock = clock = http.reactor
        self._outgoing = bytearray()
        self._sent = 0
        self._sending: Deferred[None] | None = None
        self._send_timer = Timer(clock, self._send)
        self._may_send_at = 0.0
        self._producer: IPushProducer | None = None
        self._is_producer_paused = False
        self._is_lost = False
        self._failure: ReplicationError | None = None
        """Why a request failed."""
        self._end_timer = Timer(clock, self._end)

    # -- what comes down -----------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        if self._is_lost:
            self.transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        if not self._is_lost:
            self._protocol.dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        # A proxy may send the body of unknown length as HTTP/1.0 does, up to the close of its connection.
        if reason.check(ResponseDone, PotentialDataLoss):
            self._lose(Failure(ConnectionDone()))
            return
        self._lose(Failure(NotConnected(f"the answer ended early: {describe_error(reason.value)}")))

    def pauseProducing(self) -> None:
        """Take no more of the answer."""
        if not self._is_lost:
            self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Take more of the answer."""
        if not self._is_lost:
            self.transport.resumeProducing()

    # -- what goes up --------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._is_lost or self.disconnecting:
            return
        self._outgoing += data
        if self._producer is not None and not self._is_producer_paused and len(self._outgoing) > MAX_BYTES:
            self._is_producer_paused = True
            self._producer.pauseProducing()
        self._schedule()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None

    def _schedule(self) -> None:
        if self._outgoing and self._sending is None and self._failure is None:
            self._send_timer.start(max(0.0, self._may_send_at - self._clock.seconds()))

    def _send(self) -> None:
        self._may_send_at = self._clock.seconds() + PAUSE_SECONDS
        data = bytes(self._outgoing[:MAX_BYTES])
        del self._outgoing[:MAX_BYTES]
        sending = self._sending = Deferred.fromCoroutine(self._post(self._sent, data))
        self._sent += len(data)
        sending.addCallbacks(self._was_sent, self._was_not_sent)

    async def _post(self, offset: int, data: bytes) -> None:
        answer = await self._http.call(
            NATIVE_BYTES.request(),
            _Received,
            body=data,
            headers={"content-type": OCTETS, CONNECTION: self._name, OFFSET: str(offset)},
            timeout=POST_SECONDS,
        )
        if answer.received != offset + len(data):
            raise RemoteProtocolError(
                f"{public_url(self._http.base_url)} has received {answer.received} bytes of a native"
                f" connection, and not {offset + len(data)}"
            )

    def _was_sent(self, _: object) -> None:
        self._sending = None
        if self._is_producer_paused and len(self._outgoing) <= MAX_BYTES:
            self._is_producer_paused = False
            if self._producer is not None:
                self._producer.resumeProducing()
        self._schedule()
        self._end_if_sent()

    def _was_not_sent(self, failure: Failure) -> None:
        self._sending = None
        if self._is_lost:
            return
        error: Any = failure.value
        self._failure = error if isinstance(error, ReplicationError) else NotConnected(str(error))
        self._end_timer.restart(0 if _is_final(error) else LAST_WORDS_SECONDS)

    # -- the end -------------------------------------------------------------------------------------------

    def loseConnection(self) -> None:
        """Close, once what was written is sent."""
        if not self.disconnecting:
            self.disconnecting = True
            self._end_if_sent()

    def abortConnection(self) -> None:
        """Close at once."""
        self._end()

    def _end_if_sent(self) -> None:
        is_sent = self._sending is None and not self._outgoing
        if self.disconnecting and (is_sent or self._failure is not None) and not self._is_lost:
            # Later: the protocol has not finished with what it does now.
            self._end_timer.start(0)

    def _end(self) -> None:
        self._lose(Failure(self._failure or ConnectionDone()))

    def _lose(self, reason: Failure) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._send_timer.stop()
        self._end_timer.stop()
        if self._sending is not None:
            self._sending.cancel()
        if self.transport is not None:
            self.transport.loseConnection()
        self._protocol.connectionLost(reason)
        Deferred.fromCoroutine(self._http.stop())

    # -- addresses -----------------------------------------------------------------------------------------

    def getPeer(self) -> HostnameAddress:
        """The address in the URL."""
        return _address(self._http.base_url)

    def getHost(self) -> HostnameAddress:
        """No address: each request has its own connection."""
        return HostnameAddress(b"", 0)


def _is_final(error: Exception) -> bool:
    """Whether the upstream has said what is wrong with a request: its answer has no other reason to bring."""
    if isinstance(error, HttpError):
        return error.status < 500 and error.code != "no_connection"
    return isinstance(error, RemoteProtocolError)


def _address(url: str) -> HostnameAddress:
    parts = urlsplit(url)
    return HostnameAddress((parts.hostname or "").encode(), parts.port or 0)


def _convert_error(error: HttpError) -> ReplicationError:
    """Convert an error response: to a refusal of the replica, or else to a connection or protocol error.

    Only the refusals of a handshake are believed here: nothing authenticates an answer of HTTP, and others
    would stop the replica.
    """
    code = {"unauthorized": "no_rights"}.get(error.code, error.code)
    if code in HANDSHAKE_REFUSALS:
        return RefusedByUpstream(refusal(code, error.message))
    return RemoteProtocolError(str(error)) if error.status < 500 else NotConnected(str(error))
