"""What every simulation has: a seed, a fake clock, a story, and bad luck that ends again."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Self

from twisted.internet.task import Clock
from twisted.logger import LogLevel, globalLogPublisher

__all__ = ["STEP_SECONDS", "Broken", "SeededRun"]

STEP_SECONDS: Final = 0.01


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
        self.clock = Clock()
        self.chance = random.Random(seed)
        self.history: list[str] = []
        self._seconds = seconds
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
        """While this lasts, what fails unseen is noted."""
        globalLogPublisher.addObserver(self._observe)  # type: ignore[arg-type]
        try:
            yield
        finally:
            globalLogPublisher.removeObserver(self._observe)  # type: ignore[arg-type]

    def _observe(self, event: Any) -> None:
        if event.get("log_level") == LogLevel.critical and "log_failure" in event:
            self._failures.append(event["log_failure"].getTraceback())

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
