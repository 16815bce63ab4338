"""The log from a serial on, a line a fact, at the speed of whoever reads it."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from synrepl.ports.interfaces import IClock, ILog
from synrepl.streams.facts import Fact
from synrepl.transports.http.answers import Refused

__all__ = ["Changelog", "line"]

PAGE_ROWS: Final = 1_000
"""Rows read at a time: some milliseconds of work, and a quarter of a megabyte at most beside one fact."""


@lru_cache(maxsize=1024)
def _quoted(name: str) -> bytes:
    return msgspec.json.encode(name)


def line(fact: Fact) -> bytes:
    """A fact as a line of JSON."""
    return (
        b'{"serial":%d,"epoch":%d,"stream":%b,"writer":%b,"prev_token":%d,"token":%d,"rows":%b,'
        b'"committed_at_ms":%d,"digest":"%b"}\n'
    ) % (
        fact.serial,
        fact.epoch,
        _quoted(fact.stream),
        _quoted(fact.writer),
        fact.prev_token,
        fact.token,
        fact.rows,
        fact.committed_at_ms,
        fact.digest.encode(),
    )


@implementer(IPushProducer)
class _Valve:
    """Whether the transport has room, and waiting until it has."""

    def __init__(self) -> None:
        self._is_open = True
        self._waiter: Deferred[None] | None = None

    async def opened(self) -> None:
        """Returns when there is room."""
        if not self._is_open:
            self._waiter = Deferred()
            await self._waiter

    def pauseProducing(self) -> None:
        self._is_open = False

    def resumeProducing(self) -> None:
        self._is_open = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)

    def stopProducing(self) -> None:
        """The client has gone. Whoever runs the request cancels it."""


class Changelog:
    """Serves the log to any number of readers; those who wait for news share one watcher of the log."""

    _logger = Logger()

    def __init__(self, log: ILog, clock: IClock) -> None:
        self._log = log
        self._clock = clock
        self._waiting: dict[Deferred[bool], frozenset[str] | None] = {}
        log.watch(self._committed)

    @property
    def waiting(self) -> int:
        """How many requests wait for news."""
        return len(self._waiting)

    async def serve(
        self, request: Any, *, since: int, limit: int | None, wait: float, streams: frozenset[str] | None
    ) -> None:
        """Write the facts after `since`, of these streams (None: of all), at most `limit`, up to the head.

        The head is where the log stands when the first fact is found, so that every answer ends, however
        fast the log grows. With nothing to tell, waits up to `wait` seconds for it. The answer's header
        ``Synrepl-Serial`` tells that head: without a limit, nothing wanted up to it is missing.
        """
        head = self._log.serial
        if since > head:
            more = {"serial": head, "epoch": self._log.epoch}
            raise Refused(409, "ahead_of_log", f"serial {since} is beyond this log, at {head}", more=more)
        until = self._clock.seconds() + wait
        facts, after = await self._page(since, head, limit, streams)
        while not facts:
            if after >= self._log.serial:
                left = until - self._clock.seconds()
                if left <= 0 or not await self._news(left, streams):
                    break
            head = self._log.serial
            facts, after = await self._page(after, head, limit, streams)
        request.setHeader(b"content-type", b"application/x-ndjson")
        request.setHeader(b"synrepl-serial", b"%d" % head)
        request.setHeader(b"synrepl-epoch", b"%d" % self._log.epoch)
        if request.method == b"HEAD":
            return
        # Sent at once, as there may be nothing else to send for a while.
        request.write(b"")
        valve = _Valve()
        request.registerProducer(valve, True)
        try:
            while facts:
                request.write(b"".join(map(line, facts)))
                if limit is not None:
                    limit -= len(facts)
                facts = []
                while not facts and after < head and (limit is None or limit > 0):
                    await valve.opened()
                    facts, after = await self._page(after, head, limit, streams)
        except CancelledError:
            raise
        except Exception:
            self._logger.failure("a changelog was cut short")
            gone = request.notifyFinish()
            # Ending it properly would say that there is nothing more.
            request.channel.transport.abortConnection()
            try:
                await gone
            except Exception as error:
                raise CancelledError from error
        else:
            request.unregisterProducer()

    async def _page(
        self, after: int, upto: int, limit: int | None, streams: frozenset[str] | None
    ) -> tuple[list[Fact], int]:
        if after >= upto:
            return [], after
        rows = PAGE_ROWS if limit is None else min(PAGE_ROWS, limit)
        return await self._log.read(after=after, upto=upto, streams=streams, limit=rows)

    async def _news(self, seconds: float, streams: frozenset[str] | None) -> bool:
        """Returns when a fact of these streams was committed; False after so many seconds."""
        waiter: Deferred[bool] = Deferred()
        self._waiting[waiter] = streams
        timer = self._clock.callLater(seconds, waiter.callback, False)
        try:
            return await waiter
        finally:
            del self._waiting[waiter]
            if timer.active():
                timer.cancel()

    def _committed(self, facts: Sequence[Fact]) -> None:
        if not self._waiting or not facts[0].serial:
            return
        news = {fact.stream for fact in facts}
        for waiter, streams in list(self._waiting.items()):
            if (streams is None or not news.isdisjoint(streams)) and not waiter.called:
                waiter.callback(True)
