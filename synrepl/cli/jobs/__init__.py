"""``synrepl pipeline``: the Spark jobs, one module each."""

import click

from synrepl.cli.lazy_group import EXIT_CODES, LazyGroup

__all__ = ["pipeline"]

JOBS = "synrepl.cli.jobs"


@click.group(
    cls=LazyGroup,
    epilog=EXIT_CODES,
    places={
        "archive": (f"{JOBS}.archive:archive_command", "Archive the log of a daemon."),
        "compact": (f"{JOBS}.compact:compact_command", "Compact the archive to a snapshot."),
        "audit": (f"{JOBS}.audit:audit_command", "Check the archive, and compare it with a daemon."),
        "report": (f"{JOBS}.report:report_command", "Write a page: throughput, lag, hot caches, gaps."),
        "replay": (f"{JOBS}.replay:replay_command", "Append the facts of the archive to a daemon."),
        "watch": (f"{JOBS}.watch:watch_command", "Write events as JSON lines until interrupted."),
    },
)
def pipeline() -> None:
    """Archive, compact, audit, report on, replay and watch the streams, on Spark."""
