"""ApplierListener: the callbacks that a stream's applier makes to its follower."""

from collections.abc import Coroutine
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred

from synrepl.errors import GapError
from synrepl.ports.interfaces import IClock

__all__ = ["CACHES", "SUBSCRIBER", "ApplierListener"]

SUBSCRIBER: Final = "a subscriber"
CACHES: Final = "a cache"


class ApplierListener(Protocol):
    """Receives the events of a `StreamApplier`, and gives it a clock and tasks."""

    clock: IClock

    def start(self, work: Coroutine[Any, Any, None], what: str) -> "Deferred[None]":
        """Run a coroutine and log its failure."""

    def positions_changed(self, stream: str) -> None:
        """Positions of this stream advanced or were reset."""

    def writer_rewound(self, stream: str, writer: str, token: int) -> None:
        """The writer's position is lower than on the last connection: its facts beyond `token` are lost."""

    def writer_restarted(self, stream: str, writer: str) -> None:
        """The writer restarted this stream: its earlier facts are void."""

    def external_position(self, stream: str, writer: str) -> int:
        """The token up to which another source has applied this writer's facts in order; -1 if none has."""

    def position_processed(self, stream: str, writer: str, token: int) -> None:
        """A POSITION was processed."""

    def gap_detected(self) -> None:
        """Facts are missing."""

    def gap_repaired(self) -> None:
        """The missing facts were fetched."""

    def gap_lost(self, gap: GapError) -> None:
        """The missing facts cannot be fetched; the stream continues without them."""

    def report_error(self, error: Exception, stream: str, owner: str = SUBSCRIBER) -> None:
        """Report an error to the operator. `owner` names the code that failed, in words."""

    def pause(self, stream: str) -> None:
        """Stop reading from the server until `resume`: the queue of this stream is full."""

    def resume(self, stream: str) -> None:
        """The queue of this stream is empty again."""
