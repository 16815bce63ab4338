"""``synrepl doctor``: find and repair problems of the streams in a database."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from synrepl.cli.command import CliCommand, CliError, Option, shown
from synrepl.cli.options import Output, duration_option, output_option
from synrepl.cli.progress import Advance
from synrepl.errors import ConfigError, ReplicationError
from synrepl.homeserver.commands.homeserver import files_option
from synrepl.html.humanize import counted

if TYPE_CHECKING:
    from synrepl.homeserver.configuration import DatabaseSettings
    from synrepl.homeserver.doctor.before_start import StartReport
    from synrepl.homeserver.doctor.complaints import Diagnosis
    from synrepl.storage.databases import Database
    from synrepl.storage.id_tables.layout import IdStream

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


CONCLUSIONS: Final = {
    True: ("the homeserver may start", "green"),
    False: ("the homeserver would be refused, or would reuse ids", "red"),
    None: ("whether the homeserver may start is not known", "red"),
}
"""The last line of a look before a start, with its color."""

START: Final = "Before a start of the homeserver"
EXIT_CODES: Final = (
    "Exit codes: 0 nothing is wrong, or all was repaired; 1 a problem was not repaired, or the command failed"
    " (explained in one line); 2 wrong usage. With --before-start: 0 the homeserver may start; 1 it would be"
    " refused, or reuse ids; 2 that could not be looked at, or wrong usage."
)


class CannotLook(CliError):
    """The database could not be looked at before a start. Ends the command with exit code 2."""

    exit_code = 2


@click.command(cls=CliCommand, epilog=EXIT_CODES)
@click.option("--database", "url", metavar="URL", help="sqlite:PATH or postgresql://...")
@files_option(
    "Instead of --database: a configuration file of the homeserver, which names its database, or a directory"
    " of them"
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A daemon's configuration file, to check the tables of its `table_streams`.",
)
@click.option(
    "--fix",
    is_flag=True,
    help="Repair what can be repaired without data loss in a database of synrepl's own. It never changes the"
    " tables and sequences of a homeserver; see --apply.",
)
@click.option("--quick", is_flag=True, help="Check the newest 10,000 facts of a log only.")
@click.option(
    "--before-start",
    is_flag=True,
    cls=Option,
    group=START,
    help="Look only at what would make the homeserver refuse to start, or reuse ids; needs --homeserver.",
)
@duration_option(
    "--wait",
    group=START,
    help="How long to retry while the database cannot be reached, or is a standby [default: look once]",
)
@click.option(
    "--apply",
    "applies",
    is_flag=True,
    cls=Option,
    group=START,
    help="Raise the homeserver's sequences that are behind, and look again. Nothing else is written.",
)
@output_option("Print the diagnosis as JSON.")
def doctor(
    url: str | None,
    homeserver_files: tuple[Path, ...],
    config: Path | None,
    fix: bool,
    quick: bool,
    before_start: bool,
    wait: float | None,
    applies: bool,
    output: Output,
) -> None:
    """Find problems of the streams in a database: a daemon's log, or a homeserver's database.

    The tables of a Synapse are recognized and only read: their repair is printed as SQL. Exit code 1: there
    is a problem that was not repaired.

    With --before-start it is the step before each start of a homeserver: an init container, or
    ExecStartPre of systemd. With --apply as well it raises sequences, which is safe beside running processes.
    """
    if not (url or homeserver_files):
        raise click.UsageError("Missing option '--database' or '--homeserver'")
    if url and homeserver_files:
        raise click.UsageError("--database and --homeserver exclude each other: use one of them")
    if before_start:
        if not homeserver_files:
            raise click.UsageError("--before-start needs --homeserver: it looks as the homeserver would")
        if fix:
            raise click.UsageError(
                "--fix is for databases of synrepl's own: with --before-start, use --apply"
            )
        if config or quick:
            raise click.UsageError("--before-start takes neither --config nor --quick: it looks at no log")
        _before_start(homeserver_files, wait or 0.0, applies=applies, output=output)
        return
    if applies or wait is not None:
        raise click.UsageError(f"{'--apply' if applies else '--wait'} needs --before-start")
    # Imported on use, also below: these load Twisted.
    from synrepl.homeserver.doctor.examination import Doctor
    from synrepl.storage.databases import Database

    try:
        database = (
            _open_homeservers(_homeservers_database(homeserver_files), statement_seconds=0.0)
            if homeserver_files
            else Database(url or "", what="synrepl doctor", statement_seconds=None if fix else 0.0)
        )
        streams = _configured_streams(config, url or "") if config is not None else []
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


def _before_start(paths: tuple[Path, ...], wait: float, *, applies: bool, output: Output) -> None:
    from synrepl.homeserver.doctor.before_start import STATEMENT_SECONDS, StartCheck, wait_for

    try:
        settings = _homeservers_database(paths)
        database = _open_homeservers(settings, statement_seconds=STATEMENT_SECONDS)
    except ReplicationError as error:
        raise click.UsageError(str(error)) from error
    check = StartCheck(database, allows_locale=settings.allows_locale)
    try:
        report = wait_for(
            lambda: check.run(applies=applies),
            wait,
            clock=time.monotonic,
            sleep=time.sleep,
            say=lambda text: click.echo(shown(" ".join(text.split())), err=True),
        )
    except ReplicationError as error:
        raise CannotLook(str(error)) from error
    except KeyboardInterrupt:
        raise CannotLook("interrupted") from None
    result = {
        **msgspec.structs.asdict(report.diagnosis),
        "healthy": report.diagnosis.is_healthy,
        "raised": report.raised,
        "may_start": report.may_start,
    }
    output.show(msgspec.to_builtins(result), _lines_before_start(report))
    if not report.may_start:
        sys.exit(2 if report.may_start is None else 1)


def _homeservers_database(paths: tuple[Path, ...]) -> "DatabaseSettings":
    """Return the database that these files name. Raises `ReplicationError`."""
    from synrepl.homeserver.configuration import read_homeserver

    settings = read_homeserver(paths).database
    if settings is None:
        names = ", ".join(map(str, paths))
        raise ConfigError(f"{names}: no database of PostgreSQL, nor a file of SQLite, is configured there")
    return settings


def _open_homeservers(settings: "DatabaseSettings", *, statement_seconds: float) -> "Database":
    from synrepl.homeserver.database import open_database

    return open_database(settings, what="synrepl doctor", statement_seconds=statement_seconds)


def _configured_streams(config: Path, url: str) -> "list[IdStream]":
    """Return the streams of a configuration file whose tables are in this database. Raises `ConfigError`."""
    from synrepl.config import Settings
    from synrepl.homeserver.settings import homeserver_settings

    settings = homeserver_settings(Settings.build({}, file=config))
    if settings.tables_database not in (None, url) and settings.database == url:
        return []
    return [one.ids for one in settings.table_streams]


def _lines(diagnosis: "Diagnosis", *, fix: bool) -> Iterator[str]:
    yield _heading(diagnosis)
    yield from _complaints(diagnosis)
    if diagnosis.is_healthy:
        again = " any more" if fix and diagnosis.complaints else ""
        yield click.style(_conclusion(diagnosis, again), "green")
    elif fix and diagnosis.kind == "synapse" and any(one.statement for one in diagnosis.complaints):
        yield READ_ONLY


def _lines_before_start(report: "StartReport") -> Iterator[str]:
    is_opened = all(one.kind != "no_sequences" for one in report.diagnosis.complaints)
    yield _heading(report.diagnosis, "" if is_opened else "an SQLite file, which is not opened")
    for one in report.raised:
        yield click.style(f"raised {one.sequence} from {one.before} to {one.after}", "yellow")
    yield from _complaints(report.diagnosis)
    yield click.style(*CONCLUSIONS[report.may_start])


def _heading(diagnosis: "Diagnosis", what: str = "") -> str:
    parts = [what or WHAT[diagnosis.kind]]
    if ids := _ids(diagnosis):
        parts.append(f"{ids} examined")
    if diagnosis.facts_checked is not None:
        parts.append(f"{counted(diagnosis.facts_checked, 'fact')} of the log checked")
    return shown(f"{diagnosis.database}: {', '.join(parts)}")


def _ids(diagnosis: "Diagnosis") -> str:
    parts = []
    if diagnosis.streams:
        parts.append(counted(len(diagnosis.streams), "stream"))
    if diagnosis.sequences:
        parts.append(counted(len(diagnosis.sequences), "other sequence"))
    return " and ".join(parts)


def _conclusion(diagnosis: "Diagnosis", again: str) -> str:
    """Return a sentence that names what was examined and is well."""
    parts = []
    if ids := _ids(diagnosis):
        parts.append(f"the ids of {ids}")
    if diagnosis.facts_checked is not None:
        parts.append(f"{counted(diagnosis.facts_checked, 'fact')} of the log")
    if diagnosis.unique_tables:
        parts.append(f"the unique indexes of {counted(len(diagnosis.unique_tables), 'table')}")
    return f"nothing is wrong{again} with {', and '.join(parts)}" if parts else "there was nothing to examine"


def _complaints(diagnosis: "Diagnosis") -> Iterator[str]:
    repaired: set[str] = set()
    idle = [one for one in diagnosis.complaints if one.severity == "note" and one.kind in IDLE]
    for complaint in diagnosis.complaints:
        if complaint in idle or complaint.statement in repaired:
            continue
        of = f"{complaint.stream}: " if complaint.stream else ""
        word = "mended" if complaint.mended else complaint.severity
        yield click.style(shown(f"{word}: {of}{complaint.text}"), COLORS.get(word))
        if complaint.mended:
            continue
        if complaint.statement:
            # One statement can repair several problems of a sequence, and must be run once.
            repaired.add(complaint.statement)
            alike = [one for one in diagnosis.complaints if one.statement == complaint.statement]
            yield from (f"    also: {shown(one.text)}" for one in alike if one is not complaint)
        if complaint.remedy:
            yield f"    {shown(complaint.remedy)}"
        if complaint.statement:
            yield f"    {shown(complaint.statement)};"
    if idle:
        of = ", ".join(dict.fromkeys(one.stream for one in idle))
        of = shown(of)
        yield f"note: idle or gone: {counted(len(idle), 'writer')} of {of}; synrepl doctor --json names them"
