"""One follower's place in the log, and what it is sent next."""

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

MAX_RELAYED: Final = 1_000
"""Commands of others that wait for a reader that does not read; they are fire and forget."""


class ReaderConnection(Protocol):
    """What a reader needs of its connection."""

    def write(self, data: bytes) -> None:
        """Send these bytes. May call back `Reader.pause` before it returns."""

    def send(self, command: Command) -> None:
        """Send one command."""

    def fail(self, why: str) -> None:
        """Send ERROR, then close."""

    def pause_reading(self) -> None:
        """Take nothing more from the peer for now."""

    def resume_reading(self) -> None:
        """Go on."""


class Feed(Protocol):
    """What a reader needs of the publisher that feeds it."""

    log: ILog
    ring: Ring

    def positions(self, stream: str) -> dict[str, int]:
        """What was published of this stream, by writer."""

    def linear_position(self, stream: str) -> int:
        """What was published of this stream, whoever wrote it."""

    def start(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Own a coroutine, and report if it fails."""

    def note_demoted(self) -> None:
        """A reader fell out of the ring and reads from the log now."""

    def note_promoted(self) -> None:
        """It is back."""


class Backlog:
    """Streams that a reader is still catching up on, all from one place in the log.

    It reads the log page by page up to where the ring begins (`number` is None till then), then goes through
    the ring; at its end the streams go live. What of the ephemeral streams is in memory is sent when it gets
    to the ring; all of it if a writer began anew since (`restarts` counts how often that was told).

    Behind its own start it reads by token (`after_token`). Where several writers share a stream, one token
    says nothing of the others' facts, which may have come later with lower ones: then the place in the log of
    the fact that the reader had last (`last_had`) is looked for first.
    """

    def __init__(
        self,
        streams: frozenset[str],
        *,
        serial: int,
        ephemeral: dict[str, int],
        restarts: dict[str, int],
        after_token: int | None = None,
        last_had: int | None = None,
        announce: bool = False,
    ) -> None:
        self.streams = streams
        self.serial = serial
        self.ephemeral = ephemeral
        self.restarts = restarts
        self.after_token = after_token
        self.last_had = last_had
        self.announce = announce
        self.number: int | None = None


class Reader:
    """Sends one follower what it wants, at its own speed; never skips, never queues.

    Live, it takes each group of facts from the ring. While its transport is full (`pause`) it takes
    nothing; when it wakes up and its place in the ring is gone, its streams become a backlog that is read
    from the log, and return to live when they have caught up. All decisions are made in `pump`, which runs
    whenever something changed. `held` says what the daemon holds, if that is not everything.
    """

    _log = Logger()

    def __init__(
        self, feed: Feed, connection: ReaderConnection, encoder: Encoder, *, linear: bool, held: str = ""
    ) -> None:
        self._feed = feed
        self._held = held
        self._connection = connection
        self._encoder = encoder
        self._linear = linear
        self._all = frozenset(stream.name for stream in encoder.streams())
        self._ephemeral = frozenset(stream.name for stream in encoder.streams() if stream.ephemeral)
        self._live: frozenset[str] = frozenset()
        self._place = feed.ring.newest
        self._serial = feed.ring.serial
        self._ephemeral_sent: dict[str, int] = {}
        self._restarts_sent: dict[str, int] = {}
        self._backlogs: deque[Backlog] = deque()
        self._page_of: Backlog | None = None
        """The backlog that a page is being read for; one page at a time, also where it is wanted no more."""
        self._relayed: deque[Command] = deque(maxlen=MAX_RELAYED)
        self._wants_positions = False
        self._paused = False
        self._pumping = False
        self._gone = False

    # -- what the follower asked for (`serving.Answering`) -------------------------------------------------

    def known_streams(self) -> list[Stream[Any]]:
        """The streams that the follower's release knows."""
        return self._encoder.streams()

    def push_everything(self) -> None:
        """Send every row from now on."""
        self._note_place(self._feed.ring.newest, self._feed.ring.serial)
        self._ephemeral_sent = {name: self._feed.linear_position(name) for name in self._ephemeral}
        self._restarts_sent = {name: self._feed.log.writer_resets(name) for name in self._ephemeral}
        self._live = self._all

    def push_since(self, serial: int) -> None:
        """Send every row that came after this place in the log, and all that come."""
        self._note_place(self._feed.ring.newest, self._feed.ring.serial)
        restarts = {name: self._feed.log.writer_resets(name) for name in self._ephemeral}
        ephemeral = dict.fromkeys(self._ephemeral, 0)
        self._backlogs.append(Backlog(self._all, serial=serial, ephemeral=ephemeral, restarts=restarts))
        self.pump()

    def push_from(self, stream: Stream[Any], token: int | None) -> None:
        """Send what this stream has after `token` (None: nothing), then its POSITION, then go live."""
        name = stream.name
        self._live -= {name}
        for backlog in list(self._backlogs):
            backlog.streams -= {name}
            if not backlog.streams:
                self._backlogs.remove(backlog)
        head = self._feed.linear_position(name)
        after_token: int | None = None
        last_had: int | None = None
        ephemeral: dict[str, int] = {}
        if stream.ephemeral:
            # Asked from the future: that was a former life of the stream, so all of this one is news.
            ephemeral[name] = head if token is None else 0 if token > head else token
        elif token is not None:
            after_token = token if token < head else None
            if sum(at > 0 for at in self._feed.positions(name).values()) > 1:
                last_had = token
        backlog = Backlog(
            frozenset({name}),
            serial=self._feed.ring.serial,
            ephemeral=ephemeral,
            restarts={name: self._feed.log.writer_resets(name) for name in ephemeral},
            after_token=after_token,
            last_had=last_had,
            announce=True,
        )
        self._backlogs.append(backlog)
        self.pump()

    def say_positions(self) -> None:
        """Send all positions, once everything before them is sent."""
        self._wants_positions = True
        self.pump()

    def refuse_stream(self, name: str) -> None:
        """Send ERROR, as this stream is none of `known_streams`, and close."""
        told = f": {self._held}" if self._held else ""
        self._connection.fail(f"unknown stream {name}{told}")

    def relay(self, command: Command) -> None:
        """Pass on another follower's command."""
        self._relayed.append(command)
        self.pump()

    # -- what the transport says ---------------------------------------------------------------------------

    def pause(self) -> None:
        """The transport has enough for now."""
        self._paused = True

    def resume(self) -> None:
        """The transport can take more."""
        self._paused = False
        self.pump()

    def stop(self) -> None:
        """The connection is gone."""
        self._gone = True
        self._backlogs.clear()

    # -- where it is ---------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether it is reading from the log."""
        return bool(self._backlogs)

    @property
    def serial(self) -> int:
        """Every fact that it wants up to this serial was handed to its transport."""
        held = [
            backlog.serial if backlog.after_token is None and backlog.last_had is None else 0
            for backlog in self._backlogs
        ]
        if self._live:
            held.append(self._serial)
        return min(held, default=self._feed.ring.serial)

    # -- the work ------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send whatever can be sent now. Calling it once too often does no harm."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while not self._paused and not self._gone and self._step():
                pass
        finally:
            self._pumping = False

    def _step(self) -> bool:
        """Do the next thing, if there is one."""
        if self._relayed:
            self._connection.send(self._relayed.popleft())
            return True
        if self._place < self._feed.ring.newest:
            return self._step_live()
        if self._backlogs:
            return self._step_backlog(self._backlogs[0])
        if self._wants_positions:
            self._wants_positions = False
            self._write(self._positions(self._encoder.streams()))
            return True
        return False

    def _step_live(self) -> bool:
        group = self._feed.ring.get(self._place + 1)
        if not self._live:
            self._note_place(self._feed.ring.newest, self._feed.ring.serial)
        elif group is None:
            self._demote()
        else:
            streams = None if self._live is self._all else self._live
            data, last = self._feed.ring.lines(group, self._encoder, streams)
            for number in range(group.number, last.number + 1):
                passed = self._feed.ring.get(number)
                if passed is not None and passed.ephemeral:
                    self._ephemeral_sent.update(passed.ephemeral)
                    for name in passed.restarted:
                        self._restarts_sent[name] = self._restarts_sent.get(name, 0) + 1
            self._note_place(last.number, last.serial)
            self._write(data)
        return True

    def _demote(self) -> None:
        """Our place in the ring is gone: read from the log instead."""
        sent = {name: self._ephemeral_sent.get(name, 0) for name in self._live & self._ephemeral}
        told = {name: self._restarts_sent.get(name, 0) for name in sent}
        backlog = Backlog(self._live, serial=self._serial, ephemeral=sent, restarts=told)
        self._backlogs.appendleft(backlog)
        self._live = frozenset()
        self._note_place(self._feed.ring.newest, self._feed.ring.serial)
        self._feed.note_demoted()

    def _step_backlog(self, backlog: Backlog) -> bool:
        if backlog is self._page_of:
            return False
        if backlog.number is None and not self._enter_ring(backlog):
            if self._page_of is not None:
                return False
            self._page_of = backlog
            self._feed.start(self._read_page(backlog), "reading the log for a follower")
            return self._page_of is None
        assert backlog.number is not None
        if backlog.number > self._feed.ring.newest:
            self._go_live(backlog)
            return True
        group = self._feed.ring.get(backlog.number)
        if group is None:
            backlog.number = None
            return True
        backlog.number += 1
        news = [fact for fact in group.facts if self._is_news(backlog, fact)]
        backlog.serial = max(backlog.serial, group.serial)
        self._write(self._encoder.lines(news))
        return True

    def _enter_ring(self, backlog: Backlog) -> bool:
        """Whether all that the log has left for this backlog is in the ring; then it goes on from there."""
        if backlog.after_token is not None or backlog.last_had is not None:
            return False
        number = self._feed.ring.first_after(backlog.serial)
        if number is None:
            return False
        backlog.number = number
        for name in sorted(backlog.ephemeral):
            restarts = self._feed.log.writer_resets(name)
            if backlog.restarts[name] != restarts:
                backlog.restarts[name] = restarts
                backlog.ephemeral[name] = 0
                self._write(self._zeros(name))
            held = self._feed.log.ephemeral_after(name, backlog.ephemeral[name])
            if held:
                backlog.ephemeral[name] = held[-1].token
                self._write(self._encoder.lines(held))
        return True

    def _zeros(self, stream: str) -> bytes:
        """What tells that the writers of an ephemeral stream began anew, where there is a way to tell it."""
        if self._linear:
            return b""
        return b"".join(
            self._encoder.command(Position(stream=stream, instance=writer, prev_token=0, token=0))
            for writer in sorted(self._feed.positions(stream))
        )

    @staticmethod
    def _is_news(backlog: Backlog, fact: Fact) -> bool:
        if fact.stream not in backlog.streams:
            return False
        if fact.serial:
            return fact.serial > backlog.serial
        if fact.token == 0:
            backlog.ephemeral[fact.stream] = 0
            return True
        return fact.token > backlog.ephemeral.get(fact.stream, 0)

    async def _read_page(self, backlog: Backlog) -> None:
        """One page from the log: by token while it is behind its own start, by serial after that."""
        facts: list[Fact]
        try:
            if backlog.last_had is not None:
                facts = []
                await self._find_place(backlog, backlog.last_had)
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
            self._connection.fail("the log cannot be read just now; come again")
            raise
        finally:
            self._page_of = None
        if self._gone:
            return
        if backlog in self._backlogs:
            self._write(self._encoder.lines(fact for fact in facts if fact.stream in backlog.streams))
            self._backlogs.rotate(-1)  # so that a long one does not keep the short ones waiting
        self.pump()

    async def _find_place(self, backlog: Backlog, token: int) -> None:
        (stream,) = backlog.streams
        had, _ = await self._feed.log.read_tokens(
            stream=stream, writer=None, after=token - 1, upto=token, serial=backlog.serial, limit=PAGE_ROWS
        )
        backlog.last_had = None
        if had:
            backlog.serial = min(fact.serial for fact in had)
            backlog.after_token = None

    def _go_live(self, backlog: Backlog) -> None:
        self._backlogs.remove(backlog)
        for name, token in backlog.ephemeral.items():
            self._ephemeral_sent[name] = max(token, self._feed.linear_position(name))
            self._restarts_sent[name] = self._feed.log.writer_resets(name)
        live = self._live | backlog.streams
        self._live = self._all if live == self._all else live
        if backlog.announce:
            streams = [stream for stream in self._encoder.streams() if stream.name in backlog.streams]
            self._write(self._positions(streams))
        else:
            self._feed.note_promoted()

    def _positions(self, streams: list[Stream[Any]]) -> bytes:
        """POSITION for each stream, and for each of its writers where the release knows of writers."""
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

    def _note_place(self, number: int, serial: int) -> None:
        self._place = number
        self._serial = serial

    def _write(self, data: bytes) -> None:
        if data:
            self._connection.write(data)
