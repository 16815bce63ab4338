"""Options that commands share: the daemon to connect to, output, durations, dialects."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial, update_wrapper
from itertools import chain, repeat, takewhile
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from synrepl import http_client
from synrepl.base.settings import duration_or_zero
from synrepl.cli.command import CONTEXTS_GONE, CliError, Option
from synrepl.cli.tables import address
from synrepl.errors import ConfigError, suggest
from synrepl.http_api.request_errors import RequestError
from synrepl.http_api.route import HttpRequest, public_url
from synrepl.http_client import split_urls
from synrepl.wire.dialect import NEWEST, Dialect
from synrepl.wire.text import printable_values

DEFAULT_URL: Final = "http://127.0.0.1:9093"

TIMEOUT_SECONDS: Final = 10.0

CONNECTION: Final = "Connection"

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")


class DaemonTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon that a command asks over HTTP, and how long it tries.

    `url` may be several URLs, separated by commas: the first daemon that can answer is asked. `secret_file`
    has the shared secret, `ca_file` the CAs to trust for HTTPS (None: the system's); `insecure`: the secret
    may also go where others can read it. `timeout` (seconds)
    limits each request, and the retries in all; None: the command has its own limits. `retry` tells whether
    transient failures are retried: no connection, a timeout, a busy or unready daemon.
    """

    url: str
    secret_file: Path | None
    ca_file: Path | None
    timeout: float | None
    retry: bool
    insecure: bool = False

    def connect(self, timeout: float = TIMEOUT_SECONDS) -> http_client.BlockingClient:
        """Return a client whose responses are safe to print; ``--timeout`` overrides `timeout` (seconds)."""
        return http_client.BlockingClient(
            self.url,
            secret=read_secret(self.secret_file),
            ca_file=self.ca_file,
            insecure=self.insecure,
            advice={"unauthorized": secret_advice(self.secret_file)},
            timeout=self.timeout or timeout,
            clean=printable_values,
        )

    def check_single(self) -> None:
        """Raises `click.UsageError` for several URLs: the command changes the role of one daemon."""
        if len(split_urls(self.url)) > 1:
            raise click.UsageError("this command changes one daemon: give only its --url, not several")

    def ask(
        self, request: HttpRequest, body: bytes | None = None, *, timeout: float = TIMEOUT_SECONDS
    ) -> Any:
        """Send a request and return the JSON response. Raises `CliError`."""
        client = self.connect(timeout)
        try:
            return send(client, request, body, self.retry_delays(60.0))
        except RequestError as error:
            raise CliError(f"{client.url}: {error}{other_primary(error)}") from error

    def retry_delays(self, patience: float) -> Iterator[float]:
        """Yield the seconds before each retry, for `timeout` or `patience` seconds; none without `retry`."""
        return retry_delays(self.timeout or patience) if self.retry else iter(())

    def ask_status(self) -> dict[str, Any]:
        """Return the status of the daemon. Raises `CliError`."""
        from synrepl.declarations import status_request

        found: dict[str, Any] = self.ask(status_request())
        return found


def other_primary(error: RequestError) -> str:
    """Where the primary is, as the end of a message, if the response names another daemon; else empty."""
    primary = address(error.moved_to)
    return f"; the primary is at {primary}: use its --url" if primary else ""


def send(
    client: http_client.BlockingClient,
    request: HttpRequest,
    body: bytes | None,
    delays: Iterator[float],
    on_failure: Callable[[RequestError], None] = lambda error: None,
) -> Any:
    """Send a request and return the response. After a transient failure, wait for the next delay and retry.

    Calls `on_failure` with each failure, and raises the one that is not retried.
    """
    while True:
        try:
            return client.json(request, body)
        except RequestError as error:
            on_failure(error)
            can_retry = error.retryable or (client.has_several and error.can_try_elsewhere)
            delay = next(delays, None) if can_retry else None
            if delay is None:
                raise
            click.echo(f"{client.url}: {error}; retrying in {delay:g} s", err=True)
        time.sleep(delay)


