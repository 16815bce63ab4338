"""``synrepl append``: append rows from standard input as facts."""

import json
import os
import re
import stat
import sys
import uuid
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

import click
import msgspec

from synrepl.cli.command import CliCommand, CliError
from synrepl.cli.json_lines import JsonLines, OutputClosed
from synrepl.cli.options import (
    DaemonTarget,
    ParsedType,
    daemon_options,
    duration_option,
    other_primary,
    send,
)
from synrepl.cli.progress import Advance
from synrepl.errors import suggest
from synrepl.http_api.request_errors import HttpError, RequestError
from synrepl.http_api.routes import APPEND, STATUS
from synrepl.http_client import BlockingClient
from synrepl.wire import jsontext
from synrepl.wire.acks import Acks
from synrepl.wire.text import printable

BATCH: Final = 500
"""Default number of facts per request."""

PATIENCE_SECONDS: Final = 30.0
"""How long a batch is retried by default after transient failures, in seconds."""

POST_SECONDS: Final = 60.0
"""The timeout of a request with a batch, in seconds."""


def post_facts(
    client: BlockingClient,
    stream: str,
    facts: Sequence[bytes],
    delays: Iterator[float],
    *,
    writer: str | None = None,
    key: str | None = None,
    acks: Acks | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Append facts, each a JSON array of rows, and return the response of the daemon.

    Without facts the daemon checks only whether it would take facts of this stream and writer.

    With `acks` the daemon responds once these replicas have the facts on disk, or `timeout` seconds later.

    Every attempt has the same idempotency `key` (default: a new one), so that facts are stored once even if a
    response was lost.
    The next batch must wait for this response, which keeps the order. Raises `HttpError` if the daemon
    refuses the facts or another daemon is the primary, and `CliError` after the last transient failure.
    """
    head: dict[str, Any] = {"idempotency_key": key or uuid.uuid4().hex}
    if writer is not None:
        head["writer"] = writer
    body = json.dumps(head).encode()[:-1] + b', "facts": ' + jsontext.join(facts) + b"}"
    is_unsent = True

    def on_failure(error: RequestError) -> None:
        nonlocal is_unsent
        is_unsent &= error.is_unsent
        if client.has_several or not isinstance(error, HttpError):
            return  # the address of the primary may be among the others
        if where := other_primary(error):
            raise HttpError(error.status, error.code, f"{error}{where}", {"retryable": False}) from error

    try:
        request = APPEND.request(stream, acks=acks, timeout=timeout)
        response: dict[str, Any] = send(client, request, body, delays, on_failure)
    except RequestError as error:
        if isinstance(error, HttpError) and not error.retryable and is_unsent:
            raise
        stored = "was not stored" if is_unsent else "may have been stored"
        raise CliError(f"{client.url}: {error}; the last batch {stored}") from error
    return response


CHUNK: Final = 1024 * 1024

_array: Final = msgspec.json.Decoder(list[msgspec.Raw])


@click.command(cls=CliCommand)
@click.argument("stream")
@daemon_options(required=True, retry=True)
@click.option(
    "--writer", metavar="NAME", help="The writer of the facts [default: the daemon's instance name]"
)
@click.option("--batch", type=click.IntRange(1, 10_000), default=BATCH, help="Facts per request.")
@click.option(
    "--acks",
    type=ParsedType("acks", Acks.parse),
    metavar="ACKS",
    help="The replicas that must have the facts on disk: a number, or names with commas"
    " [default: as the daemon is set].",
)
@duration_option(
    "--acks-timeout",
    default="10s",
    help="How long the daemon waits for replicas before it says who has the facts.",
)
def append(
    stream: str, daemon: DaemonTarget, writer: str | None, batch: int, acks: Acks | None, acks_timeout: float
) -> None:
    """Append rows from standard input to STREAM.

    Each line is a row (a JSON array) and becomes a fact. Prints {"serial", "token"} for each fact once it is
    committed; the serial is null for ephemeral streams. Stops at the first invalid row, or when standard
    output is closed; the rows before are stored. With --acks a fact is printed once these replicas have it on
    disk.
    """
    if writer is not None:
        _note_new_writer(daemon, stream, writer)
    appending = _AppendRun(stream, writer, daemon, acks, acks_timeout)
    source = sys.stdin.buffer
    try:
        with Advance(f"appending to {stream}", _size(source)) as advance:
            for rows in _batches(source, batch):
                appending.add(rows)
                advance.step(sum(len(row.text) + 1 for row in rows), len(rows))
    except OutputClosed:
        why = f"standard output was closed, and no more rows were sent; {appending.stored_text}"
        raise CliError(why) from None
    except KeyboardInterrupt:
        raise CliError(
            f"interrupted; {appending.stored_text}, not counting the batch in progress, which may be stored"
        ) from None


def _note_new_writer(daemon: DaemonTarget, stream: str, writer: str) -> None:
    """Print a note if the stream has facts of other writers only: the name may be a mistake."""
    try:
        status = daemon.connect().json(STATUS.request())
        writers = sorted(status["streams"][stream]["writers"])
    except (RequestError, KeyError):
        return  # The append itself reports what is wrong.
    if writers and writer not in writers:
        text = f"note: {writer} is a new writer of {stream}{suggest(writer, writers)}"
        click.echo(printable(text), err=True)


class _Row:
    """A row and its line number. `bad` is the reason if the row is invalid, otherwise empty."""

    __slots__ = ("bad", "number", "text")

    def __init__(self, number: int, text: bytes) -> None:
        self.number = number
        self.text = text
        self.bad = ""
        try:
            _array.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.bad = f"not a JSON array: {jsontext.why_refused(text, error)}"
        except RecursionError:
            self.bad = "not a JSON array: nested too deeply"


class _AppendRun:
    def __init__(
        self, stream: str, writer: str | None, daemon: DaemonTarget, acks: Acks | None, timeout: float
    ) -> None:
        self._acks = acks
        self._timeout = timeout
        self._stream = stream
        self._writer = writer
        self._daemon = daemon
        self._client = daemon.connect(POST_SECONDS + timeout)
        self._lines = JsonLines()
        self._stored = 0

    @property
    def stored_text(self) -> str:
        return f"{self._stored} facts were stored before" if self._stored else "nothing was stored"

    def add(self, rows: Sequence[_Row]) -> None:
        """Append these rows, up to the first invalid one. Raises `CliError` for an invalid row."""
        good = list(takewhile(lambda row: not row.bad, rows))
        try:
            if good:
                self._post(good)
        except HttpError as error:
            found = re.match(r"fact (\d+), row \d+: ", error.message)
            if error.code != "bad_row" or found is None or int(found[1]) >= len(good):
                raise CliError(f"{error.message}; {self.stored_text}") from error
            good[int(found[1])].bad = error.message[found.end() :]
            self.add(good)
        if len(good) < len(rows):
            bad = rows[len(good)]
            raise CliError(f"line {bad.number}: {bad.bad}; {self.stored_text}")

    def _post(self, rows: Sequence[_Row]) -> None:
        facts = [b"[%b]" % row.text for row in rows]
        delays = self._daemon.retry_delays(PATIENCE_SECONDS)
        response = post_facts(
            self._client,
            self._stream,
            facts,
            delays,
            writer=self._writer,
            acks=self._acks,
            timeout=self._timeout,
        )
        serial = response["first_serial"]
        self._stored += len(rows)
        for index, token in enumerate(response["tokens"]):
            self._lines.add({"serial": None if serial is None else serial + index, "token": token})
        self._lines.flush()


def _batches(source: object, batch: int) -> Iterator[list[_Row]]:
    """Yield the rows read so far, in batches; no row waits for a batch to fill."""
    number, rest = 0, b""
    while chunk := source.read1(CHUNK):  # type: ignore[attr-defined]  # every binary buffer has it
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        rows = [_Row(index, line) for index, line in enumerate(lines, number + 1) if line.strip()]
        number += len(lines)
        yield from (rows[start : start + batch] for start in range(0, len(rows), batch))
    if rest.strip():
        yield [_Row(number + 1, rest)]


def _size(source: object) -> int | None:
    try:
        found = os.fstat(source.fileno())  # type: ignore[attr-defined]  # an AttributeError is caught below
    except (OSError, AttributeError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
