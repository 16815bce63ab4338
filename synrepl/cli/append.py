"""``synrepl append``: rows from standard input become facts."""

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from synrepl.cli.errors import EXIT_CODES, CliError, connect, secret_option, url_option
from synrepl.cli.fact_poster import BATCH, FactPoster
from synrepl.cli.output import JsonLines, OutputClosed
from synrepl.cli.progress import Advance
from synrepl.http_client import HttpError

__all__ = ["append"]

CHUNK: Final = 1024 * 1024

_array: Final = msgspec.json.Decoder(list[msgspec.Raw])


@click.command(epilog=EXIT_CODES)
@click.argument("stream")
@url_option(required=True)
@click.option("--writer", metavar="NAME", help="Who wrote the facts; unless said, the daemon's own instance.")
@secret_option
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=BATCH, show_default=True, help="Facts a request."
)
def append(stream: str, url: str, writer: str | None, secret_file: Path | None, batch: int) -> None:
    """Append rows from standard input to STREAM.

    One row (a JSON array) a line, each a fact of its own. Prints {"serial", "token"} for each, once it is
    durable; the serial is null for ephemeral streams. Ends at the first bad row: what came before it is
    stored.
    """
    appending = _AppendRun(stream, writer, FactPoster(connect(url, secret_file)))
    source = sys.stdin.buffer
    try:
        with Advance(f"appending to {stream}", _size(source)) as advance:
            for rows in _batches(source, batch):
                appending.add(rows)
                advance.step(sum(len(row.text) + 1 for row in rows), len(rows))
    except OutputClosed:
        sys.exit(0)
    except KeyboardInterrupt:
        raise CliError(f"interrupted; {appending.said}, and perhaps a batch that was under way") from None


class _Row:
    """A row, and the number of its line. `bad` says what is wrong with it, if something is."""

    __slots__ = ("bad", "number", "text")

    def __init__(self, number: int, text: bytes) -> None:
        self.number = number
        self.text = text
        self.bad = ""
        try:
            _array.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.bad = f"not a JSON array: {error}"
        except RecursionError:
            self.bad = "not a JSON array: nested too deeply"


class _AppendRun:
    """What was stored so far."""

    def __init__(self, stream: str, writer: str | None, posting: FactPoster) -> None:
        self._stream = stream
        self._writer = writer
        self._posting = posting
        self._lines = JsonLines()
        self._stored = 0

    @property
    def said(self) -> str:
        """How many facts are stored, in words."""
        return f"{self._stored} facts were stored before" if self._stored else "nothing was stored"

    def add(self, rows: Sequence[_Row]) -> None:
        """Append these rows, those before the first bad one if there is one."""
        bad = next((position for position, row in enumerate(rows) if row.bad), None)
        if bad is not None:
            self.add(rows[:bad])
            raise CliError(f"line {rows[bad].number}: {rows[bad].bad}; {self.said}")
        if not rows:
            return
        try:
            self._post(rows)
        except HttpError as error:
            found = re.match(r"fact (\d+), row \d+: ", error.message)
            if error.code != "bad_row" or found is None or int(found[1]) >= len(rows):
                raise CliError(f"{error.message}; {self.said}") from error
            rows[int(found[1])].bad = error.message[found.end() :]
            self.add(rows)

    def _post(self, rows: Sequence[_Row]) -> None:
        answer = self._posting.post(self._stream, [b"[%b]" % row.text for row in rows], writer=self._writer)
        serial = answer["first_serial"]
        self._stored += len(rows)
        for position, token in enumerate(answer["tokens"]):
            self._lines.add({"serial": None if serial is None else serial + position, "token": token})
        self._lines.flush()


def _batches(source: object, batch: int) -> Iterator[list[_Row]]:
    """Rows as they come: many at a time if they are there, and none held back for more to come."""
    number, rest = 0, b""
    while chunk := source.read1(CHUNK):  # type: ignore[attr-defined]  # every binary buffer of Python has it
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        rows = [_Row(position, line) for position, line in enumerate(lines, number + 1) if line.strip()]
        number += len(lines)
        yield from (rows[start : start + batch] for start in range(0, len(rows), batch))
    if rest.strip():
        yield [_Row(number + 1, rest)]


def _size(source: object) -> int | None:
    """How long the input is, if that is known beforehand."""
    try:
        found = os.fstat(source.fileno())  # type: ignore[attr-defined]  # what has none is told by the exception
    except (OSError, AttributeError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
