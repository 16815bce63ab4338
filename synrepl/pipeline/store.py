"""Storage of archives and snapshots: a local directory, or any file system that pyarrow supports.

Writes are atomic. A local file is synced and then renamed. Object stores (``s3://``, ``gs://``, ``abfs://``)
publish whole objects only. On ``hdfs://`` a file is renamed when complete.
"""

import hashlib
import os
import re
import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from synrepl.errors import ConfigError
from synrepl.wire.text import printable

T = TypeVar("T")

MAX_READS: Final = 20
"""How often a file is read that is another one each time, and none that can be decoded."""

OPTIONS: Final = {"endpoint_override": "aws_endpoint_url", "region": "aws_region", "scheme": "aws_allow_http"}
"""Parameters of an ``s3://`` URI for pyarrow, and the names of the same options in delta-rs."""


MISTAKEN: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f\ud800-\udfff\\]")
"""What delta-rs takes for something else in the path of a table, or refuses. It decodes a path once more when
it reads, so that it would write into one folder and read another."""

BLOCK: Final = 1 << 20
"""Bytes that are copied at once."""

_name: Final = re.compile(r"[\w.~%=/-]*", re.ASCII)
"""The characters of names: folders are percent-encoded. Spark would expand others, such as ``*``."""


class BadArchive(ConfigError):
    """An archive, a snapshot or a table cannot be read or updated, or is not the expected one."""


class NotFound(ConfigError):
    """A required file does not exist."""


