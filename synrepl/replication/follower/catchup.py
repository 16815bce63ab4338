"""Pulling what was missed."""

from typing import Protocol

import msgspec

from synrepl.errors import NotConnected

__all__ = ["ICatchUp", "MissedFacts", "NoCatchUp", "NowhereToFetch"]


class NowhereToFetch(NotConnected):
    """Nobody is known who has the missed facts of this writer; asking again cannot help."""

    retryable = False


class MissedFacts(msgspec.Struct, frozen=True):
    """A page of missed facts: ``(token, rows as JSON texts)``, in the order to apply them.

    `upto` is the token up to which the page is complete. `limited`: more follow after it.
    """

    facts: list[tuple[int, list[bytes]]]
    upto: int
    limited: bool


class ICatchUp(Protocol):
    """Where a follower pulls what it missed."""

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """The facts with ``after < token <= upto``, or the first of them.

        Raises `ReplicationError`; `NowhereToFetch` if there is no hope.
        """


class NoCatchUp:
    """Nowhere to pull from: gaps stay, and are reported."""

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Always fails."""
        raise NotConnected("no HTTP address is known to fetch missed rows from")
