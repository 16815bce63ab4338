"""Handlers of the log: the changelog up to its head or endless, its extent, and digests."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from synrepl.errors import LocalProtocolError
from synrepl.http_api.routes import NDJSON, READER
from synrepl.ports.history import EpochStart, LogRange
from synrepl.ports.rights import is_told
from synrepl.ports.time import Timer
from synrepl.replication.command_forwarder import line_of
from synrepl.replication.feed import EphemeralStep, FeedPosition, PageStep, Stop, read_page
from synrepl.replication.holdings import ReadRefusal
from synrepl.replication.ring import RingGroup
from synrepl.streams.positions import VClock
from synrepl.transports.http.arrow import ArrowForm, arrow_form
from synrepl.transports.http.call import Call, Valve
from synrepl.transports.http.changelog_lines import (
    HeartbeatLine,
    MovedLine,
    encode_line,
    encode_page,
    held_line,
    line_encoder,
)
from synrepl.transports.http.changelog_query import (
    ChangelogQuery,
    check_position,
    query_feed,
    read_query,
    stop_error,
)
from synrepl.transports.http.messages import DigestsAnswer
from synrepl.transports.http.replica_routes import renew_lease
from synrepl.transports.http.server import Services
from synrepl.wire.grammar import Command

MAX_FACTS: Final = 2**62


class ExtentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The facts after `since`, up to `serial`: their number, the bytes of their rows, and their tokens.

    `clock` has the highest token of each stream and writer among them; a reader of these facts merges it into
    its positions. `committed_at_ms` is the latest commit time, 0 without facts. `epoch` and `digest` are
    those at `serial`; the digest can be unknown (None).
    """

    since: int
    serial: int
    epoch: int
    digest: str | None
    history: str
    facts: int
    bytes: int
    clock: dict[str, dict[str, int]]
    committed_at_ms: int
    trimmed_upto: int
    head: int


async def read(call: Call) -> None:
    """Serve the log after a serial: up to the head, or with `follow` also what is committed later.

    Without `follow`, the head is fixed when the first fact is found, so that a response ends however fast
    the log grows. The header ``Synrepl-Serial`` is the head then, or with `follow` at the start; without a
    limit, the response has every selected fact up to that serial.
    """
    query = read_query(call)
    arrow = arrow_form(call.request, query, call.services.clock)
    await _prepare(call, query)
    if query.follow:
        await _follow(call, query)
    else:
        await _FiniteResponse(call, query, arrow).serve()


async def extent(call: Call) -> ExtentAnswer:
    """Measure the facts after a serial, up to ``limit`` facts, ``upto`` or the head: for planning reads.

    Raises `ApiError` if the log is replaced meanwhile, or, unless `compacted`, trimmed beyond that serial.
    """
    query, log = read_query(call), call.services.log
    await _prepare(call, query)
    feed = query_feed(log, query)
    head = feed.head
    total = LogRange(serial=min(query.since, head))
    clock = VClock()
    while total.serial < head and (query.limit is None or total.facts < query.limit):
        step = await log.extent(
            after=total.serial,
            upto=head,
            limit=MAX_FACTS if query.limit is None else query.limit - total.facts,
            filter=query.filter,
        )
        for (stream, writer), token in step.tokens.items():
            clock = clock.advanced(stream, writer, token)
        total = LogRange(
            serial=step.serial,
            facts=total.facts + step.facts,
            bytes=total.bytes + step.bytes,
            at_ms=max(total.at_ms, step.at_ms),
        )
        if (stop := feed.next()) in (Stop.TRIMMED, Stop.REPLACED):
            raise stop_error(log, feed, stop)
    starts = [start.epoch for start in log.epoch_starts if start.serial < total.serial]
    return ExtentAnswer(
        since=query.since,
        serial=total.serial,
        epoch=max([1, *starts]),
        digest=await log.digest_at(total.serial),
        history=log.history,
        facts=total.facts,
        bytes=total.bytes,
        clock=clock.to_json(),
        committed_at_ms=total.at_ms,
        trimmed_upto=log.trimmed_upto.serial,
        head=log.serial,
    )


async def digests(call: Call) -> DigestsAnswer:
    """Return the digests at some serials (None: unknown), with which a client finds a fork by bisection."""
    log = call.services.log
    found = {serial: await log.digest_at(serial) for serial in sorted(set(call.query["serials"]))}
    return DigestsAnswer(epoch=log.epoch, serial=log.serial, history=log.history, digests=found)


async def _prepare(call: Call, query: ChangelogQuery) -> None:
    """Wait for ``min_serial``, and check that the log has everything that the query selects.

    Makes or renews the lease of a named reader: it retains the facts that the reader has not read.
    """
    call.check_fresh()
    await call.read_your_writes()
    call.set_held_headers()
    await check_position(call.services.log, query)
    reader, registry = call.query[READER], call.services.relays
    if reader is not None and registry is not None:
        renew_lease(registry, reader, query.since, query.wait, call.access)


