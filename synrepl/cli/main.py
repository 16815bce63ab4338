"""The `synrepl` command group, and the base of groups."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

from synrepl.errors import ConfigError

__all__ = ["EXIT_CODES", "LazyGroup", "main"]

EXIT_CODES: Final = "Exit codes: 0 success, 1 failure (explained in one line), 2 wrong usage."


class LazyGroup(click.Group):
    """A group of commands in other modules, each imported when it is used: `--help` imports none.

    `places` maps the name of a command to ``module:attribute`` and the line that the list of commands shows,
    which is the first line of the command's own help.
    """

    def __init__(self, *args: Any, places: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of this name."""
        if cmd_name not in self.places:
            return None
        module, _, attribute = self.places[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.places.items()])


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
        "leases": ("synrepl.cli.replicas:leases", "List, add and drop leases of replicas."),
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
