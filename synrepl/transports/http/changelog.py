"""Route of the changelog: finite responses and endless feeds."""

from typing import Any, Protocol

from twisted.logger import Logger

from synrepl.ports.history import EpochStart
from synrepl.ports.interfaces import IClock
from synrepl.replication.feed import Feed, PageStep, Stop
from synrepl.replication.log_pages import read_page
from synrepl.replication.log_waiters import LogWaiters
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log
from synrepl.transports.http.changelog_feed import ChangelogFeed
from synrepl.transports.http.changelog_lines import NDJSON, encode_page, epoch_start_line
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.fork_check import check
from synrepl.transports.http.query_feed import query_feed, stop_error
from synrepl.transports.http.streaming import streaming

__all__ = ["Changelog", "ChangelogForm"]


class ChangelogForm(Protocol):
    """The format of a finite response."""

    content_type: bytes

    async def begin(self) -> bytes: ...

    async def page(self, log: Log, feed: Feed, step: PageStep) -> bytes:
        """Read and encode this page; empty if it has no facts."""

    def end(self) -> bytes: ...


class _Lines:
    """NDJSON: a line for each fact."""

    content_type = NDJSON

    def __init__(self, *, checked: bool) -> None:
        self._checked = checked

    async def begin(self) -> bytes:
        return b""

    async def page(self, log: Log, feed: Feed, step: PageStep) -> bytes:
        page = await read_page(log, feed, step)
        return b"" if page is None else encode_page(page.facts, page.receipts, checked=self._checked)

    def end(self) -> bytes:
        return b""


class Changelog:
    """Serves the log to any number of readers."""

    _logger = Logger()

    def __init__(self, log: Log, publisher: Publisher, clock: IClock, waiters: LogWaiters) -> None:
        self._log = log
        self._clock = clock
        self._waiters = waiters
        self._feed = ChangelogFeed(log, publisher, clock)

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
        feed = query_feed(self._log, query)
        head, text = await self._first_page(feed, query, form)
        preamble = await form.begin()
        self._write_head(request, form.content_type, head)
        if request.method == b"HEAD":
            return
        request.write(preamble)
        feed.upto = head
        async with streaming(request, self._logger) as valve:
            while text is not None:
                if text:
                    request.write(text)
                if not feed.is_done:
                    await valve.wait_open()
                text = await self._next_text(feed, form)
            if end := form.end():
                request.write(end)

    async def _first_page(
        self, feed: Feed, query: ChangelogQuery, form: ChangelogForm
    ) -> tuple[int, bytes | None]:
        """Return the head and the first page with facts, or None after the query's `wait`."""
        until = self._clock.seconds() + query.wait
        query_filter = None if query.receipts else query.filter
        while True:
            head = feed.head
            text = await self._next_text(feed, form)
            if text:
                return head, text
            if text is None:
                left = until - self._clock.seconds()
                if left <= 0 or feed.is_done:
                    return head, None
                group = await self._waiters.next_group(query_filter, upto=query.upto, timeout=left)
                if group is not None:
                    feed.skip(group)
                elif self._clock.seconds() >= until:
                    return head, None

    async def _next_text(self, feed: Feed, form: ChangelogForm) -> bytes | None:
        """Encode what comes next, which can be empty; None at the end. Raises `ApiError`."""
        match feed.next():
            case PageStep() as step:
                return await form.page(self._log, feed, step)
            case EpochStart() as epoch_start:
                return epoch_start_line(epoch_start)
            case (Stop.TRIMMED | Stop.REPLACED) as stop:
                raise stop_error(self._log, feed, stop)
            case _:
                return None

    def _write_head(self, request: Any, content_type: bytes, serial: int) -> None:
        request.setHeader(b"content-type", content_type)
        request.setHeader(b"synrepl-serial", b"%d" % serial)
        request.setHeader(b"synrepl-epoch", b"%d" % self._log.epoch)
        request.setHeader(b"synrepl-history", self._log.history.encode())