class Store:
    """The files under a path or URI. Picklable: the driver sends a store to executors.

    Names are relative, with slashes. Methods raise `ConfigError` if pyarrow cannot open the location,
    `BadArchive` for a name or a symbolic link that leaves it, and OSError if pyarrow cannot read or write a
    file.
    """

    def __init__(self, location: str) -> None:
        path = Path(location)
        # The folder that the system means by .., also behind a symbolic link; delta-rs goes by the text.
        path = path.resolve() if ".." in path.parts else path.absolute()
        self.location = location if "://" in location else str(path)
        self._fs: Any = None
        self._root = ""

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location, "_fs": None, "_root": ""}

    def __str__(self) -> str:
        return self.location

    @property
    def is_local(self) -> bool:
        """Whether the store is a local directory."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    @property
    def filesystem(self) -> Any:
        """The pyarrow file system."""
        if self._fs is None:
            try:
                self._fs, self._root = fs.FileSystem.from_uri(self.location)
            except (ValueError, NotImplementedError) as error:
                raise ConfigError(
                    f"{printable(self.location)} is not a path or URI of a file system: {error}"
                ) from error
            except OSError as error:
                raise ConfigError(f"{self.location} cannot be reached: {error}") from error
        return self._fs

    def check_table_path(self, refused: re.Pattern[str] = MISTAKEN) -> None:
        """Raise `ConfigError` if delta-rs cannot have a table here, or would read another folder."""
        if found := refused.search(self.path()):  # of a URI the decoded path
            raise ConfigError(
                f"{printable(self.location)} cannot be the folder of a Delta table: delta-rs would take"
                f" {found[0]!r} for something else; choose a path without it"
            )

    @property
    def table_uri(self) -> str:
        """The location for delta-rs. Raises `ConfigError` as `check_table_path` does."""
        self.check_table_path()
        return self.path() if self.is_local else self.location.partition("?")[0]

    @property
    def options(self) -> dict[str, str]:
        """The options of the URI for delta-rs, which reads others from the environment, as pyarrow does."""
        given = dict(parse_qsl(urlsplit(self.location).query))
        options = {OPTIONS[name]: value for name, value in given.items() if name in OPTIONS}
        if "aws_allow_http" in options:
            is_plain = options["aws_allow_http"] == "http"
            options["aws_allow_http"] = str(is_plain).lower()
            if "aws_endpoint_url" in options and "://" not in options["aws_endpoint_url"]:
                options["aws_endpoint_url"] = f"{given['scheme']}://{options['aws_endpoint_url']}"
        return options

    def check_name(self, name: str) -> None:
        """Raise `BadArchive` unless a file of this name is in the store.

        Names come from logs and manifests that others may have written.
        """
        plain = name
        while (decoded := unquote(plain)) != plain:
            plain = decoded
        if not _name.fullmatch(name) or plain.startswith("/") or ".." in plain.split("/"):
            raise BadArchive(f"{self.location} names a file outside of it, which is not read: {name[:200]!r}")

    def create(self) -> None:
        """Create the directory of a local store, durably; other stores need none."""
        if self.is_local:
            _make_folder(Path(self.path()))

    def path(self, name: str = "") -> str:
        """Return the path of a file for `filesystem`. Raises `BadArchive` if it is outside of the store."""
        self.check_name(name)
        root = self.filesystem and self._root
        if not name:
            return root
        path = f"{root}/{name}"
        if self.is_local and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
            raise BadArchive(
                f"{self.location}: a symbolic link leads outside of it, which is not followed: {name[:200]!r}"
            )
        return path

    def check_no_links(self) -> None:
        """Raise `BadArchive` if a folder of a local store is a symbolic link.

        To remove its files would remove those of another folder.
        """
        if self.is_local:
            for folder, names, _ in os.walk(self.path()):
                for one in names:
                    if (path := Path(folder, one)).is_symlink():
                        raise BadArchive(f"{path} is a symbolic link, behind which no files are removed")

    def uri(self, name: str) -> str:
        """Return the URI of a file for Spark and DuckDB. Raises `BadArchive` as `path` does."""
        self.check_name(name)
        return self.path(name) if self.is_local else f"{self.location.partition('?')[0].rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        """Whether a file of this name exists."""
        return bool(self.filesystem.get_file_info(self.path(name)).type == fs.FileType.File)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; none if the folder does not exist."""
        selector = fs.FileSelector(self.path(folder), allow_not_found=True)
        return sorted(info.base_name for info in self.filesystem.get_file_info(selector))

    def size(self, name: str) -> int:
        """Return the size of a file in bytes. Raises `NotFound`."""
        with self.open(name) as source:
            return int(source.size())

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises `NotFound`."""
        with self.open(name) as source:
            return bytes(source.read())

    def decode(self, name: str, decoded: Callable[[bytes], T]) -> T:
        """Return what `decoded` makes of a file that another job may replace meanwhile.

        An object store gives a file in several answers, of which one may be of the content before and the
        next of that after: what cannot be decoded is read again, until it is the same twice. Raises
        `NotFound`, and the ValueError of `decoded`.
        """
        before = None
        for _ in range(MAX_READS):
            data = self.read(name)
            if data == before:
                break
            before = data
            with suppress(ValueError):
                return decoded(data)
        return decoded(data)

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of a file. Raises `NotFound`."""
        with self.open(name) as source:
            return hashlib.file_digest(source, "sha256").hexdigest()

    def open(self, name: str) -> Any:
        """Open a file for sequential or random reads. Raises `NotFound`."""
        try:
            return self.filesystem.open_input_file(self.path(name))
        except FileNotFoundError as error:
            raise NotFound(f"{self.location}: there is no {name}") from error

    def open_verified(self, name: str, sha256: str, hint: str) -> Any:
        """Open a file as `open` does. Raises `BadArchive` with this hint if it has another SHA-256.

        It is read from the disk or the network once: a local file stays open, and what was hashed is in
        memory; others are copied to a temporary file.
        """
        with ExitStack() as stack:
            source = stack.enter_context(self.open(name))
            if self.is_local:
                found = hashlib.file_digest(source, "sha256").hexdigest()
                source.seek(0)
            else:
                source, found = _copied(source)
                stack.enter_context(source)
            if found != sha256:
                raise BadArchive(f"{self}: {name} is damaged: its SHA-256 is {found}, not {sha256}; {hint}")
            stack.pop_all()
        return source

    def write(self, name: str, data: Any) -> None:
        """Write a file atomically, from bytes or an Arrow buffer."""
        path = self.path(name)
        if not self.is_local:
            whole = f"{path}.{uuid.uuid4().hex[:8]}" if self.location.startswith("hdfs:") else path
            with self.filesystem.open_output_stream(whole) as stream:
                stream.write(data)
            if whole != path:
                self.filesystem.move(whole, path)
            return
        named = Path(path)
        _make_folder(named.parent)
        unnamed = named.with_name(f".{named.name}.{uuid.uuid4().hex[:8]}")
        try:
            with unnamed.open("xb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
            unnamed.replace(named)
        finally:
            unnamed.unlink(missing_ok=True)
        self.sync(str(Path(name).parent))

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(name))

    def remove_folder(self, name: str) -> None:
        """Remove a folder and its content if it exists."""
        with suppress(FileNotFoundError):
            self.filesystem.delete_dir(self.path(name))

    def sync(self, name: str = "") -> None:
        """Sync a file of a local store, and the folders above it, so that they survive a power failure."""
        if not self.is_local:
            return
        for part in (name, *map(str, Path(name).parents)):
            handle = os.open(self.path(part), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _copied(source: Any) -> tuple[Any, str]:
    """Return a temporary copy of an open file, and its SHA-256."""
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile() as copy:
        while data := source.read(BLOCK):
            digest.update(data)
            copy.write(data)
        copy.flush()
        return pa.OSFile(copy.name), digest.hexdigest()


def _make_folder(folder: Path) -> None:
    """Create a folder, and those above it that are missing, each with a durable name."""
    if folder.is_dir():
        return
    if not folder.parent.exists():
        _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    handle = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
