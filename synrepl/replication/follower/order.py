"""The orders in which the facts of a stream arrive: what a token says about repetitions and earlier facts."""

from collections.abc import Sequence
from typing import Protocol

from synrepl.replication.follower.dedup import RecentFacts

__all__ = ["Order", "Ordered", "Overtaking", "Restarting", "Unordered"]


class Order(Protocol):
    """The order of a stream's facts on one connection.

    `is_exact`: a position includes every earlier fact. Otherwise it does so only when a POSITION, or the end
    of a fetch, shows it.
    """

    is_exact: bool

    def is_new(self, writer: str, token: int, rows: Sequence[bytes], known: int) -> bool:
        """Whether a fact is new; `known` is the position of its writer, or -1."""

    def position_after(self, token: int, known: int) -> int:
        """The position after a fact; `known` is the position before it, or `token`."""


class Ordered:
    """Tokens ascend: a fact at or below the position is a repetition."""

    is_exact = True

    def is_new(self, writer: str, token: int, rows: Sequence[bytes], known: int) -> bool:
        """Whether a fact is above the position."""
        return token > known

    def position_after(self, token: int, known: int) -> int:
        """The token of the fact."""
        return token


class Overtaking:
    """Tokens of each writer ascend, but the rows name no writer, so that writers overtake each other."""

    is_exact = True

    def __init__(self, recent: RecentFacts) -> None:
        self._recent = recent

    def is_new(self, writer: str, token: int, rows: Sequence[bytes], known: int) -> bool:
        """Whether a fact is above the position, or not among the recent ones."""
        return self._recent.add_if_new(writer, token, rows) or token > known

    def position_after(self, token: int, known: int) -> int:
        """The highest token: a late fact does not lower it."""
        return max(token, known)


class Unordered:
    """Facts may arrive after later ones, and again."""

    is_exact = False

    def __init__(self, recent: RecentFacts) -> None:
        self._recent = recent

    def is_new(self, writer: str, token: int, rows: Sequence[bytes], known: int) -> bool:
        """Whether a fact is not among the recent ones."""
        return self._recent.add_if_new(writer, token, rows)

    def position_after(self, token: int, known: int) -> int:
        """The highest token: a late fact does not lower it."""
        return max(token, known)


class Restarting(Unordered):
    """Tokens begin again when the writer restarts, and nothing announces it."""

    def position_after(self, token: int, known: int) -> int:
        """The token of the fact, even if it is lower."""
        return token
