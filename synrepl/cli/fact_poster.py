"""Client that posts facts to a daemon: in order, idempotent across retries."""

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
"""Default number of facts per request."""

RETRY_DELAYS: Final = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
"""Seconds between attempts while the daemon does not respond."""


class FactPoster:
    """Poster of facts. A batch is sent after the response to the previous one, which keeps the order."""

    def __init__(self, client: BlockingClient, *, retry_delays: Sequence[float] = RETRY_DELAYS) -> None:
        self._client = client
        self._retry_delays = retry_delays

    def post(self, stream: str, facts: Sequence[bytes], *, writer: str | None = None) -> dict[str, Any]:
        """Append facts, each a JSON array of rows, and return the response of the daemon.

        Every attempt has the same idempotency key, so that facts are stored once even if a response was lost.
        Raises `HttpError` if the daemon refuses the facts, and `CliError` if it does not respond.
        """
        head: dict[str, Any] = {"idempotency_key": uuid.uuid4().hex}
        if writer is not None:
            head["writer"] = writer
        body = json.dumps(head).encode()[:-1] + b', "facts": ' + jsontext.join(facts) + b"}"
        path = f"/v1/streams/{quote(stream, safe='')}/facts"
        delays = iter(self._retry_delays)
        while True:
            try:
                response: dict[str, Any] = self._client.post_json(path, body)
                return response
            except (ConnectError, HttpError) as error:
                if isinstance(error, HttpError) and not error.is_retryable:
                    raise
                delay = next(delays, None)
                if delay is None:
                    raise CliError(
                        f"{self._client.url}: {error}; the last batch may have been stored"
                    ) from error
                click.echo(f"{self._client.url}: {error}; retrying in {delay:g} s", err=True)
            time.sleep(delay)
