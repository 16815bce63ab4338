"""Telling what is repeated where tokens do not."""

from collections.abc import Sequence
from typing import Final

__all__ = ["REMEMBERED", "RecentFacts"]

REMEMBERED: Final = 10_000
"""Facts of an out-of-order stream that are remembered; a real master repeats a few dozen."""


class RecentFacts:
    """The facts of late of one stream, by writer, token and rows."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, int], None] = {}

    def is_news(self, writer: str, token: int, rows: Sequence[bytes]) -> bool:
        """Whether this very fact was not here lately; from now on it was."""
        key = (writer, token, hash(tuple(rows)))
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return True

    def forget_beyond(self, token: int) -> None:
        """The stream went back to this token: what comes beyond it is news, whatever it looks like."""
        self._seen = {key: None for key in self._seen if key[1] <= token}
