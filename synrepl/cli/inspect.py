"""``synrepl inspect``: find what is stuck in a live homeserver, read only."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from synrepl.cli.command import CliCommand, shown
from synrepl.cli.homeserver import homeserver_options
from synrepl.cli.options import Output, output_option
from synrepl.cli.progress import Advance
from synrepl.cli.tables import table
from synrepl.html.humanize import counted, span

if TYPE_CHECKING:
    from synrepl.inspection.configuration import Homeserver
    from synrepl.inspection.findings import Finding
    from synrepl.inspection.inspection import InspectionReport

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
@output_option(
    '{"findings": [...], "notes": [...], "unseen": [...], "mended": [...], "seen": {...}}', is_table=True
)
def inspect(homeserver: "Homeserver", ask: bool, output: Output) -> None:
    """Find what is stuck in a live homeserver: stream, process, since when, why, and what to do.

    It compares what was written (the database), announced (Redis) and received (the metrics of each process),
    for 15 seconds, and writes nothing. With --ask it publishes one line that Synapse's processes publish at
    their start, and takes 30 seconds.
    """
    # Imported on use: the first installs the reactor.
    from twisted.internet import reactor

    from synrepl.cli.output import quiet
    from synrepl.cli.reactor import run_reactor
    from synrepl.inspection.inspection import Inspection

    quiet()
    with Advance("inspecting", None) as advance:

        def progress(step: str, done: float, total: float) -> None:
            advance.what = f"{step}, {max(0.0, total - done):.0f} s left"
            advance.step(0, 0)

        inspection = Inspection(reactor, homeserver, asks=ask, progress=progress)
        report: InspectionReport = run_reactor(reactor, inspection.run)
    output.show(_result(report), report_lines(report, output))
    sys.exit(report.exit_code)


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
    for finding in report.findings:
        yield click.style(shown(f"{_where(finding)}: {finding.why}"), "red")
        yield f"    {shown(finding.remedy)}"
        if finding.command and output.is_wide:
            yield f"    {shown(finding.command)}"
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
    for note in report.notes:
        yield click.style(shown(f"note: {_where(note)}: {note.why}"), "yellow")
    for missed in report.unseen:
        yield click.style(shown(f"not seen: {missed.what}: {missed.why}"), "yellow")
    if not any(seen.values()):
        yield click.style("nothing was seen of it", "red")
    elif not report.findings:
        yield click.style("nothing is wrong" + (" in what was seen" if report.unseen else ""), "green")


def _where(finding: "Finding") -> str:
    of = ", ".join(filter(None, (finding.stream, finding.process or finding.writer)))
    return f"{finding.kind} ({of})" if of else finding.kind
