"""History that was lost: facts that followers may have seen, and that are true no more.

The homeserver's database was put back to an older state; the log, which only ever grows, keeps what it had.
A void says where the old history ends: of its stream, what was written before `epoch` with a token above
`token` counts no more.
"""

from collections.abc import Iterable, Sequence

import msgspec

from synrepl.streams.facts import Fact

__all__ = ["DiscardedRange", "DiscardedRanges"]


class DiscardedRange(msgspec.Struct, frozen=True):
    """From `epoch` on, facts of earlier ones beyond `token` are void."""

    epoch: int
    token: int


class DiscardedRanges:
    """All voids of a log, by stream."""

    def __init__(self, rows: Iterable[tuple[str, int, int]] = ()) -> None:
        self._by_stream: dict[str, list[DiscardedRange]] = {}
        for stream, epoch, token in rows:
            self.add(stream, DiscardedRange(epoch, token))

    def add(self, stream: str, void: DiscardedRange) -> None:
        """One more."""
        self._by_stream.setdefault(stream, []).append(void)

    def of(self, stream: str) -> Sequence[DiscardedRange]:
        """Those of one stream."""
        return self._by_stream.get(stream, ())

    def hold(self, fact: Fact) -> bool:
        """Whether a fact is void."""
        return any(fact.epoch < void.epoch and fact.token > void.token for void in self.of(fact.stream))

    def condition(self, stream: str) -> tuple[str, list[int]]:
        """SQL that leaves void facts out, and its values."""
        voids = self.of(stream)
        return (
            " AND NOT (epoch < ? AND token > ?)" * len(voids),
            [value for void in voids for value in (void.epoch, void.token)],
        )
