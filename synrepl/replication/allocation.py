"""Telling those who wait for a token that there is none such."""

from collections.abc import Callable, Coroutine
from typing import Any

from synrepl.errors import NeverAllocated, ReplicationError
from synrepl.ports.interfaces import IAllocated
from synrepl.replication.follower.waiters import Waiter, Waiters

__all__ = ["Allocation"]


class Allocation:
    """Asks how far a stream can be waited for, and refuses whoever waits for more.

    One question is asked at a time, for all who want to know. An answer says nothing about who came after
    the question: their token may be younger. It does say that all tokens up to it exist, which is remembered
    until a connection is lost or a stream goes back.
    """

    def __init__(
        self,
        waiters: Waiters,
        start: Callable[[Coroutine[Any, Any, None], str], object],
        trouble: Callable[[Exception, str, str], None],
    ) -> None:
        self.source: IAllocated | None = None
        self._waiters = waiters
        self._start = start
        self._trouble = trouble
        self._highest: dict[str, int] = {}
        self._asking: set[str] = set()

    def check(self, stream: str) -> None:
        """See whether those of this stream who are not checked yet wait for something that exists."""
        if self.source is not None and stream not in self._asking and self._unchecked(stream):
            self._start(self._ask(stream, self.source), f"asking what {stream} has allocated")

    def forget(self, stream: str | None = None) -> None:
        """What is known of this stream, or of all, may not be so any more."""
        for name in [stream] if stream is not None else list(self._highest):
            self._highest.pop(name, None)

    async def _ask(self, stream: str, source: IAllocated) -> None:
        self._asking.add(stream)
        try:
            while asked := self._unchecked(stream):
                for waiter in asked:
                    waiter.is_checked = True
                try:
                    highest = await source.highest(stream)
                except Exception as error:
                    if not isinstance(error, ReplicationError):
                        # Of its own on purpose it may have no answer; anything else is a bug of it.
                        self._trouble(error, stream, "asking what was allocated")
                    continue
                if highest is not None:
                    self._highest[stream] = highest
                    self._refuse(asked, highest)
        finally:
            self._asking.discard(stream)

    def _unchecked(self, stream: str) -> list[Waiter]:
        known = self._highest.get(stream)
        return [
            waiter
            for waiter in self._waiters.of(stream)
            if not waiter.is_checked and (known is None or max(waiter.lacks.values()) > known)
        ]

    def _refuse(self, asked: list[Waiter], highest: int) -> None:
        for waiter in asked:
            for writer, want in waiter.lacks.items():
                if want > highest:
                    error = NeverAllocated(stream=waiter.stream, writer=writer, want=want, allocated=highest)
                    self._waiters.fail(waiter, error)
                    break
