"""``synrepl pipeline``: the Spark jobs, one module each."""

import click

from synrepl.cli.errors import EXIT_CODES
from synrepl.cli.jobs.archive import archive_command
from synrepl.cli.jobs.audit import audit_command
from synrepl.cli.jobs.compact import compact_command
from synrepl.cli.jobs.replay import replay_command
from synrepl.cli.jobs.report import report_command
from synrepl.cli.jobs.watch import watch_command

__all__ = ["pipeline"]


@click.group(epilog=EXIT_CODES)
def pipeline() -> None:
    """Archive, compact, audit, report on, replay and watch the streams, on Spark."""


for command in (
    archive_command,
    compact_command,
    audit_command,
    report_command,
    replay_command,
    watch_command,
):
    pipeline.add_command(command)
