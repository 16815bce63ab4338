"""PositionSaver: keeps the saved positions, and those in the metrics, up to date."""

from collections.abc import Callable
from typing import Any, Final

from synrepl.ports.interfaces import IClock, IPositionStore, SaveablePosition
from synrepl.ports.metrics import Metrics
from synrepl.replication.follower.updates import Subscriber

__all__ = ["PositionSaver"]

SAVE_SECONDS: Final = 0.1
"""The shortest time between two saves of positions. After a kill, facts applied since the last save are
delivered again.
"""


class PositionSaver:
    """Saves `positions()` to `store` and shows them in `metrics`, if there are any, soon after each change.

    `is_due`: it will save soon. `saved`: the positions of the last run and of the last save, also of streams
    that are not followed now.
    """

    def __init__(
        self,
        store: IPositionStore | None,
        metrics: Metrics | None,
        positions: Callable[[], SaveablePosition],
        clock: Callable[[], IClock],
    ) -> None:
        self.store = store
        self.saved: SaveablePosition = store.load() if store is not None else {}
        self._metrics = metrics
        self._positions = positions
        self._clock = clock
        self._shown: dict[str, dict[str, int]] = {}
        self.is_due = False
        self._timer: Any = None

    def check_subscriber(self, subscriber: Subscriber) -> None:
        """Let the store refuse a subscriber that it cannot save positions for, if it has such rules."""
        check = getattr(self.store, "check_subscriber", None)
        if check is not None:
            check(subscriber)

    def save_soon(self) -> None:
        """Save within `SAVE_SECONDS`."""
        if not self.is_due:
            self.is_due = True
            self._timer = self._clock().callLater(SAVE_SECONDS, self.save)

    def save(self) -> None:
        """Save now, if positions changed since the last save."""
        if not self.is_due:
            return
        self.is_due = False
        if self._timer.active():
            self._timer.cancel()
        positions = self._positions()
        if self.store is not None:
            self.saved = self.saved | positions
            self.store.save(self.saved)
        if self._metrics is not None:
            for stream, writers in positions.items():
                if writers != self._shown.get(stream):
                    for writer, token in writers.items():
                        self._metrics.position.labels(stream, writer).set(token)
            self._shown = positions
