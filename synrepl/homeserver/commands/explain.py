"""``synrepl explain``: say in words what a pasted text of a homeserver means."""

import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from synrepl.cli.command import CliCommand, CliError, shown
from synrepl.cli.options import Output, output_option
from synrepl.cli.tables import table
from synrepl.errors import ConfigError, ReplicationError
from synrepl.homeserver.commands.homeserver import files_option
from synrepl.homeserver.explanation import KINDS, Explanation, HomeserverState, Passage, explain_lines
from synrepl.homeserver.explanation.pasted_lines import MAX_LINE, split_lines
from synrepl.homeserver.explanation.results import NOTHING_KNOWN
from synrepl.html.humanize import counted
from synrepl.wire.text import printable

COUNTS = frozenset({"behind", "ahead", "moved"})
"""Columns with amounts. All other numbers are positions, which are printed without commas."""

MAX_LOGGERS = 5
"""The most modules that are named whose lines are not known."""

QUIET = ("INFO", "DEBUG", "")
"""Levels of lines that are not shown beside others, where they are not known."""


@click.command("explain", cls=CliCommand)
@click.argument("text", required=False)
@files_option(
    "A configuration file of the homeserver, or a directory of them: its database names writers, and shows"
    " what is stored now"
)
@output_option("Print what was recognized as JSON.", is_table=True)
def explain_command(text: str | None, homeserver_files: tuple[Path, ...], output: Output) -> None:
    """Say in words what a sync token, a line of Synapse's log or a line of the protocol means.

    TEXT is in quotes; without it, the text is read from standard input, which may be a whole log: each
    message is told once, with how often it is there, the worst first. No daemon is asked, and without
    --homeserver no database either. Exit code 1: nothing was recognized.
    """
    state = _state(homeserver_files) if homeserver_files else NOTHING_KNOWN
    found = explain_lines(_lines_of(text), state)
    if not found.lines:
        raise click.UsageError("the text is empty: give it in quotes, or on standard input")
    if not found.passages:
        if text is not None and _is_file(text):
            raise click.UsageError(
                "the argument is a text, and not the name of a file; to read that file:"
                f" synrepl explain < {printable(shlex.quote(text))}"
            )
        told = (
            "; ".join(_unknown(found)) if found.areas else f"nothing was recognized{_loggers(found, False)}"
        )
        raise CliError(
            f"{'; '.join([told, *_shown_unknown(found, QUIET)])}; known are the messages that Synapse logs"
            " about replication and what it needs (its start, database, Redis, other processes, other"
            f" homeservers, push), and {', '.join(KINDS.values())}"
        )
    output.show(msgspec.to_builtins(found), _lines(found, is_wide=output.is_wide))


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        # A text may be too long for a name, or have characters that no name has.
        return False


def _lines_of(text: str | None) -> Iterator[str]:
    """Yield the lines of the text or of standard input; the end of one that is too long is not read."""
    if text is not None and text != "-":
        yield from split_lines(text)
        return
    if sys.stdin.isatty():
        click.echo("Paste the text, then press Ctrl-D.", err=True)
    is_beginning = True
    while data := sys.stdin.buffer.readline(MAX_LINE):
        if is_beginning:
            yield from split_lines(data.decode(errors="replace").removesuffix("\n").removesuffix("\r"))
        is_beginning = data.endswith(b"\n")


def _state(files: tuple[Path, ...]) -> HomeserverState:
    """Read what the homeserver's database says now. If it cannot be read, print a warning and do without."""
    # Imported on use: most texts are explained without them.
    from synrepl.homeserver.configuration import read_homeserver
    from synrepl.homeserver.database import read_state

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


SEVERITIES = {"error": "something failed", "look": "look into it if it repeats", "normal": "normal"}
"""What is said of the severity of a message."""


def _lines(found: Explanation, *, is_wide: bool) -> Iterator[str]:
    is_summed_up = bool(found.summary) and len(found.passages) > 1
    if is_summed_up:
        yield click.style(f"In short: {found.summary}", bold=True)
    for place, passage in enumerate(found.passages):
        if place or is_summed_up:
            yield ""
        if found.lines > 1:
            yield click.style(_where(passage), bold=True)
            if passage.severity:
                yield passage.text
        first, *more = passage.words
        yield click.style(first, "yellow") if passage.severity in ("error", "look") else first
        yield from more
        yield from (f"next: {step}" for step in passage.advice)
        if passage.fields:
            yield ""
            yield from _table(passage.fields, is_wide=is_wide)
    if found.unrecognized:
        yield ""
        yield from _unknown(found)
        yield from _shown_unknown(found)


def _unknown(found: Explanation) -> Iterator[str]:
    """Yield how many lines are not known, and how many of them are not about streams anyway."""
    beside = sum(found.other_loggers[name] for name in found.beside)
    if count := found.unrecognized - beside:
        yield f"{counted(count, 'line')} not recognized{_loggers(found, False)}"
    if beside:
        yield f"{counted(beside, 'line')} not about streams{_loggers(found, True)}"


def _shown_unknown(found: Explanation, quiet: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the first lines that are not known, with what of them is: level, module and request.

    Those of the `quiet` levels too, at which nothing is wrong.
    """
    if any(one.kind == "unknown_error" for one in found.passages):
        return
    for one in found.unknown:
        if one.level in QUIET and one.level not in quiet:
            continue
        by = f" of {one.logger}" if one.logger else ""
        request = f", request {one.request}" if one.request not in ("", "None", "sentinel", "main") else ""
        said = f"{one.text}{_BY_LEVEL.get(one.level, '')}"
        yield f"not known: line {one.line}, {one.level or 'a line'}{by}{request}: {said}"


_BY_LEVEL = dict.fromkeys(("INFO", "DEBUG"), " (by its level it tells what is done: nothing failed)")


def _loggers(found: Explanation, is_beside: bool) -> str:
    """Return which modules logged the lines that are not known, and what they do."""
    named = [
        (count, name)
        for name, count in found.other_loggers.items()
        if name and (name in found.beside) == is_beside
    ]
    told = []
    for count, name in named[:MAX_LOGGERS]:
        about = f" ({found.areas[name]})" if name in found.areas else ""
        told.append(f"{count} of {printable(name)}{about}")
    if len(named) > MAX_LOGGERS:
        told.append(f"others of {counted(len(named) - MAX_LOGGERS, 'module')}")
    return f": {', '.join(told)}" if told else ""


def _where(passage: Passage) -> str:
    """Return the number of a passage's first line, how many others there are, and from when to when."""
    others = f" and {counted(passage.count - 1, 'other')}" if passage.count > 1 else ""
    what = SEVERITIES[passage.severity] if passage.severity else KINDS[passage.kind]
    times = ""
    if passage.first_time:
        times = f", {passage.first_time}"
        if passage.last_time != passage.first_time:
            times += f" to {passage.last_time}"
    return f"line {passage.lines[0]}{others}{printable(times)}: {what}"


def _table(fields: list[dict[str, Any]], *, is_wide: bool) -> Iterator[str]:
    head = [name for name in fields[0] if any(row[name] != "" for row in fields)]
    rows = [[row[name] if name in COUNTS else str(row[name]) for name in head] for row in fields]
    shown = [name.replace("_", " ") for name in head]
    yield from table(shown, rows, wide=("stream",), is_wide=is_wide or "field" not in head, limit=len(rows))
