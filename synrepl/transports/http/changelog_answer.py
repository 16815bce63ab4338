"""The changelog as an answer that ends at the head of the log: lines of JSON, or Arrow record batches."""

from synrepl.base.time import Timer
from synrepl.http_api.routes import NDJSON
from synrepl.replication.serving.feed import Stop
from synrepl.replication.serving.log_waiters import Interest
from synrepl.replication.serving.sender import Sender
from synrepl.transports.http.arrow import ArrowEncoder
from synrepl.transports.http.call import Call
from synrepl.transports.http.changelog_lines import line_encoder
from synrepl.transports.http.changelog_query import ChangelogQuery, query_feed, stop_error


async def serve_changelog(call: Call, query: ChangelogQuery, arrow: ArrowEncoder | None) -> None:
    """Write the selected facts. Raises `ApiError` before the head; later errors abort the response."""
    preamble = b"" if arrow is None else await arrow.begin()
    answer = _Answer(call, query, arrow, preamble)
    try:
        async with call.streaming(answer.sender):
            stop = await answer.sender.run()
            if stop in (Stop.TRIMMED, Stop.REPLACED):
                raise stop_error(call.context.log, answer.feed, stop)
            answer.begin()
            if arrow is not None:
                answer.write(arrow.END)
    finally:
        answer.timer.stop()


def write_head(call: Call, content_type: str, serial: int) -> None:
    """Set the headers that describe this log, and `serial`."""
    request, log = call.request, call.context.log
    request.setHeader(b"content-type", content_type.encode())
    request.setHeader(b"synrepl-serial", b"%d" % serial)
    request.setHeader(b"synrepl-epoch", b"%d" % log.head.epoch)
    request.setHeader(b"synrepl-history", log.history.encode())


class _Answer:
    """A sink that writes the head of the answer before the first bytes.

    From then on the answer ends at what is the head of the log then. Before that, it waits for facts.
    """

    def __init__(
        self, call: Call, query: ChangelogQuery, arrow: ArrowEncoder | None, preamble: bytes
    ) -> None:
        context = call.context
        self.feed = query_feed(context.log, query)
        self.sender = Sender(
            context.log,
            self.feed,
            arrow or line_encoder(query.filter, checked=query.checked, numbers=query.numbers),
            self,
            waiters=context.publisher.waiters,
            # A receipt can belong to facts that the filter leaves out.
            interest=Interest(None if query.receipts else query.filter, query.upto),
            on_head=self._reach_head,
        )
        self.timer = Timer(context.clock, self._end_waiting)
        self._call = call
        self._content_type = NDJSON if arrow is None else arrow.CONTENT_TYPE
        self._preamble = preamble
        self._until = context.clock.seconds() + query.wait
        self._has_begun = False

    def begin(self) -> None:
        """Write the head, unless that was done."""
        if self._has_begun:
            return
        self._has_begun = True
        self.feed.upto = self.feed.head
        write_head(self._call, self._content_type, self.feed.upto)
        if self._call.request.method != b"HEAD":
            self._call.request.write(self._preamble)

    def write(self, data: bytes) -> None:
        self.begin()
        if self._call.request.method == b"HEAD":
            self.sender.finish()
        else:
            self._call.request.write(data)

    def _reach_head(self) -> bool:
        left = self._until - self._call.context.clock.seconds()
        if self._has_begun or left <= 0:
            return False
        self._call.check_readable()
        self.timer.restart(left)
        return True

    def _end_waiting(self) -> None:
        # A fact that came just before is being read or written: the answer ends behind it.
        if self.sender.is_waiting:
            self.sender.finish()
