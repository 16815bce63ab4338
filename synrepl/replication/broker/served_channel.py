"""The channel that this daemon serves itself, in Redis' place: who publishes, who subscribes, in what order.

Lines go to all subscribers as they were published. What Redis does not do, and what Synapse's processes need
so that none of them lacks facts (docs/reference/peers.md#redis-position):

* The lines of a batch are passed in one run, whole or not at all: processes collect a batch by its stream
  alone, so that lines of another writer in between would end up in the same fact.
* RDATA names no earlier token. A process that is told 100 and then 105 never asks for what is between; only a
  POSITION makes it ask. So nothing is passed of a writer that was not heard since an interruption, until its
  POSITION has come; and a subscriber that missed lines is first sent the position up to which it lacks them.
* For streams in memory nobody but their writer may say a position: an old one would undo newer facts. A
  subscriber gets lines of such a writer once it has got a POSITION of it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from twisted.logger import Logger

from synrepl.errors import RemoteProtocolError
from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.ports.time import Timer
from synrepl.replication.broker.position_query import PositionQuery
from synrepl.wire.codec import MAX_MESSAGE, codec_of
from synrepl.wire.commands import Position
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import BROKER
from synrepl.wire.resp import message

MAX_WAITING: Final = 8 * 1024 * 1024
"""The bytes that wait for a subscriber that does not read. Beyond it they are dropped, and it is told later
up to where it lacks facts."""

ASK_SECONDS: Final = 1.0
"""The shortest time between two questions for all positions."""

GATHER_SECONDS: Final = 0.001
MANY: Final = 16
"""With so many subscribers, what is published within this time after a line goes in one write: each write to
each of them costs more than the lines."""

REPLICATE: Final = b"REPLICATE "

MAX_SOURCES: Final = 10_000
"""The most streams and writers of a channel: publishers choose the names."""

Source = tuple[str, str]
"""A stream and a writer."""


DURABLE_SECONDS: Final = 5.0
"""How long lines wait for the disk at most, if they are passed once they are there."""


class Run(msgspec.Struct):
    """Lines that are passed together, encoded as messages.

    `source` is None for commands without a stream; else `token` is that of the fact or position. `since` is
    when they came, in clock seconds. `before` is the token that was passed last of this source, once this one
    is passed.
    """

    data: bytes
    since: float
    source: Source | None = None
    token: int = 0
    is_position: bool = False
    before: int = 0


class ChannelPublisher:
    """A connection that publishes: the lines of incomplete batches, and the sources that it published."""

    def __init__(self) -> None:
        self.held: dict[Source, list[bytes]] = {}
        self.held_bytes = 0
        self.waiting: deque[Run] = deque()
        """What is passed once it is on disk, and what comes after that."""
        self.sources: dict[Source, None] = {}


class ChannelSubscriber:
    """A connection that subscribes. `write` sends bytes; between `pause` and `resume` they wait here."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.lacks: dict[Source, None] = {}
        """The sources of which it is to be told a position first."""
        self.is_demoted = False
        """Whether it is sent nothing, since too much was waiting for it."""
        self.is_paused = False
        self._write = write
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def send(self, data: bytes) -> bool:
        """Send this, or let it wait. False if too much waits: then all of that is dropped."""
        if not self.is_paused:
            self._write(data)
            return True
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes <= MAX_WAITING:
            return True
        self._drop()
        self.is_demoted = True
        return False

    def pause(self) -> None:
        """The transport's buffer is full."""
        self.is_paused = True

    def resume(self) -> None:
        """The transport's buffer has room."""
        self.is_paused = False
        data = b"".join(self._waiting)
        self._drop()
        if data:
            self._write(data)

    def _drop(self) -> None:
        self._waiting, self._waiting_bytes = [], 0


