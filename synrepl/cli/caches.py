"""``synrepl caches``: check the caches of a worker and their invalidations."""

import contextlib
import importlib
import operator
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from synrepl.caches.lint import CacheWarning
from synrepl.caches.lint import lint as find_wrong
from synrepl.caches.registry import CacheRegistry, NameCounts
from synrepl.cli.command import CliCommand, CliError, CliGroup
from synrepl.cli.options import DaemonTarget, Output, daemon_options, dialect_option, output_option
from synrepl.cli.progress import Advance
from synrepl.cli.recordings import read_file
from synrepl.html.humanize import counted
from synrepl.http_api.request_errors import RequestError
from synrepl.http_api.routes import CHANGELOG
from synrepl.wire.dialect import Dialect

TIMEOUT_SECONDS: Final = 60.0


class _Row(msgspec.Struct, array_like=True):
    """A row of the stream `caches`; `cache_func` is the name of a cache or alias."""

    cache_func: str
    keys: list[str] | None


class _Fact(msgspec.Struct):
    serial: int
    rows: list[_Row]


@click.group(cls=CliGroup)
def caches() -> None:
    """Check the caches of a worker and their invalidations."""


@caches.command(cls=CliCommand, short_help="Find probable mistakes in the caches of a module.")
@click.argument("registry", metavar="MODULE:ATTRIBUTE")
@click.option(
    "--capture",
    "captures",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A recorded session to read in place of a daemon. May be repeated.",
)
@dialect_option(default="current", help="The release that the worker's connection speaks.")
@daemon_options()
@output_option('[{"kind", "cache", "text"}, ...]')
def lint(
    registry: str, captures: tuple[Path, ...], dialect: Dialect, daemon: DaemonTarget, output: Output
) -> None:
    """Find probable mistakes in the `CacheRegistry` named ATTRIBUTE in MODULE.

    MODULE is imported, from the current directory too. The registry is compared with the invalidations on the
    `caches` stream, read from a daemon's changelog or from recorded sessions, and with what the release of
    its connection means by them. Exit code 1: there are findings.
    """
    given = click.get_current_context().params
    if captures and given["url"]:
        raise click.UsageError("--url and --capture exclude each other: use one of them")
    found = _import_registry(registry)
    found.connected(dialect)
    seen = _SeenInvalidations(found)
    if captures:
        for path in captures:
            seen.add(_read_capture(path))
    else:
        with Advance("reading invalidations", None) as advance:
            seen.add(_read_changelog(daemon, advance))
    findings = find_wrong(found, seen.names, seen.lengths)
    output.show(msgspec.to_builtins(findings), _lines(found, seen, findings))
    if findings:
        sys.exit(1)


class _SeenInvalidations:
    """The names in the read invalidations, and the lengths of their keys. No cache is invalidated."""

    def __init__(self, registry: CacheRegistry) -> None:
        self.names = NameCounts()
        self.lengths: dict[str, set[int]] = {}
        self._registry = registry

    def add(self, rows: Iterable[_Row]) -> None:
        for row in rows:
            name, keys = row.cache_func, row.keys
            self.names.add(name)
            if keys is not None and name in self.names:
                self.lengths.setdefault(name, set()).add(len(keys))
            try:
                for _ in self._registry.vintage.expand(name, keys):
                    pass
            except ValueError:
                self._registry.misshapen.add(name)


def _import_registry(name: str) -> CacheRegistry:
    """Import the registry. Output of the module goes to standard error."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise click.UsageError(f"{name!r} is not MODULE:ATTRIBUTE, such as my_worker.caches:registry")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = operator.attrgetter(attribute)(importlib.import_module(module))
    except (Exception, SystemExit) as error:  # an import runs any code
        why = " ".join(str(error).split())
        raise click.UsageError(f"cannot import {name}: {type(error).__name__}: {why}") from error
    if not isinstance(found, CacheRegistry):
        raise click.UsageError(f"{name} is of type {type(found).__name__}, not CacheRegistry")
    return found


def _read_capture(path: Path) -> Iterator[_Row]:
    for fact in read_file(path).facts:
        if fact.stream == "caches":
            yield from (msgspec.json.decode(text, type=_Row) for text in fact.rows)


def _read_changelog(daemon: DaemonTarget, advance: Advance) -> Iterator[_Row]:
    try:
        head, lines = daemon.connect(TIMEOUT_SECONDS).lines(CHANGELOG.request(streams=["caches"]))
        advance.total = int(head.get("Synrepl-Serial", 0))
        before = 0
        for line in lines:
            fact = msgspec.json.decode(line, type=_Fact)
            advance.step(fact.serial - before, 1)
            before = fact.serial
            yield from fact.rows
    except RequestError as error:
        raise CliError(f"{daemon.url}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise CliError(f"{daemon.url} does not respond as a synrepl daemon; check --url") from error


def _lines(registry: CacheRegistry, seen: _SeenInvalidations, findings: list[CacheWarning]) -> Iterator[str]:
    summary = [
        counted(len(registry.caches), "cache"),
        f"{counted(sum(seen.names.values()), 'invalidation')} of {counted(len(seen.names), 'name')} seen",
        f"interpreted as {registry.vintage.name}",
    ]
    yield ", ".join(summary)
    yield from (f"{finding.kind}: {finding.text}" for finding in findings)
    if not findings:
        yield click.style("no findings", "green")