def retry_delays(seconds: float) -> Iterator[float]:
    """Return the seconds to wait before each retry, until this many seconds from now."""
    until = time.monotonic() + seconds
    delays = chain((0.2, 0.5, 1, 2, 4), repeat(8))
    return takewhile(lambda delay: time.monotonic() + delay <= until, delays)


def read_secret(path: Path | None) -> str | None:
    """Read the shared secret from its file; None without a file. Raises `ConfigError`."""
    return None if path is None else http_client.read_secret(path)


def secret_advice(path: Path | None) -> str:
    """Return what to do if a daemon refuses the secret of this file, or a request without a secret."""
    if path is not None:
        return f"the secret in {path} is unknown to the daemon, or was revoked: give another --secret-file"
    return (
        "the daemon requires a secret: name the file that has it with --secret-file, or in"
        " $SYNREPL_SECRET_FILE"
    )


_connection_option: Final = partial(click.option, cls=Option, group=CONNECTION)

secret_option = _connection_option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="SYNREPL_SECRET_FILE",
    help="A file with the shared secret of the HTTP API. [default: $SYNREPL_SECRET_FILE]",
)

ca_option = _connection_option(
    "--ca-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="SYNREPL_CA_FILE",
    help="A PEM file with the CAs to trust for https:// [default: $SYNREPL_CA_FILE, or those of the system]",
)


insecure_option = _connection_option(
    "--insecure",
    is_flag=True,
    help="Send the secret also where others can read it: over http:// to another machine.",
)


def with_options(
    run: Callable[..., Any], command: Command, options: Iterable[Callable[[Any], Any]]
) -> Command:
    """Return `run` with the name and help of `command`; `options` are listed before those of `command`."""
    decorated: Any = update_wrapper(run, command)
    for option in reversed([*options]):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # click's decorators return what they are given


def daemon_options(
    *, required: bool = False, retry: bool = False, optional: bool = False
) -> Callable[[Command], Command]:
    """Return the options of the daemon; the command receives a `DaemonTarget` as `daemon`.

    With `required` there is no default address. With `optional` the command receives None unless ``--url`` is
    given. `retry` is the default of ``--retry``.
    """
    default = "" if required else f", or {DEFAULT_URL}"
    options = (
        _connection_option(
            "--url",
            metavar="URL",
            help="The HTTP address of the daemon, or several of one log with commas, in order of preference."
            + ("" if optional else f" [default: $SYNREPL_URL{default}]"),
        ),
        _connection_option("--context", hidden=True, expose_value=False, callback=_refuse_context),
        secret_option,
        ca_option,
        insecure_option,
        duration_option(
            "--timeout",
            group=CONNECTION,
            help="How long to try, retries included [default: depends on the request]",
        ),
        _connection_option(
            "--retry/--no-retry",
            default=retry,
            help="Retry while there is no connection, or the daemon is busy or not ready.",
        ),
    )

    def decorate(command: Command) -> Command:
        def run(*args: Any, url: str | None, timeout: float | None, **rest: Any) -> Any:
            asking = {name: rest.pop(name) for name in ("secret_file", "ca_file", "insecure", "retry")}
            daemon = None
            if not optional or url:
                url = url or _default_url(has_default=not required)
                urls = ",".join(map(public_url, split_urls(url)))
                daemon = DaemonTarget(url=urls, timeout=timeout, **asking)
            return command(*args, daemon=daemon, **rest)

        return with_options(run, command, options)

    return decorate


def _default_url(*, has_default: bool) -> str:
    """Return the address of the daemon for a command without ``--url``. Raises `click.UsageError`."""
    if url := os.environ.get("SYNREPL_URL"):
        return url
    # A release that had contexts asked the one in use; another daemon must not be asked in its place.
    home = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    if (path := Path(home) / "synrepl" / "contexts.toml").exists():
        raise click.UsageError(f"{CONTEXTS_GONE}; {path} has what you set, remove it then")
    if not has_default:
        raise click.UsageError(
            "Missing option '--url': this command has no default address; add for example --url"
            f" {DEFAULT_URL}, or set $SYNREPL_URL"
        )
    return DEFAULT_URL


