"""BrokerPeer: this process as a peer on a shared Redis channel, like every process of current Synapse.

There is no server: each process receives all commands of the others, publishes the streams that it writes,
and answers REPLICATE with their positions (docs/reference/peers.md#redis-channels, #redis-position).

What this process writes is never taken from the channel: its own log is the truth. A message under its name
that is no echo, or in an ordered stream that gets its ids from this log, is a conflict: it is reported,
counted and ignored, and appends go on."""

import random
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from twisted.logger import Logger

from synrepl.errors import LocalProtocolError, NotConnected
from synrepl.ports.interfaces import IClock
from synrepl.ports.time import Timer
from synrepl.replication.connection import Connection
from synrepl.replication.follower.follower import Follower
from synrepl.replication.publisher import Publisher
from synrepl.replication.reader import Reader
from synrepl.replication.strategies import SHARED
from synrepl.wire.codec import codec_of
from synrepl.wire.commands import Position, Rdata, Replicate
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import BROKER, Command
from synrepl.wire.rdata_runs import RdataRun

PROBE_SECONDS: Final = 1.0
"""How long to listen for another process with our name before publishing under it."""

CONFLICT_SECONDS: Final = 30.0
"""After a name conflict, how long the other process must be silent before we publish again."""

REQUERY_SECONDS: Final = (5.0, 30.0, 300.0)
"""Delays after which REPLICATE is sent again if a known writer has not announced its position. A response is
lost if its sender loses its connection; a removed writer never responds.
"""

MAX_NAME: Final = 255
MAX_WRITERS: Final = 1_000
"""The most names of writers, those in the log included: any process on the channel can choose one."""
MAX_TOKEN: Final = 2**53
"""The highest token that is believed. No sequence comes this far, and appends after it still find tokens."""


