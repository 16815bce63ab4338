"""Where archives and snapshots are kept: a folder of this machine, or of anything that pyarrow reaches.

In a folder of this machine whatever is written is synced, and has its name only when it is whole. Stores of
objects (``s3://``, ``gs://``, ``abfs://``) give a name to whole objects alone; on ``hdfs://`` it is renamed.
"""

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyarrow import fs

from synrepl.errors import ConfigError

__all__ = ["NotFound", "Store"]

CHUNK: Final = 1024 * 1024


class NotFound(ConfigError):
    """Something that is needed is not there."""


class Store:
    """The files under one place: a path, or an URI. A value: executors are sent it.

    Names are relative, parted by slashes. Raises `ConfigError` for a place that cannot be reached.
    """

    def __init__(self, place: str) -> None:
        self.place = place if "://" in place else str(Path(place).absolute())
        self._fs: Any = None
        self._root = ""

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "_fs": None, "_root": ""}

    def __str__(self) -> str:
        return self.place

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    @property
    def filesystem(self) -> Any:
        """What pyarrow reaches it by."""
        if self._fs is None:
            try:
                self._fs, self._root = fs.FileSystem.from_uri(self.place)
            except (OSError, ValueError, NotImplementedError) as error:
                raise ConfigError(f"{self.place} cannot be reached: {error}") from error
        return self._fs

    def path(self, name: str = "") -> str:
        """What `filesystem` knows this by."""
        root = self.filesystem and self._root
        return f"{root}/{name}" if name else root

    def uri(self, name: str) -> str:
        """What Spark and DuckDB know this by."""
        return self.path(name) if self.is_local else f"{self.place.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return bool(self.filesystem.get_file_info(self.path(name)).type == fs.FileType.File)

    def names(self, folder: str) -> list[str]:
        """The names of what is in this folder, sorted; none if there is no such folder."""
        selector = fs.FileSelector(self.path(folder), allow_not_found=True)
        return sorted(info.base_name for info in self.filesystem.get_file_info(selector))

    def size(self, name: str) -> int:
        """How many bytes it has. Raises `NotFound`."""
        info = self.filesystem.get_file_info(self.path(name))
        if info.type != fs.FileType.File:
            raise NotFound(f"{self.place}: there is no {name}")
        return int(info.size)

    def read(self, name: str) -> bytes:
        """All of it. Raises `NotFound`."""
        try:
            with self.filesystem.open_input_stream(self.path(name)) as source:
                return bytes(source.read())
        except FileNotFoundError as error:
            raise NotFound(f"{self.place}: there is no {name}") from error

    def sha256(self, name: str) -> str:
        """The checksum of its bytes. Raises `NotFound`."""
        found = hashlib.sha256()
        try:
            with self.filesystem.open_input_stream(self.path(name)) as source:
                while chunk := source.read(CHUNK):
                    found.update(chunk)
        except FileNotFoundError as error:
            raise NotFound(f"{self.place}: there is no {name}") from error
        return found.hexdigest()

    def write(self, name: str, data: bytes, *, new: bool = False) -> None:
        """Write it whole, or not at all; `new` wants that there was none. Raises FileExistsError."""
        with self.writing(name, new=new) as sink:
            sink.write(data)

    @contextmanager
    def writing(self, name: str, *, new: bool = False) -> Iterator["Sink"]:
        """What is written inside has this name afterwards, if nothing failed."""
        path = self.path(name)
        if not self.is_local:
            if new and self.exists(name):
                raise FileExistsError(path)
            whole = f"{path}.{uuid.uuid4().hex[:8]}" if self.place.startswith("hdfs:") else path
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
        """Remove this file, if there is one."""
        try:
            self.filesystem.delete_file(self.path(name))
        except FileNotFoundError:
            pass

    def remove_folder(self, name: str) -> None:
        """Remove this folder with all that is in it, if there is one."""
        try:
            self.filesystem.delete_dir(self.path(name))
        except FileNotFoundError:
            pass

    def sync(self, folder: str = "") -> None:
        """The names in this folder, and in those above it, survive a power cut from here on."""
        if not self.is_local:
            return
        for part in (folder, *map(str, Path(folder).parents)):
            handle = os.open(self.path(part), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


class Sink:
    """A file that is being written: counts and checks its bytes as they go by."""

    def __init__(self, stream: Any) -> None:
        self.bytes = 0
        self._stream = stream
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The checksum of what was written so far."""
        return self._sha256.hexdigest()

    def write(self, data: Any) -> int:
        """Write these bytes behind those before them."""
        view = memoryview(data)
        self._stream.write(view)
        self._sha256.update(view)
        self.bytes += view.nbytes
        return view.nbytes
