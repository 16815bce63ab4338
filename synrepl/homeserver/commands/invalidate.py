"""``synrepl invalidate``: make stale caches of a live homeserver right, without a restart."""

import getpass
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click
import msgspec

from synrepl.cli.command import CliCommand, shown
from synrepl.cli.options import Output, confirm, output_option
from synrepl.errors import ConfigError
from synrepl.homeserver.commands.homeserver import homeserver_options
from synrepl.html.humanize import counted
from synrepl.wire.text import printable

if TYPE_CHECKING:
    from synrepl.homeserver.configuration import Homeserver
    from synrepl.homeserver.invalidation import InvalidationPlan
    from synrepl.homeserver.invalidation_requests import InvalidationReport

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, or with --verify not seen at a process; 2 wrong usage, such as a name that"
    " the release does not have."
)
SHOWN: Final = 100
"""The most entries of caches that the text lists for a release."""


@click.command(cls=CliCommand, epilog=EXIT_CODES)
@click.argument("name", required=False)
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option(
    "--all", "whole", multiple=True, metavar="NAME", help="Drop the whole cache NAME; may be repeated."
)
@click.option(
    "--room", "rooms", multiple=True, metavar="ROOM", help="Drop all that is cached of ROOM; may be repeated."
)
@homeserver_options
@click.option("--release", metavar="RELEASE", help="The release of Synapse [default: what its metrics tell]")
@click.option("--why", metavar="TEXT", help="Why it is done, for the record that is printed.")
@click.option(
    "--verify",
    is_flag=True,
    help="Wait until the metrics of each process count the rows, whether an entry matched or not.",
)
@click.option("--dry-run", is_flag=True, help="Print the rows and what each process drops; write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option('{"rows": [...], "drops": {...}, "processes": [...], "overtaken": [...], "by": "...", ...}')
def invalidate(
    name: str | None,
    keys: tuple[str, ...],
    whole: tuple[str, ...],
    rooms: tuple[str, ...],
    homeserver: "Homeserver",
    release: str | None,
    why: str | None,
    verify: bool,
    dry_run: bool,
    yes: bool,
    output: Output,
) -> None:
    """Make a stale answer of a live homeserver right: drop the entry with the KEYs of the cache NAME.

    The row is written to the homeserver's database as Synapse writes it, in a transaction of its own, and
    announced on Redis. It asks for confirmation on a terminal, and requires --yes without one.

    NAME may be the cached function of a module, as in ``my_module.lookup``. For a table of the database or a
    column, as in ``users.admin``, the command says what is kept of it, and drops nothing.
    """
    if not (name or whole or rooms):
        raise click.UsageError("name a cache with the keys of an entry, or give --all NAME or --room ROOM")
    # Imported on use: these take most of the start time.
    from twisted.internet import reactor  # the first import installs the reactor

    from synrepl.cli.output import quiet
    from synrepl.cli.reactor import run_reactor
    from synrepl.homeserver.invalidation import Invalidator
    from synrepl.homeserver.invalidation_requests import InvalidationRequest

    request = InvalidationRequest(
        name=name or "",
        key=list(keys),
        all=list(whole),
        rooms=list(rooms),
        release=release or "",
        why=why or "",
        verify=verify,
        dry_run=dry_run,
    )
    by = f"{_user()}@{socket.gethostname()}"

    told: list[str] = []

    def ask(plan: "InvalidationPlan") -> None:
        told.extend(plan.notes)
        _tell(plan.notes)
        click.echo(f"{shown(homeserver.server_name)}: {_summary(plan)}", err=True)
        with _interruptible():
            confirm(yes=yes)

    quiet()
    invalidator = Invalidator(reactor, homeserver, seconds=time.time)
    try:
        report: InvalidationReport = run_reactor(reactor, lambda: invalidator.invalidate(request, ask))
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    if dry_run:
        _tell(report.notes)
    else:
        reason = f": {printable(request.why)}" if request.why else ""
        click.echo(f"{counted(len(report.ids), 'row')} written and announced by {by}{reason}", err=True)
    result = {**msgspec.to_builtins(report), "by": by, "why": request.why}
    output.show(result, _planned_lines(report) if dry_run else _lines(report, told))
    if not report.is_done:
        sys.exit(1)


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(f"note: {shown(note)}", err=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a question: the reactor's own handler would wait for its answer."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _summary(plan: "InvalidationPlan") -> str:
    entries = counted(max(map(len, plan.drops.values()), default=0), "entry or cache", "entries or caches")
    return f"{counted(len(plan.rows), 'row')} to write; each process drops {entries}"


def _entry(name: str, key: Sequence[str] | None) -> str:
    return f"{shown(name)}: all" if key is None else " ".join([shown(name), *map(printable, key)])


def _planned_lines(report: "InvalidationReport") -> Iterator[str]:
    for row in report.rows:
        yield f"row: {_entry(row['name'], row['keys'])}"
    for release, found in report.drops.items():
        yield f"each process of Synapse {release} drops" + (":" if found else " nothing that is known here")
        for one in found[:SHOWN]:
            yield f"    {_entry(one['name'], one['key'])}"
        if len(found) > SHOWN:
            yield f"    and {len(found) - SHOWN:,} more"
    yield "nothing was written"


def _lines(report: "InvalidationReport", told: Sequence[str]) -> Iterator[str]:
    for one in report.processes:
        if one.received:
            yield click.style(f"{shown(one.name)}: received", "green")
        else:
            yield click.style(shown(f"{one.name}: not seen: {one.why}"), "red")
    yield from (shown(note) for note in report.notes if note not in told)
    if report.overtaken:
        yield click.style(
            f"{counted(len(report.overtaken), 'row')} came after later rows of the homeserver, and may have"
            " been ignored: run it again",
            "red",
        )
    if not report.processes:
        yield "announced; --verify says which process has received it"
