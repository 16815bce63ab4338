"""A listener that imports what it speaks with its first connection."""

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IAddress, IProtocolFactory
from twisted.internet.protocol import Factory


class LateFactory(Factory):
    """Makes a factory for the first connection, and leaves it and all later ones to that.

    `make` imports what the factory needs: a daemon to which nobody connects does without. `name` is that of
    the listener in Twisted's log messages.
    """

    noisy = False

    def __init__(self, name: str, make: Callable[[], IProtocolFactory]) -> None:
        self._name = name
        self._make = make
        self._made: IProtocolFactory | None = None

    def buildProtocol(self, addr: IAddress | None) -> Any:
        if self._made is None:
            self._made = self._make()
            self._made.doStart()
        return self._made.buildProtocol(addr)  # type: ignore[arg-type]  # a UNIX socket's peer has none

    def stopFactory(self) -> None:
        if self._made is not None:
            self._made.doStop()

    def logPrefix(self) -> str:
        """The name of this listener in Twisted's log messages."""
        return self._name
