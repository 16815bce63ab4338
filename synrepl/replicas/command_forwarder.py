"""Forwards commands of a replica's followers to its upstream.

The replica numbers the commands under a name of its own, its origin. After a reconnect it sends those again
that no upstream has acknowledged. An upstream ignores numbers that it has already received.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.replication.serving.command_lines import REMIND_SECONDS, line_of
from synrepl.wire.codec import codec_of
from synrepl.wire.commands import FORWARDED, Ping
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import CLIENT, SERVER, Command

MAX_QUEUED: Final = 10_000
"""Commands that wait for an upstream. Beyond this the oldest is dropped and counted."""

WINDOW: Final = 500
"""The most commands that are sent to an upstream and not acknowledged yet."""


PING: Final = b"PING"

Numbered = tuple[int, bytes]
"""A command's number within its origin, and its line."""


def command_of(line: bytes) -> Command:
    """Parse a line. Raises RemoteProtocolError if it is not PING or a command that replicas forward."""
    command = codec_of(NEWEST, ours=SERVER, theirs=CLIENT).parse(line)
    if not isinstance(command, (*FORWARDED, Ping)):
        raise RemoteProtocolError(f"{command.NAME} is not a command that replicas forward")
    return command


class IFollowerCommands(Protocol):
    """What a forwarder needs of the commands of this daemon's followers (`FollowerCommands`)."""

    def syncing_commands(self) -> Iterator[Command]:
        """USER_SYNC for every user that is syncing here."""
        ...

    def federation_acks(self) -> Iterator[Command]:
        """The last ack of each federation sender that is connected."""
        ...

    def forward(self, command: Command) -> bool:
        """Forward a command, or keep it for the homeserver."""
        ...


class ICommandSink(Protocol):
    """What a forwarder needs of a conversation with its upstream (`IConversation`)."""

    def forward(self, origin: str, commands: Sequence[Numbered]) -> None:
        """Forward commands of followers; `Taken` follows."""


class CommandForwarder:
    """Queues the commands of this daemon's followers until its upstream acknowledges them.

    Callers give it commands only while `is_active`, that is while this daemon is a replica. An upstream that
    does not know the earlier commands, such as a new primary, is sent the users that are syncing here.
    `dropped` is called with the name of each command dropped for lack of space.
    """

    def __init__(
        self,
        follower_commands: IFollowerCommands,
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
        self._conversation: ICommandSink | None = None
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

    def connected(self, conversation: ICommandSink) -> None:
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
        space = WINDOW - len(self._unacknowledged)
        while self._unsent_state is not None and len(self._queue) < space:
            command = next(self._unsent_state, None)
            if command is None:
                self._unsent_state = None
            else:
                self._add(line_of(command))
        batch = [self._queue.popleft() for _ in range(min(space, len(self._queue)))]
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
