"""Echoes: the messages of this process that will come back from a shared channel."""

from collections import deque
from typing import Final

from synrepl.base.interfaces import IClock
from synrepl.wire.codec import codec_of
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import BROKER, Command

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
