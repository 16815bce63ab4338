"""Handler of a stream of appends: a line of the body for each, and a line of the answer, in the same order.

A request for each append costs more than the append itself. Here a writer sends one after the other without
waiting for answers, on one connection, and those that arrive together share a commit.
"""

from collections import deque
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.base.gate import Gate
from synrepl.base.history import Appended
from synrepl.base.time import Timer
from synrepl.http_api.routes import APPEND_STREAM, NDJSON
from synrepl.streams.writer import Writer
from synrepl.transports.http.api_error import ApiError, api_body
from synrepl.transports.http.append_routes import (
    MAX_POSTED_FACT,
    StreamAppend,
    append_one,
    check_new_writer,
    checked_names,
    read_facts,
    refuse_on_replica,
    start_append,
)
from synrepl.transports.http.bodies import decode_body
from synrepl.transports.http.body_stream import BodyStream
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles
from synrepl.transports.http.headers import forbid_buffering
from synrepl.transports.http.large_body import LARGE_BYTES
from synrepl.wire.codec import LineBuffer

MAX_LINE: Final = 2 * MAX_POSTED_FACT
"""The most bytes of a line."""

MAX_OPEN: Final = 2_000
"""No more lines are read while so many are not answered yet."""

WORK_AT_ONCE: Final = 200
"""After so many lines, and pieces of the body, others have a turn: about five milliseconds of work."""


class AppendLine(StreamAppend, forbid_unknown_fields=True):
    """A line of the body."""

    idempotency_key: str | UnsetType = UNSET


_decoder: Final = msgspec.json.Decoder(AppendLine)


@handles(APPEND_STREAM)
async def serve(call: Call) -> None:
    """Append each line of the body as it arrives, and answer it once its facts are on disk.

    A line that is refused is answered by its error, and those after it are appended all the same. Facts are
    in the log in the order of the lines. A replica refuses.
    """
    refuse_on_replica(call, "post a stream of appends to the primary, or each append by itself")
    await _AppendStream(call).run()


class _Answer(msgspec.Struct):
    """The line that answers an append; None while it is not known."""

    line: bytes | None = None


@implementer(IPushProducer)
class _AppendStream:
    """The lines of one request."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._answers: deque[_Answer] = deque()
        """Of the lines that are not answered, in order."""
        self._is_full = False
        """Whether the client does not read the answers."""
        self._moved = Gate()
        self._flush_timer = Timer(call.context.clock, self._flush)

    async def run(self) -> None:
        """Handle all lines, and answer the last one."""
        request = self._call.request
        request.setHeader(b"content-type", NDJSON.encode())
        forbid_buffering(request)
        request.write(b"")
        try:
            async with self._call.streaming(self):
                await self._read(request.content)
                while self._answers:
                    await self._wait()
        finally:
            self._is_full = True
            self._flush_timer.stop()

    async def _read(self, body: BodyStream) -> None:
        buffer, work = LineBuffer(MAX_LINE), 0
        while True:
            data = await body.next()
            # The last line needs no end.
            for line in buffer.receive(data or b"\n"):
                if len(line) > MAX_LINE:
                    # Where the next line begins may not be known.
                    why = f"a line is longer than {MAX_LINE} bytes; no more is read"
                    self._answer(self._next_answer(), ApiError("too_large", why))
                    return
                await self._take(line)
                work = await self._count(work)
            if not data:
                return
            work = await self._count(work)

    async def _count(self, work: int) -> int:
        """Add one to the work of this turn, and let others have theirs once it is `WORK_AT_ONCE`."""
        if work + 1 < WORK_AT_ONCE:
            return work + 1
        await self._call.api.queue.turn()
        return 0

    async def _take(self, line: bytes) -> None:
        """Begin an append; an empty line only says that the client is there."""
        if not line or line.isspace():
            return
        while self._is_full or len(self._answers) >= MAX_OPEN:
            await self._wait()
        answer = self._next_answer()
        try:
            appended = await self._append(line)
        except CancelledError:
            raise
        except Exception as error:
            self._answer(answer, error)
        else:
            appended.addCallbacks(self._appended, self._failed, (answer,), errbackArgs=(answer,))

    async def _append(self, line: bytes) -> "Deferred[list[Appended]]":
        call = self._call
        is_large = len(line) > LARGE_BYTES
        one = await call.api.decode_large(_decoder, line) if is_large else decode_body(_decoder, line)
        call.check_streams(one.stream)
        name, key = checked_names(one.writer, one.idempotency_key)
        check_new_writer(call, one.stream, name, call.context.log.positions(one.stream))
        facts = await read_facts(call, one.stream, one.facts)
        writer = Writer(one.stream, name or call.context.settings.instance_name)
        return await start_append(
            call, [writer], key, lambda key: append_one(call, writer, facts, key, call.access.name)
        )

    # -- answers -------------------------------------------------------------------------------------------

    def _next_answer(self) -> _Answer:
        answer = _Answer()
        self._answers.append(answer)
        return answer

    def _appended(self, appended: list[Appended], answer: _Answer) -> None:
        self._set(answer, msgspec.json.encode(appended[0]))

    def _failed(self, failure: Failure, answer: _Answer) -> None:
        error: Any = failure.value
        self._answer(answer, error)

    def _answer(self, answer: _Answer, error: Exception) -> None:
        self._set(answer, api_body(self._call.api.as_refusal(self._call.request, error)))

    def _set(self, answer: _Answer, text: bytes) -> None:
        answer.line = text + b"\n"
        # Those of a commit are written together.
        if answer is self._answers[0] and not self._is_full:
            self._flush_timer.start(0)

    def _flush(self) -> None:
        """Write the answers that are known, up to the first one that is not."""
        answers, lines = self._answers, list[bytes]()
        while answers and (line := answers[0].line) is not None:
            lines.append(line)
            answers.popleft()
        if lines:
            self._call.request.write(b"".join(lines))
        self._moved.open()

    async def _wait(self) -> None:
        """Wait until answers were written, or the client reads again."""
        self._moved.close()
        await self._moved.wait_open()

    def pauseProducing(self) -> None:
        """Write no more answers, and read no more lines: the client does not read."""
        self._is_full = True

    def resumeProducing(self) -> None:
        """Go on."""
        self._is_full = False
        self._flush_timer.start(0)

    def stopProducing(self) -> None:
        """Do nothing: the request is cancelled when the connection is lost."""
