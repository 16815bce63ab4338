"""Allocation: fails waiters for tokens that were never allocated."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from synrepl.errors import NeverAllocated, ReplicationError
from synrepl.ports.interfaces import IAllocated
from synrepl.replication.follower.waiters import Waiter, Waiters

__all__ = ["Allocation"]


@dataclass(eq=False, repr=False)
class Allocation:
    """Asks `source` for the highest token of a stream, and fails waiters for tokens above it.

    One query per stream runs at a time, for all unchecked waiters. A response says nothing about waiters that
    came after the query, since their token may be newer. It does show that all tokens up to it exist, which
    is remembered until a connection is lost or the stream is rewound.
    """

    waiters: Waiters
    start: Callable[[Coroutine[Any, Any, None], str], object]
    report_error: Callable[[Exception, str, str], None]

    def __post_init__(self) -> None:
        self.source: IAllocated | None = None
        self._highest: dict[str, int] = {}
        self._querying: set[str] = set()

    def check(self, stream: str) -> None:
        """Check the unchecked waiters of this stream."""
        if self.source is not None and stream not in self._querying and self._unchecked(stream):
            self.start(self._query(stream, self.source), f"querying the highest token of {stream}")

    def forget(self, stream: str | None = None) -> None:
        """Forget the highest token of this stream, or of all streams."""
        for name in [stream] if stream is not None else list(self._highest):
            self._highest.pop(name, None)

    async def _query(self, stream: str, source: IAllocated) -> None:
        self._querying.add(stream)
        try:
            while unchecked := self._unchecked(stream):
                for waiter in unchecked:
                    waiter.is_checked = True
                try:
                    highest = await source.highest(stream)
                except Exception as error:
                    if not isinstance(error, ReplicationError):
                        # A `ReplicationError` means no answer; anything else is a bug of the source.
                        self.report_error(error, stream, "querying the highest token")
                    continue
                if highest is not None:
                    self._highest[stream] = highest
                    self._fail_beyond(unchecked, highest)
        finally:
            self._querying.discard(stream)

    def _unchecked(self, stream: str) -> list[Waiter]:
        known = self._highest.get(stream)
        return [
            waiter
            for waiter in self.waiters.for_stream(stream)
            if not waiter.is_checked and (known is None or max(waiter.missing.values()) > known)
        ]

    def _fail_beyond(self, unchecked: list[Waiter], highest: int) -> None:
        for waiter in unchecked:
            for writer, want in waiter.missing.items():
                if want > highest:
                    error = NeverAllocated(stream=waiter.stream, writer=writer, want=want, allocated=highest)
                    self.waiters.fail(waiter, error)
                    break
