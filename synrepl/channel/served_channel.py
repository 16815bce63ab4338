"""The channel that this daemon serves itself, in Redis' place: who publishes, who subscribes, in what order.

Lines go to all subscribers as they were published. What Redis does not do, and what Synapse's processes need
so that none of them lacks facts (docs/reference/peers.md#redis-position):

* The lines of a batch are passed as one unit, whole or not at all: processes collect a batch by its stream
  alone, so that lines of another writer in between would end up in the same fact.
* RDATA names no earlier token. A process that is told 100 and then 105 never asks for what is between; only a
  POSITION makes it ask. So nothing is passed of a writer that was not heard since an interruption, until its
  POSITION has come; and a subscriber that missed lines is first sent the position up to which it lacks them.
  A writer that publishes over another connection than before may have lost lines in the first one, whose end
  is perhaps not known yet: that is an interruption too.
* For streams in memory nobody but their writer may say a position: an old one would undo newer facts. A
  subscriber gets lines of such a writer once it has got a POSITION of it.

A channel of several daemons is a tree. A daemon passes what its upstream sends, and what its own clients and
its replicas' publish; each line goes over a connection between daemons once, and never back
(`ChannelUplink`, `ChannelDownlink`). Each daemon holds to the rules above for its own subscribers.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.metrics import Metrics
from synrepl.base.run_owners import RunOwners
from synrepl.base.time import Timer
from synrepl.channel.ends import (
    ChannelPublisher,
    ChannelSubscriber,
    Passed,
    Unit,
)
from synrepl.channel.position_teller import PositionTeller
from synrepl.channel.publisher_limits import MAX_WRITERS, PublisherLimits
from synrepl.channel.resp_codec import message
from synrepl.errors import RemoteProtocolError
from synrepl.replication.membership.position_query import PositionQuery
from synrepl.streams.writer import Writer
from synrepl.wire.codec import MAX_MESSAGE, codec_of
from synrepl.wire.commands import Position
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import BROKER

ASK_SECONDS: Final = 1.0
"""The shortest time between two questions for all positions."""

GATHER_SECONDS: Final = 0.001
MANY: Final = 16
"""With so many subscribers, what is published within this time after a line goes in one write: each write to
each of them costs more than the lines."""

REPLICATE: Final = b"REPLICATE "

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
MAX_BATCH_LINES: Final = 10_000
"""The most bytes of all batches of a client that are not complete, and lines of one: passed in a turn."""

DURABLE_SECONDS: Final = 5.0
"""How long lines wait for the log at most."""

CATCH_UP_SECONDS: Final = 0.05
"""How often is looked whether the log has caught up with a writer."""


def ignore(lines: Sequence[bytes]) -> None:
    """Take no lines: there is no log that wants them."""


def always(writer: Writer, token: int) -> bool:
    """Every fact is there: nothing need wait for the log."""
    return True


class IUplink(Protocol):
    """The way to the channel of the upstream (`ChannelUplink`): it gets what is published here."""

    def published(self, publisher: ChannelPublisher, batches: Sequence[Sequence[bytes]]) -> None:
        """Take lines of the channel itself: a batch, or one line, at a time."""

    def published_beside(self, publisher: ChannelPublisher, channel: bytes, line: bytes) -> None:
        """Take a line of a sub-channel."""

    def publisher_lost(self, publisher: ChannelPublisher) -> None:
        """Note that this publisher is gone, perhaps with its last lines."""


class ServedChannel:
    """The channel of a homeserver with its sub-channels, and all who use it.

    `use` says where lines go besides its subscribers. `is_ephemeral` tells which streams are in memory, and
    `is_known` which this daemon knows (None: all): lost writers of others are not asked for. With
    `is_durable`, which tells whether the fact of a writer and token is on disk, rows are passed once they are
    (`durable_more`), and the lines of a publisher in their order. Those that are not within `DURABLE_SECONDS`
    are passed all the same; with `only_durable` they are not, and `is_refusing` is set until they are.

    `runs` knows which runs of workers belong to which key, as far as they are named elsewhere at this daemon.
    """

    _logger = Logger()

    def __init__(
        self,
        clock: IClock,
        server_name: str,
        *,
        is_ephemeral: Callable[[str], bool],
        metrics: Metrics,
        is_known: Callable[[str], bool] | None = None,
        runs: RunOwners | None = None,
        is_durable: Callable[[Writer, int], bool] | None = None,
        only_durable: bool = False,
    ) -> None:
        self.name = server_name.encode()
        self.origin = secrets.token_hex(6)
        """The first part of the names of all publishers at this daemon, by which it knows its own lines."""
        self.subscribers: dict[ChannelSubscriber, None] = {}
        """The subscribers of the channel itself, in the order of their subscription."""
        self.publishers: dict[ChannelPublisher, None] = {}
        self.lines = 0
        self.held_back = 0
        """RDATA that was not passed, since the POSITION of its writer had not come: its readers fetch it."""
        self.dropped = 0
        """Commands that a subscriber was not sent, since too much was waiting for it."""
        self.demotions = 0
        self.overdue = 0
        """Rows and positions that were passed before the log had them, after `DURABLE_SECONDS`."""
        self.refused = 0
        """Rows that were not passed, since they were not on disk within `DURABLE_SECONDS`."""
        self.use()
        self.limits = PublisherLimits(clock)
        self.runs = RunOwners() if runs is None else runs
        self._own = ChannelPublisher(is_own=True)
        """Publishes what the channel itself asks."""
        self._is_durable = is_durable
        self._only_durable = only_durable
        self._undurable: tuple[Writer, int] | None = None
        """The last row that was refused, until it is on disk."""
        self._clock = clock
        self._overdue_timer = Timer(clock, self.durable_more)
        self._gathered: list[Unit] = []
        self._gather_timer = Timer(clock, self._end_gathering)
        self._beside: dict[bytes, dict[ChannelSubscriber, None]] = {}
        self._is_ephemeral = is_ephemeral
        self._is_known = is_known
        self._metrics = metrics
        self._passed: dict[Writer, Passed] = {}
        """Of each writer that was heard, unless its publisher was lost since."""
        self._codec = codec_of(NEWEST, ours=BROKER, theirs=BROKER)
        self._query = PositionQuery(clock, self.ask)
        self._teller = PositionTeller(clock, self._last_position, self._send)
        self._ask_timer = Timer(clock, self._ask_again)
        self._must_ask = False

    @property
    def is_refusing(self) -> bool:
        """Whether rows are refused, since earlier ones are not on disk."""
        return self._undurable is not None

    def use(
        self,
        *,
        ingest: Callable[[Sequence[bytes]], None] = ignore,
        is_caught_up: Callable[[Writer, int], bool] = always,
        uplink: IUplink | None = None,
    ) -> None:
        """Give lines also to the log of this daemon and to its upstream from now on; by default to neither.

        `ingest` gets the lines that are passed on the channel itself, in their order, and those that are held
        back; never lines of sub-channels, which may carry access tokens. `uplink` gets all that is published,
        but for what came from there.

        `is_caught_up` tells whether the log has all of a writer up to a token: the first POSITION of a writer
        waits for that, so that no process is told more than the log knows of; not longer than rows for the
        disk.
        """
        self._ingest, self._is_caught_up, self._uplink = ingest, is_caught_up, uplink

    def stop(self) -> None:
        """Stop asking."""
        self._query.stop()
        self._teller.stop()
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
            subscriber.lacks = self._all_passed(subscriber)
            self._tell_positions(subscriber)

    def unsubscribe(self, subscriber: ChannelSubscriber, channel: bytes) -> None:
        """Pass no more messages of this channel to the subscriber."""
        if channel == self.name:
            self.subscribers.pop(subscriber, None)
            self._teller.forget(subscriber)
        elif (subscribers := self._beside.get(channel)) is not None:
            subscribers.pop(subscriber, None)
            if not subscribers:
                # Clients choose the names.
                del self._beside[channel]

    def resumed(self, subscriber: ChannelSubscriber) -> None:
        """The subscriber reads again: it is told up to where it lacks facts."""
        subscriber.resume()
        if subscriber.is_demoted:
            subscriber.is_demoted = False
            self._tell_positions(subscriber)

    @property
    def sub_channels(self) -> int:
        """How many sub-channels have subscribers."""
        return len(self._beside)

    @property
    def expected(self) -> set[Writer]:
        """The writers that were lost, and are asked for."""
        return self._query.unanswered

    def count(self, channel: bytes) -> int:
        """How many subscribers the channel has."""
        return len(self.subscribers if channel == self.name else self._beside.get(channel, ()))

    def owner_of(self, writer: Writer) -> str:
        """The name of the key with which this writer was published last; empty if it has none."""
        passed = self._passed.get(writer)
        return (passed.publisher.owner or "") if passed is not None else ""

    def _all_passed(self, subscriber: ChannelSubscriber) -> dict[Writer, None]:
        """All writers that were heard, but from the subscriber's own side."""
        passed = self._passed.items()
        if subscriber.link is None:
            return dict.fromkeys(self._passed)
        return {writer: None for writer, one in passed if one.publisher.link is not subscriber.link}

    def _tell_positions(self, subscriber: ChannelSubscriber) -> None:
        """Send the positions that the subscriber is to be told, but for streams in memory: ask for these."""
        told = [writer for writer in subscriber.lacks if not self._is_in_memory(writer)]
        must_ask = len(told) < len(subscriber.lacks)
        self._teller.tell(subscriber, told)
        if must_ask:
            self.ask()

    def _last_position(self, writer: Writer) -> bytes | None:
        """The position up to which the writer was passed; None before the writer has said it anew."""
        passed = self._passed.get(writer)
        return None if passed is None else self._position(writer, passed.token)

    def _position(self, writer: Writer, token: int) -> bytes:
        position = Position(stream=writer.stream, instance=writer.name, prev_token=token, token=token)
        return message(self.name, self._codec.format(position))

    def _is_in_memory(self, writer: Writer) -> bool:
        return self._is_ephemeral(writer.stream)

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
        units, batches, now = list[Unit](), list[Sequence[bytes]](), self._clock.seconds()
        try:
            for line in lines:
                if line.startswith(b"RDATA "):
                    self._on_rdata(publisher, line, units, batches)
                elif line.startswith(b"POSITION "):
                    self._on_position(publisher, line, units, batches)
                else:
                    batches.append([line])
                    units.append(Unit(message(self.name, line), now, publisher))
        finally:
            # What came before a line that is refused, too.
            self._take(publisher, units, batches)

    def _take(self, publisher: ChannelPublisher, units: list[Unit], batches: list[Sequence[bytes]]) -> None:
        if self._is_durable is None and not publisher.waiting and all(map(self._is_there, units)):
            self._pass(units)
        else:
            publisher.waiting += units
        if batches:
            taken = [line for batch in batches for line in batch]
            self.lines += len(taken)
            self._ingest(taken)
            if uplink := self._uplink_for(publisher):
                uplink.published(publisher, batches)
        if publisher.waiting:
            self.durable_more()

    def refuses(self, publisher: ChannelPublisher, line: bytes) -> bool:
        """Whether this row is not taken, since earlier ones are not on disk; of a batch no line or all."""
        if not (self.is_refusing or publisher.refused) or not line.startswith(b"RDATA "):
            return False
        words = line.split(b" ", 4)
        writer = self._writer(publisher, words)
        if (
            writer is None
            or writer in publisher.held
            or not (self.is_refusing or writer in publisher.refused)
        ):
            return False
        self.refused += 1
        # In its place among the others: a POSITION before it is passed later than this is refused.
        now = self._clock.seconds()
        publisher.waiting.append(Unit(b"", now, publisher, writer, is_refused=True))
        if uplink := self._uplink_for(publisher):
            uplink.publisher_lost(publisher)
        publisher.refused.pop(writer, None)
        if words[3:4] == [b"batch"]:
            publisher.refused[writer] = None
        return True

    def durable_more(self) -> None:
        """Pass what the log has by now, or has waited too long for it."""
        oldest, is_catching_up = None, False
        if (
            self._undurable is not None
            and self._is_durable is not None
            and self._is_durable(*self._undurable)
        ):
            self._undurable = None
        for publisher in list(self.publishers):
            units: list[Unit] = []
            while publisher.waiting:
                unit = publisher.waiting[0]
                if not self._is_there(unit):
                    if self._clock.seconds() < unit.since + DURABLE_SECONDS:
                        break
                    if self._only_durable and not unit.is_position:
                        assert unit.writer is not None
                        self.refused += 1
                        self._undurable = (unit.writer, unit.token)
                        unit.is_refused = True
                    else:
                        self.overdue += 1
                units.append(publisher.waiting.popleft())
            self._pass(units)
            if publisher.waiting:
                first = publisher.waiting[0]
                oldest = min(oldest or first.since, first.since)
                is_catching_up |= first.is_position
        if oldest is not None:
            seconds = max(0.0, oldest + DURABLE_SECONDS - self._clock.seconds())
            self._overdue_timer.start_within(min(seconds, CATCH_UP_SECONDS) if is_catching_up else seconds)

    def _is_there(self, unit: Unit) -> bool:
        """Whether the unit need not wait for the log, or no longer."""
        if unit.writer is None or unit.is_refused or self._is_in_memory(unit.writer):
            return True
        if unit.is_position:
            return unit.writer in self._passed or self._is_caught_up(unit.writer, unit.token)
        return self._is_durable is None or self._is_durable(unit.writer, unit.token)

    def _uplink_for(self, publisher: ChannelPublisher) -> IUplink | None:
        """The uplink, unless it is where the publisher's lines come from."""
        return None if publisher.link is self._uplink else self._uplink

    def publish_beside(self, publisher: ChannelPublisher, channel: bytes, line: bytes) -> None:
        """Pass a line of a sub-channel to its subscribers here and at other daemons, and to nobody else."""
        data = message(channel, line)
        # Other daemons get all sub-channels.
        links = [one for one in self.subscribers if one.link is not None and one.link is not publisher.link]
        for subscriber in [*self._beside.get(channel, ()), *links]:
            if subscriber.is_demoted or not self._send(subscriber, data):
                self.dropped += 1
        if uplink := self._uplink_for(publisher):
            uplink.published_beside(publisher, channel, line)

    def publisher_lost(self, publisher: ChannelPublisher) -> None:
        """A publishing connection has ended, perhaps inside a batch: its last lines may be lost.

        The publisher may be used again, for the next connection. Rows that wait for the disk are not passed:
        what the writer says over its next connection could overtake them. Nothing more is passed of its
        writers until their POSITIONs have come.
        """
        self.publishers.pop(publisher, None)
        waiting, writers = publisher.waiting, self.limits.drop(publisher)
        publisher.reset()
        self.held_back += sum(unit.writer is not None for unit in waiting)
        self._pass([unit for unit in waiting if unit.writer is None])
        lost = [writer for writer in writers if self._forget(writer, publisher)]
        self._expect(lost)
        if uplink := self._uplink_for(publisher):
            uplink.publisher_lost(publisher)

    def _expect(self, writers: Sequence[Writer]) -> None:
        """Ask for these writers, as far as this daemon knows their streams, and keep at most `MAX_WRITERS`.

        All processes are asked, so a writer for which there is no space is asked for as well.
        """
        unanswered = self._query.unanswered
        known = [writer for writer in writers if self._is_known is None or self._is_known(writer.stream)]
        unanswered.update(known[: MAX_WRITERS - len(unanswered)])
        if known:
            self._query.start()

    def _forget(self, writer: Writer, publisher: ChannelPublisher) -> bool:
        """Pass no more of a writer before its POSITION, if this is its publisher."""
        passed = self._passed.get(writer)
        if passed is None or passed.publisher is not publisher:
            return False
        del self._passed[writer]
        return True

    def ask(self) -> None:
        """Ask all processes for their positions, at most once in `ASK_SECONDS`."""
        self._must_ask = True
        if not self._ask_timer.is_active:
            self._ask_again()

    def _ask_again(self) -> None:
        if self._must_ask:
            self._must_ask = False
            self._pass([Unit(message(self.name, REPLICATE), self._clock.seconds(), self._own)])
            self._ingest([REPLICATE])
            if self._uplink is not None:
                self._uplink.published(self._own, [[REPLICATE]])
            self._ask_timer.start(ASK_SECONDS)

    def _on_rdata(
        self, publisher: ChannelPublisher, line: bytes, units: list[Unit], batches: list[Sequence[bytes]]
    ) -> None:
        words = line.split(b" ", 4)
        writer = self._writer(publisher, words)
        token = _token(words[3]) if len(words) == 5 else None
        if writer is None or len(words) < 5 or (token is None and words[3] != b"batch"):
            batches.append([line])  # it is not passed; the log says what is wrong with it
            return
        if token is None:
            held = publisher.held.setdefault(writer, [])
            held.append(line)
            publisher.held_bytes += len(line)
            self._check_held(publisher, len(held))
            return
        lines = [*self._batch(publisher, writer), line]
        batches.append(lines)
        data = b"".join([message(self.name, one) for one in lines])
        units.append(Unit(data, self._clock.seconds(), publisher, writer, token))

    @staticmethod
    def _check_held(publisher: ChannelPublisher, lines: int) -> None:
        """Raise `RemoteProtocolError` if a batch has too many lines, or those of the publisher too much."""
        if publisher.owner is None:
            # Another daemon, or a Redis, passes on what many publish.
            most, most_lines = MAX_MESSAGE, MAX_MESSAGE
        else:
            most, most_lines = MAX_BATCH_BYTES, MAX_BATCH_LINES
        if publisher.held_bytes > most:
            raise RemoteProtocolError(f"a batch has more than {most} bytes")
        if lines > most_lines:
            raise RemoteProtocolError(f"a batch has more than {most_lines} lines")

    def _writer(self, publisher: ChannelPublisher, words: Sequence[bytes]) -> Writer | None:
        """Return the stream and writer of these words of a line, and note them; None if they are no names."""
        try:
            names = words[1].decode(), words[2].decode()
        except (IndexError, UnicodeDecodeError):
            return None
        if (known := publisher.writers.get(names)) is not None:
            return known
        if not all(name.isprintable() and name for name in names):
            return None
        writer = Writer(*names)
        self.limits.add(publisher, writer)
        return writer

    def _on_position(
        self, publisher: ChannelPublisher, line: bytes, units: list[Unit], batches: list[Sequence[bytes]]
    ) -> None:
        words = line.split(b" ")
        writer = self._writer(publisher, words)
        token = _token(words[4]) if len(words) == 5 else None
        batches.append([line])
        if writer is None or token is None:
            return
        self._batch(publisher, writer)  # a batch that was cut off is never completed
        data = message(self.name, line)
        units.append(Unit(data, self._clock.seconds(), publisher, writer, token, is_position=True))

    @staticmethod
    def _batch(publisher: ChannelPublisher, writer: Writer) -> list[bytes]:
        lines = publisher.held.pop(writer, [])
        publisher.held_bytes -= sum(map(len, lines))
        return lines

    # -- passing -------------------------------------------------------------------------------------------

    def _is_believed(self, unit: Unit) -> bool:
        """Note that this unit is passed, or that it is not: its writer's POSITION has not come."""
        writer = unit.writer
        if writer is None:
            return True
        if unit.is_refused:
            self._forget(writer, unit.publisher)
            self._expect([writer])
            return False
        passed = self._passed.get(writer)
        if unit.is_position:
            if passed is None:
                passed = self._passed[writer] = Passed(unit.publisher, unit.token)
            passed.publisher = unit.publisher
        elif passed is None or passed.publisher is not unit.publisher:
            self.held_back += 1
            if writer not in self._query.unanswered:
                self._expect([writer])
            self.ask()
            return False
        unit.before = passed.token
        passed.token = unit.token if self._is_in_memory(writer) else max(passed.token, unit.token)
        if unit.is_position:
            self._query.unanswered.discard(writer)
        return True

    def _pass(self, units: Sequence[Unit]) -> None:
        """Pass these units, or with many subscribers soon, in one write with those after them."""
        believed = [unit for unit in units if self._is_believed(unit)]
        self._gathered += believed
        if not self._gather_timer.is_active:
            self._end_gathering()

    def _end_gathering(self) -> None:
        units, self._gathered = self._gathered, []
        if not units:
            return
        if len(self.subscribers) >= MANY:
            self._gather_timer.start(GATHER_SECONDS)
        joined = b"".join([unit.data for unit in units]) if len(units) > 1 else units[0].data
        for subscriber in list(self.subscribers):
            others, data = units, joined
            if subscriber.link is not None:
                others = [unit for unit in units if unit.publisher.link is not subscriber.link]
                data = b"".join([unit.data for unit in others])
            if subscriber.is_demoted:
                self._miss(subscriber, others)
            elif subscriber.lacks:
                self._send_after_positions(subscriber, others)
            elif data:
                self._send(subscriber, data)

    def _send_after_positions(self, subscriber: ChannelSubscriber, units: Sequence[Unit]) -> None:
        """Send what a subscriber may be sent that is still to be told some positions."""
        for unit in units:
            writer = unit.writer
            if subscriber.is_demoted:
                self._miss(subscriber, [unit])
                continue
            if writer is not None and writer in subscriber.lacks:
                if unit.is_position:
                    del subscriber.lacks[writer]
                elif self._is_in_memory(writer):
                    continue
                else:
                    del subscriber.lacks[writer]
                    self._send(subscriber, self._position(writer, unit.before) + unit.data)
                    continue
            self._send(subscriber, unit.data)

    def _send(self, subscriber: ChannelSubscriber, data: bytes) -> bool:
        """Send this. False if the subscriber is demoted by it."""
        if subscriber.send(data):
            return True
        self.demotions += 1
        self._metrics.readers_demoted.inc()
        # What waited is dropped: anything may have been in it.
        subscriber.lacks = self._all_passed(subscriber)
        self._teller.forget(subscriber)
        return False

    def _miss(self, subscriber: ChannelSubscriber, units: Sequence[Unit]) -> None:
        for unit in units:
            if unit.writer is None:
                self.dropped += 1
            else:
                subscriber.lacks[unit.writer] = None


def _token(word: bytes) -> int | None:
    """Return the token of this word; None if it is none."""
    digits = word.removeprefix(b"-")
    return int(word) if digits.isdigit() and len(digits) < 20 else None
