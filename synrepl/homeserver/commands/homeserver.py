"""The options for the files of a live homeserver, which several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from synrepl.cli.options import with_options
from synrepl.errors import ConfigError
from synrepl.http_api.route import public_url

if TYPE_CHECKING:
    from synrepl.homeserver.configuration import Homeserver

Command = TypeVar("Command", bound=Callable[..., Any])


def files_option(what: str, *, required: bool = False) -> Callable[[Command], Command]:
    """Return ``--homeserver``; the command receives paths as `homeserver_files`. `what` begins the help."""
    return click.option(
        "--homeserver",
        "homeserver_files",
        required=required,
        multiple=True,
        metavar="PATH",
        type=click.Path(path_type=Path, exists=True),
        help=f"{what}; may be repeated, as Synapse's -c.",
    )


def homeserver_options(command: Command) -> Command:
    """Add the options for the homeserver's files; the command receives a `Homeserver` as `homeserver`.

    An option `synapse` of the command's own is the release that reads them.
    """
    options = [
        files_option("A configuration file of the homeserver, or a directory of them", required=True),
        click.option(
            "--worker",
            "workers",
            multiple=True,
            metavar="PATH",
            type=click.Path(path_type=Path, exists=True),
            help="The configuration file of a worker, or a directory of them; may be repeated.",
        ),
        click.option(
            "--metrics",
            "metrics",
            multiple=True,
            metavar="NAME=URL",
            help="Where a process shows its metrics, if the files do not say; may be repeated.",
        ),
        click.option(
            "--targets",
            "targets",
            multiple=True,
            metavar="FILE",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="Targets of Prometheus (file_sd_configs, or static ones of its configuration) whose labels"
            " name the processes; may be repeated.",
        ),
        click.option(
            "--root",
            "root",
            metavar="DIR",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            help="The folder that is / for paths in the files, as of a container.",
        ),
        click.option(
            "--map",
            "maps",
            multiple=True,
            metavar="FOLDER=DIR",
            help="Where a folder that the files name is here, as /data=/matrix/synapse; may be repeated.",
        ),
    ]

    def run(*args: Any, **rest: Any) -> Any:
        names = ("homeserver_files", "workers", "metrics", "targets", "root", "maps")
        given = {name: rest.pop(name) for name in names}
        # Who looks at files alone may have a part of them.
        takes_part = bool(rest.get("files_only"))
        homeserver = _read(**given, synapse=rest.pop("synapse", None), takes_part=takes_part)
        return command(*args, homeserver=homeserver, **rest)

    return with_options(run, command, options)


def _read(
    homeserver_files: tuple[Path, ...],
    workers: tuple[Path, ...],
    metrics: tuple[str, ...],
    targets: tuple[Path, ...],
    root: Path | None,
    maps: tuple[str, ...],
    synapse: str | None,
    *,
    takes_part: bool,
) -> "Homeserver":
    # Imported on use: it takes most of the start time.
    from synrepl.homeserver.addresses import PathMap, read_targets
    from synrepl.homeserver.configuration import read_homeserver
    from synrepl.wire.dialect import Dialect

    try:
        return read_homeserver(
            homeserver_files,
            workers,
            metrics=_metrics(metrics),
            targets=[one for path in targets for one in read_targets(path)],
            path_map=PathMap(root, tuple(map(_map, maps))),
            release=None if synapse is None else Dialect.parse(synapse).release,
            takes_part=takes_part,
        )
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def _map(given: str) -> tuple[str, str]:
    folder, equals, here = given.partition("=")
    if not (equals and folder.startswith("/") and here):
        raise ConfigError(f"--map must be /FOLDER=DIR, not {given}")
    return folder, here


def _metrics(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, url = one.partition("=")
        if not (name and equals and url.startswith(("http://", "https://"))):
            raise ConfigError(f"--metrics must be NAME=URL, not {public_url(one)}")
        found[name] = url
    return found
