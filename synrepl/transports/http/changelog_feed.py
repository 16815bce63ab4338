"""A changelog without an end: facts as they are committed, commands for all processes, and heartbeats.

At the head, what is committed is sent from memory; a reader that is further behind, or slower, is given what
the log has on disk, a page at a time, so that nothing is held for it here.
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
    ephemeral_line,
    heartbeat_line,
    held_line,
    written,
)
from synrepl.transports.http.changelog_query import ChangelogQuery
from synrepl.transports.http.log_waiters import LogWaiters
from synrepl.transports.http.streaming import Valve
from synrepl.wire.grammar import Command

__all__ = ["ChangelogFeed"]


class ChangelogFeed:
    """Serves any number of readers; what all of them are given is written as text once."""

    def __init__(self, log: Log, publisher: Publisher, clock: IClock, waiting: LogWaiters) -> None:
        self.log = log
        self.clock = clock
        self._dropped = publisher.metrics.commands_dropped
        self.waiting = waiting
        self._group: Sequence[Fact] | None = None
        self._text = b""
        self._streams: set[_ChangelogStream] = set()
        log.subscribe(self._committed)
        publisher.on_broadcast(self._relayed)

    async def serve(self, request: Any, wanted: ChangelogQuery, valve: Valve) -> None:
        """Write to this request, whose head was written, for as long as it is read, or until all is there."""
        stream = _ChangelogStream(self, request, wanted, valve)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)

    def _committed(self, group: Sequence[Fact]) -> None:
        if not group[0].serial:
            for stream in self._streams:
                stream.show_ephemeral(group)

    def _relayed(self, command: Command, source: object) -> None:
        """Pass a command for all processes on to the replicas, but to the one it is from."""
        replicas = [stream for stream in self._streams if stream.origin not in (None, source)]
        if not replicas:
            return
        try:
            text = command_line(line_of(command))
        except LocalProtocolError:
            text = b""
        for stream in replicas:
            if not text or not stream.tell(text):
                self._dropped.labels(command.NAME).inc()

    def text(self, group: Sequence[Fact], page: ChangelogPage, *, checked: bool) -> bytes:
        """The lines of what is wanted of a group that was committed just now."""
        if checked or page.facts is not group or page.epoch_starts or page.receipts:
            return written(page.facts, page.epoch_starts, page.receipts, checked=checked)
        if self._group is not group:
            self._group, self._text = group, written(group, checked=False)
        return self._text


class _PositionNotice(msgspec.Struct, frozen=True):
    """Up to where everything wanted was sent; the digest may not be known any more."""

    epoch: int
    serial: int
    digest: str | None


class _ChangelogStream:
    """One reader's."""

    def __init__(self, following: ChangelogFeed, request: Any, wanted: ChangelogQuery, valve: Valve) -> None:
        self._following = following
        self._log = following.log
        self._clock = following.clock
        self._waiting = following.waiting
        self._request = request
        self._wanted = wanted
        self._valve = valve
        self._reading = ChangelogCursor(self._log, wanted)
        self._reached: _PositionNotice
        self._reached_at = self._clock.seconds()
        self._is_idle = False
        self._was_at_head = False
        self._is_over = False
        # What nobody keeps is told from the time on when the reader has all that is kept.
        self._is_ephemeral_stale = wanted.ephemeral
        self._timer: Any = None

    @property
    def origin(self) -> str | None:
        """Under what name the reader forwards commands; None if it wants none of others."""
        return self._wanted.origin

    async def run(self) -> None:
        """Until all is there."""
        reading, since = self._reading, self._wanted.since
        digest = self._wanted.digest or await self._log.digest_at(since)
        self._write_turns()
        self._reached = _PositionNotice(
            self._epoch(since, self._wanted.epoch or BEGINNING.epoch), since, digest
        )
        self._timer = self._clock.callLater(self._wanted.heartbeat, self._tick)
        try:
            while not reading.is_done:
                reading.check()
                await self._valve.opened()
                if reading.after < reading.head:
                    await self._send_page()
                else:
                    await self._wait()
        finally:
            self._is_over = True
            self._timer.cancel()

    async def _send_page(self) -> None:
        page = await self._reading.page(self._reading.head)
        if page:
            self._request.write(
                written(page.facts, page.epoch_starts, page.receipts, checked=self._wanted.checked)
            )
        serial = self._reading.after
        if self._note(page.facts) or self._clock.seconds() - self._reached_at < self._wanted.heartbeat:
            return
        digest = await self._log.digest_at(serial)
        self._reach(_PositionNotice(self._epoch(serial, self._reached.epoch), serial, digest))

    async def _wait(self) -> None:
        """At the head: until something wanted is committed, and that is sent."""
        self._write_turns()
        self._reach(self._at_head())
        if not self._was_at_head:
            self._was_at_head = True
            self._beat()
        if self._is_ephemeral_stale and self._valve.is_open:
            self._is_ephemeral_stale = False
            passes = self._wanted.chosen.passes
            held = self._log.ephemeral_snapshot()
            self._request.write(held_line(fact for fact in held if passes(fact.stream, fact.writer)))
        self._is_idle = True
        try:
            # A receipt may be of facts that are not wanted.
            chosen = None if self._wanted.receipts else self._wanted.chosen
            group = await self._waiting.news(chosen, upto=self._wanted.upto)
        finally:
            self._is_idle = False
        if group:
            self._reading.after = max(self._reading.after, group[0].serial - 1)
            if self._can_push(group):
                page = await self._reading.pushed(group)
                if page:
                    self._request.write(self._following.text(group, page, checked=self._wanted.checked))
                self._note(group)

    def _can_push(self, group: Sequence[Fact]) -> bool:
        left = self._reading.left
        return (
            self._valve.is_open
            and group[0].serial == self._reading.after + 1
            and group[-1].serial <= self._wanted.upto
            and len(group) <= (PAGE_ROWS if left is None else left)
            and sum(map(weight, group)) <= PAGE_ROWS
        )

    def show_ephemeral(self, facts: Sequence[Fact]) -> None:
        """Facts that nobody keeps have come; who does not read just now is told later what is left."""
        if not self._wanted.ephemeral or not self._was_at_head:
            return
        if not self._valve.is_open:
            self._is_ephemeral_stale = True
            return
        passes = self._wanted.chosen.passes
        lines = [ephemeral_line(fact) for fact in facts if passes(fact.stream, fact.writer)]
        self._request.write(b"".join(lines))

    def tell(self, text: bytes) -> bool:
        """Say a line that nobody keeps. False if the reader does not read just now: it misses the line."""
        if not self._valve.is_open:
            return False
        self._request.write(text)
        return True

    # -- heartbeats ----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = self._clock.callLater(self._wanted.heartbeat, self._tick)
        if self._is_idle:
            self._waiting.look()
        if self._is_idle:
            # Everything that came was seen by whoever wakes this, and nothing of it is wanted.
            self._reading.after = max(self._reading.after, self._reading.head)
            self._write_turns()
            self._reach(self._at_head())
        if not self._is_over:
            self._beat()

    def _beat(self) -> None:
        """Nothing is said to who has not read what was said before."""
        if self._valve.is_open:
            at, now_ms = self._reached, int(self._clock.seconds() * 1000)
            self._request.write(
                heartbeat_line(at.epoch, at.serial, at.digest, now_ms=now_ms, head=self._log.serial)
            )

    def _write_turns(self) -> None:
        if epoch_starts := self._reading.epoch_starts():
            self._request.write(written((), epoch_starts, checked=False))

    def _note(self, facts: Sequence[Fact]) -> bool:
        """Know how far the reader is; False where that takes a look at the log."""
        serial = self._reading.after
        if facts and facts[-1].serial == serial:
            last = facts[-1]
            self._reach(_PositionNotice(self._epoch(serial, last.epoch), serial, last.digest))
        elif serial == self._log.serial:
            self._reach(self._at_head())
        else:
            return False
        return True

    def _reach(self, reached: _PositionNotice) -> None:
        self._reached = reached
        self._reached_at = self._clock.seconds()

    def _at_head(self) -> _PositionNotice:
        position = self._log.position
        return _PositionNotice(position.epoch, position.serial, position.digest)

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
