"""Reader: one follower's cursor in the log, and the facts it is sent next."""

from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from twisted.logger import Logger

from synrepl.ports.interfaces import ILog
from synrepl.replication.encoder import Encoder
from synrepl.replication.ring import Ring
from synrepl.streams.facts import Fact
from synrepl.streams.stream import Stream
from synrepl.wire.commands import Position
from synrepl.wire.filter import Filter
from synrepl.wire.grammar import Command

__all__ = ["Backlog", "ReaderConnection", "Feed", "Reader"]

PAGE_ROWS: Final = 1_000
"""Rows read from the log at a time for a reader that is behind: a few milliseconds of work."""

MAX_COMMANDS: Final = 1_000
"""Broadcast commands buffered for a reader whose transport is full. The oldest are dropped: delivery is best
effort.
"""


class ReaderConnection(Protocol):
    """A reader's connection to its follower."""

    def write(self, data: bytes) -> None:
        """Send these bytes. May call `Reader.pause` before it returns."""

    def send(self, command: Command) -> None:
        """Send one command."""

    def fail(self, why: str) -> None:
        """Send ERROR, then close."""

    def pause_reading(self) -> None:
        """Stop reading from the peer."""

    def resume_reading(self) -> None:
        """Read from the peer again."""


class Feed(Protocol):
    """The part of the publisher that a reader uses."""

    log: ILog
    ring: Ring

    def positions(self, stream: str) -> dict[str, int]:
        """The published position of each writer of this stream."""

    def linear_position(self, stream: str) -> int:
        """The highest published token of this stream, of any writer."""

    def start(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Run a coroutine and log its failure."""

    def note_demoted(self) -> None:
        """Count a reader that fell out of the ring and reads from the log now."""

    def note_promoted(self) -> None:
        """Count a reader that returned to the ring."""


class Backlog:
    """Streams on which a reader catches up from one serial of the log.

    The reader reads the log page by page until the next fact is in the ring (`ring_number` is None until
    then), then follows the ring. At the ring's end the streams go live. Facts of ephemeral streams are sent
    from memory when the backlog enters the ring: those after the last token sent, or all if a writer
    restarted since. `restarts` counts the restarts already announced.

    A request for facts after a token reads by token first (`after_token`). Where several writers share a
    stream, that token says nothing about other writers' facts, which may have lower tokens and a higher
    serial. The reader then looks up the serial of the follower's last fact (`last_token`) and continues by
    serial.
    """

    def __init__(
        self,
        streams: frozenset[str],
        *,
        serial: int,
        ephemeral: dict[str, int],
        restarts: dict[str, int],
        after_token: int | None = None,
        last_token: int | None = None,
        announce: bool = False,
    ) -> None:
        self.streams = streams
        self.serial = serial
        self.ephemeral = ephemeral
        self.restarts = restarts
        self.after_token = after_token
        self.last_token = last_token
        self.announce = announce
        self.ring_number: int | None = None


class Reader:
    """Sends one follower its streams at the follower's own speed, without gaps and without a queue.

    A live reader takes each group of facts from the ring. While its transport is full (`pause`) it takes
    nothing. If its next group has left the ring when it resumes, its streams become a backlog that is read
    from the log; they go live again after catching up. All decisions are made in `pump`, which runs after
    every change. `scope` describes what the daemon holds, if it does not hold everything.
    """

    _log = Logger()

    def __init__(
        self, feed: Feed, connection: ReaderConnection, encoder: Encoder, *, linear: bool, scope: str = ""
    ) -> None:
        self._feed = feed
        self._scope = scope
        self._connection = connection
        self._encoder = encoder
        self._linear = linear
        self._all_streams = frozenset(stream.name for stream in encoder.streams())
        self._ephemeral = frozenset(stream.name for stream in encoder.streams() if stream.ephemeral)
        self._live_streams: frozenset[str] = frozenset()
        self._ring_number = feed.ring.newest
        self._serial = feed.ring.serial
        self._ephemeral_sent: dict[str, int] = {}
        self._restarts_sent: dict[str, int] = {}
        self._backlogs: deque[Backlog] = deque()
        self._reading_page_of: Backlog | None = None
        """The backlog that a page is being read for. Only one page is read at a time, even if its backlog is
        dropped.
        """
        self._commands: deque[Command] = deque(maxlen=MAX_COMMANDS)
        self._positions_requested = False
        self._paused = False
        self._pumping = False
        self._is_closed = False

    # -- requests of the follower (`serve_strategy.ServedReader`) ------------------------------------------

    def known_streams(self) -> list[Stream[Any]]:
        """The streams that the follower's release knows."""
        return self._encoder.streams()

    def push_everything(self) -> None:
        """Send every row from now on."""
        self._set_ring_position(self._feed.ring.newest, self._feed.ring.serial)
        self._ephemeral_sent = {name: self._feed.linear_position(name) for name in self._ephemeral}
        self._restarts_sent = {name: self._feed.log.writer_resets(name) for name in self._ephemeral}
        self._live_streams = self._all_streams

    def push_since(self, serial: int) -> None:
        """Send every row after this serial of the log, then go live."""
        self._set_ring_position(self._feed.ring.newest, self._feed.ring.serial)
        restarts = {name: self._feed.log.writer_resets(name) for name in self._ephemeral}
        ephemeral = dict.fromkeys(self._ephemeral, 0)
        self._backlogs.append(
            Backlog(self._all_streams, serial=serial, ephemeral=ephemeral, restarts=restarts)
        )
        self.pump()

    def push_from(self, stream: Stream[Any], token: int | None) -> None:
        """Send this stream's facts after `token` (None: none), then its POSITION, then go live."""
        name = stream.name
        self._live_streams -= {name}
        for backlog in list(self._backlogs):
            backlog.streams -= {name}
            if not backlog.streams:
                self._backlogs.remove(backlog)
        head = self._feed.linear_position(name)
        after_token: int | None = None
        last_token: int | None = None
        ephemeral: dict[str, int] = {}
        if stream.ephemeral:
            # A token above the head belongs to an earlier life of the stream: send all of this one.
            ephemeral[name] = head if token is None else 0 if token > head else token
        elif token is not None:
            after_token = token if token < head else None
            if sum(at > 0 for at in self._feed.positions(name).values()) > 1:
                last_token = token
        backlog = Backlog(
            frozenset({name}),
            serial=self._feed.ring.serial,
            ephemeral=ephemeral,
            restarts={name: self._feed.log.writer_resets(name) for name in ephemeral},
            after_token=after_token,
            last_token=last_token,
            announce=True,
        )
        self._backlogs.append(backlog)
        self.pump()

    def send_positions(self) -> None:
        """Send all positions after the facts that come before them."""
        self._positions_requested = True
        self.pump()

    def refuse_stream(self, name: str) -> None:
        """Send ERROR for a stream that is not in `known_streams`, and close."""
        hint = f": {self._scope}" if self._scope else ""
        self._connection.fail(f"unknown stream {name}{hint}")

    def send_command(self, command: Command) -> None:
        """Queue a broadcast command."""
        self._commands.append(command)
        self.pump()

    # -- transport -----------------------------------------------------------------------------------------

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._paused = True

    def resume(self) -> None:
        """The transport's buffer has room again."""
        self._paused = False
        self.pump()

    def stop(self) -> None:
        """The connection was lost."""
        self._is_closed = True
        self._backlogs.clear()

    # -- position ------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether the reader reads from the log rather than the ring."""
        return bool(self._backlogs)

    @property
    def serial(self) -> int:
        """All of the reader's facts up to this serial were passed to its transport."""
        serials = [
            backlog.serial if backlog.after_token is None and backlog.last_token is None else 0
            for backlog in self._backlogs
        ]
        if self._live_streams:
            serials.append(self._serial)
        return min(serials, default=self._feed.ring.serial)

    # -- sending -------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send everything that can be sent now. Extra calls are harmless."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while not self._paused and not self._is_closed and self._step():
                pass
        finally:
            self._pumping = False

    def _step(self) -> bool:
        """Take the next step; return whether there was one."""
        if self._commands:
            self._connection.send(self._commands.popleft())
            return True
        if self._ring_number < self._feed.ring.newest:
            return self._step_live()
        if self._backlogs:
            return self._step_backlog(self._backlogs[0])
        if self._positions_requested:
            self._positions_requested = False
            self._write(self._position_lines(self._encoder.streams()))
            return True
        return False

    def _step_live(self) -> bool:
        group = self._feed.ring.get(self._ring_number + 1)
        if not self._live_streams:
            self._set_ring_position(self._feed.ring.newest, self._feed.ring.serial)
        elif group is None:
            self._demote()
        else:
            streams = None if self._live_streams is self._all_streams else self._live_streams
            data, last = self._feed.ring.lines(group, self._encoder, streams)
            for number in range(group.number, last.number + 1):
                passed = self._feed.ring.get(number)
                if passed is not None and passed.ephemeral:
                    self._ephemeral_sent.update(passed.ephemeral)
                    for name in passed.restarted:
                        self._restarts_sent[name] = self._restarts_sent.get(name, 0) + 1
            self._set_ring_position(last.number, last.serial)
            self._write(data)
        return True

    def _demote(self) -> None:
        """Read from the log: the reader's next group has left the ring."""
        sent = {name: self._ephemeral_sent.get(name, 0) for name in self._live_streams & self._ephemeral}
        restarts = {name: self._restarts_sent.get(name, 0) for name in sent}
        backlog = Backlog(self._live_streams, serial=self._serial, ephemeral=sent, restarts=restarts)
        self._backlogs.appendleft(backlog)
        self._live_streams = frozenset()
        self._set_ring_position(self._feed.ring.newest, self._feed.ring.serial)
        self._feed.note_demoted()

    def _step_backlog(self, backlog: Backlog) -> bool:
        if backlog is self._reading_page_of:
            return False
        if backlog.ring_number is None and not self._enter_ring(backlog):
            if self._reading_page_of is not None:
                return False
            self._reading_page_of = backlog
            self._feed.start(self._read_page(backlog), "reading the log for a follower")
            return self._reading_page_of is None
        assert backlog.ring_number is not None
        if backlog.ring_number > self._feed.ring.newest:
            self._go_live(backlog)
            return True
        group = self._feed.ring.get(backlog.ring_number)
        if group is None:
            backlog.ring_number = None
            return True
        backlog.ring_number += 1
        news = [fact for fact in group.facts if self._is_new(backlog, fact)]
        backlog.serial = max(backlog.serial, group.serial)
        self._write(self._encoder.lines(news))
        return True

    def _enter_ring(self, backlog: Backlog) -> bool:
        """Switch a backlog to the ring if all its remaining facts are there; return whether they are."""
        if backlog.after_token is not None or backlog.last_token is not None:
            return False
        number = self._feed.ring.first_after(backlog.serial)
        if number is None:
            return False
        backlog.ring_number = number
        for name in sorted(backlog.ephemeral):
            restarts = self._feed.log.writer_resets(name)
            if backlog.restarts[name] != restarts:
                backlog.restarts[name] = restarts
                backlog.ephemeral[name] = 0
                self._write(self._reset_lines(name))
            facts = self._feed.log.ephemeral_after(name, backlog.ephemeral[name])
            if facts:
                backlog.ephemeral[name] = facts[-1].token
                self._write(self._encoder.lines(facts))
        return True

    def _reset_lines(self, stream: str) -> bytes:
        """POSITION lines that announce a restart of an ephemeral stream; empty if the release has none."""
        if self._linear:
            return b""
        return b"".join(
            self._encoder.command(Position(stream=stream, instance=writer, prev_token=0, token=0))
            for writer in sorted(self._feed.positions(stream))
        )

    @staticmethod
    def _is_new(backlog: Backlog, fact: Fact) -> bool:
        if fact.stream not in backlog.streams:
            return False
        if fact.serial:
            return fact.serial > backlog.serial
        if fact.token == 0:
            backlog.ephemeral[fact.stream] = 0
            return True
        return fact.token > backlog.ephemeral.get(fact.stream, 0)

    async def _read_page(self, backlog: Backlog) -> None:
        """Read one page from the log: by token up to the backlog's starting serial, then by serial."""
        facts: list[Fact]
        try:
            if backlog.last_token is not None:
                facts = []
                await self._find_serial_of(backlog, backlog.last_token)
            elif backlog.after_token is not None:
                (stream,) = backlog.streams
                facts, more = await self._feed.log.read_tokens(
                    stream=stream,
                    writer=None,
                    after=backlog.after_token,
                    upto=self._feed.linear_position(stream),
                    serial=backlog.serial,
                    limit=PAGE_ROWS,
                )
                backlog.after_token = facts[-1].token if more else None
            else:
                facts, backlog.serial = await self._feed.log.read(
                    after=backlog.serial,
                    upto=self._feed.ring.serial,
                    limit=PAGE_ROWS,
                    filter=Filter.of(streams=backlog.streams),
                )
        except Exception:
            self._connection.fail("the log cannot be read at the moment; reconnect later")
            raise
        finally:
            self._reading_page_of = None
        if self._is_closed:
            return
        if backlog in self._backlogs:
            self._write(self._encoder.lines(fact for fact in facts if fact.stream in backlog.streams))
            self._backlogs.rotate(-1)  # long backlogs must not block short ones
        self.pump()

    async def _find_serial_of(self, backlog: Backlog, token: int) -> None:
        (stream,) = backlog.streams
        found, _ = await self._feed.log.read_tokens(
            stream=stream, writer=None, after=token - 1, upto=token, serial=backlog.serial, limit=PAGE_ROWS
        )
        backlog.last_token = None
        if found:
            backlog.serial = min(fact.serial for fact in found)
            backlog.after_token = None

    def _go_live(self, backlog: Backlog) -> None:
        self._backlogs.remove(backlog)
        for name, token in backlog.ephemeral.items():
            self._ephemeral_sent[name] = max(token, self._feed.linear_position(name))
            self._restarts_sent[name] = self._feed.log.writer_resets(name)
        live = self._live_streams | backlog.streams
        self._live_streams = self._all_streams if live == self._all_streams else live
        if backlog.announce:
            streams = [stream for stream in self._encoder.streams() if stream.name in backlog.streams]
            self._write(self._position_lines(streams))
        else:
            self._feed.note_promoted()

    def _position_lines(self, streams: list[Stream[Any]]) -> bytes:
        """A POSITION for each stream, and for each of its writers if the release knows writers."""
        lines: list[bytes] = []
        for stream in streams:
            if self._linear:
                token = self._feed.linear_position(stream.name)
                commands = [Position(stream=stream.name, token=token)]
            else:
                commands = [
                    Position(stream=stream.name, instance=writer, prev_token=token, token=token)
                    for writer, token in sorted(self._feed.positions(stream.name).items())
                ]
            lines += [self._encoder.command(command) for command in commands]
        return b"".join(lines)

    def _set_ring_position(self, ring_number: int, serial: int) -> None:
        self._ring_number = ring_number
        self._serial = serial

    def _write(self, data: bytes) -> None:
        if data:
            self._connection.write(data)
