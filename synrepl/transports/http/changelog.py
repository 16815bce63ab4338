"""The log from a serial on, at the speed of whoever reads it."""

from typing import Any, Protocol

from twisted.logger import Logger

from synrepl.ports.interfaces import IClock
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log
from synrepl.transports.http.changelog_cursor import ChangelogCursor
from synrepl.transports.http.changelog_feed import ChangelogFeed
from synrepl.transports.http.changelog_lines import NDJSON, written
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.fork_check import check
from synrepl.transports.http.log_waiters import LogWaiters
from synrepl.transports.http.streaming import streaming

__all__ = ["Changelog", "ChangelogForm"]


class ChangelogForm(Protocol):
    """What an answer looks like in bytes."""

    content_type: bytes

    async def begin(self) -> bytes: ...

    async def page(self, reading: ChangelogCursor, upto: int) -> bytes:
        """The next page; nothing where nothing was found in this step, although there may be more."""

    def end(self) -> bytes: ...


class _Lines:
    """A line of JSON for each fact."""

    content_type = NDJSON

    def __init__(self, *, checked: bool) -> None:
        self._checked = checked

    async def begin(self) -> bytes:
        return b""

    async def page(self, reading: ChangelogCursor, upto: int) -> bytes:
        page = await reading.page(upto)
        return written(page.facts, page.epoch_starts, page.receipts, checked=self._checked) if page else b""

    def end(self) -> bytes:
        return b""


class Changelog:
    """Serves the log to any number of readers."""

    _logger = Logger()

    def __init__(self, log: Log, publisher: Publisher, clock: IClock, waiting: LogWaiters) -> None:
        self._log = log
        self._clock = clock
        self._waiting = waiting
        self._following = ChangelogFeed(log, publisher, clock, waiting)

    async def check(self, wanted: ChangelogQuery) -> None:
        """Raises `Refused` unless this can be read without anything missing or beside it."""
        await check(self._log, wanted)

    async def serve(self, request: Any, wanted: ChangelogQuery, form: ChangelogForm | None = None) -> None:
        """Write what is wanted, up to the head, in this form (None: as lines). Raises `Refused`.

        The head is where the log stands when the first fact is found, so that every answer ends, however
        fast the log grows, unless it is to follow. The answer's header ``Synrepl-Serial`` tells that head:
        without a limit, nothing wanted up to it is missing.
        """
        await check(self._log, wanted)
        if wanted.follow:
            self._write_head(request, NDJSON, self._log.serial)
            if request.method != b"HEAD":
                # Sent at once, as there may be nothing else to send for a while.
                request.write(b"")
                async with streaming(request, self._logger) as valve:
                    await self._following.serve(request, wanted, valve)
            return
        form = form or _Lines(checked=wanted.checked)
        reading = ChangelogCursor(self._log, wanted)
        head, text = await self._first_page(reading, wanted, form)
        trimmed_upto = await form.begin()
        self._write_head(request, form.content_type, head)
        if request.method == b"HEAD":
            return
        request.write(trimmed_upto)
        async with streaming(request, self._logger) as valve:
            while True:
                if text:
                    request.write(text)
                text = b""
                while not text and reading.after < head and not reading.is_full:
                    await valve.opened()
                    text = await form.page(reading, head)
                if not text:
                    break
            if end := form.end():
                request.write(end)

    async def _first_page(
        self, reading: ChangelogCursor, wanted: ChangelogQuery, form: ChangelogForm
    ) -> tuple[int, bytes]:
        """The head, and the first page with anything in it, if one came in time."""
        until = self._clock.seconds() + wanted.wait
        head = reading.head
        text = await form.page(reading, head)
        while not text:
            if reading.after >= reading.head:
                left = until - self._clock.seconds()
                if left <= 0 or reading.is_done:
                    break
                chosen = None if wanted.receipts else wanted.chosen
                if await self._waiting.news(chosen, upto=wanted.upto, timeout=left) is None:
                    break
            head = reading.head
            text = await form.page(reading, head)
        return head, text

    def _write_head(self, request: Any, content_type: bytes, serial: int) -> None:
        request.setHeader(b"content-type", content_type)
        request.setHeader(b"synrepl-serial", b"%d" % serial)
        request.setHeader(b"synrepl-epoch", b"%d" % self._log.epoch)
        request.setHeader(b"synrepl-history", self._log.history.encode())
