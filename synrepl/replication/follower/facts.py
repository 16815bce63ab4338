"""PendingFacts: the facts of one stream that come next."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from synrepl.errors import RowError
from synrepl.replication.follower.mode import StreamHistory
from synrepl.replication.follower.order import Order, Ordered
from synrepl.replication.follower.positions import PositionStep
from synrepl.replication.follower.updates import RawFact, Updates

__all__ = ["NextFact", "PendingFacts"]


class NextFact(msgspec.Struct, frozen=True):
    """A decoded fact, or the reason (`updates`) that it cannot be decoded. Then its position makes `step`.

    `is_new`: otherwise it was applied before, and only its caches must be invalidated.
    """

    step: PositionStep
    updates: Updates[Any] | RowError
    is_new: bool


class PendingFacts:
    """Facts to apply in order, without those that are known already. Set `order` and `decode_many` first."""

    def __init__(self, stream: str, history: StreamHistory) -> None:
        self.order: Order = Ordered()
        self.decode_many: Callable[[list[bytes]], list[Any]] = list
        self._stream = stream
        self._history = history
        self._facts: deque[RawFact] = deque()

    def __bool__(self) -> bool:
        return bool(self._facts)

    def extend(self, facts: Iterable[RawFact]) -> None:
        """Add facts."""
        self._facts.extend(facts)

    def clear(self) -> None:
        """Drop all facts."""
        self._facts.clear()

    def pop(self, *, is_fetched: bool, in_backlog: bool, repeats: bool) -> NextFact | None:
        """The next fact to apply; None if there is none.

        `is_fetched`: the facts were fetched. `in_backlog`: the server still pushes old ones. `repeats`: where
        a repetition may be an equal fact of a lost history, it is returned.
        """
        order = self.order
        while self._facts:
            writer, token, rows = self._facts.popleft()
            known = self._history.positions.tokens.get(writer, -1)
            is_new = order.is_new(writer, token, rows, known)
            if not is_new and (order.is_exact or not repeats):
                continue
            if is_new and token < known and not (order.is_exact or is_fetched or in_backlog):
                self._history.is_out_of_order = True
            # Without order, fetched facts advance the position only when all of them are applied.
            advances = is_new and (order.is_exact or not is_fetched)
            step = PositionStep(writer, order.position_after(token, known), advances)
            try:
                return NextFact(step, Updates(self._stream, writer, token, self.decode_many(rows)), is_new)
            except RowError as error:
                return NextFact(step, error, is_new)
        return None
