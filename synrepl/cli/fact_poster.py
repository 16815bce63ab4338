"""Facts to a daemon, in order, each stored once however often it must be sent."""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import click

from synrepl.cli.errors import CliError
from synrepl.http_client import BlockingClient, ConnectError, HttpError
from synrepl.streams import jsontext

__all__ = ["BATCH", "FactPoster"]

BATCH: Final = 500
"""Facts in one request, unless said otherwise."""

PATIENCE: Final = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
"""Seconds between attempts while the daemon is away."""


class FactPoster:
    """Posts facts. A batch goes after the answer to the one before: that keeps their order."""

    def __init__(self, asking: BlockingClient, *, patience: Sequence[float] = PATIENCE) -> None:
        self._asking = asking
        self._patience = patience

    def post(self, stream: str, facts: Sequence[bytes], *, writer: str | None = None) -> dict[str, Any]:
        """Append facts, each a JSON array of rows; gives the daemon's answer.

        The same key goes with every attempt, so that one whose answer was lost is not stored again. Raises
        `HttpError` when the daemon does not want them, and `CliError` when it does not answer.
        """
        head: dict[str, Any] = {"idempotency_key": uuid.uuid4().hex}
        if writer is not None:
            head["writer"] = writer
        body = json.dumps(head).encode()[:-1] + b', "facts": ' + jsontext.join(facts) + b"}"
        path = f"/v1/streams/{quote(stream, safe='')}/facts"
        waits = iter(self._patience)
        while True:
            try:
                answer: dict[str, Any] = self._asking.post_json(path, body)
                return answer
            except (ConnectError, HttpError) as error:
                if isinstance(error, HttpError) and not error.is_retryable:
                    raise
                wait = next(waits, None)
                if wait is None:
                    raise CliError(
                        f"{self._asking.url}: {error}; whether the last batch was stored is not known"
                    ) from error
                click.echo(f"{self._asking.url}: {error}; trying again", err=True)
            time.sleep(wait)
