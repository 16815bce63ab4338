"""``synrepl serve``: the daemon in the foreground."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from synrepl.cli.command import CliCommand, Option
from synrepl.config import Settings, settings
from synrepl.errors import ConfigError

START_SECONDS: Final = 2.0
"""Log lines of the start are held back for at most this long."""


def _options() -> Iterator[click.Parameter]:
    yield Option(
        ["--config"],
        type=click.Path(path_type=Path, dir_okay=False),
        group="Configuration file",
        help="A YAML file with settings, named like the options with _ in place of -. Options override it.",
    )
    log = "Log of the process"
    yield Option(
        ["--log-file"],
        type=click.Path(path_type=Path, dir_okay=False),
        group=log,
        help="Log to this file. SIGHUP reopens it. [default: standard error]",
    )
    yield Option(
        ["--log-format"],
        type=click.Choice(["text", "json"]),
        default="text",
        group=log,
        help="Log lines of text, or JSON objects, one a line.",
    )
    yield Option(
        ["--log-level"],
        type=click.Choice(["debug", "info", "warn", "error", "critical"]),
        default="info",
        group=log,
        help="Log messages of this level and above.",
    )
    for one in settings():
        if one.kind == "switch":
            yield Option([f"--{one.flag}"], is_flag=True, group=one.group, help=one.help)
        elif one.kind != "file":
            text = f"{one.help} [default: {one.default_text}]"
            # A repeated option is an error of usage. Click would take the last one.
            yield Option([f"--{one.flag}"], multiple=True, metavar=one.metavar, group=one.group, help=text)


def read_flags(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings given as options. Raises `click.UsageError` if one is wrongly repeated."""
    flags: dict[str, Any] = {}
    for one in settings():
        match given.get(one.name):
            case None | False | ():
                continue
            case tuple() as values if one.kind != "list":
                if len(values) > 1:
                    raise click.UsageError(f"--{one.flag} is given twice; remove one of the two")
                flags[one.name] = values[0]
            case tuple() as values:
                flags[one.name] = list(values)
            case _:
                flags[one.name] = True
    return flags


@click.command(cls=CliCommand, params=[*_options()])
def serve(config: Path | None, log_file: Path | None, log_format: str, log_level: str, **given: Any) -> None:
    """Run the daemon in the foreground, until SIGTERM or SIGINT.

    The options are the settings, and where to log. It is the same daemon as ``twistd synrepl``. SIGHUP
    reloads secrets, keys and certificates. Exit code 2: the settings are wrong, or a port or the database
    cannot be used.
    """
    flags = read_flags(given)
    read = partial(Settings.build, flags, file=config.absolute() if config is not None else None)
    try:
        built = read()
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    # Imported late: importing the reactor installs it, and the daemon loads most of the package.
    from twisted.internet import reactor as installed
    from twisted.logger import globalLogBeginner

    from synrepl.daemon.log_output import log_observer
    from synrepl.daemon.process import prepare_process
    from synrepl.daemon.service import Daemon

    try:
        observer = log_observer(log_file, form=log_format, level=log_level)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    reactor: Any = installed
    is_logging = False

    def begin_logging(_: object = None) -> None:
        nonlocal is_logging
        if not is_logging:
            is_logging = True
            globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)

    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if not is_stopping:  # a part that cannot start fails, and then the daemon does
            is_stopping = True
            reactor.stop()

    def failed() -> None:
        reactor.callWhenRunning(stop)

    daemon = Daemon(built, reactor, on_failure=failed, needs_name=True)
    prepare_process(daemon, reactor, read)
    # Earlier events are buffered until the log begins. So a wrong setting is reported in one line only.
    daemon.ready.addCallback(begin_logging)
    showing = reactor.callLater(START_SECONDS, begin_logging)
    reactor.callWhenRunning(daemon.startService)
    reactor.addSystemEventTrigger("before", "shutdown", daemon.stopService)
    reactor.run()
    if showing.active():
        showing.cancel()
    if daemon.failure:
        # Twisted has written critical events to standard error, with or without a log.
        if not daemon.is_misconfigured:
            begin_logging()
        sys.exit(2 if daemon.is_misconfigured else 1)
