"""``synrepl inspect``: find what is stuck in a live homeserver, read only."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from synrepl.cli.command import CliCommand, shown
from synrepl.cli.options import Output, output_option
from synrepl.cli.progress import Advance
from synrepl.cli.tables import table
from synrepl.homeserver.commands.homeserver import homeserver_options
from synrepl.html.humanize import counted, several, span

if TYPE_CHECKING:
    from synrepl.homeserver.configuration import Homeserver
    from synrepl.homeserver.findings import Finding, Unseen
    from synrepl.homeserver.inspection import InspectionReport

EXIT_CODES = (
    "Exit codes: 0 well, and everything configured was seen; 1 unwell; 2 nothing was seen, or wrong usage;"
    " 3 nothing unwell in what was seen."
)


@click.command(cls=CliCommand, epilog=EXIT_CODES)
@homeserver_options
@click.option(
    "--ask",
    is_flag=True,
    help="Look, publish one REPLICATE on Redis, look again, and say what the asking mended.",
)
@click.option(
    "--synapse",
    "synapse",
    metavar="RELEASE",
    help="The release that is to read the files, as 1.100 [default: that of the processes, or the newest].",
)
@click.option(
    "--files",
    "files_only",
    is_flag=True,
    help="Look at the files alone: no database, no Redis, no process.",
)
@output_option(
    '{"findings": [...], "notes": [...], "unseen": [...], "mended": [...], "seen": {...}}; with --files,'
    ' "processes" and "redis" in place of the last two',
    is_table=True,
)
def inspect(homeserver: "Homeserver", ask: bool, files_only: bool, output: Output) -> None:
    """Find what is stuck in a live homeserver: stream, process, since when, why, and what to do.

    It compares what was written (the database), announced (Redis) and received (the metrics of each process),
    for 15 seconds, and writes nothing. With --ask it publishes one line that Synapse's processes publish at
    their start, and takes 30 seconds. With --files it looks at the configuration alone, in a second: which
    process does what, and what of it Synapse refuses.
    """
    if files_only:
        if ask:
            raise click.UsageError("--files asks nobody: leave --ask out")
        sys.exit(_inspect_files(homeserver, output))
    # Imported on use: the first installs the reactor.
    from twisted.internet import reactor

    from synrepl.cli.output import quiet
    from synrepl.cli.reactor import run_reactor
    from synrepl.homeserver.inspection import Inspection

    quiet()
    with Advance("inspecting", None) as advance:

        def progress(step: str, done: float, total: float) -> None:
            advance.what = f"{step}, {max(0.0, total - done):.0f} s left"
            advance.step(0, 0)

        inspection = Inspection(reactor, homeserver, asks=ask, progress=progress)
        report: InspectionReport = run_reactor(reactor, inspection.run)
    output.show(_result(report), report_lines(report, output))
    sys.exit(report.exit_code)


# -- the files alone -----------------------------------------------------------------------------------------


def _inspect_files(homeserver: "Homeserver", output: Output) -> int:
    """Show what the files say, and return the exit code."""
    # Imported on use, as the reader of the files was.
    from synrepl.homeserver.file_findings import (
        find_in_files,
        notes_on_addresses,
        notes_on_listeners,
        notes_on_releases,
        unseen_in_files,
    )
    from synrepl.homeserver.work_findings import notes_on_work

    notes = [
        *homeserver.notes,
        *notes_on_releases(homeserver),
        *notes_on_work(homeserver),
        *notes_on_addresses(homeserver),
        *notes_on_listeners(homeserver),
    ]
    findings = list(find_in_files(homeserver))
    # A database is not looked at.
    unseen = [one for one in unseen_in_files(homeserver) if one.what != "database"]
    processes = [one for one in homeserver.processes if one.file or one.metrics is not None]
    # Of a part of the files it is not known who does what.
    is_whole = bool(homeserver.server_name)
    result = {
        "server_name": homeserver.server_name or None,
        "processes": [
            {
                "name": one.name,
                "file": one.file or None,
                "host": one.host,
                "metrics": None if one.metrics is None else one.metrics.shown,
                "duties": list(one.duties) if is_whole else None,
                "writes": list(one.writes) if is_whole else None,
            }
            for one in processes
        ],
        "redis": _redis(homeserver),
        "findings": msgspec.to_builtins(findings),
        "notes": msgspec.to_builtins(notes),
        "unseen": msgspec.to_builtins(unseen),
    }
    output.show(result, _file_lines(homeserver, result, findings, notes, unseen, output))
    return 1 if findings else 3 if unseen else 0


def _redis(homeserver: "Homeserver") -> dict[str, Any] | None:
    """The homeserver's Redis by the names of its configuration, without a password."""
    from synrepl.homeserver.host_names import without_user

    redis = homeserver.redis
    if redis is None:
        return None
    return {
        "host": None if redis.path else without_user(redis.host),
        "port": None if redis.path else redis.port,
        "path": redis.path or None,
        "dbid": redis.dbid,
        "username": redis.username or None,
        "use_tls": redis.is_tls,
    }