def _refuse_context(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(CONTEXTS_GONE)


class Output:
    """How a command prints its result: as a table, a wider table, or JSON."""

    def __init__(self, kind: str) -> None:
        self.is_json = kind == "json"
        self.is_wide = kind == "wide"

    def show(self, result: Any, lines: Iterable[str]) -> None:
        """Print `result` if the output is JSON, otherwise `lines`."""
        if self.is_json:
            click.echo(json.dumps(result))
        else:
            for line in lines:
                click.echo(line)


def output_option(json_help: str, *, is_table: bool = False) -> Callable[[Command], Command]:
    """Return ``--json`` and, for a command that prints tables, ``-o``; the command receives `output`."""
    option = partial(click.option, cls=Option, group="Output")
    options = [option("--json", "as_json", is_flag=True, help=json_help)]
    if is_table:
        text = "The output: a table, one with all columns, or JSON."
        choice = click.Choice(["table", "wide", "json"])
        options.insert(0, option("-o", "--output", type=choice, default="table", help=text))

    def decorate(command: Command) -> Command:
        def run(*args: Any, as_json: bool, output: str = "table", **rest: Any) -> Any:
            return command(*args, output=Output("json" if as_json else output), **rest)

        return with_options(run, command, options)

    return decorate


def confirm(*, yes: bool) -> None:
    """Return if the operator confirms, on a terminal or with `yes`; otherwise end the command."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("cannot ask for confirmation without a terminal: use --yes to confirm")
    click.confirm("Continue?", abort=True, err=True)


class ParsedType(click.ParamType[T]):
    """A type of options that `parse` reads from text. Its errors are shown as wrong usage."""

    def __init__(self, name: str, parse: Callable[[Any], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._parse(value)
        except (ConfigError, ValueError) as error:
            self.fail(str(error), param, ctx)


def duration_option(
    *names: str, help: str, default: str | None = None, group: str = "Options"
) -> Callable[[Command], Command]:
    """Return an option with a duration, which the command receives in seconds. `names` as in click."""
    return click.option(
        *names,
        type=ParsedType("duration", duration_or_zero),
        metavar="DURATION",
        default=default,
        cls=Option,
        group=group,
        help=help,
    )


def _parse_dialect(value: Dialect | str) -> Dialect:
    if isinstance(value, Dialect):
        return value
    if value == "native":
        raise ConfigError(
            "native is the protocol of replicas (--upstream); to follow a server, name a release"
        )
    try:
        dialect = Dialect.parse(value)
    except ConfigError as error:
        raise ConfigError(f"{error}{suggest(value, ('legacy', 'middle', 'current'))}") from error
    if dialect.release[:1] > NEWEST.release[:1]:
        raise ConfigError(f"there is no Synapse {value}; the newest known release is {NEWEST}")
    return dialect


def dialect_option(*, default: str | None, help: str) -> Callable[[Command], Command]:
    """Return the ``--dialect`` option."""
    return click.option("--dialect", type=ParsedType("dialect", _parse_dialect), default=default, help=help)


def stream_option(verb: str) -> Callable[[Command], Command]:
    """Return the ``--stream`` option; its help begins with `verb`, such as ``Show``."""
    text = f"{verb} this stream only. May be repeated, or name several, separated by commas."

    def split(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
        names = (name.strip() for value in values for name in value.split(","))
        return tuple(dict.fromkeys(filter(None, names)))

    return click.option("--stream", "streams", multiple=True, metavar="STREAM", help=text, callback=split)


def speed_option(original: str) -> Callable[[Command], Command]:
    """Return the ``--speed`` option of a replay."""
    return click.option(
        "--speed",
        type=click.FloatRange(0),
        default=0.0,
        help=f"The speed as a multiple of the {original} speed; 0 is as fast as possible.",
    )
