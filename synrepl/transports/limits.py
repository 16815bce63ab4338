"""Limits of connections per listener, which leave file descriptors for files."""

import resource
from typing import Any, Final

from twisted.internet.interfaces import IAddress, IProtocolFactory, ISSLTransport, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.protocols.policies import WrappingFactory
from twisted.python.failure import Failure

from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.time import Timer

MAX_CONNECTIONS: Final = 10_000
"""Limit of connections per listener: far more than the largest deployment has workers, and few enough to
leave file descriptors and memory (some 3 kB each) for the rest of the daemon.
"""

RESERVED: Final = 64
"""File descriptors that are not used for connections: for the log, its files, the upstream, late imports, and
for the answers to rejected connections."""

FEWEST: Final = 8

LINGERING: Final = 8
"""Rejected connections of a listener that are open at once, with descriptors of the `RESERVED` ones."""

LINGER_SECONDS: Final = 2.0


def connection_limit(listeners: int, most: int) -> int:
    """Return how many connections each of `listeners` may have, by RLIMIT_NOFILE: `FEWEST` to `most`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(FEWEST, min(most, (soft - RESERVED) // listeners))


class RejectedConnection(Protocol):
    """A connection beyond a limit: it hears why, and is closed.

    What it sends is dropped until it closes, at most for `LINGER_SECONDS`: a close with unread bytes would
    reset the connection, and the peer might lose the answer. `lingering` are these connections of a listener;
    beyond `LINGERING` of them, further ones are closed at once.
    """

    transport: Any

    def __init__(self, last_words: bytes, clock: IClock, lingering: set["RejectedConnection"]) -> None:
        self._last_words = last_words
        self._lingering = lingering
        self._linger = Timer(clock, self._abort)

    def connectionMade(self) -> None:
        self.transport.write(self._last_words)
        is_plain = ITCPTransport.providedBy(self.transport) and not ISSLTransport.providedBy(self.transport)
        if is_plain and len(self._lingering) < LINGERING:
            self._lingering.add(self)
            self._linger.start(LINGER_SECONDS)
            self.transport.loseWriteConnection()
        else:
            self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._lingering.discard(self)
        self._linger.stop()

    def _abort(self) -> None:
        self.transport.abortConnection()


class ConnectionLimit:
    """Rejects connections of a listener that has `most` of them; they get `last_words` and are closed."""

    _logger = Logger()

    def __init__(self, most: int, clock: IClock, *, last_words: bytes = b"") -> None:
        self._most = most
        self._clock = clock
        self._last_words = last_words
        self._lingering: set[RejectedConnection] = set()
        self._limited_logger = LimitedLogger(self._logger, clock)

    def reject(self, addr: IAddress | None, count: int) -> RejectedConnection | None:
        """Return what becomes of a connection beyond so many; None if it can be served."""
        if count < self._most:
            return None
        self._limited_logger.warn(
            "rejecting {peer}: this listener has {most} connections, its limit"
            " (raise LimitNOFILE, or ulimit -n, for more)",
            peer=str(addr),
            most=self._most,
        )
        return RejectedConnection(self._last_words, self._clock, self._lingering)

    def stop(self) -> None:
        """Log what was held back."""
        self._limited_logger.stop()


class LimitedFactory(WrappingFactory):
    """Serves at most `most` connections of a factory; further ones get `last_words` and are closed."""

    noisy = False

    def __init__(
        self, wrapped: IProtocolFactory, most: int, clock: IClock, *, last_words: bytes = b""
    ) -> None:
        super().__init__(wrapped)
        self._limit = ConnectionLimit(most, clock, last_words=last_words)

    def logPrefix(self) -> str:
        prefix: str = self.wrappedFactory.logPrefix()
        return prefix

    def buildProtocol(self, addr: IAddress | None) -> Any:
        return self._limit.reject(addr, len(self.protocols)) or super().buildProtocol(addr)

    def stopFactory(self) -> None:
        self._limit.stop()
        super().stopFactory()
