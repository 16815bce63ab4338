"""Progress of long commands and requests, on a terminal only: pipes and logs stay clean."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self

import click

from synrepl.cli.tables import bar
from synrepl.declarations import status_request
from synrepl.html.humanize import span
from synrepl.http_api.request_errors import RequestError
from synrepl.http_api.route import HttpRequest
from synrepl.http_client import BlockingClient, NotADaemon


class Advance:
    """A progress bar on standard error, if that is a terminal. `total` is in units of `done`, or None.

    `unit` names what the second number of `step` counts. Without one, the units are steps of unequal length:
    then nothing is said of speed and of the time that is left.
    """

    def __init__(self, what: str, total: int | None, *, unit: str = "facts") -> None:
        self.what = what
        self._unit = unit
        self.total = total
        self.done = self._facts = 0
        self._is_shown = sys.stderr.isatty()
        self._began = time.monotonic()
        self._drawn_at = 0.0

    def step(self, done: int, facts: int) -> None:
        """Advance by `done` units and `facts` facts."""
        self.done += done
        self._facts += facts
        now = time.monotonic()
        if self._is_shown and now - self._drawn_at >= DRAW_SECONDS:
            self._drawn_at = now
            _draw(self._text(now - self._began))

    def reach(self, done: int, total: int) -> None:
        """Advance to `done` of `total` facts; never back."""
        self.total = total
        more = max(0, done - self.done)
        self.step(more, more)

    def _text(self, seconds: float) -> str:
        if not self._unit:
            return f"{self.what}  step {min(self.done + 1, self.total or 1)} of {self.total}"
        text = f"{self.what}  {self._facts:,} {self._unit}, {self._facts / max(seconds, 0.001):,.0f}/s"
        if not self.total or not self.done:
            return text
        share = min(1.0, self.done / self.total)
        return f"{text}  {bar(share)}  {span(seconds / share - seconds)} left"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._is_shown:
            _draw("")


def _draw(text: str) -> None:
    """Replace the last line of the terminal by this text, cut to its width."""
    width = shutil.get_terminal_size().columns
    click.echo(f"\r{text[: width - 1]}\x1b[K", nl=False, err=True)


LOOK_SECONDS: Final = 0.5
DRAW_SECONDS: Final = 0.1


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
    response: Future[Any] = Future()

    def post() -> None:
        try:
            response.set_result(client.json(request, body))
        except BaseException as error:
            response.set_exception(error)

    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    if sys.stderr.isatty():
        while thread.is_alive():
            try:
                _draw(format_status(status_client.json(status_request())))
            except (RequestError, NotADaemon) as error:
                _draw(str(error))
            thread.join(LOOK_SECONDS)
        _draw("")
    return response.result()
