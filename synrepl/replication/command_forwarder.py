"""Commands that followers of a replica send up, on their way to its upstream.

The replica numbers them under a name of its own, its origin. It says each again until the upstream has taken
it; the upstream drops what it has taken before. So each is acted on once, however often connections break.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from twisted.logger import Logger

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.ports.access import LOCAL, Access, Right
from synrepl.ports.interfaces import IClock
from synrepl.ports.limited_logger import LimitedLogger
from synrepl.wire.codec import codec_of
from synrepl.wire.commands import (
    ClearUserSync,
    FederationAck,
    InvalidateCache,
    LockReleased,
    Ping,
    RemoteServerUp,
    RemovePusher,
    UserIp,
    UserSync,
)
from synrepl.wire.dialect import LEGACY, NEWEST
from synrepl.wire.grammar import CLIENT, SERVER, Command
from synrepl.wire.peer_names import is_name

if TYPE_CHECKING:
    from synrepl.replication.follower_commands import FollowerCommands
    from synrepl.replication.publisher import Publisher

__all__ = [
    "FORWARDED",
    "CommandForwarder",
    "CommandReceiver",
    "Numbered",
    "CommandOrigin",
    "command_of",
    "line_of",
]

FORWARDED: Final = (
    UserSync,
    ClearUserSync,
    FederationAck,
    RemovePusher,
    RemoteServerUp,
    UserIp,
    InvalidateCache,
    LockReleased,
)
"""What followers say to the homeserver, or to all processes."""

MAX_WAITING: Final = 10_000
"""Commands that wait for an upstream. Beyond it the oldest is dropped, and counted."""

WINDOW: Final = 500
"""Commands said to an upstream before it has taken any of them."""

REMIND_SECONDS: Final = 60.0
"""An idle replica says so often that it is there, or its users would expire, and which federation senders are
connected to it, or their acks would."""

EXPIRY_SECONDS: Final = 300.0
"""An origin that says nothing for so long is gone."""

MAX_ORIGINS: Final = 1_000

PING: Final = b"PING"
ACK: Final = b"FEDERATION_ACK "

Numbered = tuple[int, bytes]
"""A command's number among those of its origin, and its line."""


def line_of(command: Command) -> bytes:
    """The command as a worker of the newest release that knows it says it. Raises LocalProtocolError."""
    dialect = NEWEST if NEWEST.release in command.SPAN else LEGACY
    return codec_of(dialect, ours=CLIENT, theirs=SERVER).format(command)


def command_of(line: bytes) -> Command:
    """The reverse. Raises RemoteProtocolError for what is no command of a follower."""
    command = codec_of(NEWEST, ours=SERVER, theirs=CLIENT).parse(line)
    if not isinstance(command, (*FORWARDED, Ping)):
        raise RemoteProtocolError(f"{command.NAME} is not forwarded")
    return command


class AcceptedCommands(Protocol):
    """A conversation with an upstream that takes commands."""

    def tell(self, origin: str, said: Sequence[Numbered]) -> None:
        """Say these, in order. `CommandForwarder.taken` is called with the answer."""


