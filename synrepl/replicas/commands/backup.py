"""``synrepl backup`` and ``synrepl restore``: a log, recorded in a folder, and made of one again."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from synrepl.cli.command import CliCommand, CliError, CliGroup
from synrepl.cli.options import (
    DaemonTarget,
    Output,
    ParsedType,
    daemon_options,
    output_option,
    read_secret,
)
from synrepl.cli.progress import Advance
from synrepl.errors import ConfigError, ReplicationError
from synrepl.html.humanize import at, counted, size
from synrepl.http_client import split_urls

if TYPE_CHECKING:
    from synrepl.replicas.backup.backup_run import BackupRun
    from synrepl.replicas.backup.examination import BackupContents
    from synrepl.replicas.backup.recorded_conversation import Cut
    from synrepl.transports.credentials import Credentials

PATIENCE_SECONDS: Final = 60.0

RUN: Final = "run"
"""The command that is meant if none is named."""

_folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))


class BackupGroup(CliGroup):
    """``synrepl backup DIR`` is ``synrepl backup run DIR``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name the command that is meant."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [RUN, *args]
        return super().parse_args(ctx, args)


@click.group(cls=BackupGroup)
def backup() -> None:
    """Back up the log of a daemon while it runs, and verify backups.

    `synrepl backup DIR` is short for `synrepl backup run DIR`. `synrepl restore` makes a log of a backup.
    """


@backup.command(RUN, cls=CliCommand)
@_folder
@daemon_options(retry=True)
@click.option(
    "--upstream",
    metavar="ENDPOINT",
    help="The native listener of the daemon in place of --url: a Twisted client endpoint string such as"
    " tls:host:9092.",
)
@click.option("--follow", is_flag=True, help="Go on recording what comes, until SIGINT or SIGTERM.")
@click.option(
    "--name", help="The name of the backup in the status of the daemon. [default: host and random digits]"
)
@output_option('{"serial", "epoch", "digest", "committed_ms", "copy", "files_not_asked", "missing"}')
def run(
    folder: Path, daemon: DaemonTarget, upstream: str | None, follow: bool, name: str | None, output: Output
) -> None:
    """Back up the log of a daemon into DIR, up to what it has now.

    A new DIR gets the whole log, and the next run what came since. Files that the log names are fetched too.
    What was written counts once it is on the disk. DIR may be copied away at any time.

    The daemon retains facts for a backup as for a replica, for 7 days by default, and shows it in its status.
    If it has trimmed what DIR lacks, the run records a whole copy again, behind what DIR has.

    A file that could not be fetched is told, and asked for again by each run until it is there. Exit code 1:
    the daemon could not even be asked for one.
    """
    from synrepl.wire.text import is_name

    if name is not None and not is_name(name):
        raise click.UsageError("--name must be one word")
    # Imported on use: the first installs the reactor, the others take most of the start time.
    from twisted.internet import reactor as installed

    from synrepl.cli.reactor import run_reactor
    from synrepl.replicas.backup.backup_folder import BackupFolder

    reactor: Any = installed
    targets, credentials = _targets(daemon, upstream), _credentials(daemon)
    _log(follow=follow)
    backup_folder = BackupFolder(folder)
    found: list[dict[str, Any]] = []
    with Advance(f"backing up to {folder}", None) as advance:

        async def work() -> None:
            runs = _Run(reactor, backup_folder, daemon, targets, credentials, follow=follow, advance=advance)
            try:
                await runs.run()
            finally:
                found.append(await runs.stop())

        try:
            backup_folder.open_to_write(_host(), name)
            try:
                run_reactor(reactor, work)
            finally:
                backup_folder.close()
        except click.Abort:
            if not follow:
                raise
        except ReplicationError as error:
            raise CliError(str(error)) from error
    (result,) = found
    output.show(result, _result_lines(folder, result))
    if result["files_not_asked"]:
        sys.exit(1)


def _result_lines(folder: Path, result: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{folder} has the log up to serial {result['serial']} of epoch {result['epoch']}"
        f"{_committed(result['committed_ms'])}"
    )
    missing = result["missing"]
    for checksum in list(missing)[:SHOWN]:
        yield f"the file {checksum}, which the log names, could not be fetched: {missing[checksum]}"
    if len(missing) > SHOWN:
        yield f"nor could {len(missing) - SHOWN} more"


def _committed(at_ms: int) -> str:
    return f", whose newest fact is of {at(at_ms)}" if at_ms else ""


def _host() -> str:
    import socket

    from synrepl.wire.text import is_name

    host = socket.gethostname().partition(".")[0]
    return f"backup-{host}" if is_name(host) else "backup"


def _log(*, follow: bool) -> None:
    """Log to standard error what a service should tell; a single run says all in its last line."""
    from twisted.logger import globalLogBeginner

    from synrepl.daemon.log_output import log_observer

    observer = log_observer(None, form="text", level="info" if follow else "critical")
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)


