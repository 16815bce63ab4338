"""Waiting for what happens on the real reactor."""

from collections.abc import Callable
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

__all__ = ["Counter", "eventually"]


async def eventually(is_so: Callable[[], object], what: str, *, seconds: float = 20) -> None:
    """Wait until it is so, by looking again and again. Where there is an event, wait for that."""
    clock: Any = reactor
    until = clock.seconds() + seconds
    while not is_so():
        assert clock.seconds() < until, f"waited {seconds:g} seconds in vain: {what}"
        await deferLater(clock, 0.005)


class Counter:
    """How often something has happened: `count`. It can be waited for."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[tuple[int, Deferred[None]]] = []

    def add(self) -> None:
        """It has happened once more."""
        self.count += 1
        for waiting in list(self._waiting):
            count, reached = waiting
            if self.count >= count:
                self._waiting.remove(waiting)
                reached.callback(None)

    def reaches(self, count: int) -> "Deferred[None]":
        """Fires when it has happened so often, at once if it has."""
        reached: Deferred[None] = Deferred()
        if self.count >= count:
            reached.callback(None)
        else:
            self._waiting.append((count, reached))
        return reached
