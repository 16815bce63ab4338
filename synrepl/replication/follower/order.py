"""Order: what the tokens of a stream say about repetitions and earlier facts, and the buffers it needs."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from synrepl.replication.follower.updates import RawFact

__all__ = [
    "MAX_HELD",
    "ORDERED",
    "OVERTAKING",
    "QUIET_SECONDS",
    "REMEMBERED",
    "RESTARTING",
    "UNORDERED",
    "Order",
    "RecentFacts",
    "ReorderBuffer",
]


class Order(msgspec.Struct, frozen=True):
    """The order of a stream's facts on one connection.

    `is_exact`: a fact above the position is new, and a position includes every earlier fact. Otherwise it
    does so only when a POSITION, or the end of a fetch, shows it. `has_late_facts`: a fact at or below the
    position is new, too, unless it is among `RecentFacts`. `restarts`: a late fact lowers the position.
    """

    is_exact: bool
    has_late_facts: bool
    restarts: bool = False


ORDERED: Final = Order(is_exact=True, has_late_facts=False)
"""Tokens ascend: a fact at or below the position is a repetition."""

OVERTAKING: Final = Order(is_exact=True, has_late_facts=True)
"""Tokens of each writer ascend, but the rows name no writer, so that writers overtake each other."""

UNORDERED: Final = Order(is_exact=False, has_late_facts=True)
"""Facts may arrive after later ones, and again."""

RESTARTING: Final = Order(is_exact=False, has_late_facts=True, restarts=True)
"""Tokens begin again when the writer restarts, and nothing announces it."""

REMEMBERED: Final = 10_000
"""Facts of an unordered stream that are remembered. A real master repeats a few dozen."""


class RecentFacts:
    """The most recent facts of one stream, by writer, token and rows."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, int], None] = {}

    def add_if_new(self, writer: str, token: int, rows: Sequence[bytes]) -> bool:
        """Remember this fact; return False if it was remembered already."""
        key = (writer, token, hash(tuple(rows)))
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return True

    def forget_beyond(self, token: int) -> None:
        """Forget facts beyond this token: the stream was rewound, and equal facts are new ones."""
        self._seen = {key: None for key in self._seen if key[1] <= token}


QUIET_SECONDS: Final = 0.5
"""A burst ends when its writer has been quiet this long. Real masters send a burst at once."""

MAX_HELD: Final = 10_000
"""The largest number of buffered facts of a writer; a full buffer is emptied."""


class ReorderBuffer:
    """Buffers the facts of one stream, by writer, until a burst of them ends.

    Tokens of a burst descend: advancing the position with the first, highest one would claim the facts still
    to come, and they would never be fetched if the connection were lost. A burst ends with POSITION, or when
    its writer is quiet for a while. `seconds` returns the time.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._facts: dict[str, list[RawFact]] = {}
        self._last_added: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._facts)

    def add(self, writer: str, token: int, rows: list[bytes]) -> list[RawFact]:
        """Buffer a fact. Returns all facts of the writer if the buffer is full."""
        facts = self._facts.setdefault(writer, [])
        facts.append((writer, token, rows))
        self._last_added[writer] = self._seconds()
        return self.pop(writer) if len(facts) >= MAX_HELD else []

    def pop(self, writer: str) -> list[RawFact]:
        """Remove all facts of this writer and return them sorted by token."""
        self._last_added.pop(writer, None)
        return sorted(self._facts.pop(writer, ()), key=lambda fact: fact[1])

    def pop_quiet(self) -> list[RawFact]:
        """Remove and return the facts of the writers whose bursts have ended."""
        quiet_since = self._seconds() - QUIET_SECONDS
        quiet = [writer for writer, last_added in self._last_added.items() if last_added <= quiet_since]
        return [fact for writer in quiet for fact in self.pop(writer)]