class _Run:
    """One run of a backup, with what it needs."""

    def __init__(
        self,
        reactor: Any,
        folder: Any,
        daemon: DaemonTarget,
        targets: Sequence[str],
        credentials: "Credentials",
        *,
        follow: bool,
        advance: Advance,
    ) -> None:
        from twisted.logger import Logger

        from synrepl.base.tasks import Tasks
        from synrepl.replicas.backup.backup_run import BackupRun
        from synrepl.replicas.backup.connections import BackupConnections, BackupSettings
        from synrepl.replicas.backup.file_copies import FileCopies
        from synrepl.replicas.backup.recorded_copies import RecordedCopies
        from synrepl.storage.threads import ReactorThread

        self._advance = advance
        self._tasks = Tasks(Logger(namespace="synrepl.backup"), "backup")
        self._thread = ReactorThread(reactor, "backup")
        settings = BackupSettings(upstream=tuple(targets), replica_name=folder.identity.name)
        self._connections = BackupConnections(reactor, settings, credentials)
        self._files = FileCopies(
            folder, self._thread, reactor, lambda: self._connections.files_of(self._run.replica)
        )
        self._copies = RecordedCopies(folder, self._thread, reactor, fetch_files=self._files.fetch)
        self._run = BackupRun(
            folder,
            self._copies,
            self._connections.upstreams(),
            reactor,
            settings,
            follow=follow,
            patience=None if follow else daemon.timeout or PATIENCE_SECONDS,
            retry=daemon.retry,
            on_progress=self._show,
        )

    async def run(self) -> None:
        """Run to the end."""
        await self._copies.open()
        await self._files.open()
        self._run.start()
        self._tasks.start(self._files.keep_asking(), "asking for missing files")
        await self._run.done
        await self._files.ask_again()

    async def stop(self) -> dict[str, Any]:
        """Stop, and return what the folder has."""
        files = self._files
        result = self._run.describe() | {"files_not_asked": files.not_asked, "missing": files.missing}
        self._tasks.stop()
        await self._run.stop()
        await self._connections.stop()
        await self._thread.stop()
        return result

    def _show(self, run: "BackupRun") -> None:
        progress = run.replica.freshness.progress
        if progress is not None:
            self._advance.reach(progress.done, progress.total)


def _targets(daemon: DaemonTarget, upstream: str | None) -> Sequence[str]:
    from synrepl.replicas.settings import parse_upstreams

    try:
        return parse_upstreams(upstream or split_urls(daemon.url))
    except ConfigError as error:
        raise click.UsageError(f"{'--upstream' if upstream else '--url'} {error}") from error


def _credentials(daemon: DaemonTarget) -> "Credentials":
    from synrepl.transports.credentials import Credentials

    files = None
    if daemon.ca_file is not None:
        from synrepl.transports.tls import TlsFiles  # OpenSSL is large

        files = TlsFiles(ca_file=daemon.ca_file)
    return Credentials(read_secret(daemon.secret_file), files, insecure=daemon.insecure)


@backup.command(cls=CliCommand)
@_folder
@output_option('{"serial", "epoch", "committed_ms", "written_ms", "cut_at", "damages", "copies", ...}')
def verify(folder: Path, output: Output) -> None:
    """Compare the backup in DIR with its digests: all parts, and all files.

    It may be running. Exit code 1 if something is damaged or missing, or nothing can be restored. An end that
    is cut, as that of a running or killed backup can be, is only told: all before it is valid.
    """
    found = _examine(folder)
    copies = [
        {
            "copy": one.number,
            "parts": [one.first, one.last],
            "is_whole": one.state.is_whole,
            "from_serial": one.lowest_serial,
            "serial": one.state.position.serial,
            "epoch": one.state.position.epoch,
            "digest": one.state.position.digest,
            "committed_ms": one.state.committed_ms,
            "written_ms": one.state.written_ms,
        }
        for one in found.copies
    ]
    newest = next((one for one in reversed(copies) if one["is_whole"]), None)
    result = {
        **{
            name: None if newest is None else newest[name]
            for name in ("serial", "epoch", "digest", "committed_ms", "written_ms")
        },
        "cut_at": found.cut_at,
        "damages": msgspec.to_builtins(found.damages),
        "missing_files": found.missing_files,
        "parts": found.parts,
        "files": found.files,
        "bytes": found.bytes,
        "copies": copies,
    }
    output.show(result, _verified_lines(folder, found, newest))
    if found.damages or found.missing_files or newest is None:
        sys.exit(1)


