"""StalledWriters: finds writers that stay at one token, below others of their stream."""

from typing import Final

import msgspec

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.storage.log import Log
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer

CHECK_SECONDS: Final = 5.0

STALLED_SECONDS: Final = 15.0
"""An idle writer follows the others' positions within a second or two, so a longer delay is a stall."""


class StalledWriter(msgspec.Struct, frozen=True, kw_only=True):
    """A writer that has been at `token` for `seconds`, `behind` tokens below the highest of its stream."""

    stream: str
    writer: str
    token: int
    behind: int
    seconds: float


class StalledWriters:
    """Periodically compares the positions of the writers of each ordered, kept stream.

    A stalled writer holds back all readers that read the stream as one sequence. Unordered and ephemeral
    streams are not checked: their writers do not follow the others' positions while idle.
    """

    def __init__(self, log: Log, table: StreamTable, clock: IClock) -> None:
        self._log = log
        self._names = [stream.name for stream in table if stream.ordered and not stream.ephemeral]
        self._clock = clock
        self._since: dict[Writer, tuple[int, float]] = {}
        self._timer = Timer(clock, self.start)

    def start(self) -> None:
        """Check now, and then periodically."""
        self._update()
        self._timer.restart(CHECK_SECONDS)

    def stop(self) -> None:
        """Stop periodic checks."""
        self._timer.stop()

    def stalled(self) -> list[StalledWriter]:
        """The stalled writers, the longest stalled first."""
        self._update()
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
            if now - since >= STALLED_SECONDS
        ]
        return sorted(stalled, key=lambda writer: -writer.seconds)

    def _update(self) -> None:
        now = self._clock.seconds()
        positions = self._log.positions_by_stream()
        since: dict[Writer, tuple[int, float]] = {}
        for stream in self._names:
            writers = positions.get(stream, {})
            highest = max(writers.values(), default=0)
            for writer, token in writers.items():
                # A writer at 0 was announced but never wrote.
                if 0 < token < highest:
                    one = Writer(stream, writer)
                    before = self._since.get(one)
                    since[one] = before if before and before[0] == token else (token, now)
        self._since = since