class CommandForwarder:
    """Holds what followers of this daemon send up until its upstream has taken it.

    It does so while `is_active`, that is while this daemon is a replica. An upstream that does not know what
    was said before, as another primary, is told who is syncing here. `dropped` hears of what had no room, by
    the command's name.
    """

    def __init__(
        self,
        upstream: "FollowerCommands",
        clock: IClock,
        *,
        origin: str,
        is_active: Callable[[], bool],
        dropped: Callable[[str], None],
    ) -> None:
        self.origin = origin
        self._upstream = upstream
        self._clock = clock
        self._is_active = is_active
        self._dropped = dropped
        self._conversation: AcceptedCommands | None = None
        self._number = 0
        self._waiting: deque[Numbered] = deque()
        self._untaken: deque[Numbered] = deque()
        """Said in this conversation, and not taken yet."""
        self._since = 1
        """From which number on the upstream knows what was said here."""
        self._state: Iterator[Command] | None = None
        """Who is syncing, as far as it was not said again yet."""
        self._timer: Any = None
        self._reminder: Any = None
        self._is_reminder_due = False

    @property
    def is_active(self) -> bool:
        """Whether there is an upstream to tell."""
        return self._is_active()

    def tell(self, command: Command) -> bool:
        """Have this said to the upstream. False if it cannot be said."""
        try:
            self._add(line_of(command))
        except LocalProtocolError:
            return False
        self._flush_soon()
        return True

    def connected(self, conversation: AcceptedCommands) -> None:
        """There is an upstream that takes commands."""
        self._conversation = conversation
        self._waiting.extendleft(reversed(self._untaken))
        self._untaken.clear()
        self._remind()
        self._flush_soon()

    def disconnected(self) -> None:
        """There is none; what is said waits for the next one."""
        self._conversation = None
        if self._reminder is not None and self._reminder.active():
            self._reminder.cancel()

    def taken(self, origin: str, number: int, since: int) -> None:
        """The upstream has taken what was said up to this number; it knows what was said from `since` on."""
        if origin != self.origin or self._conversation is None:
            return
        while self._untaken and self._untaken[0][0] <= number:
            self._untaken.popleft()
        if since != self._since:
            self._since = since
            self._state = self._upstream.said()
        self._flush_soon()

    def hand_back(self) -> None:
        """This daemon is the primary now: what no upstream has taken is offered to the homeserver here."""
        waiting = [*self._untaken, *self._waiting]
        self._untaken.clear()
        self._waiting.clear()
        self._state = None
        for _, line in waiting:
            self._upstream.offer(command_of(line))

    def stop(self) -> None:
        """Say nothing more."""
        self.disconnected()
        self._waiting.clear()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _add(self, line: bytes) -> None:
        if len(self._waiting) >= MAX_WAITING:
            _, oldest = self._waiting.popleft()
            self._dropped(oldest.partition(b" ")[0].decode())
        self._number += 1
        self._waiting.append((self._number, line))

    def _flush_soon(self) -> None:
        if self._timer is None and self._conversation is not None:
            self._timer = self._clock.callLater(0, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._conversation is None:
            return
        room = WINDOW - len(self._untaken)
        while self._state is not None and len(self._waiting) < room:
            command = next(self._state, None)
            if command is None:
                self._state = None
            else:
                self._add(line_of(command))
        said = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        if said:
            self._untaken.extend(said)
            self._conversation.tell(self.origin, said)
        if self._is_reminder_due and self._number and not self._waiting:
            # What waits must not be overtaken: these lines have the number of what was said last.
            self._is_reminder_due = False
            senders = [line_of(command) for command in self._upstream.senders()]
            self._conversation.tell(self.origin, [(self._number, line) for line in (PING, *senders)])

    def _remind(self) -> None:
        """Say soon that this daemon is there, and which federation senders are connected to it."""
        self._reminder = self._clock.callLater(REMIND_SECONDS, self._remind)
        self._is_reminder_due = True
        self._flush_soon()


class CommandOrigin:
    """A replica from which commands come: `number` is that of the last one that was taken."""

    __slots__ = ("heard", "name", "number", "since")

    def __init__(self, name: str, since: int) -> None:
        self.name = name
        self.since = since
        self.number = since - 1
        self.heard = 0.0


class CommandReceiver:
    """Takes what replicas forward, each command once, as if their followers had said it here."""

    _logger = Logger()

    def __init__(self, publisher: "Publisher", clock: IClock) -> None:
        self._publisher = publisher
        self._clock = clock
        self._limited = LimitedLogger(self._logger, clock)
        self._origins: OrderedDict[str, CommandOrigin] = OrderedDict()
        """The one that was silent longest first."""
        self._timer: Any = None

    def take(
        self, origin: str, said: Sequence[Numbered], *, source: object = None, access: Access = LOCAL
    ) -> tuple[int, int]:
        """Take these commands of an origin. Returns the number up to which all were taken, and the one since
        which they are known here.

        `source` is the connection they came on; commands for others are not sent back there. `access` is that
        of the replica. Raises RemoteProtocolError if the origin has no name.
        """
        if not is_name(origin):
            raise RemoteProtocolError("the origin of forwarded commands is one printable word")
        known = self._origins.get(origin)
        for number, line in said:
            if known is None:
                # A reminder says that its number was said before, to somebody else.
                known = self._begin(origin, number + 1 if line == PING else number)
            if number > known.number:
                known.number = number
                self._take(known, line, source, access)
            elif line.startswith(ACK):
                self._remind(known, line)
        if known is None:
            return 0, 1
        known.heard = self._clock.seconds()
        self._origins.move_to_end(origin)
        self._publisher.upstream.syncing.heard_from(known)
        return known.number, known.since

    def stop(self) -> None:
        """Stop waiting for anything."""
        self._limited.stop()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _begin(self, name: str, since: int) -> CommandOrigin:
        if len(self._origins) >= MAX_ORIGINS:
            self._end(next(iter(self._origins.values())))
        origin = self._origins[name] = CommandOrigin(name, since)
        if self._timer is None:
            self._timer = self._clock.callLater(EXPIRY_SECONDS / 10, self._expire)
        return origin

    def _end(self, origin: CommandOrigin) -> None:
        del self._origins[origin.name]
        self._publisher.upstream.connection_lost(origin)

    def _expire(self) -> None:
        self._timer = None
        limit = self._clock.seconds() - EXPIRY_SECONDS
        for origin in [one for one in self._origins.values() if one.heard <= limit]:
            self._end(origin)
        if self._origins:
            self._timer = self._clock.callLater(EXPIRY_SECONDS / 10, self._expire)

    def _remind(self, origin: CommandOrigin, line: bytes) -> None:
        """A command with a number that was taken before: nothing is done again. But a federation sender that
        is named is still connected to the replica."""
        with suppress(RemoteProtocolError):
            self._publisher.upstream.remind(origin, command_of(line))

    def _take(self, origin: CommandOrigin, line: bytes, source: object, access: Access) -> None:
        publisher = self._publisher
        name = "?"
        try:
            command = command_of(line)
            name = command.NAME
            if isinstance(command, Ping):
                return
            if isinstance(command, InvalidateCache) and (
                why := access.lacks(Right.WRITE) or access.hides(["caches"])
            ):
                raise RemoteProtocolError(why)
            publisher.metrics.count_commands([command])
            if isinstance(command, RemoteServerUp):
                publisher.relay(command, but=source)
            publisher.upstream.received(origin, command)
        except RemoteProtocolError as error:
            # The replica is not at fault for what its follower said: it is served as before.
            publisher.metrics.commands_dropped.labels(name).inc()
            self._limited.warn(
                "a command forwarded by {origin} was dropped: {why}", origin=origin.name, why=error.why
            )
