"""Discarded ranges: facts that followers may have seen, but that their source has lost.

This happens when the homeserver's database is restored to an older state. The log is append-only and keeps
the facts. A range marks the end of the old history: the facts of its stream that were written before `epoch`
with a token above `token` are discarded.
"""

from collections.abc import Iterable, Sequence

import msgspec

from synrepl.streams.facts import Fact

__all__ = ["DiscardedRange", "DiscardedRanges"]


class DiscardedRange(msgspec.Struct, frozen=True):
    """Discards the facts of earlier epochs than `epoch` beyond `token`."""

    epoch: int
    token: int


class DiscardedRanges:
    """All discarded ranges of a log, by stream."""

    def __init__(self, rows: Iterable[tuple[str, int, int]] = ()) -> None:
        self._by_stream: dict[str, list[DiscardedRange]] = {}
        for stream, epoch, token in rows:
            self.add(stream, DiscardedRange(epoch, token))

    def add(self, stream: str, lost: DiscardedRange) -> None:
        """Add a range."""
        self._by_stream.setdefault(stream, []).append(lost)

    def for_stream(self, stream: str) -> Sequence[DiscardedRange]:
        """The ranges of one stream."""
        return self._by_stream.get(stream, ())

    def contains(self, fact: Fact) -> bool:
        """Whether a fact is discarded."""
        return any(
            fact.epoch < lost.epoch and fact.token > lost.token for lost in self.for_stream(fact.stream)
        )

    def condition(self, stream: str) -> tuple[str, list[int]]:
        """An SQL condition that excludes discarded facts, and its values."""
        ranges = self.for_stream(stream)
        return (
            " AND NOT (epoch < ? AND token > ?)" * len(ranges),
            [value for lost in ranges for value in (lost.epoch, lost.token)],
        )
