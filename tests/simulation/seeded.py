"""What every simulation has: a seed, a fake clock, a story, and bad luck that ends again."""

import gc
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Self

from twisted.logger import LogLevel, globalLogPublisher

from synrepl.testing.heap_clock import HeapClock

__all__ = ["STEP_SECONDS", "Broken", "SeededRun"]

STEP_SECONDS: Final = 0.01

# How many facts a writer appends at once. Most runs do with few: bad luck finds more in two runs than in one
# with twice the facts.
_FEW: Final = (1, 1, 1, 1, 2, 3)
_MANY: Final = (1, 1, 2, 5, 20)

_runs: Final = itertools.count(1)


class Broken(AssertionError):
    """A promise was broken; the text says which, and how to see it again."""


class SeededRun:
    """One seeded run. `run` raises `Broken` if a promise is.

    Everything runs on one clock in one thread, and chance comes from one source, so that a seed is a run that
    can be repeated: ``python -m MODULE SEED``.
    """

    MODULE: ClassVar[str]

    def __init__(self, seed: int, seconds: float) -> None:
        self.seed = seed
        self.clock = HeapClock()
        self.chance = random.Random(seed)
        self.history: list[str] = []
        self._seconds = seconds
        self._sizes = _MANY if self.chance.random() < 0.07 else _FEW
        self._count = 0
        self._outages: list[tuple[float, Callable[[], None]]] = []
        self._failures: list[str] = []

    def run(self) -> Self:
        """Bad luck for a while, then peace until everybody has everything; then look."""
        raise NotImplementedError

    @classmethod
    def main(cls, seed: int) -> None:
        """Run one seed, and tell its story."""
        simulation = cls(seed)  # type: ignore[call-arg]  # they know for how long
        try:
            simulation.run()
        finally:
            sys.stdout.write("\n".join(simulation.history) + "\n")
        sys.stdout.write(f"{simulation._count} rows: every promise held\n")

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """Note failures that nobody handled while this lasts, and leave garbage to `_check_failures`."""
        was_enabled = gc.isenabled()
        gc.disable()
        if next(_runs) % 20 == 0:
            # Former runs: coroutines of daemons that were killed in the middle of something may complain.
            gc.collect()
        globalLogPublisher.addObserver(self._observe)  # type: ignore[arg-type]
        # What was there before need not be looked at again.
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()
            if was_enabled:
                gc.enable()
            globalLogPublisher.removeObserver(self._observe)  # type: ignore[arg-type]

    def _check_failures(self) -> None:
        """Fail if something failed and nobody handled it. A Deferred tells of that when it is collected."""
        gc.collect()
        if self._failures:
            self._fail(self._failures[0])

    def _observe(self, event: Any) -> None:
        if event.get("log_level") == LogLevel.critical and "log_failure" in event:
            self._failures.append(f"something failed unseen: {event['log_failure'].getTraceback()}")

    def _piece(self, size: int) -> int:
        return size if self.chance.random() < 0.8 else self.chance.randint(1, size)

    def _note(self, text: str) -> None:
        self.history.append(f"{self.clock.seconds():8.3f} {text}")

    def _until_later(self, seconds: float, end: Callable[[], None]) -> None:
        self._outages.append((self.clock.seconds() + seconds, end))

    def _end_outages(self, *, all_of_them: bool = False) -> None:
        due = [one for one in self._outages if all_of_them or one[0] <= self.clock.seconds()]
        self._outages = [one for one in self._outages if one not in due]
        for _, end in due:
            end()

    def _fail(self, what: str) -> None:
        raise Broken(f"{what}\nsee it again: python -m {self.MODULE} {self.seed}")
