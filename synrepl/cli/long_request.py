"""A question that takes long, with what happens meanwhile shown on a terminal."""

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.console import Console

from synrepl.http_client import BlockingClient, ConnectError, HttpError

__all__ = ["post_and_watch"]

LOOK_SECONDS: Final = 0.5


def post_and_watch(
    asking: BlockingClient,
    looking: BlockingClient,
    path: str,
    body: bytes,
    shown: Callable[[Mapping[str, Any]], str],
) -> Any:
    """Post, and meanwhile ask for the status again and again, over a connection of its own.

    What `shown` makes of it is shown on standard error if that is a terminal. Raises what `BlockingClient`
    raises.
    """
    answer: list[Any] = []
    failure: list[BaseException] = []

    def post() -> None:
        try:
            answer.append(asking.post_json(path, body))
        except BaseException as error:
            failure.append(error)

    posting = threading.Thread(target=post, daemon=True)
    posting.start()
    if sys.stderr.isatty():
        with Console(stderr=True).status("asking") as line:
            while posting.is_alive():
                try:
                    line.update(shown(looking.get_json("/v1/status")))
                except (ConnectError, HttpError) as error:
                    line.update(str(error))
                posting.join(LOOK_SECONDS)
    posting.join()
    if failure:
        raise failure[0]
    return answer[0]
