"""Progress bar of a long command, on a terminal only: pipes and logs stay clean."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["Advance"]


class _Rate(ProgressColumn):
    """A column with the facts per second."""

    def render(self, task: Task) -> Text:
        seconds = task.elapsed or 0.0
        facts = int(task.fields["facts"])
        return Text(f"{facts:,} facts, {facts / seconds:,.0f}/s" if seconds else f"{facts:,} facts")


class Advance:
    """A progress bar on a terminal's standard error. `total` is in the unit of `done` in `step`."""

    def __init__(self, what: str, total: int | None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            _Rate(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._progress.add_task(what, total=total, facts=0)
        self._facts = 0

    def expect(self, total: int) -> None:
        """Set the total, once known."""
        self._progress.update(self._task, total=total)

    def step(self, done: int, facts: int) -> None:
        """Advance by `done` units and `facts` facts."""
        self._facts += facts
        self._progress.update(self._task, advance=done, facts=self._facts)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
