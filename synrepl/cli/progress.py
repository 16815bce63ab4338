"""Progress of long commands and requests, on a terminal only: pipes and logs stay clean."""

import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from synrepl.http_api.route import HttpRequest
from synrepl.http_api.routes import STATUS
from synrepl.http_client import BlockingClient, ConnectError, HttpError

__all__ = ["Advance", "post_and_watch"]


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


LOOK_SECONDS: Final = 0.5


def post_and_watch(
    client: BlockingClient,
    status_client: BlockingClient,
    request: HttpRequest,
    body: bytes,
    format_status: Callable[[Mapping[str, Any]], str],
) -> Any:
    """Post with `client`, and meanwhile poll the status with `status_client`. Return the response.

    `format_status` renders the status as a line for standard error, if that is a terminal. Raises the errors
    of `BlockingClient`.
    """
    response: list[Any] = []
    failure: list[BaseException] = []

    def post() -> None:
        try:
            response.append(client.json(request, body))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    if sys.stderr.isatty():
        with Console(stderr=True).status("waiting for the response") as line:
            while thread.is_alive():
                try:
                    line.update(format_status(status_client.json(STATUS.request())))
                except (ConnectError, HttpError) as error:
                    line.update(str(error))
                thread.join(LOOK_SECONDS)
    thread.join()
    if failure:
        raise failure[0]
    return response[0]
