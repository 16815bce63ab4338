"""A follower's positions in a small file, which is replaced as a whole and never half written."""

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from synrepl.base import checked_json
from synrepl.base.interfaces import SaveablePosition
from synrepl.errors import StorageError
from synrepl.storage.lock import FileLock
from synrepl.storage.private_files import map_path_errors, replace_private

VERSION: Final = 1


class _SavedPositions(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The contents of the file: positions for the line protocol, or a position in the changelog."""

    version: int
    positions: dict[str, dict[str, int]] | None = None
    serial: int | None = None
    epoch: int | None = None
    digest: str = ""


class ChangelogPlace(msgspec.Struct, frozen=True):
    """Everything up to this serial of this epoch was received.

    `digest` is the log's there; empty if unknown.
    """

    serial: int
    epoch: int
    digest: str = ""


class FilePositions:
    """An `IPositionStore` in the file at `path`; readers of the changelog store one serial in it instead.

    A missing file is a fresh start; one with other contents, or a damaged one, is an error. The file has a
    checksum of its own, but one that release 26.11.1 or an earlier one wrote. `<path>.lock` is locked from
    `open` to `close`, so that no two followers share a file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = FileLock(Path(f"{os.fspath(path)}.lock"))

    def open(self) -> None:
        """Lock the file. Raises `StorageError` if another process has it."""
        self._lock.acquire()

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def load(self) -> SaveablePosition:
        """The last saved positions; empty without a file. Raises `StorageError` for an unusable file."""
        saved = self._read()
        if saved is None:
            return {}
        if saved.positions is None:
            raise self._invalid("it holds a position in a changelog, not positions of streams")
        return saved.positions

    def save(self, positions: SaveablePosition) -> None:
        """Save these positions durably."""
        self._write(_SavedPositions(version=VERSION, positions=positions))

    def load_place(self) -> ChangelogPlace | None:
        """The saved position in the changelog; None without a file. Raises `StorageError` for a bad file."""
        saved = self._read()
        if saved is None:
            return None
        if saved.serial is None or saved.epoch is None:
            raise self._invalid("it holds positions of streams, not a position in a changelog")
        return ChangelogPlace(saved.serial, saved.epoch, saved.digest)

    def save_place(self, position: ChangelogPlace) -> None:
        """Save this position durably."""
        self._write(_SavedPositions(version=VERSION, **msgspec.structs.asdict(position)))

    def _read(self) -> _SavedPositions | None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(op="reading positions", why=f"{self._path}: {error.strerror}") from error
        try:
            version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
            if version != VERSION:
                raise self._invalid(f"its version is {version!r}, this release supports {VERSION}")
            return checked_json.decode(data, _SavedPositions)
        except (ValueError, RecursionError) as error:
            raise self._invalid(str(error)) from error

    def _invalid(self, why: str) -> StorageError:
        return StorageError(
            op="reading positions",
            why=f"{self._path} is not a file of positions that can be used: {why}",
            hint="choose another file, or remove it to start again without positions",
        )

    def _write(self, saved: _SavedPositions) -> None:
        with map_path_errors("saving positions", self._path):
            replace_private(self._path, checked_json.encode(saved))
