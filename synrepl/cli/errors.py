"""How a command says that something went wrong: one line, and an exit code that scripts can tell apart."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from synrepl import http_client
from synrepl.config import suggest
from synrepl.errors import ConfigError
from synrepl.wire.dialect import Dialect
from synrepl.wire.text import printable, printable_values

__all__ = [
    "EXIT_CODES",
    "CliError",
    "confirm",
    "connect",
    "dialect_option",
    "read_secret",
    "secret_option",
    "url_option",
]

EXIT_CODES: Final = "Exit codes: 0 all went well, 1 there was trouble (told in one line), 2 wrong usage."

MAX_LINE: Final = 2_000
"""Characters of what is told; some of it quotes a daemon."""

Command = TypeVar("Command", bound=Callable[..., Any])


class CliError(click.ClickException):
    """Ends the command with exit code 1 and this line."""

    exit_code = 1

    def __init__(self, why: str) -> None:
        super().__init__(printable(" ".join(why.split()), limit=MAX_LINE))


def connect(
    url: str, secret_file: Path | None, *, timeout: float = http_client.TIMEOUT_SECONDS
) -> http_client.BlockingClient:
    """A connection to the daemon at `url`, whose answers are safe to show on a terminal."""
    return http_client.BlockingClient(
        url, secret=read_secret(secret_file), timeout=timeout, clean=printable_values
    )


def read_secret(path: Path | None) -> str | None:
    """The shared secret, from its file."""
    if path is None:
        return None
    try:
        return http_client.read_secret(path)
    except ConfigError as error:
        raise CliError(str(error)) from error


def confirm(*, yes: bool) -> None:
    """Return if the operator says to go on, on a terminal or, with `yes`, on the command line."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this is no terminal to ask on: say --yes")
    click.confirm("Go on?", abort=True, err=True)


class _DialectType(click.ParamType[Dialect]):
    name = "dialect"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Dialect:
        if isinstance(value, Dialect):
            return value
        if value == "native":
            self.fail("native is what replicas speak (--upstream); to follow, say a release", param, ctx)
        try:
            return Dialect.parse(value)
        except ConfigError as error:
            self.fail(f"{error}{suggest(value, ('legacy', 'middle', 'current'))}", param, ctx)


def dialect_option(*, default: str | None, help: str) -> Callable[[Command], Command]:
    """``--dialect``"""
    return click.option("--dialect", type=_DialectType(), default=default, show_default=True, help=help)


secret_option = click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with the shared secret of the HTTP API.",
)


def url_option(*, required: bool) -> Callable[[Command], Command]:
    """``--url``"""
    text = "The HTTP address of the daemon."
    if required:
        return click.option("--url", required=True, metavar="URL", help=text)
    return click.option("--url", default="http://127.0.0.1:9093", show_default=True, metavar="URL", help=text)