class BrokerPeer:
    """Follows the other processes on the channel, and publishes this process's own writes.

    `follower` receives the messages of other processes, except REPLICATE. `writes` are streams and writers
    published from the `publisher`'s log; others never are, so no received fact is published again. The
    publisher's followers send and receive the commands for all processes through the channel. No other
    process may write the streams `exclusive`, or have the name `instance` (empty: none) in any stream.

    The broker's link calls the peer (its `member`) in the reactor's thread, and not after the link's `stop`.
    The follower and the reader use the peer as their connection. Set `broker` before the first callback.
    `rng` is for delays that must differ between processes.
    """

    broker: Connection
    """This process's connections to the broker."""
    _logger = Logger()

    def __init__(
        self,
        *,
        clock: IClock,
        follower: Follower | None = None,
        publisher: Publisher | None = None,
        writes: Collection[tuple[str, str]] = (),
        exclusive: Collection[str] = (),
        instance: str = "",
        probe_seconds: float = PROBE_SECONDS,
        rng: random.Random | None = None,
    ) -> None:
        self.is_subscriber_up = False
        self.is_publisher_up = False
        self.name_conflict: str | None = None
        """Which stream another process writes under a name of ours, and what to do."""
        self.stream_conflict: str | None = None
        """Which other process writes a stream of `exclusive`, and what to do.

        Both are None once there was no conflict of the kind for `CONFLICT_SECONDS`.
        """
        self.writers: set[str] = set()
        self._clock = clock
        self._follower = follower
        self._publisher = publisher
        self._writes = frozenset(writes)
        self._exclusive = frozenset(exclusive)
        self._instance = instance
        self._names: set[str] = set()
        """Names of writers in the log and on the channel."""
        if publisher is not None:
            self._names.update(*publisher.log.positions_by_stream().values())
        self._probe_seconds = probe_seconds
        self._rng = rng or random.Random()
        self._has_probed = False
        self._is_joined = False
        # Whether our own REPLICATE came back: earlier messages may be from our previous run.
        self._has_own_echo = False
        self._position_echoes = Echoes(clock)  # positions are matched even if they come back late
        self._sent_commands = Echoes(clock)
        self._reader: Reader | None = None
        self._is_paused = False
        self._is_full = False
        self._last_error = ""
        self._probe_timer = Timer(clock, self._probe_finished)
        self._conflict_timer = Timer(clock, self._probe_again)
        self._stream_conflict_timer = Timer(clock, self._end_stream_conflict)
        self._unanswered: set[tuple[str, str]] = set()
        """The streams and writers that have not announced a position since we joined."""
        self._query_timer = Timer(clock, self._query)
        self._query_delays: Iterator[float] = iter(())
        # The positions before anything was published: the first publication must cover all later facts.
        self._unpublished_start: tuple[int, dict[tuple[str, str], int]] | None = None
        if publisher is not None:
            publisher.follower_commands.process_listeners.append(self.forward)
            positions = {
                (stream, writer): publisher.log.positions(stream).get(writer, 0)
                for stream, writer in self._writes
            }
            self._unpublished_start = (publisher.log.serial, positions)

    @property
    def is_writing(self) -> bool:
        """Whether facts written here are published."""
        return self._reader is not None

    # -- called by the broker's link -----------------------------------------------------------------------

    def subscriber_up(self) -> None:
        """Every subscription is confirmed: no message is missed until `subscriber_down`."""
        self.is_subscriber_up = True
        self._join()

    def subscriber_down(self, why: str) -> None:
        """The subscriber's connection was lost: later messages are missed."""
        self.is_subscriber_up = False
        self._logger.warn("disconnected from the Redis channel, reconnecting: {why}", why=why)
        # Echoes that have not come back by now never will.
        self._sent_commands.clear()
        self._leave(why)

    def publisher_up(self) -> None:
        """The publisher's connection is up."""
        self.is_publisher_up = True
        if self._is_joined:
            self.send(Replicate())  # the last messages may be lost, REPLICATE among them
        self._join()
        self._publish()

    def publisher_down(self, why: str) -> None:
        """The publisher's connection was lost, and possibly the last messages with it. Ends a `pause` too."""
        self.is_publisher_up = False
        self._is_paused = False
        self._logger.warn("cannot publish on the Redis channel, reconnecting: {why}", why=why)
        self._stop_publishing()

    def unreachable(self, why: str) -> None:
        """A connection attempt failed; it is retried. Each of the two connections reports its own."""
        if why != self._last_error:
            # Log each reason once: attempts repeat every few seconds.
            self._last_error = why
            self._logger.warn("cannot connect to Redis, retrying: {why}", why=why)
        if self._follower is not None:
            self._follower.server.unreachable(why)

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Handle messages from the channel in its order, our echoes included. Raises RemoteProtocolError."""
        accepted: list[Command | RdataRun] = []
        for command in commands:
            if isinstance(command, (Rdata, RdataRun, Position)):
                if self._accepts(command):
                    accepted.append(command)
                    if self._unanswered and isinstance(command, Position):
                        self._unanswered.discard((command.stream, command.instance))
            elif isinstance(command, Replicate):
                self._has_own_echo = True
                if self._reader is not None:
                    self._reader.send_positions()
            elif not self._sent_commands.match_and_remove(command):
                accepted.append(command)
                if self._publisher is not None:
                    self._publisher.on_channel_command(command)
        if accepted and self._follower is not None and self._is_joined:
            self._follower.server.received(accepted)

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._is_paused = True
        if self._reader is not None:
            self._reader.pause()

    def resume(self) -> None:
        """The transport's buffer has room again."""
        self._is_paused = False
        if self._reader is not None:
            self._reader.resume()

    def stop(self) -> None:
        """Leave the channel and stop all timers."""
        self._stop_publishing()
        self._leave("closed by this process")
        self._probe_timer.stop()
        self._conflict_timer.stop()
        self._stream_conflict_timer.stop()

    # -- the follower's and the reader's connection --------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Publish these lines, if the publisher's connection is up."""
        if self.is_publisher_up:
            for line in data.split(b"\n") if b"POSITION " in data else ():
                if line.startswith(b"POSITION "):
                    self._position_echoes.record_line(line)
            self.broker.write(data)

    def send(self, command: Command) -> None:
        """Publish this command. Raises `NotConnected`, or `LocalProtocolError` if no channel carries it."""
        if not self.is_publisher_up:
            raise NotConnected(f"not connected: {command.NAME} was not sent")
        if self.is_subscriber_up and not command.CHANNEL and not isinstance(command, Replicate):
            self._sent_commands.record(command)
        self.broker.send(command)

    def forward(self, command: Command) -> None:
        """Publish a follower's command.

        Best effort, as between Synapse's processes: a command that cannot be sent now is dropped and counted.
        """
        if self.is_publisher_up and NEWEST.release in command.SPAN:
            try:
                self.send(command)
            except LocalProtocolError as error:
                self._logger.warn(
                    "cannot publish a follower's {name}, dropped: {why}", name=command.NAME, why=error.why
                )
            else:
                return
        if self._publisher is not None:
            self._publisher.metrics.commands_dropped.labels(command.NAME).inc()

    def fail(self, why: str) -> None:
        """Reconnect."""
        self.broker.fail(why)

    def established(self) -> None:
        """The first POSITION was applied."""
        self.broker.established()

    def pause_reading(self) -> None:
        """Stop reading from the broker."""
        self.broker.pause_reading()

    def resume_reading(self) -> None:
        """Read from the broker again."""
        self.broker.resume_reading()

    # -- joining -------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Request all positions once both connections are up."""
        if self._is_joined or not (self.is_subscriber_up and self.is_publisher_up):
            return
        self._is_joined = True
        self._has_own_echo = False
        self._last_error = ""
        self._logger.info("joined the Redis channel")
        if self._follower is not None:
            positions = self._follower.positions()
            self._unanswered = {(stream, writer) for stream in positions for writer in positions[stream]}
            self._unanswered -= self._writes
            self._follower.server.connected(self, NEWEST, SHARED)
            self._query_delays = iter(REQUERY_SECONDS)
            self._query_later()
        else:
            self.send(Replicate())
        if self._writes and not self._has_probed and self.name_conflict is None:
            self._probe_timer.restart(self._probe_seconds)

    def _query_later(self) -> None:
        seconds = next(self._query_delays, None)
        if seconds is not None and self._unanswered:
            self._query_timer.restart(seconds)

    def _query(self) -> None:
        if self._unanswered:
            if self.is_publisher_up:
                self.send(Replicate())
            self._query_later()

    def _leave(self, why: str) -> None:
        self._query_timer.stop()
        if self._is_joined:
            self._is_joined = False
            if self._follower is not None:
                self._follower.server.disconnected(why)

    # -- publishing ----------------------------------------------------------------------------------------

    def _probe_finished(self) -> None:
        """No other process used our names during the probe: publish."""
        if self._is_joined:
            if self.name_conflict is not None:
                self._logger.info("publishing on Redis again: no other process uses the names of this one")
            self.name_conflict = None
            self._has_probed = True
            self._publish()

    def _publish(self) -> None:
        if (
            self._publisher is None
            or self._reader is not None
            or not (self.is_publisher_up and self._has_probed)
        ):
            return
        self._reader = self._publisher.join_broker(self, self._writes)
        if self._is_paused:
            self._reader.pause()
        unpublished, self._unpublished_start = self._unpublished_start, None
        if unpublished is None:
            self._reader.push_everything()
        else:
            serial, positions = unpublished
            for (stream, writer), token in sorted(positions.items()):
                position = Position(stream=stream, instance=writer, prev_token=token, token=token)
                self._position_echoes.record(position)
                self.broker.send(position)
            self._reader.push_since(serial)
        self._reader.send_positions()

    def _stop_publishing(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()
            assert self._publisher is not None
            self._publisher.broker_readers.remove(reader)

    def _accepts(self, command: Rdata | RdataRun | Position) -> bool:
        """Whether this message is from another process, and its writer's name can be stored."""
        writer = command.instance
        if (command.stream, writer) in self._writes or writer == self._instance != "":
            if self._is_conflict(command):
                self._on_name_conflict(command.stream, writer)
            return False
        if len(writer) > MAX_NAME or not writer.isprintable() or _highest_token(command) > MAX_TOKEN:
            return False
        if command.stream in self._exclusive:
            # A process that wrote nothing announces token 0 or, as Synapse's do, 1.
            if _highest_token(command) > 1:
                self._on_stream_conflict(command.stream, writer)
            return False
        if writer not in self._names and len(self._names) >= MAX_WRITERS:
            if not self._is_full:
                self._is_full = True
                self._logger.error(
                    "more than {count} writers on the Redis channel: facts of further writers are ignored",
                    count=MAX_WRITERS,
                )
            return False
        self._names.add(writer)
        self.writers.add(writer)
        return True

    def _is_conflict(self, command: Rdata | RdataRun | Position) -> bool:
        """Whether a message under our name was sent by another process."""
        if isinstance(command, Position) and self._position_echoes.match_and_remove(command):
            return False
        if not self._has_own_echo or self._publisher is None:
            return False
        if isinstance(command, Position):
            return True
        published = self._publisher.positions(command.stream).get(command.instance, 0)
        tokens = command.tokens if isinstance(command, RdataRun) else [command.token]
        return any(token is not None and token > published for token in tokens)

    def _on_name_conflict(self, stream: str, writer: str) -> None:
        """Stop publishing: with two processes under one name, others would drop facts of both."""
        self._count_conflict()
        conflict = (
            f"another process on the channel writes {stream} as {writer}: give this process another"
            " --instance-name, or another `writer` in redis_writes"
        )
        if self.name_conflict is None:
            self._logger.critical("{conflict}; publishing on Redis is stopped", conflict=conflict)
        self.name_conflict = conflict
        self._has_probed = False
        self._stop_publishing()
        # Delays are random, since the other process may be doing the same.
        self._probe_timer.stop()
        self._conflict_timer.restart(CONFLICT_SECONDS * self._rng.uniform(1.0, 1.1))

    def _on_stream_conflict(self, stream: str, writer: str) -> None:
        self._count_conflict()
        conflict = (
            f"another process on the channel writes {stream} as {writer}, and its facts are ignored: this"
            f" process gives the ids of {stream}. Stop the other one, or take {stream} out of redis_writes,"
            " or describe its table in table_streams"
        )
        if self.stream_conflict is None:
            self._logger.critical("{conflict}", conflict=conflict)
        self.stream_conflict = conflict
        self._stream_conflict_timer.restart(CONFLICT_SECONDS)

    def _end_stream_conflict(self) -> None:
        self.stream_conflict = None

    def _count_conflict(self) -> None:
        if self._publisher is not None:
            self._publisher.metrics.channel_conflicts.inc()

    def _probe_again(self) -> None:
        """Probe whether the other process is gone or only silent."""
        if self._is_joined and self.is_publisher_up:
            self.send(Replicate())
            self._probe_timer.restart(self._probe_seconds)
        else:
            self._conflict_timer.restart(CONFLICT_SECONDS)


def _highest_token(command: Rdata | RdataRun | Position) -> int:
    tokens = command.tokens if isinstance(command, RdataRun) else [command.token]
    return max((token for token in tokens if token is not None), default=0)


EXPIRY_SECONDS: Final = 600.0
"""After this long, a message that has not come back counts as lost. Redis may stall a while."""

MAX_RECORDED: Final = 100_000


class Echoes:
    """Records the messages sent on a shared channel until they come back.

    Each sent message matches one received message, so equal messages of other processes are told apart by
    count.
    """

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._codec = codec_of(NEWEST, ours=BROKER, theirs=BROKER)
        self._sent_at: dict[bytes, deque[float]] = {}
        self._order: deque[tuple[float, bytes]] = deque()

    def record(self, command: Command) -> None:
        """Record a command that was sent on the channel."""
        self.record_line(self._codec.format(command))

    def record_line(self, line: bytes) -> None:
        """Record a command's line that was sent on the channel."""
        now = self._clock.seconds()
        while self._order and (self._order[0][0] < now - EXPIRY_SECONDS or len(self._order) >= MAX_RECORDED):
            at, expired = self._order.popleft()
            if self._sent_at.get(expired, (None,))[0] == at:
                self._forget(expired)
        self._sent_at.setdefault(line, deque()).append(now)
        self._order.append((now, line))

    def match_and_remove(self, command: Command) -> bool:
        """Whether this received command is our own; removes it from the record."""
        if not self._sent_at:
            self._order.clear()
            return False
        line = self._codec.format(command)
        if line not in self._sent_at:
            return False
        self._forget(line)
        return True

    def clear(self) -> None:
        """Clear the record: nothing more will come back."""
        self._sent_at.clear()
        self._order.clear()

    def _forget(self, line: bytes) -> None:
        times = self._sent_at[line]
        times.popleft()
        if not times:
            del self._sent_at[line]
