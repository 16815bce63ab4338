"""The changelog as an answer that ends at the head of the log: lines of JSON, or Arrow record batches."""

from synrepl.base.time import Timer
from synrepl.http_api.routes import END_HEADER, HEARTBEAT, NDJSON
from synrepl.replication.serving.feed import Stop
from synrepl.replication.serving.log_waiters import Interest
from synrepl.replication.serving.sender import Sender
from synrepl.transports.http.arrow import ArrowEncoder
from synrepl.transports.http.call import Call
from synrepl.transports.http.changelog_lines import HeartbeatLine, encode_line, line_encoder
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
            answer.end()
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
        self._arrow = arrow
        self._has_limit = query.limit is not None
        self._ends_with_heartbeat = arrow is None and call.query[END_HEADER]

    def begin(self) -> None:
        """Write the head, unless that was done."""
        if self._has_begun:
            return
        self._has_begun = True
        self.feed.upto = self.feed.head
        write_head(self._call, self._content_type, self.feed.upto)
        if self._ends_with_heartbeat:
            self._call.request.setHeader(END_HEADER.encode(), HEARTBEAT.encode())
        if self._call.request.method != b"HEAD":
            self._call.request.write(self._preamble)

    def end(self) -> None:
        """Mark the end, by which a reader knows that nothing was cut off."""
        if self._arrow is not None:
            self.write(self._arrow.END)
        elif self._ends_with_heartbeat:
            context, at = self._call.context, self.sender.position
            serial = self.feed.serial if self._has_limit else self.feed.upto
            digest = at.digest if at.serial == serial else None
            now_ms = int(context.clock.seconds() * 1000)
            beat = HeartbeatLine(at.epoch, serial, digest, now_ms, context.log.head.serial)
            self.write(encode_line(HEARTBEAT, beat))

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
