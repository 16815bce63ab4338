"""Storage of archives and snapshots: a local directory, or any file system that pyarrow supports.

Writes are atomic. A local file is synced and then renamed. Object stores (``s3://``, ``gs://``, ``abfs://``)
publish whole objects only. On ``hdfs://`` a file is renamed when complete.
"""

import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyarrow import fs

from synrepl.errors import ConfigError

__all__ = ["NotFound", "Store", "lock_archive"]

CHUNK: Final = 1024 * 1024


class NotFound(ConfigError):
    """A required file does not exist."""


class Store:
    """The files under a path or URI. Picklable: the driver sends a store to executors.

    Names are relative, with slashes. Raises `ConfigError` if the location cannot be reached.
    """

    def __init__(self, location: str) -> None:
        self.location = location if "://" in location else str(Path(location).absolute())
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
            except (OSError, ValueError, NotImplementedError) as error:
                raise ConfigError(f"{self.location} cannot be reached: {error}") from error
        return self._fs

    def path(self, name: str = "") -> str:
        """Return the path of a file for `filesystem`."""
        root = self.filesystem and self._root
        return f"{root}/{name}" if name else root

    def uri(self, name: str) -> str:
        """Return the URI of a file for Spark and DuckDB."""
        return self.path(name) if self.is_local else f"{self.location.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        """Whether a file of this name exists."""
        return bool(self.filesystem.get_file_info(self.path(name)).type == fs.FileType.File)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; none if the folder does not exist."""
        selector = fs.FileSelector(self.path(folder), allow_not_found=True)
        return sorted(info.base_name for info in self.filesystem.get_file_info(selector))

    def size(self, name: str) -> int:
        """Return the size of a file in bytes. Raises `NotFound`."""
        info = self.filesystem.get_file_info(self.path(name))
        if info.type != fs.FileType.File:
            raise NotFound(f"{self.location}: there is no {name}")
        return int(info.size)

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises `NotFound`."""
        try:
            with self.filesystem.open_input_stream(self.path(name)) as source:
                return bytes(source.read())
        except FileNotFoundError as error:
            raise NotFound(f"{self.location}: there is no {name}") from error

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of a file. Raises `NotFound`."""
        found = hashlib.sha256()
        try:
            with self.filesystem.open_input_stream(self.path(name)) as source:
                while chunk := source.read(CHUNK):
                    found.update(chunk)
        except FileNotFoundError as error:
            raise NotFound(f"{self.location}: there is no {name}") from error
        return found.hexdigest()

    def write(self, name: str, data: bytes, *, new: bool = False) -> None:
        """Write a file atomically. With `new`, raises FileExistsError if the file exists."""
        with self.writing(name, new=new) as sink:
            sink.write(data)

    @contextmanager
    def writing(self, name: str, *, new: bool = False) -> Iterator["Sink"]:
        """Open a file for writing, which gets its name on success only."""
        path = self.path(name)
        if not self.is_local:
            if new and self.exists(name):
                raise FileExistsError(path)
            whole = f"{path}.{uuid.uuid4().hex[:8]}" if self.location.startswith("hdfs:") else path
            with self.filesystem.open_output_stream(whole) as stream:
                yield Sink(stream)
            if whole != path:
                self.filesystem.move(whole, path)
            return
        named = Path(path)
        named.parent.mkdir(parents=True, exist_ok=True)
        unnamed = named.with_name(f".{named.name}.{uuid.uuid4().hex[:8]}")
        try:
            with unnamed.open("xb") as stream:
                yield Sink(stream)
                stream.flush()
                os.fsync(stream.fileno())
            if new:
                named.hardlink_to(unnamed)
            else:
                unnamed.replace(named)
        finally:
            unnamed.unlink(missing_ok=True)
        self.sync(str(Path(name).parent))

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        try:
            self.filesystem.delete_file(self.path(name))
        except FileNotFoundError:
            pass

    def remove_folder(self, name: str) -> None:
        """Remove a folder and its content if it exists."""
        try:
            self.filesystem.delete_dir(self.path(name))
        except FileNotFoundError:
            pass

    def sync(self, folder: str = "") -> None:
        """Sync this folder and its parents, so that the names in them survive a power failure."""
        if not self.is_local:
            return
        for part in (folder, *map(str, Path(folder).parents)):
            handle = os.open(self.path(part), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


class Sink:
    """A file open for writing, which counts and hashes its bytes."""

    def __init__(self, stream: Any) -> None:
        self.bytes = 0
        self._stream = stream
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes written so far."""
        return self._sha256.hexdigest()

    def write(self, data: Any) -> int:
        """Append bytes."""
        view = memoryview(data)
        self._stream.write(view)
        self._sha256.update(view)
        self.bytes += view.nbytes
        return view.nbytes


NAME: Final = "_lock"


@contextmanager
def lock_archive(store: Store) -> Iterator[None]:
    """Hold the lock of an archive. Raises `ConfigError` if another process holds the lock.

    A remote store cannot be locked. There the second of two jobs fails at its first manifest, whose
    number exists, and its files are not part of the archive.
    """
    if not store.is_local:
        yield
        return
    path = Path(store.path(NAME))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{store}: another job is writing this archive; wait for the job, or stop it"
            ) from None
        yield
    finally:
        os.close(handle)
