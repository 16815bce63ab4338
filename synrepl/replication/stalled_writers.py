"""Which writers stand still while others of their stream go on."""

from typing import Any, Final, Protocol

import msgspec

from synrepl.ports.interfaces import IClock, SaveablePosition
from synrepl.streams.table import StreamTable

__all__ = ["STUCK_SECONDS", "StalledWriter", "StalledWriters"]

LOOK_SECONDS: Final = 5.0

STUCK_SECONDS: Final = 15.0
"""Idle writers say within a second or two that they have seen what the others wrote."""


class Positions(Protocol):
    """What is asked of the log."""

    def positions_by_stream(self) -> SaveablePosition:
        """The positions of every stream that has any facts."""


class StalledWriter(msgspec.Struct, frozen=True, kw_only=True):
    """A writer at `token`, `behind` the highest of its stream, for `seconds`."""

    stream: str
    writer: str
    token: int
    behind: int
    seconds: float


class StalledWriters:
    """Looks now and then how far the writers of each stream are.

    A writer that does not follow the others holds back everybody who reads the stream as one line. Not so in
    streams whose writers say nothing of the others: those without order, and those with one writer.
    """

    def __init__(self, log: Positions, table: StreamTable, clock: IClock) -> None:
        self._log = log
        self._names = [stream.name for stream in table if stream.ordered and not stream.ephemeral]
        self._clock = clock
        self._since: dict[tuple[str, str], tuple[int, float]] = {}
        self._timer: Any = None

    def start(self) -> None:
        """Begin to look."""
        self._look()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def found(self) -> list[StalledWriter]:
        """Who stands still now, the longest first."""
        self._note()
        now = self._clock.seconds()
        positions = self._log.positions_by_stream()
        stalled = [
            StalledWriter(
                stream=stream,
                writer=writer,
                token=token,
                behind=max(positions[stream].values()) - token,
                seconds=round(now - since, 3),
            )
            for (stream, writer), (token, since) in self._since.items()
            if now - since >= STUCK_SECONDS
        ]
        return sorted(stalled, key=lambda one: -one.seconds)

    def _look(self) -> None:
        self._note()
        self._timer = self._clock.callLater(LOOK_SECONDS, self._look)

    def _note(self) -> None:
        now = self._clock.seconds()
        positions = self._log.positions_by_stream()
        since: dict[tuple[str, str], tuple[int, float]] = {}
        for stream in self._names:
            writers = positions.get(stream, {})
            highest = max(writers.values(), default=0)
            for writer, token in writers.items():
                # A writer at 0 was named and never wrote.
                if 0 < token < highest:
                    before = self._since.get((stream, writer))
                    since[stream, writer] = before if before and before[0] == token else (token, now)
        self._since = since
