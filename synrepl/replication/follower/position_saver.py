"""PositionSaver: keeps the saved positions, and those in the metrics, up to date."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from synrepl.base.interfaces import IClock, IPositionStore, SaveablePosition
from synrepl.base.metrics import Metrics
from synrepl.replication.follower.updates import BatchSubscriber, Subscriber
from synrepl.wire.extension import EpochMark

SAVE_SECONDS: Final = 0.1
"""The longest time from a change of positions to the attempt to save them. After a kill, facts applied since
the last successful save are delivered again.
"""


RETRY_SECONDS: Final = 1.0
"""The time until a save that failed is repeated."""

EPOCH: Final = "(epoch)"
"""The name under which a store keeps the epoch, as if it were a stream: no stream has such a name."""


@dataclass(eq=False, repr=False)
class PositionSaver:
    """Saves `positions()` to `store` and shows them in `metrics` (each may be None) soon after a change.

    A save that fails is reported to `report_failure`, and repeated. `is_due`: a save is scheduled. `saved`:
    the positions of the last run and of the last save, also of streams that are not followed now. `epoch`:
    the epoch of the log that they belong to, if known; it is saved with them. `has_new_writer`: the
    position of a writer is to be saved that never was.
    """

    store: IPositionStore | None
    metrics: Metrics | None
    positions: Callable[[], SaveablePosition]
    clock: IClock
    report_failure: Callable[[Exception], None]

    def __post_init__(self) -> None:
        loaded = self.store.load() if self.store is not None else {}
        self.saved: SaveablePosition = {name: held for name, held in loaded.items() if name != EPOCH}
        self.epoch: EpochMark | None = _epoch_of(loaded.get(EPOCH, {}))
        self._is_stopped = False
        self._shown: dict[str, dict[str, int]] = {}
        self.is_due = False
        self.has_new_writer = False
        self._timer: Any = None

    def check_subscriber(self, subscriber: Subscriber | BatchSubscriber) -> None:
        """Raise `ConfigError` if the store refuses this subscriber (see `IPositionStore`)."""
        check = getattr(self.store, "check_subscriber", None)
        if check is not None:
            check(subscriber)

    def save_soon(self, seconds: float = SAVE_SECONDS) -> None:
        """Save after this many seconds, unless a save is due already."""
        if not self.is_due:
            self.is_due = True
            self._timer = self.clock.callLater(seconds, self.save)

    def position_processed(self, stream: str, writer: str) -> None:
        """Save at once where a writer's stream starts: after a kill it would start at another position."""
        self.has_new_writer |= writer not in self.saved.get(stream, ())

    def save_at_once(self) -> None:
        """Save new writers and all else that changed."""
        self.has_new_writer = False
        self.save()

    def stop(self) -> None:
        """Save for the last time. Raises what the store raises."""
        self._is_stopped = True
        self.save_at_once()

    def save(self) -> None:
        """Save now, if positions changed since the last save."""
        if not self.is_due:
            return
        self.is_due = False
        if self._timer.active():
            self._timer.cancel()
        positions = self.positions()
        if self.store is not None:
            saved = self.saved | positions
            epoch = {} if self.epoch is None else {EPOCH: {str(self.epoch): self.epoch.epoch}}
            try:
                self.store.save(saved | epoch)
            except Exception as error:
                if self._is_stopped:
                    raise
                self.report_failure(error)
                self.save_soon(RETRY_SECONDS)
                return
            self.saved = saved
        if self.metrics is not None:
            for stream, writers in positions.items():
                shown = self._shown.get(stream, {})
                for writer, token in writers.items():
                    if shown.get(writer) != token:
                        self.metrics.position.labels(stream, writer).set(token)
            self._shown = positions


def _epoch_of(saved: Mapping[str, int]) -> EpochMark | None:
    return EpochMark.parse(next(iter(saved), ""))
