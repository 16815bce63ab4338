"""The link of this process to the channel that it serves itself: no connections, the same member."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.metrics import Metrics
from synrepl.base.time import Timer
from synrepl.channel.ends import ChannelPublisher
from synrepl.channel.served_channel import ServedChannel
from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.replication.membership.daemon_member import DaemonMember
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import BROKER, Command
from synrepl.wire.session import Close, Deliver, Session, Warn

MAX_UNREAD: Final = 16 * 1024 * 1024
"""The bytes of lines that wait until the member takes some again. Beyond it publishers are not read."""

GATHER_SECONDS: Final = 0.005
"""Lines within this time after others are given to the member together: a run of rows, and one commit, costs
little more than one row."""

LINES_AT_ONCE: Final = 500
"""After so many lines others have a turn."""

REJOIN_SECONDS: Final = 1.0

HOLD_SECONDS: Final = 5.0
"""How long publishers wait for a log that does not take their lines. Then it gets none for a while, and asks
its writers for what it lacks."""


class ServedLink:
    """Gives the lines of a `ServedChannel` to the member of this process, and publishes what that sends.

    A primary takes facts from its own channel as from one on a Redis: as a member among others. `take` is
    what the channel is to be wired with. `is_full` tells whether publishers should wait; `on_space` is called
    once they need not any more.
    """

    _logger = Logger()

    def __init__(
        self,
        clock: IClock,
        member: DaemonMember,
        channel: ServedChannel,
        *,
        instance: str,
        metrics: Metrics,
        on_space: Callable[[], object],
    ) -> None:
        self.messages_refused = 0
        self.interruptions = 0
        """How often the log did not take what was published: it has asked for that since."""
        self.unread_bytes = 0
        self._clock = clock
        self._member = member
        self._on_space = on_space
        self._metrics = metrics
        self._channel = channel
        self._session = Session(BROKER, NEWEST, name=instance, seconds=clock.seconds)
        self._own = ChannelPublisher(is_own=True)
        self._unread: deque[bytes] = deque()
        self._is_up = False
        self._is_reading = True
        self._has_given_up = False
        self._is_delivering = False
        self._limited_logger = LimitedLogger(self._logger, clock)
        self._timer = Timer(clock, self.start)
        self._gather_timer = Timer(clock, self._deliver)
        self._hold_timer = Timer(clock, self._give_up)

    @property
    def is_full(self) -> bool:
        """Whether so much waits for the member that publishers should not be read."""
        return self.unread_bytes > MAX_UNREAD

    def start(self) -> None:
        """Join the channel."""
        self._is_up = self._is_reading = True
        self._member.subscriber_up()
        self._member.publisher_up()

    def stop(self) -> None:
        """Leave the channel."""
        self._is_up = False
        self._channel.publisher_lost(self._own)
        self._timer.stop()
        self._gather_timer.stop()
        self._hold_timer.stop()
        self._limited_logger.stop()
        self._drop_unread()

    # -- the member's connection -----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Publish encoded lines, each ended by a newline."""
        if self._is_up and data:
            self._channel.publish(self._own, data[:-1].split(b"\n"))

    def send(self, command: Command) -> None:
        """Publish a command on its channel. Raises `LocalProtocolError` as `Session.encode` does."""
        line = self._session.encode([command])
        if command.CHANNEL:
            name = self._channel.name + b"/" + command.CHANNEL.encode()
            self._channel.publish_beside(self._own, name, line[:-1])
        else:
            self.write(line)

    def fail(self, why: str) -> None:
        """Leave the channel, and join it again after a moment: all positions are asked for anew."""
        self._logger.warn("leaving the channel for a moment: {why}", why=why)
        if self._is_up:
            self._is_up = False
            self._clock.callLater(0, self._leave, why)
            self._timer.restart(REJOIN_SECONDS)

    def established(self) -> None:
        """The first POSITION was applied."""

    def pause_reading(self) -> None:
        """Keep lines for later."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Take lines again."""
        self._is_reading = True
        self._deliver()

    def _leave(self, why: str) -> None:
        self._member.subscriber_down(why)
        self._member.publisher_down(why)

    # -- lines of the channel ------------------------------------------------------------------------------

    def take(self, lines: Sequence[bytes]) -> None:
        """Keep lines that were published for the member, which gets them soon."""
        if not self._is_up:
            return
        self._unread += lines
        self.unread_bytes += sum(map(len, lines))
        if not self._gather_timer.is_active:
            self._deliver()
        if self.is_full:
            self._hold_timer.start(0 if self._has_given_up else HOLD_SECONDS)

    def _give_up(self) -> None:
        """Let publishers go on, though the log does not take what they publish."""
        if self.is_full:
            self._has_given_up = True
            self.interruptions += 1
            self._drop_unread()
            self.fail("the log does not take what is published")

    def _drop_unread(self) -> None:
        was_full, self._unread, self.unread_bytes = self.is_full, deque(), 0
        if was_full:
            self._on_space()

    def _deliver(self) -> None:
        """Deliver the waiting lines to the member. Lines that it publishes meanwhile follow them."""
        if self._is_delivering:
            return
        was_full, self._is_delivering = self.is_full, True
        left = LINES_AT_ONCE
        try:
            while self._unread and self._is_reading and left > 0:
                lines = [self._unread.popleft() for _ in range(min(left, len(self._unread)))]
                left -= len(lines)
                self.unread_bytes -= sum(map(len, lines))
                self._gather_timer.start(0 if self._unread else GATHER_SECONDS)
                self._has_given_up = False
                if self._is_up:
                    self._receive(lines)
        finally:
            self._is_delivering = False
        if not self.is_full:
            self._hold_timer.stop()
            if was_full:
                self._on_space()

    def _receive(self, lines: Sequence[bytes]) -> None:
        for action in self._session.receive(lines):
            match action:
                case Deliver(commands):
                    self._metrics.count_commands(commands)
                    try:
                        self._member.received(commands)
                    except RemoteProtocolError as error:
                        self.fail(error.why)
                    except LocalProtocolError as error:
                        self._logger.failure("protocol error of this process on its own channel")
                        self.fail(f"internal error: {error.why}")
                case Warn(why) | Close(why):
                    self.messages_refused += 1
                    self._limited_logger.warn("ignored a bad message on the RESP port: {why}", why=why)
