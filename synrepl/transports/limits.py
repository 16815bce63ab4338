"""How many connections a listener may have, so that files can still be opened."""

import resource
from typing import Any, Final

from twisted.internet.interfaces import IAddress, IProtocolFactory
from twisted.logger import Logger
from twisted.protocols.policies import WrappingFactory

from synrepl.ports.interfaces import IClock
from synrepl.ports.limited_logger import LimitedLogger

__all__ = ["LimitedFactory", "connections_of"]

RESERVED: Final = 64
"""File descriptors that no connection gets: the log, its files, the upstream, modules loaded late."""

FEWEST: Final = 8


def connections_of(listeners: int, most: int) -> int:
    """How many connections each of so many listeners may have, `most` at most, by this process's limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(FEWEST, min(most, (soft - RESERVED) // listeners))


class LimitedFactory(WrappingFactory):
    """Serves up to `most` connections of a factory; a further one is closed at once."""

    noisy = False
    _logger = Logger()

    def __init__(self, wrapped: IProtocolFactory, most: int, clock: IClock) -> None:
        super().__init__(wrapped)
        self._most = most
        self._limited = LimitedLogger(self._logger, clock)

    def logPrefix(self) -> str:
        """As the wrapped factory is called in the log."""
        prefix: str = self.wrappedFactory.logPrefix()
        return prefix

    def buildProtocol(self, addr: IAddress | None) -> Any:
        if len(self.protocols) >= self._most:
            self._limited.warn(
                "closing {peer}: this listener has {most} connections, which is its bound"
                " (raise LimitNOFILE, or ulimit -n, for more)",
                peer=str(addr),
                most=self._most,
            )
            return None
        return super().buildProtocol(addr)

    def stopFactory(self) -> None:
        self._limited.stop()
        super().stopFactory()
