"""Bounds on how long unauthenticated peers can stop a primary's writes."""

from typing import Final

from synrepl.ports.interfaces import IClock
from synrepl.replication.roles.errors import CannotPromote

__all__ = ["HandOverBudget"]

MAX_SEALED_SECONDS: Final = 60.0
"""The longest hand-over in total, however often it is extended."""

REST_SHARE: Final = 3.0
"""After a hand-over no other one begins for this many times its length: 15 seconds of each minute."""


class HandOverBudget:
    """Limits hand-overs: writes are stopped for at most a quarter of the time."""

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._began: float | None = None
        self._not_before = 0.0

    def extend(self, seconds: float) -> None:
        """Begin a hand-over, or extend it by this long. Raises `CannotPromote` if that exceeds the budget."""
        now = self._clock.seconds()
        if self._began is None:
            if now < self._not_before:
                left = self._not_before - now
                why = (
                    "the last hand-over of this daemon ended without a takeover;"
                    f" the next one may begin in {left:.0f} s: try again then"
                )
                raise CannotPromote("handed_over_lately", why, retryable=True)
            self._began = now
        elif now + seconds > self._began + MAX_SEALED_SECONDS:
            why = f"a hand-over takes {MAX_SEALED_SECONDS:g} seconds at most"
            raise CannotPromote("handed_over_lately", why, retryable=True)

    def end(self) -> None:
        """End the hand-over: writes are accepted again."""
        if self._began is not None:
            now = self._clock.seconds()
            self._not_before = now + REST_SHARE * (now - self._began)
            self._began = None
