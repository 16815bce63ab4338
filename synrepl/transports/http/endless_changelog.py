"""The changelog as an answer that goes on at the head of the log, with heartbeats."""

from collections.abc import Iterator

from synrepl.base.rights import is_told
from synrepl.base.time import Timer
from synrepl.errors import LocalProtocolError
from synrepl.http_api.routes import NDJSON
from synrepl.replication.hooks import ReadRefusal
from synrepl.replication.serving.command_lines import line_of
from synrepl.replication.serving.feed import Stop
from synrepl.replication.serving.log_waiters import Interest
from synrepl.replication.serving.sender import Sender
from synrepl.transports.http.call import Call
from synrepl.transports.http.changelog_answer import write_head
from synrepl.transports.http.changelog_lines import HeartbeatLine, MovedLine, encode_line, line_encoder
from synrepl.transports.http.changelog_query import ChangelogQuery, query_feed, stop_error
from synrepl.transports.http.headers import forbid_buffering
from synrepl.transports.http.site_context import SiteContext
from synrepl.wire.grammar import Command


class EndlessChangelog:
    """All endless answers of a daemon. Readers with equal filters share lines from the ring."""

    def __init__(self, context: SiteContext) -> None:
        self._context = context
        self._answers: set[_EndlessAnswer] = set()

    async def serve(self, call: Call, query: ChangelogQuery) -> None:
        """Answer until the query ends or the client disconnects.

        Raises `ApiError` if the log is replaced, or facts are trimmed that were not sent. The head is sent by
        then, so that the client only sees the connection abort.
        """
        request, log = call.request, self._context.log
        write_head(call, NDJSON, log.head.serial)
        forbid_buffering(request)
        if request.method == b"HEAD":
            return
        # Flush the headers: there may be nothing else to send for a while.
        request.write(b"")
        answer = _EndlessAnswer(call, query, query.digest or await log.reads.digest(query.since))
        self._answers.add(answer)
        try:
            async with call.streaming(answer.sender):
                await answer.run()
        finally:
            self._answers.discard(answer)

    def retire(self, why: ReadRefusal) -> None:
        """End all answers with a line that says why, and where the primary is."""
        moved = MovedLine(why.code, why.message, self._context.publisher.read_gate.primary_address)
        for answer in self._answers:
            answer.moved = moved
        self._context.publisher.waiters.wake_readers()

    def on_command(self, command: Command, source: object) -> Iterator[None]:
        """Forward a command for all processes to the readers that request commands, except to its source."""
        readers = [
            answer
            for answer in self._answers
            if answer.origin not in (None, source) and is_told(answer.seen, type(command))
        ]
        if not readers:
            return
        try:
            encoded = encode_line("command", line_of(command).decode(errors="replace"))
        except LocalProtocolError:
            encoded = b""
        for answer in readers:
            if not encoded or not answer.send_command(encoded):
                self._context.publisher.metrics.commands_dropped.labels(command.NAME).inc()
            yield


class _EndlessAnswer:
    def __init__(self, call: Call, query: ChangelogQuery, digest: str | None) -> None:
        context = call.context
        self.origin, self.seen = query.origin, query.seen
        self.moved: MovedLine | None = None
        """Why the answer must end: another daemon is to be read."""
        self._log = context.log
        self._clock = context.clock
        self._waiters = context.publisher.waiters
        self._request = call.request
        self._heartbeat = query.heartbeat
        self._was_at_head = False
        self._is_over = False
        self._timer = Timer(context.clock, self._tick)
        self._feed = query_feed(self._log, query, context.publisher.ring)
        self.sender = Sender(
            self._log,
            self._feed,
            line_encoder(query.filter, checked=query.checked, numbers=query.numbers),
            call.request,
            waiters=self._waiters,
            # A receipt can belong to facts that the filter leaves out.
            interest=Interest(None if query.receipts else query.filter, query.upto, query.ephemeral),
            on_head=self._reach_head,
            needs_digests=True,
            digest=digest,
        )

    async def run(self) -> None:
        """Send facts until the query ends. Raises `ApiError` if the log is replaced, or facts are trimmed."""
        self._timer.start(self._heartbeat)
        try:
            stop = await self.sender.run()
        finally:
            self._is_over = True
            self._timer.stop()
        if stop in (Stop.TRIMMED, Stop.REPLACED):
            raise stop_error(self._log, self._feed, stop)

    def _reach_head(self) -> bool:
        if self.moved is not None:
            self._request.write(encode_line("moved", self.moved))
            return False
        if not self._was_at_head:
            self._was_at_head = True
            self._beat()
        return True

    def send_command(self, encoded: bytes) -> bool:
        """Send an encoded command; False if the reader is paused, and so misses it."""
        if self.sender.is_paused:
            return False
        self._request.write(encoded)
        return True

    def _tick(self) -> None:
        self._timer.start(self._heartbeat)
        if self.sender.is_waiting:
            self._waiters.poll()
        if self.sender.is_waiting:
            # `poll` has seen every commit, and none has selected facts.
            self.sender.skip()
        if not self._is_over:
            self._beat()

    def _beat(self) -> None:
        if not self.sender.is_paused:
            at, now_ms = self.sender.position, int(self._clock.seconds() * 1000)
            beat = HeartbeatLine(at.epoch, at.serial, at.digest, now_ms, self._log.head.serial)
            self._request.write(encode_line("heartbeat", beat))