def _verified_lines(folder: Path, found: "BackupContents", newest: dict[str, Any] | None) -> Iterator[str]:
    if newest is None:
        yield f"{folder} has no complete copy of a log: nothing can be restored"
    else:
        yield (
            f"{folder} is valid up to serial {newest['serial']} of epoch {newest['epoch']}"
            f"{_committed(newest['committed_ms'])}, written {at(newest['written_ms'])}"
        )
        begins = ", ".join(f"{one.lowest_serial} to {one.state.position.serial}" for one in found.whole)
        yield f"it can be restored to any serial of {begins}"
    yield f"{counted(found.parts, 'part')} and {counted(found.files, 'file')}, {size(found.bytes)}"
    for one in found.damages:
        before = "" if one.serial is None else f"; what is before it is valid up to serial {one.serial}"
        yield f"damaged: {one.path}: {one.why}{before}"
    yield from _missing_lines(found.missing_files)
    if found.cut_at:
        yield f"the end is cut, as that of a running or killed backup can be: {found.cut_at}"


def _missing_lines(names: Sequence[str]) -> Iterator[str]:
    for name in names[:SHOWN]:
        yield f"the file of this name is missing: {name}"
    if len(names) > SHOWN:
        yield f"so are {len(names) - SHOWN} more"


SHOWN: Final = 20


def _examine(folder: Path) -> "BackupContents":
    from synrepl.replicas.backup.backup_folder import BackupFolder
    from synrepl.replicas.backup.examination import Examiner, check_identity

    opened = BackupFolder(folder)
    try:
        total = opened.total_bytes()
        with Advance(f"verifying {folder}", total, unit="bytes") as advance:
            found = Examiner(opened, lambda count: advance.step(count, count)).examine()
            check_identity(opened, found)
            return found
    except ReplicationError as error:
        raise CliError(str(error)) from error


def _parse_until(text: str) -> "Cut":
    from synrepl.replicas.backup.restored import parse_until

    return parse_until(text)


@click.command(cls=CliCommand)
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option(
    "--database",
    required=True,
    metavar="URL",
    help="The new log: sqlite:PATH or postgresql://... It must be empty, and no daemon may use it.",
)
@click.option(
    "--until",
    type=ParsedType("until", _parse_until),
    metavar="TIME|SERIAL",
    help="The last serial to restore, or the time up to which facts were committed, such as"
    " 2026-11-30T10:00:00Z. [default: all]",
)
@click.option(
    "--files",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Copy the files too, into the daemon's directory of files (by default DATABASE.files).",
)
@click.option(
    "--in-place",
    is_flag=True,
    help="Without DIR: the log in --database was put there by other means: a copy of a file, or a dump.",
)
@output_option('{"serial", "epoch", "digest", "committed_ms", "history", "server_name", "files", ...}')
def restore(
    folder: Path | None,
    database: str,
    until: "Cut | None",
    files: Path | None,
    in_place: bool,
    output: Output,
) -> None:
    """Make a log of the backup in DIR, from which a daemon can start as the primary.

    It ends with a whole append, and begins an epoch: readers that have seen more are told. Tokens that the
    daemon gives from then on are above all that it gave before, so that no follower skips a new fact.
    """
    from synrepl.storage.databases import Database

    if in_place is not (folder is None) or (in_place and (until is not None or files is not None)):
        raise click.UsageError("name the DIR of a backup; or --in-place, without --until and --files")
    Database(database)  # raises `ConfigError`, before much is read
    if folder is None:
        result = _run_restore(lambda reactor, advance: _restored().restore_in_place(reactor, database))
    else:
        found = _examine(folder)
        result = _run_restore(
            lambda reactor, advance: _restored().restore_database(
                reactor,
                folder,
                found,
                database,
                cut=until,
                on_progress=advance.reach,
            )
        )
    if folder is not None and files is not None:
        from synrepl.replicas.backup.backup_folder import BackupFolder
        from synrepl.replicas.backup.restored import restore_files

        try:
            result.files = restore_files(BackupFolder(folder), files)
        except ReplicationError as error:
            raise CliError(f"the log is restored, but not all files: {error}") from error
    upto = f"serial {result.serial}{_committed(result.committed_ms)}"
    lines = [f"restored the log up to {upto}; it goes on in epoch {result.epoch}"]
    if until is not None and until.serial not in (None, result.serial):
        lines.append(f"serial {until.serial} is within an append, which is left out as a whole")
    if files is not None:
        lines.append(f"copied {counted(result.files, 'file')} to {files}")
    lines += _missing_lines(result.missing_files)
    output.show(msgspec.to_builtins(result), lines)


def _restored() -> Any:
    from synrepl.replicas.backup import restored

    return restored


def _run_restore(work: Callable[[Any, Advance], Any]) -> Any:
    from twisted.internet import reactor as installed

    from synrepl.cli.reactor import run_reactor

    reactor: Any = installed
    _log(follow=False)
    try:
        with Advance("restoring", None) as advance:
            return run_reactor(reactor, lambda: work(reactor, advance))
    except ReplicationError as error:
        raise CliError(str(error)) from error
