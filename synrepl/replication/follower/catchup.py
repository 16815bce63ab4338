"""ICatchUp: where a follower fetches missing facts."""

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Protocol

import msgspec

from synrepl.errors import NotConnected

__all__ = ["ICatchUp", "MissedFacts", "NowhereToFetch"]


class NowhereToFetch(NotConnected):
    """No source for the missing facts of this writer is known; a retry cannot help."""

    retryable = False


class MissedFacts(msgspec.Struct, frozen=True):
    """A page of missing facts: ``(token, rows as JSON texts)``, in the order to apply them.

    `upto` is the token up to which the page is complete. `limited`: more facts follow.
    """

    facts: list[tuple[int, list[bytes]]]
    upto: int
    limited: bool

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[int, bytes]], upto: int, *, limited: bool) -> "MissedFacts":
        """Make a page of rows with their tokens. Adjacent rows of one token are a fact."""
        facts = [(token, [row for _, row in group]) for token, group in groupby(rows, key=itemgetter(0))]
        return cls(facts, upto, limited)


class ICatchUp(Protocol):
    """A source of missing facts."""

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch the facts with ``after < token <= upto``, or the first of them.

        Raises `ReplicationError`, and `NowhereToFetch` if a retry cannot help.
        """
