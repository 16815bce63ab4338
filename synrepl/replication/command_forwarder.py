"""Forwards commands of a replica's followers to its upstream.

The replica numbers the commands under a name of its own, its origin. After a reconnect it sends those again
that no upstream has acknowledged. An upstream ignores numbers that it has already received.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.ports.access import LOCAL, Access
from synrepl.ports.interfaces import IClock
from synrepl.ports.limited_logger import LimitedLogger
from synrepl.ports.rights import command_refusals
from synrepl.ports.time import Timer
from synrepl.wire.codec import codec_of
from synrepl.wire.commands import FORWARDED, FederationAck, Ping, RemoteServerUp
from synrepl.wire.dialect import LEGACY, NEWEST
from synrepl.wire.grammar import CLIENT, SERVER, Command
from synrepl.wire.text import is_name

if TYPE_CHECKING:
    from synrepl.replication.follower_commands import FollowerCommands
    from synrepl.replication.publisher import Publisher
    from synrepl.replication.replica.conversation import IConversation

MAX_QUEUED: Final = 10_000
"""Commands that wait for an upstream. Beyond this the oldest is dropped and counted."""

WINDOW: Final = 500
"""The most commands that are sent to an upstream and not acknowledged yet."""

REMIND_SECONDS: Final = 60.0
"""How often a replica sends a heartbeat and the acks of its connected federation senders. Without them, the
upstream would drop its users and acks.
"""

EXPIRY_SECONDS: Final = 300.0
"""An origin that is silent for this long is removed."""

MAX_ORIGINS: Final = 1_000

PING: Final = b"PING"
ACK: Final = b"FEDERATION_ACK "

Numbered = tuple[int, bytes]
"""A command's number within its origin, and its line."""


def line_of(command: Command) -> bytes:
    """Format a command for `NEWEST`, or for `LEGACY` if `NEWEST` lacks it. Raises LocalProtocolError."""
    dialect = NEWEST if NEWEST.release in command.SPAN else LEGACY
    return codec_of(dialect, ours=CLIENT, theirs=SERVER).format(command)


def command_of(line: bytes) -> Command:
    """Parse a line. Raises RemoteProtocolError if it is not PING or a command that replicas forward."""
    command = codec_of(NEWEST, ours=SERVER, theirs=CLIENT).parse(line)
    if not isinstance(command, (*FORWARDED, Ping)):
        raise RemoteProtocolError(f"{command.NAME} is not a command that replicas forward")
    return command


class CommandForwarder:
    """Queues the commands of this daemon's followers until its upstream acknowledges them.

    Callers give it commands only while `is_active`, that is while this daemon is a replica. An upstream that
    does not know the earlier commands, such as a new primary, is sent the users that are syncing here.
    `dropped` is called with the name of each command dropped for lack of room.
    """

    def __init__(
        self,
        follower_commands: "FollowerCommands",
        clock: IClock,
        *,
        origin: str,
        is_active: Callable[[], bool],
        dropped: Callable[[str], None],
    ) -> None:
        self.origin = origin
        self._follower_commands = follower_commands
        self._clock = clock
        self._is_active = is_active
        self._dropped = dropped
        self._conversation: IConversation | None = None
        self._number = 0
        self._queue: deque[Numbered] = deque()
        self._unacknowledged: deque[Numbered] = deque()
        """Sent in this conversation and not acknowledged yet."""
        self._since = 1
        """The number from which on the upstream knows the commands of this origin."""
        self._unsent_state: Iterator[Command] | None = None
        """USER_SYNC for the users that are syncing here and were not sent to a new upstream yet."""
        self._timer = Timer(clock, self._flush)
        self._reminder = Timer(clock, self._schedule_reminder)
        self._is_reminder_due = False

    @property
    def is_active(self) -> bool:
        """Whether this daemon has an upstream to forward to."""
        return self._is_active()

    def forward(self, command: Command) -> bool:
        """Queue a command for the upstream. Returns False if it cannot be written on the wire."""
        try:
            self._add(line_of(command))
        except LocalProtocolError:
            return False
        self._flush_soon()
        return True

    def connected(self, conversation: "IConversation") -> None:
        """Start sending to an upstream: first the commands that the last upstream did not acknowledge."""
        self._conversation = conversation
        self._queue.extendleft(reversed(self._unacknowledged))
        self._unacknowledged.clear()
        self._schedule_reminder()
        self._flush_soon()

    def disconnected(self) -> None:
        """The conversation ended; commands wait for the next one."""
        self._conversation = None
        self._reminder.stop()

    def acknowledged(self, origin: str, number: int, since: int) -> None:
        """The upstream has all commands up to `number`, and knows this origin from the number `since` on."""
        if origin != self.origin or self._conversation is None:
            return
        while self._unacknowledged and self._unacknowledged[0][0] <= number:
            self._unacknowledged.popleft()
        if since != self._since:
            self._since = since
            self._unsent_state = self._follower_commands.syncing_commands()
        self._flush_soon()

    def hand_back(self) -> None:
        """This daemon became primary: give all waiting commands to `FollowerCommands.forward`."""
        waiting = [*self._unacknowledged, *self._queue]
        self._unacknowledged.clear()
        self._queue.clear()
        self._unsent_state = None
        for _, line in waiting:
            self._follower_commands.forward(command_of(line))

    def stop(self) -> None:
        """Drop the queue and stop sending."""
        self.disconnected()
        self._queue.clear()
        self._timer.stop()

    def _add(self, line: bytes) -> None:
        if len(self._queue) >= MAX_QUEUED:
            _, oldest = self._queue.popleft()
            self._dropped(oldest.partition(b" ")[0].decode())
        self._number += 1
        self._queue.append((self._number, line))

    def _flush_soon(self) -> None:
        if self._conversation is not None:
            self._timer.start(0)

    def _flush(self) -> None:
        if self._conversation is None:
            return
        room = WINDOW - len(self._unacknowledged)
        while self._unsent_state is not None and len(self._queue) < room:
            command = next(self._unsent_state, None)
            if command is None:
                self._unsent_state = None
            else:
                self._add(line_of(command))
        batch = [self._queue.popleft() for _ in range(min(room, len(self._queue)))]
        if batch:
            self._unacknowledged.extend(batch)
            self._conversation.forward(self.origin, batch)
        if self._is_reminder_due and self._number and not self._queue:
            # The reminder's lines carry the last command's number, so they must not overtake queued commands.
            self._is_reminder_due = False
            senders = [line_of(command) for command in self._follower_commands.federation_acks()]
            self._conversation.forward(self.origin, [(self._number, line) for line in (PING, *senders)])

    def _schedule_reminder(self) -> None:
        """Send a heartbeat and the connected federation senders soon, and again after `REMIND_SECONDS`."""
        self._reminder.restart(REMIND_SECONDS)
        self._is_reminder_due = True
        self._flush_soon()


