"""Base classes of commands: groups that import late, help in groups, one-line errors with an exit code."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import click

from synrepl.errors import ReplicationError, suggest
from synrepl.extras import missing_extra
from synrepl.rooms import rooms

EXIT_CODES: Final = "Exit codes: 0 success, 1 failure (explained in one line), 2 wrong usage."

CONTEXTS_GONE: Final = (
    "contexts are gone: set $SYNREPL_URL and, if the daemon asks for them, $SYNREPL_SECRET_FILE and"
    " $SYNREPL_CA_FILE"
)

MAX_LINE: Final = 2_000
"""Maximum length of an error in characters: an error may quote a long response of a daemon."""


def shown(text: str) -> str:
    """Return a text of peers, files or databases in a form that is safe for terminals."""
    from synrepl.wire.text import printable  # Imported late: most commands do not need it.

    return printable(text, limit=MAX_LINE)


class CliError(click.ClickException):
    """A failure that ends the command with this line and exit code 1."""

    exit_code = 1

    def __init__(self, why: str) -> None:
        super().__init__(shown(" ".join(why.split())))


class UsageMistake(CliError):
    """A mistake in the arguments, which ends the command with this line and exit code 2."""

    exit_code = 2


class Option(click.Option):
    """An option that help shows under the heading `group`."""

    def __init__(self, *args: Any, group: str = "Options", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group


class CliCommand(click.Command):
    """A command whose help has the options in groups, and the exit codes."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **{"epilog": EXIT_CODES, **attributes})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments. An error of usage gets this command, so that the advice names its help."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(parameter, "group", "Options"), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class CliGroup(click.Group):
    """A group of commands that suggests a name for a mistyped one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"epilog": EXIT_CODES, **options})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command named first in `args`. Raises `click.UsageError`."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            why = _why_missing(args[0])
            ctx.fail(f"No such command {args[0]!r}{why or self.suggest(ctx, args[0])}")
        return super().resolve_command(ctx, args)

    def suggest(self, ctx: click.Context, name: str) -> str:
        """Return ``; did you mean ...?`` with a subcommand of this name, or a command of a similar name."""
        for group in self.list_commands(ctx):
            command = self.get_command(ctx, group)
            if isinstance(command, click.Group) and name in command.list_commands(ctx):
                return f"; did you mean {group} {name}?"
        return suggest(name, self.list_commands(ctx))


def _why_missing(name: str) -> str:
    """Return ``; it belongs to ROOM, which is not installed``; empty if no missing room has this command."""
    from synrepl.missing_rooms import why_missing  # Imported late: only a mistake needs it.

    why = why_missing("commands", name)
    return f"; {why}" if why else ""


class LazyGroup(CliGroup):
    """A group of commands in other modules, each imported when it is used: `--help` imports none.

    `places` maps the name of a command to ``module:attribute`` and its line in the list of commands.
    `headings` maps the headings of that list to the names below each, separated by spaces. `gone` maps the
    names of removed commands to what to use in their place.
    """

    def __init__(
        self,
        *args: Any,
        places: Mapping[str, tuple[str, str]],
        headings: Mapping[str, str] | None = None,
        gone: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.places = places
        self.headings = headings or {"Commands": " ".join(places)}
        self.gone = gone

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order of `places`."""
        return list(self.places)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command named first in `args`. Raises `click.UsageError`."""
        if args[0] in self.gone:
            ctx.fail(self.gone[args[0]])
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of this name."""
        if cmd_name not in self.places:
            return None
        module, _, attribute = self.places[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lists of commands, without importing them."""
        for heading, names in self.headings.items():
            if not names:
                continue
            with formatter.section(heading):
                formatter.write_dl([(name, self.places[name][1]) for name in names.split()])


class MainGroup(LazyGroup):
    """The commands of the program. An expected error ends a command with one line on standard error."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, with what rooms add to it."""
        command = super().get_command(ctx, cmd_name)
        places = [place for room in rooms() if (place := room.extensions.get(cmd_name))]
        for place in places if command is not None else ():
            module, _, attribute = place.partition(":")
            command = getattr(import_module(module), attribute)(command)
        return command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line():
            return super().invoke(ctx)


@contextmanager
def _one_line() -> Iterator[None]:
    """Replace an error of wrong usage by a `UsageMistake`, and a `ReplicationError` by a `CliError`.

    A library that an extra brings, and that is not installed, is a `CliError` too.
    """
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        context = error.ctx or click.get_current_context(silent=True)
        advice = f"; see {context.command_path} --help" if context is not None else ""
        text = error.format_message().rstrip(".") + _nearest_choice(error) + _missing_flag(error, context)
        raise UsageMistake(text + advice) from error
    except ReplicationError as error:
        raise CliError(str(error)) from error
    except ImportError as error:
        if why := missing_extra(error):
            raise CliError(why) from error
        raise


def _missing_flag(error: click.UsageError, context: click.Context | None) -> str:
    """Return ``; it belongs to ROOM, which is not installed`` if that room gives the daemon this flag."""
    if not isinstance(error, click.NoSuchOption) or context is None or context.info_name != "serve":
        return ""
    from synrepl.missing_rooms import why_missing  # Imported late: only a mistake needs it.

    why = why_missing("settings", error.option_name.lstrip("-").replace("-", "_"))
    return f"; {why}" if why else ""


def _nearest_choice(error: click.UsageError) -> str:
    """Return ``; did you mean ...?`` if the error is a mistyped word of a choice."""
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param is not None else None
    found = re.match(r"'([^']*)' is not one of", error.message)
    return suggest(found[1], list(kind.choices)) if isinstance(kind, click.Choice) and found else ""
