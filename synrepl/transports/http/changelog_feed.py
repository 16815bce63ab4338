"""Endless changelog: facts on commit, commands for all processes, and heartbeats."""

from typing import Any

from synrepl.errors import LocalProtocolError
from synrepl.ports.history import EpochStart
from synrepl.ports.interfaces import IClock
from synrepl.ports.time import Timer
from synrepl.replication.command_forwarder import line_of
from synrepl.replication.feed import EphemeralStep, FeedPosition, PageStep, Stop, read_page
from synrepl.replication.publisher import Publisher
from synrepl.replication.ring import RingGroup
from synrepl.storage.log import Log
from synrepl.transports.http.call import Valve
from synrepl.transports.http.changelog_lines import (
    command_line,
    encode_page,
    epoch_start_line,
    heartbeat_line,
    held_line,
    line_encoder,
)
from synrepl.transports.http.changelog_query import ChangelogQuery, query_feed, stop_error
from synrepl.wire.grammar import Command

__all__ = ["ChangelogFeed"]


class ChangelogFeed:
    """Feeds any number of readers. A group that several of them read is encoded once."""

    def __init__(self, log: Log, publisher: Publisher, clock: IClock) -> None:
        self.log = log
        self.clock = clock
        self.publisher = publisher
        self._streams: set[_ChangelogStream] = set()
        publisher.broadcast_watchers.append(self._on_command)

    async def serve(self, request: Any, query: ChangelogQuery, valve: Valve) -> None:
        """Write to this request, whose headers were sent, until the query ends or the client disconnects."""
        stream = _ChangelogStream(self, request, query, valve)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)

    def _on_command(self, command: Command, source: object) -> None:
        """Forward a command for all processes to the replicas, except to its source."""
        replicas = [stream for stream in self._streams if stream.origin not in (None, source)]
        if not replicas:
            return
        try:
            encoded = command_line(line_of(command))
        except LocalProtocolError:
            encoded = b""
        for stream in replicas:
            if not encoded or not stream.send_command(encoded):
                self.publisher.metrics.commands_dropped.labels(command.NAME).inc()


class _ChangelogStream:
    """The response to one reader."""

    def __init__(self, feed: ChangelogFeed, request: Any, query: ChangelogQuery, valve: Valve) -> None:
        self._log = feed.log
        self._clock = feed.clock
        self._waiters = feed.publisher.waiters
        self._request = request
        self._query = query
        self._valve = valve
        self._encoder = line_encoder(query.filter, checked=query.checked)
        self._feed = query_feed(self._log, query, feed.publisher.ring)
        self._position: FeedPosition
        """The last position that was reached with a known digest, for heartbeats."""
        self._position_at = self._clock.seconds()
        self._is_idle = False
        self._was_at_head = False
        self._is_over = False
        self._timer = Timer(feed.clock, self._tick)

    @property
    def origin(self) -> str | None:
        """The origin under which the reader forwards commands; None if it requests no commands."""
        return self._query.origin

    async def run(self) -> None:
        """Send facts until the query ends. Raises `ApiError` if the log was replaced or trimmed meanwhile."""
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
                    case Stop.WAIT:
                        self._reach_head()
                        await self._wait()
                    case PageStep() as step:
                        await self._send_page(step)
                    case EpochStart() as epoch_start:
                        self._request.write(epoch_start_line(epoch_start))
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
            receipts = await self._log.receipts_between(self._feed.serial, last.serial)
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
        """Wait for a commit with selected facts."""
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

    # -- heartbeats ----------------------------------------------------------------------------------------

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
        """Send a heartbeat, unless the reader is paused."""
        if self._valve.is_open:
            at, now_ms = self._position, int(self._clock.seconds() * 1000)
            self._request.write(
                heartbeat_line(at.epoch, at.serial, at.digest, now_ms=now_ms, head=self._log.serial)
            )

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
