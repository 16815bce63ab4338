"""``synrepl status``, ``top`` and ``who``: a daemon, and those that follow it."""

import json
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from synrepl.cli.command import CliCommand
from synrepl.cli.options import DaemonTarget, Output, daemon_options, duration_option, output_option
from synrepl.cli.tables import followers_table, status_lines
from synrepl.declarations import status_request
from synrepl.http_api.request_errors import RequestError

interval_option = duration_option("--interval", default="1s", help="The time between refreshes.")


@click.command(cls=CliCommand)
@daemon_options()
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C; with --json print a line each time.")
@interval_option
@output_option("Print the response of the daemon as JSON.", is_table=True)
def status(daemon: DaemonTarget, watch: bool, interval: float, output: Output) -> None:
    """Show the status of a daemon: problems first, then role, position and followers.

    A replica that joins or catches up shows its progress and the remaining time.
    """
    if watch:
        _watch(daemon, interval, output, _show_whole)
        return
    found = daemon.ask_status()
    output.show(found, status_lines(found, time.time(), is_wide=output.is_wide))


@click.command(cls=CliCommand)
@daemon_options()
@interval_option
def top(daemon: DaemonTarget, interval: float) -> None:
    """Watch a daemon on one screen, until Ctrl-C: status -o wide, cut to the size of the terminal."""
    if not sys.stdout.isatty():
        raise click.UsageError("top needs a terminal; use synrepl status --watch")
    click.echo("\x1b[?1049h", nl=False)  # the alternate screen
    try:
        _watch(daemon, interval, Output("wide"), _show_screen)
    finally:
        click.echo("\x1b[?1049l", nl=False)


@click.command(cls=CliCommand)
@daemon_options()
@output_option('The list "followers" of /v1/status as JSON.', is_table=True)
def who(daemon: DaemonTarget, output: Output) -> None:
    """Show the followers of a daemon, the furthest behind first: their names, dialects and lags.

    A follower announces its name. The daemon detects the dialect, unless it is configured.
    """
    found = daemon.ask_status().get("followers") or []
    output.show(found, followers_table(found, is_wide=output.is_wide))


def _watch(daemon: DaemonTarget, interval: float, output: Output, show: Callable[[list[str]], None]) -> None:
    """Show the status again and again. If the daemon does not respond, show the error and try again."""
    client = daemon.connect()
    try:
        while True:
            found: Any
            try:
                found = client.json(status_request())
                lines = list(status_lines(found, time.time(), is_wide=output.is_wide))
            except RequestError as error:
                found = {"error": str(error)}
                lines = [click.style(f"{daemon.url}: {error}", "red", bold=True)]
            if output.is_json:
                click.echo(json.dumps(found))
            else:
                show(lines)
            time.sleep(max(interval, 0.1))
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(0)


def _show_whole(lines: list[str]) -> None:
    """Show all lines: on a terminal in place of the former ones, elsewhere below them."""
    if sys.stdout.isatty():
        click.clear()
    click.echo("\n".join(lines))


def _show_screen(lines: list[str]) -> None:
    """Show what fits on the screen, without a flicker."""
    width, height = shutil.get_terminal_size()
    shown = (
        lines if len(lines) < height else [*lines[: height - 2], f"... {len(lines) - height + 2} more lines"]
    )
    ends = "\x1b[0m\x1b[K\n"
    click.echo("\x1b[H" + ends.join(_cut(line, width) for line in shown) + ends + "\x1b[J", nl=False)


def _cut(line: str, width: int) -> str:
    """Cut a line that is too wide for the screen, and remove its style."""
    plain = click.unstyle(line)
    return line if len(plain) <= width else plain[: width - 1] + "…"
