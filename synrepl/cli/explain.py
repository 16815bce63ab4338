"""``synrepl explain``: say in words what a pasted text of a homeserver means."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from synrepl.cli.command import CliCommand, CliError, shown
from synrepl.cli.homeserver import files_option
from synrepl.cli.options import Output, output_option
from synrepl.cli.tables import table
from synrepl.errors import ConfigError, ReplicationError
from synrepl.html.humanize import counted
from synrepl.inspection.explanation import KINDS, MAX_BYTES, Explanation, HomeserverState, Passage, explain
from synrepl.inspection.explanation.results import NOTHING_KNOWN

COUNTS = frozenset({"behind", "ahead"})
"""Columns with amounts. All other numbers are positions, which are printed without commas."""


@click.command("explain", cls=CliCommand)
@click.argument("text", required=False)
@files_option(
    "A configuration file of the homeserver, or a directory of them: its database names writers, and shows"
    " what is stored now"
)
@output_option("Print what was recognized as JSON.", is_table=True)
def explain_command(text: str | None, homeserver_files: tuple[Path, ...], output: Output) -> None:
    """Say in words what a sync token, a line of Synapse's log or a line of the protocol means.

    TEXT is in quotes; without it, the text is read from standard input. It may have several lines. No daemon
    is asked, and without --homeserver no database either. Exit code 1: nothing was recognized.
    """
    state = _state(homeserver_files) if homeserver_files else NOTHING_KNOWN
    found = _explain(_read() if text is None or text == "-" else text, state)
    if not found.passages:
        raise CliError(f"nothing was recognized; known are {'; '.join(KINDS.values())}")
    output.show(msgspec.to_builtins(found), _lines(found, is_wide=output.is_wide))


def _read() -> str:
    """Read standard input, a little beyond the limit at most."""
    if sys.stdin.isatty():
        click.echo("Paste the text, then press Ctrl-D.", err=True)
    data: bytes = sys.stdin.buffer.read(MAX_BYTES + 1)
    return data.decode(errors="replace")


def _state(files: tuple[Path, ...]) -> HomeserverState:
    """Read what the homeserver's database says now; a database that cannot be read is told, and left out."""
    # Imported on use: most texts are explained without them.
    from synrepl.inspection.configuration import read_homeserver
    from synrepl.inspection.database import read_state

    try:
        homeserver = read_homeserver(files)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    if homeserver.database is None:
        click.echo("not seen: database: the files name none that can be read", err=True)
        return NOTHING_KNOWN
    try:
        return read_state(homeserver.database, time.monotonic)
    except ReplicationError as error:
        click.echo(shown(f"not seen: database: {error}"), err=True)
        return NOTHING_KNOWN


def _explain(text: str, state: HomeserverState) -> Explanation:
    """Explain a text. Raises `click.UsageError` if it is empty or too long."""
    if not text.strip():
        raise click.UsageError("the text is empty: give it in quotes, or on standard input")
    try:
        return explain(text, state)
    except ValueError as error:
        raise click.UsageError(f"{error}: paste fewer lines") from error


def _lines(found: Explanation, *, is_wide: bool) -> Iterator[str]:
    for place, passage in enumerate(found.passages):
        if place:
            yield ""
        if found.lines > 1:
            yield click.style(_where(passage), bold=True)
        first, *more = passage.words
        yield click.style(first, "yellow") if passage.advice else first
        yield from more
        yield from (f"next: {step}" for step in passage.advice)
        if passage.fields:
            yield ""
            yield from _table(passage.fields, is_wide=is_wide)
    if found.unrecognized:
        yield ""
        yield f"{counted(found.unrecognized, 'line')} not recognized"
    if found.skipped:
        yield ""
        yield f"{counted(found.skipped, 'line')} after these not read: paste them separately"


def _where(passage: Passage) -> str:
    """Return the numbers of a passage's lines."""
    first, *more = passage.lines
    others = f" and {counted(len(more), 'other')}" if more else ""
    return f"line {first}{others}: {KINDS[passage.kind]}"


def _table(fields: list[dict[str, Any]], *, is_wide: bool) -> Iterator[str]:
    head = [name for name in fields[0] if any(row[name] != "" for row in fields)]
    rows = [[row[name] if name in COUNTS else str(row[name]) for name in head] for row in fields]
    shown = [name.replace("_", " ") for name in head]
    yield from table(shown, rows, wide=("stream",), is_wide=is_wide or "field" not in head, limit=len(rows))
