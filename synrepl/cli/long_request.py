"""A long request, with its progress shown on a terminal."""

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.console import Console

from synrepl.http_client import BlockingClient, ConnectError, HttpError

__all__ = ["post_and_watch"]

LOOK_SECONDS: Final = 0.5


def post_and_watch(
    client: BlockingClient,
    status_client: BlockingClient,
    path: str,
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
            response.append(client.post_json(path, body))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    if sys.stderr.isatty():
        with Console(stderr=True).status("waiting for the response") as line:
            while thread.is_alive():
                try:
                    line.update(format_status(status_client.get_json("/v1/status")))
                except (ConnectError, HttpError) as error:
                    line.update(str(error))
                thread.join(LOOK_SECONDS)
    thread.join()
    if failure:
        raise failure[0]
    return response[0]
