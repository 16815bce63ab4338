"""``synrepl files``: the files of a daemon by their names."""

import hashlib
import http.client
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final
from urllib.parse import unquote

import click

from synrepl.cli.command import CliCommand, CliError, CliGroup
from synrepl.cli.options import DaemonTarget, Output, daemon_options, output_option
from synrepl.cli.progress import Advance
from synrepl.cli.tables import table
from synrepl.files.routes import GET_FILE_BY_NAME, LIST_FILES, NAME_HEADER
from synrepl.html.humanize import size
from synrepl.http_api.request_errors import RequestError
from synrepl.http_api.routes import OCTETS
from synrepl.http_client import Response
from synrepl.wire.text import printable

CHUNK: Final = 256 * 1024

READ_SECONDS: Final = 60.0
"""How long a download waits for more bytes; the daemon verifies a large file before it sends any."""


@click.group(cls=CliGroup)
def files() -> None:
    """List the names of files, and get a file by its name."""


@files.command("list", cls=CliCommand)
@click.argument("prefix", default="")
@daemon_options()
@output_option('[{"name", "sha256", "size", "serial"}]', is_table=True)
def list_files(prefix: str, daemon: DaemonTarget, output: Output) -> None:
    """List the files whose names begin with PREFIX [default: all], in the order of their names."""
    found = list(_names(daemon, prefix))
    rows = [(printable(one["name"]), size(one["size"]), one["sha256"]) for one in found]
    lines = table(("name", "size", "sha256"), rows, limit=len(rows)) if rows else ["no files"]
    output.show(found, lines)


def _names(daemon: DaemonTarget, prefix: str) -> Iterator[dict[str, Any]]:
    after = None
    while True:
        page = daemon.ask(LIST_FILES.request(prefix=prefix or None, after=after))
        yield from page["files"]
        if not page["limited"]:
            return
        after = page["files"][-1]["name"]


@files.command(cls=CliCommand)
@click.argument("name")
@daemon_options()
@click.option(
    "--to",
    "-t",
    "target",
    metavar="PATH",
    help="Where to store the file; - is standard output [default: the last part of NAME, here]",
)
@output_option('{"name", "sha256", "size", "path"}')
def get(name: str, daemon: DaemonTarget, target: str | None, output: Output) -> None:
    """Get the file to which NAME refers now, and verify its checksum.

    The file appears at PATH once it is whole; one that is there already is replaced.
    """
    path = target or _default_path(name)
    if path == "-" and output.is_json:
        raise click.UsageError("--json and --to - exclude each other: both write to standard output")
    client = daemon.connect(READ_SECONDS)
    try:
        response = client.stream(GET_FILE_BY_NAME.request(name), accept=OCTETS)
        _check_name(response, name)
        sha256 = (response.headers.get("ETag") or "").strip('"')
        with _target(path) as write:
            count = _download(response, sha256, write, name)
    except RequestError as error:
        raise CliError(f"{client.url}: {error}") from error
    except http.client.HTTPException as error:
        raise CliError(f"{client.url}: the file was cut short: {error!r}; get it again") from error
    finally:
        client.close()
    if path != "-":
        found = {"name": name, "sha256": sha256, "size": count, "path": path}
        output.show(found, [f"{printable(path)}: {size(count)}, sha256 {sha256}"])


def _default_path(name: str) -> str:
    """Return the last part of a name. Raises `click.UsageError` if nobody would expect a file of that name.

    Anybody who may write the stream chooses names: a hidden file, an option for the next command, or an
    escape sequence for the next terminal that lists the folder.
    """
    path = PurePosixPath(name).name
    if not path or path[0] in ".-" or not path.isprintable():
        raise click.UsageError(
            f"{printable(name)} gives no ordinary name of a file (it is empty, begins with . or -, or has"
            " characters that cannot be printed): say where to store it with --to"
        )
    return path


def _check_name(response: Response, name: str) -> None:
    """Raise `CliError` unless the answer is of the file of this name."""
    answered = unquote(response.headers.get(NAME_HEADER) or "")
    if answered != name:
        of = f"of the file {printable(answered)}" if answered else "of no named file"
        raise CliError(
            f"the answer is {of}, not {printable(name)}: a proxy on the way changes // and .. in paths, or"
            " the daemon is older; use the daemon's own --url. Nothing was kept"
        )


@contextmanager
def _target(path: str) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that writes to this path; the file appears once the block ends without an error."""
    if path == "-":
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
        return
    final = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{final.name}.", dir=final.parent)
    except OSError as error:
        raise CliError(f"cannot write to {final.parent}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield _written(file, final)
            os.fsync(file.fileno())
        # As a program would have created it; mkstemp lets nobody else read it.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(final)
    except OSError as error:
        raise CliError(f"cannot write {final}: {error.strerror or error}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def _written(file: BinaryIO, path: Path) -> Callable[[bytes], object]:
    def write(data: bytes) -> None:
        try:
            file.write(data)
        except OSError as error:
            raise CliError(f"cannot write {path}: {error.strerror}") from error

    return write


def _download(response: Response, sha256: str, write: Callable[[bytes], object], name: str) -> int:
    """Read the body. Raises `CliError` if it has not the checksum. Returns the number of bytes."""
    checksum = hashlib.sha256()
    with Advance(f"getting {printable(name)}", response.length, unit="bytes") as advance:
        try:
            while data := response.read(CHUNK):
                checksum.update(data)
                write(data)
                advance.step(len(data), len(data))
        except OSError as error:
            raise CliError(f"the file was cut short: {error}; get it again") from error
        if response.length:
            raise CliError("the file was cut short: the daemon closed the connection; get it again")
    if checksum.hexdigest() != sha256:
        raise CliError(f"the bytes have the checksum {checksum.hexdigest()}, not {sha256}: nothing was kept")
    return advance.done
