"""Endpoints with TLS, which connect a protocol after the handshake and report why a handshake failed.

::

    tls:9092:interface=0.0.0.0:certificate=/etc/synrepl/cert.pem:privateKey=/etc/synrepl/key.pem
    tls:9092:...:trustRoots=/etc/synrepl/clients-ca.pem     clients must send a certificate of this CA
    tls:log.example.org:9092:trustRoots=/etc/synrepl/ca.pem:certificate=...:privateKey=...

``trustRoots``, ``certificate`` and ``privateKey`` name PEM files. Without ``trustRoots`` a client trusts the
CAs of the system. The server's certificate must be for the host of the string, or for ``hostname=``.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec.structs import asdict
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectError, ConnectionLost
from twisted.internet.interfaces import (
    IAddress,
    IHandshakeListener,
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import directlyProvides, implementer, providedBy

from synrepl.base.time import Timer
from synrepl.errors import ConfigError
from synrepl.transports.endpoints import join
from synrepl.transports.failures import address_text
from synrepl.transports.limits import LINGERING, MAX_CONNECTIONS, ConnectionLimit
from synrepl.transports.tls import ClientTls, ServerTls, TlsFiles, is_permanent
from synrepl.wire.text import printable

HANDSHAKE_SECONDS: Final = 30.0


class _TlsError(Exception):
    """TLS failed; the text is the reason. `code` is ``tls`` if no retry can succeed."""

    def __init__(self, why: str, code: str = "") -> None:
        Exception.__init__(self, why)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class TlsFailed(_TlsError, ConnectError):
    """The handshake failed."""


class TlsLost(_TlsError, ConnectionLost):
    """TLS failed after the handshake: with TLS 1.3 a server refuses clients then."""


@implementer(IHandshakeListener)
class _TlsProtocol(ProtocolWrapper):
    """Wraps a protocol, which is connected when the handshake is complete."""

    factory: "_TlsFactory"
    transport: Any
    _timer: Timer
    _is_connected = False

    def makeConnection(self, transport: Any) -> None:
        directlyProvides(self, providedBy(transport))
        Protocol.makeConnection(self, transport)
        self.factory.registerProtocol(self)
        self._timer = Timer(self.factory.clock, self.transport.abortConnection)
        self._timer.start(HANDSHAKE_SECONDS)

    def handshakeCompleted(self) -> None:
        self._timer.stop()
        self._is_connected = True
        transport: Any = self
        self.wrappedProtocol.makeConnection(transport)
        self.factory.on_done(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if reason.check(SSL.Error):
            error: Any = reason.value
            why, code = self.factory.explain(self.transport, error), "tls" if is_permanent(error) else ""
            reason = Failure((TlsLost if self._is_connected else TlsFailed)(why, code))
        if self._is_connected:
            super().connectionLost(reason)
            return
        self._timer.stop()
        self.factory.unregisterProtocol(self)
        self.factory.on_failed(self, reason)


@dataclass(eq=False, repr=False)
class _TlsFactory(WrappingFactory):
    """Wraps the protocols of a factory.

    `explain` describes why a connection failed. `on_done` is called with a connection when its handshake is
    complete, `on_failed` if it is lost before.
    """

    wrapped: IProtocolFactory
    clock: Any
    _: KW_ONLY
    explain: Callable[[Any, Any], str]
    on_failed: Callable[[_TlsProtocol, Failure], None]
    on_done: Callable[[_TlsProtocol], None] = lambda protocol: None
    protocol = _TlsProtocol
    noisy = False

    def __post_init__(self) -> None:
        super().__init__(self.wrapped)


class _LimitedTls(TLSMemoryBIOFactory):
    """TLS for a limited number of connections, those that are in the handshake included.

    The wrapped factory knows a connection only when its handshake is complete.
    """

    def __init__(self, tls: ServerTls, wrapped: IProtocolFactory, clock: Any, most: int) -> None:
        super().__init__(tls, False, wrapped, clock)
        self._limit = ConnectionLimit(most, clock)

    def buildProtocol(self, addr: IAddress | None) -> Any:
        return self._limit.reject(addr, len(self.protocols)) or super().buildProtocol(addr)

    def stopFactory(self) -> None:
        self._limit.stop()
        super().stopFactory()


@implementer(IStreamServerEndpoint)
@dataclass(eq=False)
class TlsServerEndpoint:
    """Listens with TLS on a plain endpoint. `tls.reload` reads its files again.

    Beyond `most` connections, in the handshake or after it, it serves `LINGERING` more, which the factory may
    tell why it rejects them. Further ones are closed.
    """

    plain: IStreamServerEndpoint
    tls: ServerTls
    reactor: Any
    most: int = MAX_CONNECTIONS
    _logger: ClassVar = Logger()

    def listen(self, factory: IProtocolFactory) -> "Deferred[IListeningPort]":
        inner = _TlsFactory(
            factory,
            self.reactor,
            explain=lambda transport, error: self.tls.explain(transport.getHandle(), error),
            on_failed=self._refused,
        )
        outer = _LimitedTls(self.tls, inner, self.reactor, self.most + LINGERING)
        listening: Deferred[IListeningPort] = self.plain.listen(outer)
        return listening

    def _refused(self, protocol: _TlsProtocol, reason: Failure) -> None:
        if reason.check(TlsFailed):
            self._logger.warn(
                "refused {peer}: {why}",
                peer=address_text(protocol.transport.getPeer()),
                why=printable(str(reason.value), limit=500),
            )


@implementer(IStreamClientEndpoint)
@dataclass(eq=False)
class TlsClientEndpoint:
    """Connects with TLS through a plain endpoint, to a server with a certificate for `host`.

    The files are read for each connection, so that new certificates need no restart.
    """

    plain: IStreamClientEndpoint
    files: TlsFiles
    host: str
    reactor: Any

    def connect(self, factory: IProtocolFactory) -> "Deferred[IProtocol]":
        return Deferred.fromCoroutine(self._connect(factory))

    async def _connect(self, factory: IProtocolFactory) -> Any:
        try:
            tls = ClientTls(self.files, self.host)
        except ConfigError as error:
            raise TlsFailed(str(error), code="tls") from error
        done: Deferred[Any] = Deferred()

        def failed(protocol: _TlsProtocol, reason: Failure) -> None:
            if not done.called:
                lost = TlsFailed("TLS: the connection was lost during the handshake")
                done.errback(reason if reason.check(TlsFailed) else Failure(lost))

        inner = _TlsFactory(
            factory,
            self.reactor,
            explain=lambda transport, error: tls.explain(error),
            on_failed=failed,
            on_done=lambda protocol: done.callback(protocol.wrappedProtocol),
        )
        outer: Any = await self.plain.connect(TLSMemoryBIOFactory(tls, True, inner, self.reactor))
        try:
            return await done
        except BaseException:
            outer.transport.abortConnection()
            raise


def server_endpoint(reactor: Any, words: Sequence[str], named: dict[str, str]) -> TlsServerEndpoint:
    """Make the endpoint for the arguments of a string. Raises `ConfigError` for missing or bad files."""
    files = _take_files(named)
    if files.cert_file is None or files.key_file is None:
        raise ConfigError("tls: needs certificate= and privateKey=, the server's files")
    return TlsServerEndpoint(serverFromString(reactor, join("tcp", words, named)), ServerTls(files), reactor)


def client_endpoint(
    reactor: Any, words: Sequence[str], named: dict[str, str], files: TlsFiles | None = None
) -> TlsClientEndpoint:
    """Make the endpoint for the arguments of a string; `files` are used where these name none.

    Raises `ConfigError` for a certificate without a key, or a key without a certificate.
    """
    own = _take_files(named)
    if (own.cert_file is None) != (own.key_file is None):
        raise ConfigError("tls: needs certificate= and privateKey= together, or neither")
    if files is not None:
        own = TlsFiles(**{**asdict(files), **{file: path for file, path in asdict(own).items() if path}})
    name = named.pop("hostname", None) or named.get("host") or (words[0] if words else "")
    return TlsClientEndpoint(clientFromString(reactor, join("tcp", words, named)), own, name, reactor)


def _take_files(named: dict[str, str]) -> TlsFiles:
    words = {"ca_file": "trustRoots", "cert_file": "certificate", "key_file": "privateKey"}
    return TlsFiles(**{file: Path(named.pop(word)) for file, word in words.items() if word in named})
