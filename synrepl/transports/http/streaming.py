"""Writing an answer whose end nobody knows yet, no faster than it is read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from synrepl.transports.http.api_error import ApiError

__all__ = ["Valve", "streaming"]


@implementer(IPushProducer)
class Valve:
    """Whether the transport has room, and waiting until it has."""

    def __init__(self) -> None:
        self.is_open = True
        self._waiter: Deferred[None] | None = None

    async def opened(self) -> None:
        """Returns when there is room."""
        if not self.is_open:
            self._waiter = Deferred()
            await self._waiter

    def pauseProducing(self) -> None:
        self.is_open = False

    def resumeProducing(self) -> None:
        self.is_open = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)

    def stopProducing(self) -> None:
        """The client has gone. Whoever runs the request cancels it."""


@asynccontextmanager
async def streaming(request: Any, logger: Logger) -> AsyncIterator[Valve]:
    """While an answer is written: the valve to mind. What fails meanwhile cuts the connection."""
    valve = Valve()
    request.registerProducer(valve, True)
    try:
        yield valve
    except CancelledError:
        raise
    except Exception as failure:
        if isinstance(failure, ApiError):
            logger.info("a changelog was cut short: {why}", why=failure.message)
        else:
            logger.failure("a changelog was cut short")
        gone = request.notifyFinish()
        # Ending it properly would say that there is nothing more.
        request.channel.transport.abortConnection()
        try:
            await gone
        except Exception as error:
            raise CancelledError from error
    else:
        request.unregisterProducer()
