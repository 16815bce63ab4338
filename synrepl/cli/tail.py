"""``synrepl tail``: the updates of a server as JSON lines."""

import re
from pathlib import Path
from typing import Any

import click

from synrepl.cli.command import CliCommand, CliError
from synrepl.cli.options import (
    ca_option,
    dialect_option,
    duration_option,
    insecure_option,
    read_secret,
    secret_option,
    stream_option,
)
from synrepl.errors import ConfigError
from synrepl.storage.position_files import FilePositions
from synrepl.transports.endpoints import check_client
from synrepl.transports.redis.address import SCHEMES


@click.command(cls=CliCommand)
@click.argument("target")
@stream_option("Show")
@click.option(
    "--from",
    "start",
    type=click.Choice(["latest", "earliest"]),
    default="latest",
    help="The start position, unless --state has one. The earliest is the beginning of the log; of what was"
    " trimmed, the newest row of each key is left.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Save the position in this file, so that a restart continues exactly there.",
)
@dialect_option(default="current", help="The dialect: legacy, middle, current or a release.")
@click.option("--name", default="synrepl-tail", help="The instance name to send to the server.")
@click.option("--server-name", help="Fail if the server has another server_name.")
@click.option(
    "--http",
    metavar="URL",
    help="The HTTP address to fetch missing rows from, or that of each TARGET, with commas [default: the same"
    " host, port 9093]",
)
@click.option("--exit-after", type=click.IntRange(1), metavar="N", help="Stop after N facts.")
@click.option("--retry/--no-retry", default=True, help="Connect again when a connection is lost.")
@duration_option("--timeout", help="Fail after this long without a connection [default: no limit]")
@secret_option
@ca_option
@insecure_option
def tail(
    target: str,
    state: Path | None,
    name: str,
    http: str | None,
    exit_after: int | None,
    retry: bool,
    timeout: float | None,
    secret_file: Path | None,
    ca_file: Path | None,
    insecure: bool,
    **options: Any,
) -> None:
    """Follow TARGET, and print one JSON object per line.

    TARGET is host:port or a Twisted client endpoint string (the line protocol), the URL of a Redis (the
    channel of --server-name, as redis://localhost:6379), or an HTTP URL (the changelog of a synrepl daemon).
    It may be several daemons of one log, with commas, in order of preference: when one is lost, fenced or
    stopped, the command goes on at the next.

    The "type" of a line is connected, disconnected, server, position, rdata or error. SIGINT and SIGTERM end
    the command with exit code 0, and save the state. A refused or lost connection is retried, within the
    limit of --timeout. A permanent failure (another server_name, no such stream, no rights, no TLS) ends the
    command with exit code 1, as does over HTTP a daemon whose log lacks facts that were printed.
    """
    if name.split() != [name]:
        raise click.UsageError("--name must be one word")
    secret = read_secret(secret_file)
    targets = [one.strip() for one in target.split(",") if one.strip()] or [target]
    is_http = target.startswith(("http://", "https://"))
    is_redis = target.startswith(SCHEMES)
    if is_http != all(one.startswith(("http://", "https://")) for one in targets):
        raise click.UsageError("TARGETs must be of one kind: URLs, or addresses of the line protocol")
    endpoints = targets if is_http else [target] if is_redis else list(map(_endpoint, targets))
    file = FilePositions(state) if state is not None else None
    # Imported on use: the first installs the reactor, the others take most of the start time.
    from twisted.internet import reactor

    from synrepl.cli.json_lines import JsonLines
    from synrepl.cli.output import TailOptions, TailOutput, quiet
    from synrepl.cli.tail_changelog import ChangelogTail
    from synrepl.cli.tail_lines import tail_lines

    quiet()
    patience = timeout if retry else 0.0
    output = TailOutput(reactor, JsonLines(), exit_after=exit_after, patience=patience)
    urls: list[str] = [] if http is None else [one.strip() for one in http.split(",")]
    is_http_known = bool(urls)
    if not (urls or is_http or is_redis):
        found = list(map(_http, endpoints))
        urls = [url for url in found if url is not None] if None not in found else []
    if not (len(endpoints) == len(set(endpoints)) and len(urls) in (0, 1, len(endpoints))):
        raise click.UsageError("give each TARGET once, and as many --http addresses as TARGETs, or one")
    what = TailOptions(
        endpoints=endpoints,
        state=file,
        name=name,
        http=urls,
        is_http_known=is_http_known,
        secret=secret,
        secret_file=secret_file,
        ca_file=ca_file,
        insecure=insecure,
        **options,
    )
    try:
        if file is not None:
            file.open()
        if is_http:
            reader = ChangelogTail(output, what)
            output.run(reader.start, reader.stop)
        else:
            tail_lines(output, what)
    finally:
        if file is not None:
            file.close()
    if output.error:
        raise CliError(output.error)


def _endpoint(target: str) -> str:
    if found := re.fullmatch(r"\[([0-9a-fA-F:.]+)\]:(\d+)", target):
        target = f"tcp:{found[1].replace(':', chr(92) + ':')}:{found[2]}"
    elif re.fullmatch(r"[\w.-]+:\d+", target) and not re.match(r"(tcp|unix|tls|ssl):", target):
        target = f"tcp:{target}"
    try:
        check_client(target)
    except ConfigError as error:
        raise click.UsageError(f"TARGET is not host:port or a URL, so it {error}") from error
    return target


def _http(endpoint: str) -> str | None:
    """Return the default address to fetch missing rows from: the same host."""
    found = re.match(r"(tcp|tls):(?:host=)?((?:\\:|[^:=])+)", endpoint)
    if found is None:
        return None
    host = found[2].replace("\\:", ":")
    scheme = "https" if found[1] == "tls" else "http"
    return f"{scheme}://[{host}]:9093" if ":" in host else f"{scheme}://{host}:9093"
