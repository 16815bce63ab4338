"""What a followed stream needs of its follower."""

from collections.abc import Coroutine
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred

from synrepl.errors import GapError
from synrepl.ports.interfaces import IClock

__all__ = ["CACHES", "SUBSCRIBER", "ApplierListener"]

SUBSCRIBER: Final = "a subscriber"
CACHES: Final = "a cache"


class ApplierListener(Protocol):
    """What a stream needs of its follower."""

    clock: IClock

    def start(self, work: Coroutine[Any, Any, None], what: str) -> "Deferred[None]":
        """Own a coroutine, and report if it fails."""

    def moved(self, stream: str) -> None:
        """Positions of this stream moved."""

    def went_back(self, stream: str, writer: str, token: int) -> None:
        """The writer stood further when we connected last: what it wrote beyond `token` is lost."""

    def restarted(self, stream: str, writer: str) -> None:
        """The writer has begun this stream anew: what it wrote before is void."""

    def reached(self, stream: str, writer: str) -> int:
        """Up to where somebody else has brought this writer's facts in order, so that they are known; -1 if
        nobody has."""

    def positioned(self, stream: str, writer: str, token: int) -> None:
        """A POSITION was processed."""

    def gap_detected(self) -> None:
        """Facts are missing."""

    def gap_repaired(self) -> None:
        """They were fetched."""

    def gap_lost(self, gap: GapError) -> None:
        """They cannot be had; the stream goes on without them."""

    def trouble(self, error: Exception, stream: str, whose: str = SUBSCRIBER) -> None:
        """Something went wrong that a person may want to know of; `whose` code failed, in words."""

    def slow_down(self, stream: str) -> None:
        """Read no more from the server until `speed_up`: too much waits here."""

    def speed_up(self, stream: str) -> None:
        """What waited is done."""
