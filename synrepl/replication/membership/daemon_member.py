"""DaemonMember: this process as a member of a shared channel, like every process of current Synapse.

The channel is one of a Redis, or one that this daemon serves itself at its RESP port.

There is no server: each process receives all commands of the others, publishes the streams that it writes,
and answers REPLICATE with their positions (docs/reference/peers.md#redis-channels, #redis-position).

What this process writes is never taken from the channel: its own log is the truth. A message under its name
that is no echo, or in an ordered stream that gets its ids from this log, is a conflict: it is reported,
counted and ignored, and appends go on."""

import random
from collections.abc import Collection, Sequence

from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.errors import LocalProtocolError, NotConnected
from synrepl.replication.connection import Connection
from synrepl.replication.follower.follower import Follower
from synrepl.replication.machine import Machine
from synrepl.replication.membership.channel_states import TRANSITIONS, ChannelEvent, ChannelState
from synrepl.replication.membership.channel_writers import ChannelWriters
from synrepl.replication.membership.echoes import Echoes
from synrepl.replication.membership.member import ChannelMember
from synrepl.replication.membership.name_claim import PROBE_SECONDS, NameClaim
from synrepl.replication.membership.position_query import PositionQuery
from synrepl.replication.serving.follower_sender import FollowerSender
from synrepl.replication.serving.publisher import Publisher
from synrepl.replication.strategies import SHARED
from synrepl.streams.writer import Writer
from synrepl.wire.commands import Position, Rdata, Replicate
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun


class DaemonMember(ChannelMember):
    """Follows the other processes on the channel, and publishes this process's own writes.

    `follower` receives the messages of other processes, except REPLICATE. `writes` are streams and writers
    published from the `publisher`'s log; others never are, so no received fact is published again. The
    publisher's followers send and receive the commands for all processes through the channel. No other
    process may write the streams `exclusive`, or have the name `instance` (empty: none) in any stream.

    The broker's link calls the member in the reactor's thread, and not after the link's `stop`.
    The follower and the sender use the member as their connection. Call `use` before the first callback.
    `rng` is for delays that must differ between processes.
    """

    _broker: Connection
    _logger = Logger()

    def __init__(
        self,
        *,
        clock: IClock,
        follower: Follower | None = None,
        publisher: Publisher | None = None,
        writes: Collection[Writer] = (),
        exclusive: Collection[str] = (),
        instance: str = "",
        probe_seconds: float = PROBE_SECONDS,
        where: str = "Redis",
        rng: random.Random | None = None,
    ) -> None:
        self._where = where
        self._machine = Machine("member", TRANSITIONS, ChannelState.DISCONNECTED)
        self._follower = follower
        self._publisher = publisher
        self._writes = frozenset(writes)
        self._position_echoes = Echoes(clock)  # positions are matched even if they come back late
        self._sent_commands = Echoes(clock)
        self._sender: FollowerSender | None = None
        self._is_paused = False
        self._last_error = ""
        self._claim = NameClaim(
            clock,
            rng or random.Random(),
            probe_seconds=probe_seconds,
            is_joined=lambda: self.is_joined,
            ask=self._ask_as_member,
            granted=self._publish,
            withdrawn=self._stop_publishing,
        )
        self._channel_writers = ChannelWriters(
            clock,
            publisher,
            writes=writes,
            exclusive=exclusive,
            instance=instance,
            claim=self._claim,
            position_echoes=self._position_echoes,
        )
        self._query = PositionQuery(clock, self._ask)
        # The positions before anything was published: the first publication must cover all later facts.
        self._unpublished_start: tuple[int, dict[Writer, int]] | None = None
        if publisher is not None:
            publisher.follower_commands.process_subscribers.append(self.forward)
            positions = {
                writer: publisher.log.positions(writer.stream).get(writer.name, 0) for writer in self._writes
            }
            self._unpublished_start = (publisher.log.head.serial, positions)

    def use(self, broker: Connection) -> None:
        """Publish over these connections to the broker; their link was made with this member."""
        self._broker = broker

    @property
    def name_conflict(self) -> str | None:
        """Which stream another process writes under a name of ours, and what to do.

        None once there was no such conflict for `CONFLICT_SECONDS`, as for `stream_conflict`.
        """
        return self._claim.conflict

    @property
    def stream_conflict(self) -> str | None:
        """Which other process writes a stream of `exclusive`, and what to do."""
        return self._channel_writers.stream_conflict

    @property
    def overflow(self) -> str | None:
        """The message that facts of further writers are ignored; None until there are too many writers."""
        return self._channel_writers.overflow

    @property
    def writers(self) -> set[str]:
        """Names of other writers that were seen on the channel."""
        return self._channel_writers.seen

    @property
    def is_writing(self) -> bool:
        """Whether facts written here are published."""
        return self._sender is not None

    @property
    def state(self) -> ChannelState:
        """What this process can do on the channel."""
        return self._machine.state

    @property
    def is_joined(self) -> bool:
        """Whether this process has asked for all positions, and has missed no message since."""
        return self.state in (ChannelState.JOINED, ChannelState.UNHEARD)

    @property
    def is_subscribed(self) -> bool:
        """Whether the subscriber's connection is up."""
        return self.is_joined or self.state is ChannelState.SUBSCRIBED

    @property
    def can_publish(self) -> bool:
        """Whether the publisher's connection is up."""
        return self.state in (ChannelState.JOINED, ChannelState.PUBLISHING)

    # -- called by the broker's link -----------------------------------------------------------------------

    def subscriber_up(self) -> None:
        """Every subscription is confirmed: no message is missed until `subscriber_down`."""
        if self._move(ChannelEvent.SUBSCRIBER_UP) is ChannelState.JOINED:
            self._join()

    def subscriber_down(self, why: str) -> None:
        """The subscriber's connection was lost: later messages are missed."""
        was_joined = self.is_joined
        self._move(ChannelEvent.SUBSCRIBER_DOWN)
        self._logger.warn("disconnected from the channel at {where}: {why}", where=self._where, why=why)
        # Echoes that have not come back by now never will.
        self._sent_commands.clear()
        if was_joined:
            self._leave(why)

    def publisher_up(self) -> None:
        """The publisher's connection is up."""
        was_joined = self.is_joined
        if self._move(ChannelEvent.PUBLISHER_UP) is ChannelState.JOINED:
            if was_joined:
                self.send(Replicate())  # the last messages may be lost, REPLICATE among them
            else:
                self._join()
        self._publish()

    def publisher_down(self, why: str) -> None:
        """The publisher's connection was lost, and possibly the last messages with it. Ends a `pause` too."""
        self._move(ChannelEvent.PUBLISHER_DOWN)
        self._is_paused = False
        self._logger.warn("cannot publish on the channel at {where}: {why}", where=self._where, why=why)
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
        writers, unanswered = self._channel_writers, self._query.unanswered
        accepted: list[Command | RdataRun] = []
        for command in commands:
            if isinstance(command, (Rdata, RdataRun, Position)):
                if writers.accepts(command):
                    accepted.append(command)
                    if unanswered and isinstance(command, Position):
                        unanswered.discard((command.stream, command.instance))
            elif isinstance(command, Replicate):
                writers.has_own_echo = True
                if self._sender is not None:
                    self._sender.send_positions()
            elif not self._sent_commands.match_and_remove(command):
                accepted.append(command)
                if self._publisher is not None:
                    self._publisher.on_channel_command(command)
        if accepted and self._follower is not None and self.is_joined:
            self._follower.server.received(accepted)

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._is_paused = True
        if self._sender is not None:
            self._sender.pause()

    def resume(self) -> None:
        """The transport's buffer has space again."""
        self._is_paused = False
        if self._sender is not None:
            self._sender.resume()

    def stop(self) -> None:
        """Leave the channel and stop all timers."""
        was_joined = self.is_joined
        self._move(ChannelEvent.STOP)
        self._stop_publishing()
        if was_joined:
            self._leave("closed by this process")
        self._claim.stop()
        self._channel_writers.stop()

    # -- the follower's and the sender's connection --------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Publish these lines, if the publisher's connection is up."""
        if self.can_publish:
            for line in data.split(b"\n") if b"POSITION " in data else ():
                if line.startswith(b"POSITION "):
                    self._position_echoes.record_line(line)
            self._broker.write(data)

    def send(self, command: Command) -> None:
        """Publish this command. Raises `NotConnected`, or `LocalProtocolError` if no channel carries it."""
        if not self.can_publish:
            raise NotConnected(f"not connected: {command.NAME} was not sent")
        if self.is_subscribed and not command.CHANNEL and not isinstance(command, Replicate):
            self._sent_commands.record(command)
        self._broker.send(command)

    def forward(self, command: Command) -> None:
        """Publish a follower's command.

        Best effort, as between Synapse's processes: a command that cannot be sent now is dropped and counted.
        """
        if self.can_publish and NEWEST.release in command.SPAN:
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
        self._broker.fail(why)

    def established(self) -> None:
        """The first POSITION was applied."""
        self._broker.established()

    def pause_reading(self) -> None:
        """Stop reading from the broker."""
        self._broker.pause_reading()

    def resume_reading(self) -> None:
        """Read from the broker again."""
        self._broker.resume_reading()

    # -- joining -------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Request all positions: both connections are up."""
        self._channel_writers.has_own_echo = False
        self._last_error = ""
        self._logger.info("joined the channel at {where}", where=self._where)
        if self._follower is not None:
            positions = self._follower.positions()
            expected = {Writer(stream, writer) for stream in positions for writer in positions[stream]}
            self._query.unanswered = expected - self._writes
            self._follower.server.connected(self, NEWEST, SHARED)
            self._query.start()
        else:
            self.send(Replicate())
        if self._writes:
            self._claim.joined()

    def _ask(self) -> None:
        """Ask all processes for their positions, if that can be sent."""
        if self.can_publish:
            self.send(Replicate())

    def _ask_as_member(self) -> bool:
        """Do `_ask` and return True if this process has joined and can send."""
        if self.state is not ChannelState.JOINED:
            return False
        self.send(Replicate())
        return True

    def _leave(self, why: str) -> None:
        self._query.stop()
        if self._follower is not None:
            self._follower.server.disconnected(why)

    def _move(self, event: ChannelEvent) -> ChannelState:
        # None for an event that is impossible now, which `move` says.
        (state,) = TRANSITIONS[self.state].get(event, (None,))
        self._machine.move(event, state)
        return self.state

    # -- publishing ----------------------------------------------------------------------------------------

    def _publish(self) -> None:
        if (
            self._publisher is None
            or self._sender is not None
            or not (self.can_publish and self._claim.is_granted)
        ):
            return
        self._sender = self._publisher.join_channel(self, self._writes)
        if self._is_paused:
            self._sender.pause()
        unpublished, self._unpublished_start = self._unpublished_start, None
        if unpublished is None:
            self._sender.push_everything()
        else:
            serial, positions = unpublished
            for (stream, writer), token in sorted(positions.items()):
                position = Position(stream=stream, instance=writer, prev_token=token, token=token)
                self._position_echoes.record(position)
                self._broker.send(position)
            self._sender.push_since(serial)
        self._sender.send_positions()

    def _stop_publishing(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
            assert self._publisher is not None
            self._publisher.channel_senders.remove(sender)