class ServedChannel:
    """The channel of a homeserver with its sub-channels, and all who use it.

    `ingest` gets the lines that are passed on the channel itself, in their order, and those that are held
    back; never lines of sub-channels, which may carry access tokens. `is_ephemeral` tells which streams are
    in memory. With `is_durable`, which tells whether the fact of a source and token is on disk, rows are
    passed once they are (`durable_more`), and the lines of a publisher in their order.
    """

    _logger = Logger()

    def __init__(
        self,
        clock: IClock,
        server_name: str,
        *,
        is_ephemeral: Callable[[str], bool],
        metrics: Metrics,
        ingest: Callable[[Sequence[bytes]], None],
        is_durable: Callable[[Source, int], bool] | None = None,
    ) -> None:
        self.name = server_name.encode()
        self.subscribers: dict[ChannelSubscriber, None] = {}
        """Those of the channel itself, in the order of their subscription."""
        self.publishers: dict[ChannelPublisher, None] = {}
        self.lines = 0
        self.held_back = 0
        """RDATA that was not passed, since the POSITION of its writer had not come: its readers fetch it."""
        self.dropped = 0
        """Commands that a subscriber was not sent, since too much was waiting for it."""
        self.demotions = 0
        self.overdue = 0
        """Rows that were passed before they were on disk, since that took longer than `DURABLE_SECONDS`."""
        self._is_durable = is_durable
        self._clock = clock
        self._overdue_timer = Timer(clock, self.durable_more)
        self._gathered: list[Run] = []
        self._gather_timer = Timer(clock, self._end_gathering)
        self._beside: dict[bytes, dict[ChannelSubscriber, None]] = {}
        self._is_ephemeral = is_ephemeral
        self._metrics = metrics
        self._ingest = ingest
        self._passed: dict[Source, int] = {}
        """The token passed last, of each source that was heard, unless its publisher was lost since."""
        self._codec = codec_of(NEWEST, ours=BROKER, theirs=BROKER)
        self._query = PositionQuery(clock, self.ask)
        self._ask_timer = Timer(clock, self._ask_again)
        self._must_ask = False

    def stop(self) -> None:
        """Stop asking."""
        self._query.stop()
        self._ask_timer.stop()
        self._overdue_timer.stop()
        self._gather_timer.stop()

    # -- subscribers ---------------------------------------------------------------------------------------

    def subscribe(self, subscriber: ChannelSubscriber, channel: bytes) -> None:
        """Pass messages of this channel to the subscriber. Of the channel itself, positions come first."""
        if channel != self.name:
            self._beside.setdefault(channel, {})[subscriber] = None
        elif subscriber not in self.subscribers:
            self.subscribers[subscriber] = None
            subscriber.lacks = dict.fromkeys(self._passed)
            self._tell_positions(subscriber)
            if subscriber.lacks:
                self.ask()

    def unsubscribe(self, subscriber: ChannelSubscriber, channel: bytes) -> None:
        """Pass no more messages of this channel to the subscriber."""
        if channel == self.name:
            self.subscribers.pop(subscriber, None)
        else:
            self._beside.get(channel, {}).pop(subscriber, None)

    def resumed(self, subscriber: ChannelSubscriber) -> None:
        """The subscriber reads again: it is told up to where it lacks facts."""
        subscriber.resume()
        if subscriber.is_demoted:
            subscriber.is_demoted = False
            self._tell_positions(subscriber)
            if subscriber.lacks:
                self.ask()

    def count(self, channel: bytes) -> int:
        """How many subscribers the channel has."""
        return len(self.subscribers if channel == self.name else self._beside.get(channel, ()))

    def _tell_positions(self, subscriber: ChannelSubscriber) -> None:
        """Send the positions that the subscriber is to be told, but for streams in memory."""
        lacks = {source: None for source in subscriber.lacks if self._is_in_memory(source)}
        positions = [self._position(source) for source in subscriber.lacks if source not in lacks]
        subscriber.lacks = lacks
        if positions:
            self._send(subscriber, b"".join(positions))

    def _position(self, source: Source, token: int | None = None) -> bytes:
        token = self._passed.get(source, 0) if token is None else token
        position = Position(stream=source[0], instance=source[1], prev_token=token, token=token)
        return message(self.name, self._codec.format(position))

    def _is_in_memory(self, source: Source) -> bool:
        return self._is_ephemeral(source[0])

    # -- publishers ----------------------------------------------------------------------------------------

    def publish(self, publisher: ChannelPublisher, lines: Sequence[bytes]) -> None:
        """Pass these lines of the channel itself.

        Raises `RemoteProtocolError` if a batch grows too long, or for too many writers.
        """
        if publisher not in self.publishers:
            self.publishers[publisher] = None
            if self._query.unanswered:
                # Perhaps the writer that was lost has come back.
                self.ask()
        runs, taken, now = list[Run](), list[bytes](), self._clock.seconds()
        for line in lines:
            if line.startswith(b"RDATA "):
                self._on_rdata(publisher, line, runs, taken)
            elif line.startswith(b"POSITION "):
                self._on_position(publisher, line, runs, taken)
            else:
                taken.append(line)
                runs.append(Run(message(self.name, line), now))
        if self._is_durable is None:
            self._pass(runs)
        else:
            publisher.waiting += runs
        if taken:
            self.lines += len(taken)
            self._ingest(taken)
        if publisher.waiting:
            self.durable_more()

    def durable_more(self) -> None:
        """Pass what is on disk by now, or has waited too long for it."""
        oldest = None
        for publisher in list(self.publishers):
            runs: list[Run] = []
            while publisher.waiting and self._may_pass(publisher.waiting[0]):
                runs.append(publisher.waiting.popleft())
            self._pass(runs)
            if publisher.waiting:
                oldest = min(oldest or publisher.waiting[0].since, publisher.waiting[0].since)
        if oldest is not None:
            self._overdue_timer.start_within(max(0.0, oldest + DURABLE_SECONDS - self._clock.seconds()))

    def _may_pass(self, run: Run) -> bool:
        if run.source is None or run.is_position or self._is_durable is None:
            return True
        if self._is_in_memory(run.source) or self._is_durable(run.source, run.token):
            return True
        is_overdue = self._clock.seconds() >= run.since + DURABLE_SECONDS
        self.overdue += is_overdue
        return is_overdue

    def publish_beside(self, channel: bytes, line: bytes) -> None:
        """Pass a line of a sub-channel to its subscribers, and to nobody else."""
        data = message(channel, line)
        for subscriber in list(self._beside.get(channel, ())):
            if subscriber.is_demoted or not self._send(subscriber, data):
                self.dropped += 1

    def publisher_lost(self, publisher: ChannelPublisher) -> None:
        """A publishing connection has ended, perhaps inside a batch: its last lines may be lost.

        Rows that wait for the disk are not passed: what the writer says over its next connection could
        overtake them. Nothing more is passed of its sources until their POSITIONs have come.
        """
        self.publishers.pop(publisher, None)
        waiting, publisher.waiting = publisher.waiting, deque()
        self.held_back += sum(run.source is not None for run in waiting)
        self._pass([run for run in waiting if run.source is None])
        lost = [source for source in publisher.sources if self._passed.pop(source, None) is not None]
        if lost:
            self._query.unanswered.update(lost)
            self._query.start()

    def ask(self) -> None:
        """Ask all processes for their positions, at most once in `ASK_SECONDS`."""
        self._must_ask = True
        if not self._ask_timer.is_active:
            self._ask_again()

    def _ask_again(self) -> None:
        if self._must_ask:
            self._must_ask = False
            self._pass([Run(message(self.name, REPLICATE), self._clock.seconds())])
            self._ingest([REPLICATE])
            self._ask_timer.start(ASK_SECONDS)

    def _on_rdata(
        self, publisher: ChannelPublisher, line: bytes, runs: list[Run], taken: list[bytes]
    ) -> None:
        words = line.split(b" ", 4)
        source = self._source(publisher, words)
        token = _token(words[3]) if len(words) == 5 else None
        if source is None or len(words) < 5 or (token is None and words[3] != b"batch"):
            taken.append(line)  # it is not passed; the log says what is wrong with it
            return
        if token is None:
            publisher.held.setdefault(source, []).append(line)
            publisher.held_bytes += len(line)
            if publisher.held_bytes > MAX_MESSAGE:
                raise RemoteProtocolError(f"a batch has more than {MAX_MESSAGE} bytes")
            return
        lines = [*self._batch(publisher, source), line]
        taken += lines
        data = b"".join([message(self.name, one) for one in lines])
        runs.append(Run(data, self._clock.seconds(), source, token))

    def _source(self, publisher: ChannelPublisher, words: Sequence[bytes]) -> Source | None:
        """Return the stream and writer of these words of a line, and note them; None if they are no names."""
        try:
            source = words[1].decode(), words[2].decode()
        except (IndexError, UnicodeDecodeError):
            return None
        if source in publisher.sources:
            return source
        if not all(name.isprintable() and name for name in source):
            return None
        if max(len(self._passed), len(publisher.sources), len(self._query.unanswered)) >= MAX_SOURCES:
            raise RemoteProtocolError(f"the channel has {MAX_SOURCES} streams and writers, its limit")
        publisher.sources[source] = None
        return source

    def _on_position(
        self, publisher: ChannelPublisher, line: bytes, runs: list[Run], taken: list[bytes]
    ) -> None:
        taken.append(line)
        words = line.split(b" ")
        source = self._source(publisher, words)
        token = _token(words[4]) if len(words) == 5 else None
        if source is None or token is None:
            return
        self._batch(publisher, source)  # a batch that was cut off is never completed
        data = message(self.name, line)
        runs.append(Run(data, self._clock.seconds(), source, token, is_position=True))

    @staticmethod
    def _batch(publisher: ChannelPublisher, source: Source) -> list[bytes]:
        lines = publisher.held.pop(source, [])
        publisher.held_bytes -= sum(map(len, lines))
        return lines

    # -- passing -------------------------------------------------------------------------------------------

    def _is_believed(self, run: Run) -> bool:
        """Note that this run is passed, or that it is not: its writer's POSITION has not come."""
        source = run.source
        if source is None:
            return True
        before = self._passed.get(source, run.token if run.is_position else None)
        if before is None:
            self.held_back += 1
            if source not in self._query.unanswered:
                self._query.unanswered.add(source)
                self._query.start()
            self.ask()
            return False
        run.before = before
        self._passed[source] = run.token if self._is_in_memory(source) else max(before, run.token)
        if run.is_position:
            self._query.unanswered.discard(source)
        return True

    def _pass(self, runs: Sequence[Run]) -> None:
        """Pass these runs, or with many subscribers soon, in one write with those after them."""
        believed = [run for run in runs if self._is_believed(run)]
        self._gathered += believed
        if not self._gather_timer.is_active:
            self._end_gathering()

    def _end_gathering(self) -> None:
        runs, self._gathered = self._gathered, []
        if not runs:
            return
        if len(self.subscribers) >= MANY:
            self._gather_timer.start(GATHER_SECONDS)
        joined = b"".join([run.data for run in runs]) if len(runs) > 1 else runs[0].data
        for subscriber in list(self.subscribers):
            if subscriber.is_demoted:
                self._miss(subscriber, runs)
            elif not subscriber.lacks:
                self._send(subscriber, joined)
            else:
                self._send_after_positions(subscriber, runs)

    def _send_after_positions(self, subscriber: ChannelSubscriber, runs: Sequence[Run]) -> None:
        """Send what a subscriber may be sent that is still to be told some positions."""
        for run in runs:
            source = run.source
            if subscriber.is_demoted:
                self._miss(subscriber, [run])
                continue
            if source is not None and source in subscriber.lacks:
                if run.is_position:
                    del subscriber.lacks[source]
                elif self._is_in_memory(source):
                    continue
                else:
                    del subscriber.lacks[source]
                    self._send(subscriber, self._position(source, run.before) + run.data)
                    continue
            self._send(subscriber, run.data)

    def _send(self, subscriber: ChannelSubscriber, data: bytes) -> bool:
        """Send this. False if the subscriber is demoted by it."""
        if subscriber.send(data):
            return True
        self.demotions += 1
        self._metrics.readers_demoted.inc()
        # What waited is dropped: anything may have been in it.
        subscriber.lacks = dict.fromkeys(self._passed)
        return False

    def _miss(self, subscriber: ChannelSubscriber, runs: Sequence[Run]) -> None:
        for run in runs:
            if run.source is None:
                self.dropped += 1
            else:
                subscriber.lacks[run.source] = None


def _token(word: bytes) -> int | None:
    """Return the token of this word; None if it is none."""
    digits = word.removeprefix(b"-")
    return int(word) if digits.isdigit() and len(digits) < 20 else None
