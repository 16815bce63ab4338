"""Knowing one's own words when they come back."""

from collections import deque
from typing import Final

from synrepl.ports.interfaces import IClock
from synrepl.wire.codec import codec_of
from synrepl.wire.dialect import NEWEST
from synrepl.wire.grammar import BROKER, Command

__all__ = ["Echoes"]

EXPIRY_SECONDS: Final = 600.0
"""What has not come back by then was lost with a connection. Redis may have stood still for a while."""

MAX_HELD: Final = 100_000


class Echoes:
    """Remembers what was put on a shared channel, until it is heard there.

    Equal words of somebody else are not taken for ours: each comes back once.
    """

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._codec = codec_of(NEWEST, ours=BROKER, theirs=BROKER)
        self._held: dict[bytes, deque[float]] = {}
        self._order: deque[tuple[float, bytes]] = deque()

    def sent(self, command: Command) -> None:
        """This was put on the channel."""
        self.sent_line(self._codec.format(command))

    def sent_line(self, line: bytes) -> None:
        """This line was, which is a command's."""
        now = self._clock.seconds()
        while self._order and (self._order[0][0] < now - EXPIRY_SECONDS or len(self._order) >= MAX_HELD):
            at, expired = self._order.popleft()
            if self._held.get(expired, (None,))[0] == at:
                self._forget(expired)
        self._held.setdefault(line, deque()).append(now)
        self._order.append((now, line))

    def take(self, command: Command) -> bool:
        """Whether this is ours; then it has come back."""
        if not self._held:
            self._order.clear()
            return False
        line = self._codec.format(command)
        if line not in self._held:
            return False
        self._forget(line)
        return True

    def clear(self) -> None:
        """Nothing of it will be heard."""
        self._held.clear()
        self._order.clear()

    def _forget(self, line: bytes) -> None:
        """The oldest of those that say this."""
        times = self._held[line]
        times.popleft()
        if not times:
            del self._held[line]
