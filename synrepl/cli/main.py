"""The `synrepl` command group."""

from typing import Any

import click

from synrepl.cli.append import append
from synrepl.cli.caches import caches
from synrepl.cli.doctor import doctor
from synrepl.cli.errors import EXIT_CODES, CliError
from synrepl.cli.jobs import pipeline
from synrepl.cli.leases import leases
from synrepl.cli.promote import promote
from synrepl.cli.replay import replay
from synrepl.cli.replicas import replicas
from synrepl.cli.resync import resync
from synrepl.cli.status import status
from synrepl.cli.streams import streams
from synrepl.cli.tail import tail
from synrepl.errors import ConfigError

__all__ = ["main"]


class _Commands(click.Group):
    """The commands. A `ConfigError` ends a command with one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise CliError(str(error)) from error


@click.group(cls=_Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="synrepl", message="%(prog)s %(version)s")
def main() -> None:
    """Follow, feed and inspect the replication streams of a homeserver."""


for command in (
    tail,
    append,
    replay,
    status,
    streams,
    replicas,
    leases,
    promote,
    resync,
    doctor,
    caches,
    pipeline,
):
    main.add_command(command)
