"""Route of the changelog: finite responses and endless feeds."""

from typing import Any, Protocol

from twisted.logger import Logger

from synrepl.ports.interfaces import IClock
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log
from synrepl.transports.http.changelog_cursor import ChangelogCursor
from synrepl.transports.http.changelog_feed import ChangelogFeed
from synrepl.transports.http.changelog_lines import NDJSON, encode_page
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.fork_check import check
from synrepl.transports.http.log_waiters import LogWaiters
from synrepl.transports.http.streaming import streaming

__all__ = ["Changelog", "ChangelogForm"]


class ChangelogForm(Protocol):
    """The format of a finite response."""

    content_type: bytes

    async def begin(self) -> bytes: ...

    async def page(self, cursor: ChangelogCursor, upto: int) -> bytes:
        """Encode the next page; empty if this step found no facts, although there may be more."""

    def end(self) -> bytes: ...


class _Lines:
    """NDJSON: a line for each fact."""

    content_type = NDJSON

    def __init__(self, *, checked: bool) -> None:
        self._checked = checked

    async def begin(self) -> bytes:
        return b""

    async def page(self, cursor: ChangelogCursor, upto: int) -> bytes:
        page = await cursor.page(upto)
        return (
            encode_page(page.facts, page.epoch_starts, page.receipts, checked=self._checked) if page else b""
        )

    def end(self) -> bytes:
        return b""


class Changelog:
    """Serves the log to any number of readers."""

    _logger = Logger()

    def __init__(self, log: Log, publisher: Publisher, clock: IClock, waiters: LogWaiters) -> None:
        self._log = log
        self._clock = clock
        self._waiters = waiters
        self._feed = ChangelogFeed(log, publisher, clock, waiters)

    async def check(self, query: ChangelogQuery) -> None:
        """Raises `ApiError` unless the log contains everything that the query selects."""
        await check(self._log, query)

    async def serve(self, request: Any, query: ChangelogQuery, form: ChangelogForm | None = None) -> None:
        """Write the selected facts up to the head, in this form (None: NDJSON). Raises `ApiError`.

        The head is fixed when the first fact is found: a response ends however fast the log grows, unless the
        query is to `follow`. The header ``Synrepl-Serial`` is that head: without a limit, the response has
        every selected fact up to it.
        """
        await check(self._log, query)
        if query.follow:
            self._write_head(request, NDJSON, self._log.serial)
            if request.method != b"HEAD":
                # Flush the headers: there may be nothing else to send for a while.
                request.write(b"")
                async with streaming(request, self._logger) as valve:
                    await self._feed.serve(request, query, valve)
            return
        form = form or _Lines(checked=query.checked)
        cursor = ChangelogCursor(self._log, query)
        head, text = await self._first_page(cursor, query, form)
        preamble = await form.begin()
        self._write_head(request, form.content_type, head)
        if request.method == b"HEAD":
            return
        request.write(preamble)
        async with streaming(request, self._logger) as valve:
            while True:
                if text:
                    request.write(text)
                text = b""
                while not text and cursor.after < head and not cursor.is_full:
                    await valve.wait_open()
                    text = await form.page(cursor, head)
                if not text:
                    break
            if end := form.end():
                request.write(end)

    async def _first_page(
        self, cursor: ChangelogCursor, query: ChangelogQuery, form: ChangelogForm
    ) -> tuple[int, bytes]:
        """Return the head and the first page with facts, or an empty one after the query's `wait`."""
        until = self._clock.seconds() + query.wait
        head = cursor.head
        text = await form.page(cursor, head)
        while not text:
            if cursor.after >= cursor.head:
                left = until - self._clock.seconds()
                if left <= 0 or cursor.is_done:
                    break
                query_filter = None if query.receipts else query.filter
                if await self._waiters.next_group(query_filter, upto=query.upto, timeout=left) is None:
                    break
            head = cursor.head
            text = await form.page(cursor, head)
        return head, text

    def _write_head(self, request: Any, content_type: bytes, serial: int) -> None:
        request.setHeader(b"content-type", content_type)
        request.setHeader(b"synrepl-serial", b"%d" % serial)
        request.setHeader(b"synrepl-epoch", b"%d" % self._log.epoch)
        request.setHeader(b"synrepl-history", self._log.history.encode())
