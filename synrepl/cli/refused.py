"""``synrepl refused``: facts that a daemon could not read, as they were sent."""

import json
import sys
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Final

import click

from synrepl.cli.command import CliCommand, CliError, CliGroup
from synrepl.cli.options import DaemonTarget, Output, daemon_options, output_option
from synrepl.cli.tables import table
from synrepl.html.humanize import counted
from synrepl.http_api.routes import REFUSED, REMOVE_REFUSED, REPLAY_REFUSED
from synrepl.wire.text import printable

BATCH: Final = 500
"""Facts of one request."""

SHOWN_CHARACTERS: Final = 200
"""What is shown of a row; the JSON output has all of it."""


@click.group(cls=CliGroup)
def refused() -> None:
    """List, replay and remove facts that could not be read.

    A fact is refused if a row of it has no form of a known release, or is no JSON: it is kept as it was sent,
    its readers are told that it is missing, and its position is not certified.
    """


@refused.command("list", cls=CliCommand)
@daemon_options()
@click.option("--stream", "streams", multiple=True, metavar="STREAM", help="Only of this stream.")
@output_option('[{"stream", "writer", "token", "publisher", "why", "rows", "serial", "at"}]', is_table=True)
def list_facts(daemon: DaemonTarget, streams: tuple[str, ...], output: Output) -> None:
    """List the refused facts, in the order in which they came, with their rows as they were sent."""
    found = list(_read(daemon, streams))
    rows = [
        (
            *map(printable, (one["stream"], one["writer"])),
            one["token"],
            printable(one["publisher"] or "-"),
            printable(one["why"]),
        )
        for one in found
    ]
    header = ("stream", "writer", "token", "from", "why")
    lines = table(header, rows, limit=len(rows)) if rows else ["no refused facts"]
    output.show(found, [*lines, *_row_lines(found)])


@refused.command(cls=CliCommand)
@click.argument("facts", nargs=-1, metavar="[STREAM/WRITER/TOKEN]...")
@click.option("--all", "is_all", is_flag=True, help="All refused facts.")
@daemon_options()
@output_option('[{"stream", "writer", "token", "outcome", "why"}]')
def replay(facts: tuple[str, ...], is_all: bool, daemon: DaemonTarget, output: Output) -> None:
    """Read refused facts again, as after an upgrade, and store those that can be read now.

    A fact keeps its stream, writer and token, and is stored once. A stream in order takes no fact that its
    readers have passed: such a fact stays refused. The exit code is 1 if any fact does.
    """
    done: list[dict[str, Any]] = []
    # As the daemon does within a request.
    names = sorted(_names(daemon, facts, is_all=is_all), key=itemgetter("stream", "writer", "token"))
    for some in _batches(names):
        done += daemon.ask(REPLAY_REFUSED.request(), some)["facts"]
    lines = [f"{_shown(one)}: {printable(one['why'] or 'stored')}" for one in done]
    stored = sum(one["outcome"] in ("replayed", "known") for one in done)
    output.show(done, [*lines, f"{stored} of {counted(len(done), 'fact')} are in the log"])
    sys.exit(0 if stored == len(done) else 1)


@refused.command(cls=CliCommand)
@click.argument("facts", nargs=-1, metavar="[STREAM/WRITER/TOKEN]...")
@click.option("--all", "is_all", is_flag=True, help="All refused facts.")
@daemon_options()
@output_option('[{"stream", "writer", "token"}]')
def remove(facts: tuple[str, ...], is_all: bool, daemon: DaemonTarget, output: Output) -> None:
    """Remove refused facts for good, at the primary and all its replicas."""
    done: list[dict[str, Any]] = []
    for some in _batches(_names(daemon, facts, is_all=is_all)):
        done += daemon.ask(REMOVE_REFUSED.request(), some)["facts"]
    output.show(done, [f"removed {counted(len(done), 'fact')}"])


def _read(daemon: DaemonTarget, streams: Iterable[str]) -> Iterator[dict[str, Any]]:
    since, more = 0, 1
    while more:
        answer = daemon.ask(REFUSED.request(since=since, streams=list(streams) or None, limit=BATCH))
        yield from answer["facts"]
        more = answer["more"]
        since = max((one["serial"] for one in answer["facts"]), default=since)


def _names(daemon: DaemonTarget, facts: Iterable[str], *, is_all: bool) -> list[dict[str, Any]]:
    named = list(facts)
    if is_all == bool(named):
        raise click.UsageError("name facts as STREAM/WRITER/TOKEN (synrepl refused list), or say --all")
    if is_all:
        return [{name: one[name] for name in ("stream", "writer", "token")} for one in _read(daemon, ())]
    found = []
    for name in named:
        stream, _, rest = name.partition("/")
        writer, _, token = rest.rpartition("/")
        if not (stream and writer and token.isdecimal()):
            raise CliError(f"{printable(name)} is not STREAM/WRITER/TOKEN, such as events/master/120")
        found.append({"stream": stream, "writer": writer, "token": int(token)})
    return found


def _batches(names: list[dict[str, Any]]) -> Iterator[bytes]:
    for start in range(0, len(names), BATCH):
        yield json.dumps({"facts": names[start : start + BATCH]}).encode()


def _shown(one: dict[str, Any]) -> str:
    return printable(f"{one['stream']}/{one['writer']}/{one['token']}")


def _row_lines(found: list[dict[str, Any]]) -> Iterator[str]:
    for one in found:
        yield ""
        yield f"{_shown(one)}:"
        for row in one["rows"]:
            cut = row if len(row) <= SHOWN_CHARACTERS else row[:SHOWN_CHARACTERS] + "..."
            yield f"    {printable(cut)}"
