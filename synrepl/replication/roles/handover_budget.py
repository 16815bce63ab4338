"""Bounds on how long peers that prove nothing can stop a primary's writes."""

from typing import Final

from synrepl.ports.interfaces import IClock
from synrepl.replication.roles.errors import CannotPromote

__all__ = ["HandOverBudget"]

MAX_SEALED_SECONDS: Final = 60.0
"""How long one hand-over may take in all, however often it is extended."""

REST_SHARE: Final = 3.0
"""After a hand-over no other begins for so many times its length: one of 15 seconds in each minute."""


class HandOverBudget:
    """Writes are stopped for at most a quarter of the time."""

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._began: float | None = None
        self._not_before = 0.0

    def extend(self, seconds: float) -> None:
        """Begin a hand-over, or let it go on, for so long. Raises `CannotPromote` if that is too much."""
        now = self._clock.seconds()
        if self._began is None:
            if now < self._not_before:
                left = self._not_before - now
                why = f"this daemon handed over a moment ago, and nobody took over; try again in {left:.0f} s"
                raise CannotPromote("handed_over_lately", why, retryable=True)
            self._began = now
        elif now + seconds > self._began + MAX_SEALED_SECONDS:
            why = f"a hand-over takes {MAX_SEALED_SECONDS:g} seconds at most"
            raise CannotPromote("handed_over_lately", why, retryable=True)

    def end(self) -> None:
        """Facts are taken again."""
        if self._began is not None:
            now = self._clock.seconds()
            self._not_before = now + REST_SHARE * (now - self._began)
            self._began = None