def _write_head(call: Call, content_type: str, serial: int) -> None:
    request, log = call.request, call.services.log
    request.setHeader(b"content-type", content_type.encode())
    request.setHeader(b"synrepl-serial", b"%d" % serial)
    request.setHeader(b"synrepl-epoch", b"%d" % log.epoch)
    request.setHeader(b"synrepl-history", log.history.encode())


async def _follow(call: Call, query: ChangelogQuery) -> None:
    services, request = call.services, call.request
    _write_head(call, NDJSON, services.log.serial)
    if request.method == b"HEAD":
        return
    # Flush the headers: there may be nothing else to send for a while.
    request.write(b"")
    if call.api.feed is None:
        call.api.feed = ChangelogFeed(services)
    async with call.streaming() as valve:
        await call.api.feed.serve(request, query, valve)


class _FiniteResponse:
    """A response that ends at the head: lines of JSON, or with an `arrow` form record batches."""

    def __init__(self, call: Call, query: ChangelogQuery, arrow: ArrowForm | None) -> None:
        self._call = call
        self._query = query
        self._arrow = arrow
        self._log = call.services.log
        self._clock = call.services.clock
        self._feed = query_feed(self._log, query)

    async def serve(self) -> None:
        """Write the selected facts. Raises `ApiError` before the headers; later errors abort the response."""
        request, arrow = self._call.request, self._arrow
        head, text = await self._first_page()
        preamble = b"" if arrow is None else await arrow.begin()
        _write_head(self._call, NDJSON if arrow is None else arrow.CONTENT_TYPE, head)
        if request.method == b"HEAD":
            return
        request.write(preamble)
        self._feed.upto = head
        async with self._call.streaming() as valve:
            while text is not None:
                if text:
                    request.write(text)
                if not self._feed.is_done:
                    await valve.wait_open()
                text = await self._next_text()
            if arrow is not None:
                request.write(arrow.END)

    async def _first_page(self) -> tuple[int, bytes | None]:
        """Return the head and the first page or epoch start; None as the page after the query's `wait`."""
        query, feed = self._query, self._feed
        until = self._clock.seconds() + query.wait
        query_filter = None if query.receipts else query.filter
        waiters = self._call.services.publisher.waiters
        while True:
            head = feed.head
            text = await self._next_text()
            if text:
                return head, text
            if text is None:
                left = until - self._clock.seconds()
                if left <= 0 or feed.is_done:
                    return head, None
                self._call.check_readable()
                group = await waiters.next_group(query_filter, upto=query.upto, timeout=left)
                if group is not None:
                    feed.skip(group)
                elif self._clock.seconds() >= until:
                    return head, None

    async def _next_text(self) -> bytes | None:
        """Encode what comes next, which can be empty; None at the end. Raises `ApiError`."""
        match self._feed.next():
            case PageStep() as step:
                return await self._page(step)
            case EpochStart() as epoch_start:
                return encode_line("epoch_start", epoch_start)
            case (Stop.TRIMMED | Stop.REPLACED) as stop:
                raise stop_error(self._log, self._feed, stop)
            case _:
                return None

    async def _page(self, step: PageStep) -> bytes:
        if self._arrow is not None:
            return await self._arrow.page(self._log, self._feed, step)
        page = await read_page(self._log, self._feed, step)
        return b"" if page is None else encode_page(page.facts, page.receipts, checked=self._query.checked)