class CommandOrigin:
    """A replica that forwards commands, with the key named `owner`.

    `number` is that of the last command received from it.
    """

    __slots__ = ("last_active_at", "name", "number", "owner", "since")

    def __init__(self, owner: str, name: str, since: int) -> None:
        self.owner = owner
        self.name = name
        self.since = since
        self.number = since - 1
        self.last_active_at = 0.0


class CommandReceiver:
    """Handles forwarded commands as if the replica's followers were connected here. Ignores repetitions."""

    _logger = Logger()

    def __init__(self, publisher: "Publisher", clock: IClock) -> None:
        self._publisher = publisher
        self._clock = clock
        self._limited = LimitedLogger(self._logger, clock)
        self._origins: OrderedDict[tuple[str, str], CommandOrigin] = OrderedDict()
        """By the name of the peer's key and the origin's own, in order of last activity, the longest silent
        first. Else a peer could use up the numbers of another one's origin.
        """
        self._timer = Timer(clock, self._expire)

    def receive(
        self, origin: str, commands: Sequence[Numbered], *, source: object = None, access: Access = LOCAL
    ) -> tuple[int, int]:
        """Handle commands of an origin.

        Returns the number up to which all were received, and the number from which on this daemon knows the
        origin's commands. `source` is the connection they came on: broadcast commands are not sent back
        there. `access` is the replica's. Raises RemoteProtocolError if the origin's name is not valid.
        """
        if not is_name(origin):
            raise RemoteProtocolError("the origin of forwarded commands must be one printable word")
        key = (access.name, origin)
        known = self._origins.get(key)
        for number, line in commands:
            if known is None:
                # A reminder repeats the number of a command that was sent to another upstream.
                known = self._add_origin(key, number + 1 if line == PING else number)
            if number > known.number:
                known.number = number
                self._receive(known, line, source, access)
            elif line.startswith(ACK):
                self._refresh(known, line)
        if known is None:
            return 0, 1
        known.last_active_at = self._clock.seconds()
        self._origins.move_to_end(key)
        self._publisher.follower_commands.syncing.mark_active(known)
        return known.number, known.since

    def stop(self) -> None:
        """Stop all timers."""
        self._limited.stop()
        self._timer.stop()

    def _add_origin(self, key: tuple[str, str], since: int) -> CommandOrigin:
        if len(self._origins) >= MAX_ORIGINS:
            self._remove_origin(next(iter(self._origins.values())))
        origin = self._origins[key] = CommandOrigin(*key, since)
        self._timer.start(EXPIRY_SECONDS / 10)
        return origin

    def _remove_origin(self, origin: CommandOrigin) -> None:
        del self._origins[origin.owner, origin.name]
        self._publisher.follower_commands.connection_lost(origin)

    def _expire(self) -> None:
        limit = self._clock.seconds() - EXPIRY_SECONDS
        for origin in [origin for origin in self._origins.values() if origin.last_active_at <= limit]:
            self._remove_origin(origin)
        if self._origins:
            self._timer.start(EXPIRY_SECONDS / 10)

    def _refresh(self, origin: CommandOrigin, line: bytes) -> None:
        """Handle a federation sender's ack that was received before: it is still connected to the replica."""
        with suppress(RemoteProtocolError):
            command = command_of(line)
            if isinstance(command, FederationAck):
                self._publisher.follower_commands.acks.refresh(origin, command.instance)

    def _receive(self, origin: CommandOrigin, line: bytes, source: object, access: Access) -> None:
        publisher = self._publisher
        name = "?"
        try:
            command = command_of(line)
            name = command.NAME
            if isinstance(command, Ping):
                return
            if why := command_refusals(access).get(type(command)):
                raise RemoteProtocolError(why)
            publisher.metrics.count_commands([command])
            if isinstance(command, RemoteServerUp):
                publisher.broadcast(command, but=source)
            publisher.follower_commands.received(origin, command)
        except RemoteProtocolError as error:
            # Not the replica's fault but its follower's: keep the replica connected.
            publisher.metrics.commands_dropped.labels(name).inc()
            self._limited.warn(
                "dropped a command forwarded by {origin}: {why}", origin=origin.name, why=error.why
            )
