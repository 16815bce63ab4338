"""Errors and options that commands share. An error is one line and an exit code that scripts can rely on."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from synrepl import http_client
from synrepl.cli.command import EXIT_CODES, CliError
from synrepl.errors import ConfigError, suggest
from synrepl.http_api.route import HttpRequest
from synrepl.wire.dialect import Dialect
from synrepl.wire.text import printable_values

__all__ = [
    "EXIT_CODES",
    "CliError",
    "ask",
    "confirm",
    "connect",
    "dialect_option",
    "read_secret",
    "secret_option",
    "speed_option",
    "stream_option",
    "url_option",
]

Command = TypeVar("Command", bound=Callable[..., Any])


def connect(
    url: str, secret_file: Path | None, *, timeout: float = http_client.TIMEOUT_SECONDS
) -> http_client.BlockingClient:
    """Return a client of the daemon at `url` whose responses are safe to show on a terminal."""
    return http_client.BlockingClient(
        url, secret=read_secret(secret_file), timeout=timeout, clean=printable_values
    )


def ask(client: http_client.BlockingClient, request: HttpRequest, body: bytes | None = None) -> Any:
    """Send a request and return the JSON response. Raises `CliError`."""
    try:
        return client.json(request, body)
    except (http_client.ConnectError, http_client.HttpError) as error:
        raise CliError(f"{client.url}: {error}") from error


def read_secret(path: Path | None) -> str | None:
    """Read the shared secret from its file. Raises `CliError`."""
    if path is None:
        return None
    try:
        return http_client.read_secret(path)
    except ConfigError as error:
        raise CliError(str(error)) from error


def confirm(*, yes: bool) -> None:
    """Return if the operator confirms, on a terminal or with `yes`; otherwise end the command."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("cannot ask for confirmation without a terminal: use --yes to confirm")
    click.confirm("Continue?", abort=True, err=True)


class _DialectType(click.ParamType[Dialect]):
    name = "dialect"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Dialect:
        if isinstance(value, Dialect):
            return value
        if value == "native":
            self.fail(
                "native is the protocol of replicas (--upstream); to follow a server, name a release",
                param,
                ctx,
            )
        try:
            return Dialect.parse(value)
        except ConfigError as error:
            self.fail(f"{error}{suggest(value, ('legacy', 'middle', 'current'))}", param, ctx)


def dialect_option(*, default: str | None, help: str) -> Callable[[Command], Command]:
    """Return the ``--dialect`` option."""
    return click.option("--dialect", type=_DialectType(), default=default, show_default=True, help=help)


secret_option = click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with the shared secret of the HTTP API.",
)


def url_option(*, required: bool) -> Callable[[Command], Command]:
    """Return the ``--url`` option."""
    text = "The HTTP address of the daemon."
    if required:
        return click.option("--url", required=True, metavar="URL", help=text)
    return click.option("--url", default="http://127.0.0.1:9093", show_default=True, metavar="URL", help=text)


def stream_option(verb: str) -> Callable[[Command], Command]:
    """Return the ``--stream`` option of a command that does this with streams."""
    text = f"{verb} this stream only. May be repeated."
    return click.option("--stream", "streams", multiple=True, metavar="STREAM", help=text)


def speed_option(original: str) -> Callable[[Command], Command]:
    """Return the ``--speed`` option of a replay."""
    return click.option(
        "--speed",
        type=click.FloatRange(0),
        default=0.0,
        show_default=True,
        help=f"The speed as a multiple of the {original} speed; 0 is as fast as possible.",
    )
