"""Limits of connections per listener, which leave file descriptors for files."""

import resource
from typing import Any, Final

from twisted.internet.interfaces import IAddress, IProtocolFactory
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.protocols.policies import WrappingFactory

from synrepl.ports.interfaces import IClock
from synrepl.ports.limited_logger import LimitedLogger

RESERVED: Final = 64
"""File descriptors that are not used for connections: for the log, its files, the upstream, late imports."""

FEWEST: Final = 8


def connection_limit(listeners: int, most: int) -> int:
    """Return how many connections each of `listeners` may have, by RLIMIT_NOFILE: `FEWEST` to `most`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(FEWEST, min(most, (soft - RESERVED) // listeners))


class RejectedConnection(Protocol):
    """A connection beyond a limit: sends its last words and closes."""

    transport: Any

    def __init__(self, last_words: bytes = b"") -> None:
        self._last_words = last_words

    def connectionMade(self) -> None:
        self.transport.write(self._last_words)
        self.transport.loseConnection()


class LimitedFactory(WrappingFactory):
    """Serves at most `most` connections of a factory; closes further ones at once."""

    noisy = False
    _logger = Logger()

    def __init__(self, wrapped: IProtocolFactory, most: int, clock: IClock) -> None:
        super().__init__(wrapped)
        self._most = most
        self._limited_logger = LimitedLogger(self._logger, clock)

    def logPrefix(self) -> str:
        prefix: str = self.wrappedFactory.logPrefix()
        return prefix

    def buildProtocol(self, addr: IAddress | None) -> Any:
        if len(self.protocols) >= self._most:
            self._limited_logger.warn(
                "closing {peer}: this listener has {most} connections, its limit"
                " (raise LimitNOFILE, or ulimit -n, for more)",
                peer=str(addr),
                most=self._most,
            )
            return RejectedConnection()
        return super().buildProtocol(addr)

    def stopFactory(self) -> None:
        self._limited_logger.stop()
        super().stopFactory()
