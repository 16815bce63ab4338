"""``synrepl config``: check the configuration of a daemon without starting it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from synrepl.cli.command import CliCommand, CliError, CliGroup, UsageMistake
from synrepl.cli.options import Output, output_option
from synrepl.cli.tables import table
from synrepl.errors import ConfigError, StorageError
from synrepl.rooms import rooms

if TYPE_CHECKING:
    from synrepl.config import Settings


@click.group(cls=CliGroup)
def config() -> None:
    """Check the configuration of a daemon."""


@config.command(cls=CliCommand)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--offline", is_flag=True, help="Look at the file alone, and connect to no database.")
@output_option(
    '{"listeners": [{"kind", "endpoint", "reachable", "guard"}], "hindrances": [...], "warnings": [...],'
    ' "notes": [...]}'
)
def check(file: Path, offline: bool, output: Output) -> None:
    """Check the YAML file FILE, and show where the daemon would listen, and what guards each listener.

    A PostgreSQL for the log is asked for what is in the way: a pooler, a standby, rights, time-outs. Nothing
    is changed, and no port is opened. Exit code 2: the daemon would not start with this file; 1: its database
    keeps it from that, or does not answer.
    """
    # Imported late: they load every part that has settings.
    from synrepl.config import Settings, is_loopback
    from synrepl.config.settings import key_listeners

    try:
        built = Settings.build(file=file)
    except ConfigError as error:
        raise UsageMistake(str(error)) from error
    listeners = [*(("followers", one) for one in built.listen), *key_listeners(built)]
    rows = [
        (
            kind,
            endpoint,
            "this machine" if is_loopback(endpoint) else "other machines",
            ", ".join(_guards(built, kind, endpoint)) or "none",
        )
        for kind, endpoint in listeners
    ]
    head = ("kind", "endpoint", "reachable", "guard")
    hindrances = [] if offline else _hindrances(built.database)
    result = {
        "listeners": [dict(zip(head, row, strict=True)) for row in rows],
        "hindrances": hindrances,
        "warnings": list(built.warnings),
        "notes": list(built.notes),
    }
    output.show(result, _lines(built, table(("listener", "endpoint", "reachable by", "guard"), rows)))
    if hindrances:
        raise CliError("; ".join(hindrances))


def _hindrances(url: str) -> list[str]:
    """Return the reasons a daemon could not keep its log there; an unreachable server is one."""
    from synrepl.storage.databases import engine_for  # Imported late, as above.

    try:
        database = engine_for(url).database
        return [f"{database.name}: {one}" for one in database.hindrances()]
    except StorageError as error:
        return [str(error)]


def _guards(built: "Settings", kind: str, endpoint: str) -> Iterator[str]:
    """Yield what a client of a listener must have."""
    from synrepl.config.settings import requires_certificates

    if requires_certificates(endpoint):
        yield "client certificate"
    if built.secret or built.keys:
        by = "shared secret" if built.secret else "keys"
        yield f"{by} (replicas only)" if kind == "followers" else by


def _lines(built: "Settings", listeners: Iterator[str]) -> Iterator[str]:
    yield from listeners
    name = built.server_name if built.is_named else "that of the log or the upstream"
    role = next(filter(None, (room.role_of(built) for room in rooms())), "primary")
    yield f"{role}; server name {name}; log {built.database}"
    for warning in built.warnings:
        yield click.style(f"warning: {warning}", "yellow")
    for note in built.notes:
        yield f"note: {note}"
