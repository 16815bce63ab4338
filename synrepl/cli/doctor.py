"""``synrepl doctor``: find and repair problems of the streams in a database."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from synrepl.cli.command import CliCommand, CliError
from synrepl.cli.options import Output, output_option
from synrepl.cli.progress import Advance
from synrepl.errors import ReplicationError
from synrepl.html.humanize import counted

if TYPE_CHECKING:
    from synrepl.storage.doctor.complaints import Diagnosis
    from synrepl.storage.id_tables import IdStream

COLORS: Final = {"error": "red", "warning": "yellow", "mended": "green"}
WHAT: Final = {
    "synrepl": "a database of synrepl",
    "synapse": "a Synapse homeserver's database",
    "other": "an unknown database",
}
IDLE: Final = ("silent_writer", "writer_behind")
"""Kinds of notes on writers that are probably idle. The text output counts them in one line."""
READ_ONLY: Final = (
    "the homeserver's tables were not changed: they are only read. Stop the homeserver, and run the"
    " statements above."
)


@click.command(cls=CliCommand)
@click.option("--database", "url", required=True, metavar="URL", help="sqlite:PATH or postgresql://...")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A daemon's configuration file, to check the tables of its `table_streams`.",
)
@click.option("--fix", is_flag=True, help="Repair what can be repaired without data loss.")
@click.option("--quick", is_flag=True, help="Check the newest 10,000 facts of a log only.")
@output_option("Print the diagnosis as JSON.")
def doctor(url: str, config: Path | None, fix: bool, quick: bool, output: Output) -> None:
    """Find problems of the streams in a database: a daemon's log, or a homeserver's database.

    The tables of a Synapse are recognized and only read: their repair is printed as SQL. Exit code 1: there
    is a problem that was not repaired.
    """
    # Imported on use, also below: these load Twisted.
    from synrepl.storage.databases import Database
    from synrepl.storage.doctor.examination import Doctor

    try:
        database = Database(url, what="synrepl doctor")
        streams = _configured_streams(config, url) if config is not None else []
    except ReplicationError as error:
        raise click.UsageError(str(error)) from error
    try:
        with Advance("checking the log", None) as advance:

            def progress(more: int, total: int) -> None:
                advance.reach(advance.done + more, total)

            examination = Doctor(database, streams, now=time.time, progress=progress)
            diagnosis = examination.examine(whole_log=not quick)
            if fix:
                diagnosis = examination.repair(diagnosis)
    except KeyboardInterrupt:
        raise CliError("interrupted; nothing was changed") from None
    result = {**msgspec.structs.asdict(diagnosis), "healthy": diagnosis.is_healthy}
    output.show(msgspec.to_builtins(result), _lines(diagnosis, fix=fix))
    if not diagnosis.is_healthy:
        sys.exit(1)


def _configured_streams(config: Path, url: str) -> "list[IdStream]":
    """Return the streams of a configuration file whose tables are in this database. Raises `ConfigError`."""
    from synrepl.config import Settings

    settings = Settings.build({}, file=config)
    if settings.tables_database not in (None, url) and settings.database == url:
        return []
    return [one.ids for one in settings.table_streams]


def _lines(diagnosis: "Diagnosis", *, fix: bool) -> Iterator[str]:
    parts = [WHAT[diagnosis.kind]]
    if diagnosis.streams:
        parts.append(f"{counted(len(diagnosis.streams), 'stream')} examined")
    if diagnosis.facts_checked is not None:
        parts.append(f"{counted(diagnosis.facts_checked, 'fact')} of the log checked")
    yield f"{diagnosis.database}: {', '.join(parts)}"
    statements: set[str] = set()
    idle = [one for one in diagnosis.complaints if one.severity == "note" and one.kind in IDLE]
    for complaint in diagnosis.complaints:
        if complaint in idle:
            continue
        of = f"{complaint.stream}: " if complaint.stream else ""
        word = "mended" if complaint.mended else complaint.severity
        yield click.style(f"{word}: {of}{complaint.text}", COLORS.get(word))
        if complaint.mended:
            continue
        if complaint.remedy:
            yield f"    {complaint.remedy}"
        if complaint.statement and complaint.statement not in statements:
            # One statement can repair several problems and must be run once.
            statements.add(complaint.statement)
            yield f"    {complaint.statement};"
    if idle:
        of = ", ".join(dict.fromkeys(one.stream for one in idle))
        yield f"note: idle or gone: {counted(len(idle), 'writer')} of {of}; synrepl doctor --json names them"
    if diagnosis.is_healthy:
        again = " any more" if fix and diagnosis.complaints else ""
        yield click.style(f"nothing is wrong{again}", "green")
    elif fix and diagnosis.kind == "synapse" and statements:
        yield READ_ONLY
