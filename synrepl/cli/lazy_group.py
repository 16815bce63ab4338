"""Command group that imports a command when it is used: `synrepl --help` imports none."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

__all__ = ["EXIT_CODES", "LazyGroup"]

EXIT_CODES: Final = "Exit codes: 0 success, 1 failure (explained in one line), 2 wrong usage."


class LazyGroup(click.Group):
    """A group of commands in other modules.

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
