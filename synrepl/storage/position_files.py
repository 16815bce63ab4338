"""A follower's place, kept in a small file that is replaced whole: it is never half written."""

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.interfaces import SaveablePosition
from synrepl.storage.lock import FileLock
from synrepl.storage.private_files import replace_private

__all__ = ["ChangelogPlace", "FilePositions"]

VERSION: Final = 1


class _Kept(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is in the file: positions for the line protocol, or a place in the changelog."""

    version: int
    positions: dict[str, dict[str, int]] | None = None
    serial: int | None = None
    epoch: int | None = None


class ChangelogPlace(msgspec.Struct, frozen=True):
    """Everything up to this serial of this epoch was had."""

    serial: int
    epoch: int


class FilePositions:
    """An `IPositionStore` over the file at `path`; for readers of the changelog it keeps one serial instead.

    A missing file is a fresh start; one that holds anything else than what was saved is an error.
    `<path>.lock` is held from `open` to `close`, so that no two followers share a file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = FileLock(Path(f"{os.fspath(path)}.lock"))

    def open(self) -> None:
        """Take the file for this process. Raises `StorageError` if another one has it."""
        self._lock.acquire()

    def close(self) -> None:
        """Let others have it."""
        self._lock.release()

    def load(self) -> SaveablePosition:
        """The positions saved last; none if there is no file."""
        kept = self._read()
        if kept is None:
            return {}
        if kept.positions is None:
            raise self._unfit("it holds a place in a changelog, not positions of streams")
        return kept.positions

    def save(self, positions: SaveablePosition) -> None:
        """Keep these positions, through a power cut."""
        self._write(_Kept(version=VERSION, positions=positions))

    def load_place(self) -> ChangelogPlace | None:
        """The place in the changelog saved last; None if there is no file."""
        kept = self._read()
        if kept is None:
            return None
        if kept.serial is None or kept.epoch is None:
            raise self._unfit("it holds positions of streams, not a place in a changelog")
        return ChangelogPlace(kept.serial, kept.epoch)

    def save_place(self, position: ChangelogPlace) -> None:
        """Keep this place, through a power cut."""
        self._write(_Kept(version=VERSION, serial=position.serial, epoch=position.epoch))

    def _read(self) -> _Kept | None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(op="reading positions", why=f"{self._path}: {error.strerror}") from error
        try:
            version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
            if version != VERSION:
                raise self._unfit(f"its version is {version!r}, this program knows {VERSION}")
            return msgspec.json.decode(data, type=_Kept)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._unfit(str(error)) from error

    def _unfit(self, why: str) -> StorageError:
        return StorageError(
            op="reading positions",
            why=f"{self._path} is not what was saved there: {why}",
            hint="name another file, or remove it to start anew",
        )

    def _write(self, kept: _Kept) -> None:
        try:
            replace_private(self._path, msgspec.json.encode(kept) + b"\n")
        except OSError as error:
            raise StorageError(
                op="saving positions", why=f"{self._path}: {error.strerror}", retryable=True
            ) from error
