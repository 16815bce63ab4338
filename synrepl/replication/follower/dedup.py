"""RecentFacts: deduplicates facts of streams whose tokens do not show repetitions."""

from collections.abc import Sequence
from typing import Final

__all__ = ["REMEMBERED", "RecentFacts"]

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
