"""ICatchUp: where a follower fetches missing facts."""

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


class ICatchUp(Protocol):
    """A source of missing facts."""

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch the facts with ``after < token <= upto``, or the first of them.

        Raises `ReplicationError`, and `NowhereToFetch` if a retry cannot help.
        """
