"""Handlers of native connections over HTTP: one endless answer down to a replica, and requests up from it.

The bytes are those of a native connection over TCP, and so are the handshake, the limits and the timeouts:
only what carries the bytes is of this module. A replica proves its secret to HTTP, and in the handshake.
"""

import secrets
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IConsumer, IPushProducer, ITransport
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.base.access import Access
from synrepl.base.gate import Gate
from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.http_api.routes import OCTETS
from synrepl.replicas import routes
from synrepl.replicas.http.served_replicas import replicas_of
from synrepl.replicas.relay.hello import RelayHello
from synrepl.replicas.routes import CONNECTION, NATIVE_BYTES, OFFSET
from synrepl.transports.connection import ReplicationProtocol
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles
from synrepl.transports.http.headers import forbid_buffering
from synrepl.wire.dialect import NATIVE
from synrepl.wire.grammar import SERVER
from synrepl.wire.session import Session

MAX_CONNECTIONS: Final = 10_000
"""The most native connections over HTTP; the limit of the listener is reached earlier if it is lower."""

ID_BYTES: Final = 32
"""The random bytes in the id of a connection. Whoever has the id and the key can send on the connection."""


class ReceivedAnswer(msgspec.Struct, frozen=True):
    """How many bytes of a native connection were received, from its start on."""

    received: int


@handles(routes.NATIVE)
async def connect(call: Call) -> None:
    """Open a native connection, and write what it sends until it is closed, or its peer disconnects."""
    replicas, context = replicas_of(call), call.context
    transports = replicas.native_transports
    if len(transports) >= MAX_CONNECTIONS:
        why = f"this daemon has {MAX_CONNECTIONS} native connections over HTTP, its limit: retry later"
        raise ApiError("out_of_descriptors", why)
    session = Session(
        SERVER,
        NATIVE,
        name=context.settings.server_name_of(context.log.notes),
        seconds=context.clock.seconds,
        keepalive=context.settings.keepalive,
    )
    protocol = ReplicationProtocol(
        session,
        RelayHello(replicas.registry).serve,
        context.clock,
        context.metrics,
        logger=call.api.limited_logger,
        queue=call.api.queue,
    )
    transport = _HttpTransport(call.request, call.access, protocol, context.clock)
    name = secrets.token_hex(ID_BYTES)
    call.request.setHeader(CONNECTION.encode(), name.encode())
    call.request.setHeader(b"content-type", OCTETS.encode())
    forbid_buffering(call.request)
    call.request.write(b"")
    transports[name] = transport
    try:
        await transport.serve()
    finally:
        del transports[name]


@handles(NATIVE_BYTES)
async def receive(call: Call, body: bytes) -> ReceivedAnswer:
    """Pass bytes on to a connection, and answer once they are handled: meanwhile the replica sends no more.

    Bytes that were received before are not handled again: a client or a proxy has repeated the request.
    """
    transport = replicas_of(call).native_transports.get(call.query[CONNECTION] or "")
    if transport is None or transport.access != call.access:
        raise ApiError("no_connection", f"no native connection of this key has the id in {CONNECTION}")
    await transport.receive(call.query[OFFSET], body)
    return ReceivedAnswer(transport.received)


@implementer(ITransport, IConsumer)
class _HttpTransport:
    """The transport of a native connection: writes to the answer of a request, and reads bodies of others.

    It is no `ISSLTransport`, so that records prove the bytes also where TLS ends at a proxy. `access` is that
    of the peer that opened the connection; others do not find it.
    """

    disconnecting = False

    def __init__(self, request: Any, access: Access, protocol: ReplicationProtocol, clock: IClock) -> None:
        self.access = access
        self.received = 0
        """How many bytes came from the peer."""
        self._request = request
        # Nothing else is served on it, so it ends with this: else it would wait for another request.
        request.setHeader(b"connection", b"close")
        self._protocol = protocol
        self._is_open = True
        self._closed: Deferred[None] = Deferred()
        self._closing = Timer(clock, lambda: self._closed.callback(None))
        self._reading = Gate()
        """Open while all received bytes are handled, and more may come."""

    async def serve(self) -> None:
        """Connect the protocol, and wait until it or its peer closes the connection."""
        try:
            self._protocol.makeConnection(self)
            await self._closed
        finally:
            self._is_open = False
            self._closing.stop()
            self.unregisterProducer()
            self._reading.open()
            self._protocol.connectionLost(Failure(ConnectionDone()))

    async def receive(self, offset: int, data: bytes) -> None:
        """Handle bytes that come after `offset` others. Raises `ApiError` unless these are the next ones."""
        if offset + len(data) > self.received:
            if offset != self.received:
                why = f"{self.received} bytes were received before, and not {offset}"
                raise ApiError("bad_offset", why)
            if not self._reading.is_open:
                raise ApiError("bad_offset", "the bytes before these are not handled yet")
            self.received += len(data)
            try:
                self._protocol.dataReceived(data)
            except Exception:
                # Twisted does the same with other transports.
                self.abortConnection()
                raise
        await self._reading.wait_open()

    @property
    def _channel(self) -> Any:
        """The HTTP connection of the request; None once the request has ended."""
        return getattr(self._request, "channel", None)

    # -- ITransport ----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._is_open and not self.disconnecting:
            self._request.write(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        # Later: the protocol has not finished with what it does now.
        if self._is_open and not self.disconnecting:
            self.disconnecting = True
            self._closing.start(0)

    def abortConnection(self) -> None:
        """Close at once; what was written may be lost."""
        if self._channel is not None:
            self._channel.transport.abortConnection()

    def getPeer(self) -> Any:
        return self._request.getClientAddress()

    def getHost(self) -> Any:
        return self._request.getHost()

    def getPeerCertificate(self) -> Any:
        """The certificate of the peer's TLS connection; None without one."""
        get = getattr(getattr(self._channel, "transport", None), "getPeerCertificate", None)
        return None if get is None else get()

    # -- the peer's bytes ----------------------------------------------------------------------------------

    def pauseProducing(self) -> None:
        """Take no more bytes from the peer: requests with more are not answered."""
        if self._is_open:
            self._reading.close()

    def resumeProducing(self) -> None:
        """Take bytes from the peer again."""
        self._reading.open()

    # -- IConsumer -----------------------------------------------------------------------------------------

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._request.registerProducer(_Producer(producer), streaming)

    def unregisterProducer(self) -> None:
        if self._request.producer is not None and self._channel is not None:
            self._request.unregisterProducer()


@implementer(IPushProducer)
class _Producer:
    """Passes on whether the answer accepts bytes."""

    def __init__(self, producer: IPushProducer) -> None:
        self.pauseProducing = producer.pauseProducing
        self.resumeProducing = producer.resumeProducing

    def stopProducing(self) -> None:
        """Do nothing: the handler is cancelled when the client disconnects."""
