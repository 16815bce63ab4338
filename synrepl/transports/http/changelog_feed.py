"""Endless changelog: facts on commit, commands for all processes, and heartbeats.

At the head, the feed sends committed groups from memory. A reader that is behind or slow gets pages from the
log on disk, so that the feed buffers nothing for it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from synrepl.errors import LocalProtocolError
from synrepl.ports.history import BEGINNING
from synrepl.ports.interfaces import IClock
from synrepl.replication.command_forwarder import line_of
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log
from synrepl.storage.paging import weight
from synrepl.streams.facts import Fact
from synrepl.transports.http.changelog_cursor import PAGE_ROWS, ChangelogCursor, ChangelogPage
from synrepl.transports.http.changelog_lines import (
    command_line,
    encode_page,
    ephemeral_line,
    heartbeat_line,
    held_line,
)
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.log_waiters import LogWaiters
from synrepl.transports.http.streaming import Valve
from synrepl.wire.grammar import Command

__all__ = ["ChangelogFeed"]


class ChangelogFeed:
    """Feeds any number of readers. A group that all of them read is encoded once."""

    def __init__(self, log: Log, publisher: Publisher, clock: IClock, waiters: LogWaiters) -> None:
        self.log = log
        self.clock = clock
        self._dropped = publisher.metrics.commands_dropped
        self.waiters = waiters
        self._group: Sequence[Fact] | None = None
        self._text = b""
        self._streams: set[_ChangelogStream] = set()
        log.subscribe(self._on_commit)
        publisher.on_broadcast(self._on_command)

    async def serve(self, request: Any, query: ChangelogQuery, valve: Valve) -> None:
        """Write to this request, whose headers were sent, until the query ends or the client disconnects."""
        stream = _ChangelogStream(self, request, query, valve)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)

    def _on_commit(self, group: Sequence[Fact]) -> None:
        if not group[0].serial:
            for stream in self._streams:
                stream.send_ephemeral(group)

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
                self._dropped.labels(command.NAME).inc()

    def encode_group(self, group: Sequence[Fact], page: ChangelogPage, *, checked: bool) -> bytes:
        """Encode a page of a group that was just committed; cached if the page is the whole group."""
        if checked or page.facts is not group or page.epoch_starts or page.receipts:
            return encode_page(page.facts, page.epoch_starts, page.receipts, checked=checked)
        if self._group is not group:
            self._group, self._text = group, encode_page(group, checked=False)
        return self._text


class _SentPosition(msgspec.Struct, frozen=True):
    """Position up to which every selected fact was sent. The digest can be unknown."""

    epoch: int
    serial: int
    digest: str | None


class _ChangelogStream:
    """The feed of one reader."""

    def __init__(self, feed: ChangelogFeed, request: Any, query: ChangelogQuery, valve: Valve) -> None:
        self._feed = feed
        self._log = feed.log
        self._clock = feed.clock
        self._waiters = feed.waiters
        self._request = request
        self._query = query
        self._valve = valve
        self._cursor = ChangelogCursor(self._log, query)
        self._position: _SentPosition
        self._position_at = self._clock.seconds()
        self._is_idle = False
        self._was_at_head = False
        self._is_over = False
        # Ephemeral facts are sent once the reader has reached the head.
        self._is_ephemeral_stale = query.ephemeral
        self._timer: Any = None

    @property
    def origin(self) -> str | None:
        """The origin under which the reader forwards commands; None if it requests no commands."""
        return self._query.origin

    async def run(self) -> None:
        """Send facts until the query ends."""
        cursor, since = self._cursor, self._query.since
        digest = self._query.digest or await self._log.digest_at(since)
        self._write_epoch_starts()
        self._position = _SentPosition(
            self._epoch(since, self._query.epoch or BEGINNING.epoch), since, digest
        )
        self._timer = self._clock.callLater(self._query.heartbeat, self._tick)
        try:
            while not cursor.is_done:
                cursor.check()
                await self._valve.wait_open()
                if cursor.after < cursor.head:
                    await self._send_page()
                else:
                    await self._wait()
        finally:
            self._is_over = True
            self._timer.cancel()

    async def _send_page(self) -> None:
        page = await self._cursor.page(self._cursor.head)
        if page:
            self._request.write(
                encode_page(page.facts, page.epoch_starts, page.receipts, checked=self._query.checked)
            )
        serial = self._cursor.after
        if (
            self._record_progress(page.facts)
            or self._clock.seconds() - self._position_at < self._query.heartbeat
        ):
            return
        digest = await self._log.digest_at(serial)
        self._set_position(_SentPosition(self._epoch(serial, self._position.epoch), serial, digest))

    async def _wait(self) -> None:
        """At the head: wait for a commit with selected facts, and send them."""
        self._write_epoch_starts()
        self._set_position(self._head())
        if not self._was_at_head:
            self._was_at_head = True
            self._beat()
        if self._is_ephemeral_stale and self._valve.is_open:
            self._is_ephemeral_stale = False
            passes = self._query.filter.passes
            current = self._log.ephemeral_snapshot()
            self._request.write(held_line(fact for fact in current if passes(fact.stream, fact.writer)))
        self._is_idle = True
        try:
            # A receipt can belong to facts that the filter leaves out.
            group_filter = None if self._query.receipts else self._query.filter
            group = await self._waiters.next_group(group_filter, upto=self._query.upto)
        finally:
            self._is_idle = False
        if group:
            self._cursor.after = max(self._cursor.after, group[0].serial - 1)
            if self._can_push(group):
                page = await self._cursor.page_of(group)
                if page:
                    self._request.write(self._feed.encode_group(group, page, checked=self._query.checked))
                self._record_progress(group)

    def _can_push(self, group: Sequence[Fact]) -> bool:
        left = self._cursor.left
        return (
            self._valve.is_open
            and group[0].serial == self._cursor.after + 1
            and group[-1].serial <= self._query.upto
            and len(group) <= (PAGE_ROWS if left is None else left)
            and sum(map(weight, group)) <= PAGE_ROWS
        )

    def send_ephemeral(self, facts: Sequence[Fact]) -> None:
        """Send ephemeral facts. A reader that is paused gets the current ones when it resumes."""
        if not self._query.ephemeral or not self._was_at_head:
            return
        if not self._valve.is_open:
            self._is_ephemeral_stale = True
            return
        passes = self._query.filter.passes
        lines = [ephemeral_line(fact) for fact in facts if passes(fact.stream, fact.writer)]
        self._request.write(b"".join(lines))

    def send_command(self, encoded: bytes) -> bool:
        """Send an encoded command; False if the reader is paused, and so misses it."""
        if not self._valve.is_open:
            return False
        self._request.write(encoded)
        return True

    # -- heartbeats ----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = self._clock.callLater(self._query.heartbeat, self._tick)
        if self._is_idle:
            self._waiters.poll()
        if self._is_idle:
            # `poll` has seen every commit, and none has selected facts.
            self._cursor.after = max(self._cursor.after, self._cursor.head)
            self._write_epoch_starts()
            self._set_position(self._head())
        if not self._is_over:
            self._beat()

    def _beat(self) -> None:
        """Send a heartbeat, unless the reader is paused."""
        if self._valve.is_open:
            at, now_ms = self._position, int(self._clock.seconds() * 1000)
            self._request.write(
                heartbeat_line(at.epoch, at.serial, at.digest, now_ms=now_ms, head=self._log.serial)
            )

    def _write_epoch_starts(self) -> None:
        if epoch_starts := self._cursor.epoch_starts():
            self._request.write(encode_page((), epoch_starts, checked=False))

    def _record_progress(self, facts: Sequence[Fact]) -> bool:
        """Update the reader's position; False if that needs a read of the log."""
        serial = self._cursor.after
        if facts and facts[-1].serial == serial:
            last = facts[-1]
            self._set_position(_SentPosition(self._epoch(serial, last.epoch), serial, last.digest))
        elif serial == self._log.serial:
            self._set_position(self._head())
        else:
            return False
        return True

    def _set_position(self, position: _SentPosition) -> None:
        self._position = position
        self._position_at = self._clock.seconds()

    def _head(self) -> _SentPosition:
        position = self._log.position
        return _SentPosition(position.epoch, position.serial, position.digest)

    def _epoch(self, serial: int, lowest: int) -> int:
        return max(
            [
                lowest,
                *(
                    epoch_start.epoch
                    for epoch_start in self._log.epoch_starts
                    if epoch_start.serial <= serial
                ),
            ]
        )
