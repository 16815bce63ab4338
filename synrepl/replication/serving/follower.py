"""ServedFollower: a connected follower, and what it asks for."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred

from synrepl.base.access import Access
from synrepl.base.rights import command_refusal
from synrepl.base.time import Timer
from synrepl.errors import RemoteProtocolError, StorageError
from synrepl.replication.connection import Connection
from synrepl.replication.serving.follower_sender import FollowerSender
from synrepl.replication.serving.forks import epoch_mark, is_behind
from synrepl.replication.strategies import serving
from synrepl.streams.stream import Stream
from synrepl.wire.commands import FROM_ALL_PROCESSES, EpochNotice, Name, Replicate, Rewind
from synrepl.wire.dialect import Dialect
from synrepl.wire.extension import EpochMark, FollowerName
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.text import MAX_NAME

if TYPE_CHECKING:
    from synrepl.replication.serving.publisher import Publisher

MAX_NAMED: Final = 200
"""The most stream names remembered of a follower. A REPLICATE that would exceed this adds none."""


class ServedFollower:
    """One connected follower.

    A repeated REPLICATE for the same stream is answered once per reactor turn, and only while the
    transport has space: an answer can be ten thousand times longer than the request. While a request waits
    for space, the connection is not read.

    A follower of synrepl (`wire.extension`) is sent the epoch of the log, and before its first POSITION where
    its log and this one diverged. `is_synrepl`: the follower has the mark.
    """

    def __init__(self, publisher: "Publisher", connection: Connection, access: Access) -> None:
        self.access = access
        self.name = ""
        self.dialect: Dialect | None = None
        self.connected_at = publisher.clock.seconds()
        self.sender: FollowerSender | None = None
        self._publisher = publisher
        self._connection = connection
        self._paused = False
        self._answered_streams: set[str | None] = set()
        """Streams whose REPLICATE was answered in this reactor turn."""
        self._pending: dict[str | None, Replicate] = {}
        """The newest unanswered REPLICATE of each stream."""
        self._next_turn_timer = Timer(publisher.clock, self._next_turn)
        self._has_stopped_reading = False
        self._named: set[str] = set()
        self.is_synrepl = False
        self._is_comparing = False
        """Whether the epochs of the follower and of the log are being compared: POSITIONs wait."""
        self._has_asked = False
        """Whether a REPLICATE was received."""
        self._close: Callable[[], object] | None = None
        """Closes the connection of a follower that sends nothing more."""
        self._comparison: Deferred[None] | None = None

    def dialect_known(self, dialect: Dialect) -> None:
        """Start serving: the dialect decides what the follower can be sent."""
        self.dialect = dialect
        encoder, scope = self._publisher.encoder_for(dialect, self.access.streams)
        self.sender = self._publisher.make_sender(self._connection, encoder, scope=scope)
        if self._paused:
            self.sender.pause()
        if serving(dialect).pulls:
            self.sender.push_everything()

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Handle commands from the follower. Raises RemoteProtocolError if one is not allowed."""
        follower_commands = self._publisher.follower_commands
        follower_commands.syncing.mark_active(self._connection)
        for command in commands:
            if not isinstance(command, RdataRun) and (
                why := command_refusal(self.access, command, follower_commands.runs)
            ):
                raise RemoteProtocolError(why)
            match command:
                case Name():
                    self._introduce(FollowerName.parse(command.name))
                    follower_commands.received(self._connection, command)
                case Replicate():
                    self._has_asked = True
                    self._name(command)
                    if self._paused or self._is_comparing or command.stream in self._answered_streams:
                        self._pending[command.stream] = command
                    else:
                        self._answer(command)
                case RdataRun():
                    raise AssertionError("a follower cannot send RDATA")
                case _:
                    if isinstance(command, FROM_ALL_PROCESSES):
                        self._publisher.broadcast(command, but=self)
                    follower_commands.received(self._connection, command, self.name)
        self._update_reading()

    def _introduce(self, given: FollowerName) -> None:
        """Note the name. Compare the epoch of a follower of synrepl with that of the log."""
        self.name = given.name
        if self.is_synrepl or not given.is_synrepl:
            return
        self.is_synrepl = True
        log = self._publisher.log
        if given.epoch is None or not is_behind(log, given.epoch):
            self.send_epoch()
            return
        self._is_comparing = True
        self._comparison = self._publisher.tasks.start(self._send_rewinds(given.epoch), "comparing epochs")
        self._comparison.addBoth(lambda _: self._compared())

    async def _send_rewinds(self, theirs: EpochMark) -> None:
        try:
            found = await self._publisher.comparisons.fork_tokens(theirs)
        except StorageError as error:
            self._connection.fail(f"cannot compare your epoch with this log: {error}")
            return
        self._rewind(found)

    def _rewind(self, found: Iterable[tuple[str, str, int]]) -> None:
        """Send the tokens up to which the follower may have the facts of this log, and the epoch."""
        held = self._publisher.read_gate.filter
        for stream, writer, token in found:
            if held.passes(stream, writer) and self.access.sees(stream):
                self._connection.send(Rewind(stream=stream, instance=writer, token=token))
        self.send_epoch()

    def epoch_started(self, positions: Sequence[tuple[str, str, int]] | None) -> None:
        """An epoch has begun, with these positions: a follower may have come with facts beyond them.

        If they are unknown (None), it must connect again.
        """
        if not self.is_synrepl:
            return
        if positions is None or self._is_comparing:
            self._connection.fail("a new epoch has begun: connect again")
        else:
            self._rewind(positions)

    def _compared(self) -> None:
        self._is_comparing = False
        self._answer_waiting()

    def send_epoch(self) -> None:
        """Tell a follower of synrepl the epoch of the log."""
        if self.is_synrepl:
            self._connection.send(EpochNotice(mark=str(epoch_mark(self._publisher.log))))

    def _name(self, command: Replicate) -> None:
        """Note the streams that a request names, and serve those that are sent on request."""
        given = [command.stream] if command.stream else command.named
        names = {name for name in given if len(name) <= MAX_NAME} - self._named
        if names and len(self._named) + len(names) <= MAX_NAMED:
            self._named |= names
            self._serve_named()

    def stream_added(self, stream: Stream[Any]) -> None:
        """Serve a new stream, if the follower has named it."""
        if stream.name in self._named and self.sender is not None:
            self._serve_named()
            self.sender.send_positions()

    def _serve_named(self) -> None:
        publisher = self._publisher
        assert self.dialect is not None
        assert self.sender is not None
        table = publisher.table
        named = frozenset(name for name in self._named if (one := table.get(name)) and one.on_request)
        if named:
            self.sender.serve(publisher.encoder_for(self.dialect, self.access.streams, named)[0])

    def _answer(self, command: Replicate) -> None:
        assert self.sender is not None
        self._answered_streams.add(command.stream)
        self._next_turn_timer.start(0)
        self.sender.replicate(command)

    def _next_turn(self) -> None:
        self._answered_streams.clear()
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        while self._pending and not self._paused and not self._is_comparing:
            stream = next(iter(self._pending))
            if stream in self._answered_streams:
                break  # the next turn will come
            self._answer(self._pending.pop(stream))
        self._update_reading()
        if self._close is not None and not self._pending and self.sender is not None:
            self.sender.call_at_head(self._close)

    def _update_reading(self) -> None:
        """Stop reading the connection while a REPLICATE waits for space; resume afterwards."""
        stops = self._paused and bool(self._pending)
        if stops is not self._has_stopped_reading:
            self._has_stopped_reading = stops
            if stops:
                self._connection.pause_reading()
            else:
                self._connection.resume_reading()

    def half_closed(self, close: Callable[[], object]) -> bool:
        """The follower sends nothing more: call `close` once it has what it asked for, up to the head.

        Returns False if it has asked for nothing.
        """
        if self._has_asked:
            self._close = close
            self._answer_waiting()
        return self._has_asked

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._paused = True
        if self.sender is not None:
            self.sender.pause()

    def resume(self) -> None:
        """The transport's buffer has space again."""
        self._paused = False
        # Requests first: a sender that is behind fills the transport again at once.
        self._answer_waiting()
        if self.sender is not None:
            self.sender.resume()

    def closed(self, why: str) -> None:
        """The connection was lost."""
        self._publisher.detach(self)
        self._publisher.follower_commands.connection_lost(self._connection)
        self._pending.clear()
        if self._comparison is not None:
            self._comparison.cancel()
        self._next_turn_timer.stop()
        if self.sender is not None:
            self.sender.close()
