"""The `synrepl` command group."""

from typing import Any

import click

from synrepl.cli.lazy_group import EXIT_CODES, LazyGroup
from synrepl.errors import ConfigError

__all__ = ["main"]


class _Commands(LazyGroup):
    """The commands. A `ConfigError` ends a command with one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            from synrepl.cli.errors import CliError  # imported late: it needs the client of the daemon

            raise CliError(str(error)) from error


@click.group(
    cls=_Commands,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
    places={
        "tail": ("synrepl.cli.tail:tail", "Follow a server, a Redis or a recording."),
        "append": ("synrepl.cli.append:append", "Append rows from standard input."),
        "replay": ("synrepl.cli.replay:replay", "Append the rows of a recorded session."),
        "status": ("synrepl.cli.status:status", "Show the status of a daemon."),
        "streams": ("synrepl.cli.streams:streams", "Show the streams of a daemon and their writers."),
        "replicas": ("synrepl.cli.replicas:replicas", "Show the replicas of a daemon."),
        "leases": ("synrepl.cli.leases:leases", "List, add and drop leases of replicas."),
        "promote": ("synrepl.cli.promote:promote", "Make a replica the primary."),
        "resync": ("synrepl.cli.resync:resync", "Make a fenced or diverged daemon a replica again."),
        "doctor": ("synrepl.cli.doctor:doctor", "Find problems of the streams in a database."),
        "caches": ("synrepl.cli.caches:caches", "Check the caches of a worker."),
        "pipeline": ("synrepl.cli.jobs:pipeline", "Run Spark jobs on the streams."),
    },
)
@click.version_option(package_name="synrepl", message="%(prog)s %(version)s")
def main() -> None:
    """Follow, feed and inspect the replication streams of a homeserver."""