def _file_lines(
    homeserver: "Homeserver",
    result: dict[str, Any],
    findings: "Sequence[Finding]",
    notes: "Sequence[Finding]",
    unseen: "Sequence[Unseen]",
    output: Output,
) -> Iterator[str]:
    from synrepl.homeserver.merging import MAIN

    redis = result["redis"]
    at = redis and (redis["path"] or f"{redis['host']}:{redis['port']}")
    yield (
        f"{shown(homeserver.server_name or 'a part of the configuration')}:"
        f" {counted(len(result['processes']), 'process', 'processes')} in the files,"
        f" {f'Redis at {shown(at)}' if at else 'no Redis'}"
    )
    yield ""
    yield from table(
        ("process", "metrics", "does", "writes"),
        [
            (
                shown(one["name"]),
                shown(one["metrics"] or "not known"),
                _listed(one["duties"]),
                _listed(one["writes"])
                if output.is_wide or one["writes"] is None
                else counted(len(one["writes"]), "stream"),
            )
            for one in result["processes"]
        ],
    )
    yield ""
    # Without the main process' file the findings are of the others alone.
    yield from _other_lines((), [one for one in unseen if one.what == MAIN])
    yield from _finding_lines(findings, output)
    yield from _other_lines(notes, [one for one in unseen if one.what != MAIN])
    if not findings:
        yield click.style("nothing is wrong in the files" + (" as far as seen" if unseen else ""), "green")


def _listed(names: list[str] | None) -> str:
    return "not known" if names is None else shown(", ".join(names))


# -- a live homeserver ---------------------------------------------------------------------------------------


def _result(report: "InspectionReport") -> dict[str, Any]:
    return {
        "server_name": report.homeserver.server_name,
        "findings": msgspec.to_builtins(list(report.findings)),
        "notes": msgspec.to_builtins(list(report.notes)),
        "unseen": msgspec.to_builtins(list(report.unseen)),
        "mended": msgspec.to_builtins(list(report.mended)),
        "seen": report.seen,
    }


def report_lines(report: "InspectionReport", output: Output) -> Iterator[str]:
    seen = report.seen
    parts = [counted(seen["streams"], "stream"), counted(seen["writers"], "writer")]
    yield (
        f"{shown(report.homeserver.server_name)}: {' and '.join(parts)} in the database,"
        f" {seen['announced']} heard on Redis, {counted(seen['processes'], 'process', 'processes')} measured"
    )
    yield from _finding_lines(report.findings, output)
    for finding in report.mended:
        yield click.style(shown(f"mended by asking: {_where(finding)}: {finding.why}"), "yellow")
    if report.findings:
        yield ""
        yield from table(
            ("kind", "stream", "writer", "process", "since", "count"),
            [
                (
                    one.kind,
                    *map(shown, (one.stream, one.writer, one.process)),
                    "" if one.since_seconds is None else span(one.since_seconds),
                    "" if one.count is None else one.count,
                )
                for one in report.findings
            ],
        )
    yield from _other_lines(report.notes, report.unseen)
    if not any(seen.values()):
        yield click.style("nothing was seen of it", "red")
    elif not report.findings:
        yield click.style("nothing is wrong" + (" in what was seen" if report.unseen else ""), "green")


def _finding_lines(findings: "Sequence[Finding]", output: Output) -> Iterator[str]:
    for finding in findings:
        yield click.style(shown(f"{_where(finding)}: {finding.why}"), "red")
        yield f"    {shown(finding.remedy)}"
        if finding.cure:
            yield f"    {shown(finding.cure)}"
        if finding.cost:
            yield f"    it costs: {shown(finding.cost)}"
        if finding.command and output.is_wide:
            yield f"    {shown(finding.command)}"


def _other_lines(notes: "Sequence[Finding]", unseen: "Sequence[Unseen]") -> Iterator[str]:
    # The same of many processes is one line.
    same: dict[tuple[str, str, str, str, str], list[str]] = {}
    for note in notes:
        why = note.why.replace(f"{note.process}=", "NAME=") if note.process else note.why
        same.setdefault((note.kind, note.stream, note.writer, why, note.remedy), []).append(note.process)
    for (kind, stream, writer, why, remedy), names in same.items():
        told = why if len(names) > 1 else why.replace("NAME=", f"{names[0]}=")
        of = ", ".join(filter(None, (stream, several(names) or writer)))
        yield click.style(shown(f"note: {kind} ({of}): {told}" if of else f"note: {kind}: {told}"), "yellow")
        if remedy:
            yield f"    {shown(remedy)}"
    for missed in unseen:
        yield click.style(shown(f"not seen: {missed.what}: {missed.why}"), "yellow")


def _where(finding: "Finding") -> str:
    of = ", ".join(filter(None, (finding.stream, finding.process or finding.writer)))
    return f"{finding.kind} ({of})" if of else finding.kind
