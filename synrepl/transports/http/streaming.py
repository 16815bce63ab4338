"""Streaming responses of unknown length, with backpressure."""

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
    """Tracks whether the transport accepts data."""

    def __init__(self) -> None:
        self.is_open = True
        self._waiter: Deferred[None] | None = None

    async def wait_open(self) -> None:
        """Wait until the transport accepts data."""
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
        """Do nothing: the handler is cancelled when the client disconnects."""


@asynccontextmanager
async def streaming(request: Any, logger: Logger) -> AsyncIterator[Valve]:
    """Yield the valve of a response; an error while it is written aborts the connection."""
    valve = Valve()
    request.registerProducer(valve, True)
    try:
        yield valve
    except CancelledError:
        raise
    except Exception as failure:
        if isinstance(failure, ApiError):
            logger.info("changelog aborted: {why}", why=failure.message)
        else:
            logger.failure("changelog aborted")
        disconnected = request.notifyFinish()
        # A proper end would claim that the response is complete.
        request.channel.transport.abortConnection()
        try:
            await disconnected
        except Exception as error:
            raise CancelledError from error
    else:
        request.unregisterProducer()