class ChangelogFeed:
    """Feeds all readers that follow the changelog. Readers with equal filters share lines from the ring."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._streams: set[_ChangelogStream] = set()
        services.publisher.broadcast_watchers.append(self._on_command)
        services.publisher.holdings.watchers.append(self._retire)

    async def serve(self, request: Any, query: ChangelogQuery, valve: Valve) -> None:
        """Write to this request, whose headers were sent, until the query ends or the client disconnects."""
        stream = _ChangelogStream(self._services, request, query, valve)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)

    def _retire(self, why: ReadRefusal) -> None:
        """End all answers with a line that says why, and where the primary is."""
        moved = MovedLine(why.code, why.message, self._services.publisher.holdings.primary_address)
        for stream in self._streams:
            stream.moved = moved
        self._services.publisher.waiters.wake_readers()

    def _on_command(self, command: Command, source: object) -> Iterator[None]:
        """Forward a command for all processes to the readers that request commands, except to its source."""
        replicas = [
            stream
            for stream in self._streams
            if stream.origin not in (None, source) and is_told(stream.seen, type(command))
        ]
        if not replicas:
            return
        try:
            encoded = encode_line("command", line_of(command).decode(errors="replace"))
        except LocalProtocolError:
            encoded = b""
        for stream in replicas:
            if not encoded or not stream.send_command(encoded):
                self._services.publisher.metrics.commands_dropped.labels(command.NAME).inc()
            yield


class _ChangelogStream:
    def __init__(self, services: Services, request: Any, query: ChangelogQuery, valve: Valve) -> None:
        self._log = services.log
        self._clock = services.clock
        self._waiters = services.publisher.waiters
        self.origin, self.seen = query.origin, query.seen
        self._request = request
        self._query = query
        self._valve = valve
        self._encoder = line_encoder(query.filter, checked=query.checked)
        self._feed = query_feed(self._log, query, services.publisher.ring)
        self._position: FeedPosition
        """The last position that was reached with a known digest, for heartbeats."""
        self._position_at = self._clock.seconds()
        self._is_idle = False
        self._was_at_head = False
        self._is_over = False
        self.moved: MovedLine | None = None
        """Why the answer must end: another daemon is to be read."""
        self._timer = Timer(services.clock, self._tick)

    async def run(self) -> None:
        """Send facts until the query ends. Raises `ApiError` if the log is replaced, or facts are trimmed."""
        since = self._query.since
        digest = self._query.digest or await self._log.digest_at(since)
        self._position = FeedPosition(self._feed.epoch, since, digest)
        self._timer.start(self._query.heartbeat)
        try:
            while True:
                if not self._valve.is_open:
                    await self._valve.wait_open()
                    self._feed.resumed()
                match self._feed.next():
                    case RingGroup() as group:
                        await self._send_group(group)
                    case Stop.WAIT if self.moved is not None:
                        self._request.write(encode_line("moved", self.moved))
                        return
                    case Stop.WAIT:
                        self._reach_head()
                        await self._wait()
                    case PageStep() as step:
                        await self._send_page(step)
                    case EpochStart() as epoch_start:
                        self._request.write(encode_line("epoch_start", epoch_start))
                        self._update_position()
                    case EphemeralStep(facts):
                        self._reach_head()
                        self._request.write(held_line(facts))
                    case Stop.DONE:
                        return
                    case stop:
                        raise stop_error(self._log, self._feed, stop)
        finally:
            self._is_over = True
            self._timer.stop()

    async def _send_group(self, group: RingGroup) -> None:
        data, last = self._feed.lines(group, self._encoder)
        if self._feed.needs_receipts:
            receipts = await self._log.receipts_between(self._feed.serial, last.serial, self._query.seen)
            data = encode_page((), receipts, checked=False) + data
        self._feed.sent(last)
        if data:
            self._request.write(data)
        self._update_position()

    async def _send_page(self, step: PageStep) -> None:
        feed = self._feed
        page = await read_page(self._log, feed, step)
        if page is None:
            return
        if page.facts or page.receipts:
            self._request.write(encode_page(page.facts, page.receipts, checked=self._query.checked))
        if not self._update_position() and self._clock.seconds() - self._position_at >= self._query.heartbeat:
            digest = await self._log.digest_at(feed.serial)
            self._set_position(FeedPosition(feed.epoch, feed.serial, digest))

    def _reach_head(self) -> None:
        self._update_position()
        if not self._was_at_head:
            self._was_at_head = True
            self._beat()

    async def _wait(self) -> None:
        query = self._query
        self._is_idle = True
        try:
            # A receipt can belong to facts that the filter leaves out.
            group = await self._waiters.next_group(
                None if query.receipts else query.filter, upto=query.upto, ephemeral=query.ephemeral
            )
        finally:
            self._is_idle = False
        if group is not None:
            self._feed.skip(group)

    def send_command(self, encoded: bytes) -> bool:
        """Send an encoded command; False if the reader is paused, and so misses it."""
        if not self._valve.is_open:
            return False
        self._request.write(encoded)
        return True

    def _tick(self) -> None:
        self._timer.start(self._query.heartbeat)
        if self._is_idle:
            self._waiters.poll()
        if self._is_idle:
            # `poll` has seen every commit, and none has selected facts.
            self._feed.skip()
            self._update_position()
        if not self._is_over:
            self._beat()

    def _beat(self) -> None:
        if self._valve.is_open:
            at, now_ms = self._position, int(self._clock.seconds() * 1000)
            beat = HeartbeatLine(at.epoch, at.serial, at.digest, now_ms, self._log.serial)
            self._request.write(encode_line("heartbeat", beat))

    def _update_position(self) -> bool:
        """Update the position of heartbeats; False if its digest is unknown."""
        position = self._feed.position
        if position.digest is None:
            return False
        self._set_position(position)
        return True

    def _set_position(self, position: FeedPosition) -> None:
        self._position = position
        self._position_at = self._clock.seconds()
