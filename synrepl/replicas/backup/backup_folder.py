"""The folder of a backup: who it is, its parts and its files.

::

    DIR/backup.json     who the backup is: its uuid and name as a reader, the history and the homeserver
    DIR/parts/1.part    the recorded conversation (`part_codec.py`), in parts of some 64 MiB
    DIR/files/...       files by their SHA-256
    DIR/missing/...     empty: the SHA-256 of files that facts name, and that could not be fetched yet
    DIR/lock            held while something writes to the folder
"""

import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from synrepl.base.history import BACKUP_PREFIX
from synrepl.errors import StorageError
from synrepl.replicas.backup.part_codec import FORMAT
from synrepl.storage.lock import FileLock
from synrepl.storage.private_files import (
    create_private,
    make_directory,
    map_path_errors,
    replace_private,
    sync_directory,
)

IDENTITY: Final = "backup.json"
PARTS: Final = "parts"
FILES: Final = "files"
MISSING: Final = "missing"
NEW_MISSING: Final = ".missing.new"
LOCK: Final = "lock"

_part: Final = re.compile(r"([1-9][0-9]{0,17})\.part", re.ASCII)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a backup is. `uuid` and `name` are its own as a reader; `history` is empty until it is known.

    Where the last run ended: in the part with the number `part`, at its offset `upto`. As long as one runs,
    and after it was killed, both are 0. `check` is the SHA-256 of the other fields.
    """

    format: int = FORMAT
    uuid: str
    name: str
    history: str = ""
    server_name: str = ""
    part: int = 0
    upto: int = 0
    check: str = ""

    def checked(self) -> "Identity":
        """Return it with the right `check`."""
        fields = [getattr(self, name) for name in self.__struct_fields__ if name != "check"]
        return msgspec.structs.replace(self, check=sha256(msgspec.json.encode(fields)).hexdigest())


class BackupFolder:
    """The folder at `path`. All of it is blocking."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity: Identity
        self._lock = FileLock(path / LOCK)

    @property
    def parts_path(self) -> Path:
        """The folder of the parts."""
        return self.path / PARTS

    @property
    def files_path(self) -> Path:
        """The folder of the files."""
        return self.path / FILES

    @property
    def missing_path(self) -> Path:
        """The folder of the names of missing files."""
        return self.path / MISSING

    def part_path(self, number: int) -> Path:
        """The path of the part with this number."""
        return self.parts_path / f"{number}.part"

    def file_path(self, checksum: str) -> Path:
        """The path of the file with this checksum."""
        return self.files_path / checksum

    def open_to_write(self, default_name: str, name: str | None = None) -> None:
        """Lock the folder, and read who it is; an empty or missing folder becomes a new backup.

        `name` renames it. Raises `StorageError`: another process writes there, or it is something else.
        """
        with map_path_errors("open", self.path, "choose another folder"):
            make_directory(self.path)
            is_ours = (self.path / IDENTITY).exists()
            ours = {LOCK, PARTS, FILES, MISSING, NEW_MISSING, f".{IDENTITY}.new"}
            found = {one.name for one in self.path.iterdir()} - ours
            if not is_ours and (found or any(self.part_numbers())):
                raise StorageError(
                    op="open",
                    why=f"{self.path} is not empty, and no backup: it has no {IDENTITY}",
                    hint="choose an empty folder",
                )
            self.path.chmod(0o700)
        self._lock.acquire()
        try:
            with map_path_errors("open", self.path):
                for one in (self.parts_path, self.files_path):
                    make_directory(one)
            if is_ours:
                known = self.read_identity()
                if name is None or name == known.name:
                    self.identity = known
                else:
                    self.save_identity(msgspec.structs.replace(known, name=name))
            else:
                uuid = str(uuid4())
                self.save_identity(
                    Identity(uuid=f"{BACKUP_PREFIX}{uuid}", name=name or f"{default_name}-{uuid[:8]}")
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def read_identity(self) -> Identity:
        """Read who the backup is. Raises `StorageError`."""
        path = self.path / IDENTITY
        with map_path_errors("open", path, "name the folder of a backup"):
            data = path.read_bytes()
        try:
            found = msgspec.json.decode(data, type=Identity)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(path, str(error)) from error
        if found.format != FORMAT:
            why = f"{path} is of format {found.format}; this release knows {FORMAT}"
            raise StorageError(op="open", why=why, hint="use a later release")
        if found.checked() != found:
            raise _damaged(path, "its check does not match")
        return found

    def save_identity(self, identity: Identity) -> None:
        """Save who the backup is."""
        identity = identity.checked()
        path = self.path / IDENTITY
        with map_path_errors("save", path):
            replace_private(path, msgspec.json.encode(identity) + b"\n")
        self.identity = identity

    def part_numbers(self) -> list[int]:
        """The numbers of the parts, in order."""
        if not self.parts_path.is_dir():
            return []
        with map_path_errors("read", self.parts_path):
            found = (_part.fullmatch(one.name) for one in self.parts_path.iterdir())
            return sorted(int(one[1]) for one in found if one is not None)

    def remove_part(self, number: int) -> None:
        """Remove a part."""
        path = self.part_path(number)
        with map_path_errors("remove", path):
            path.unlink()
            sync_directory(self.parts_path)

    def total_bytes(self) -> int:
        """The bytes of all parts and files."""
        paths = [
            *map(self.part_path, self.part_numbers()),
            *map(self.file_path, self.stored_files()),
        ]
        with map_path_errors("read", self.path):
            return sum(path.stat().st_size for path in paths)

    def stored_files(self) -> list[str]:
        """The checksums of the files, in order."""
        return _checksums_in(self.files_path)

    def missing_files(self) -> list[str]:
        """The checksums of files that could not be fetched yet, in order."""
        return _checksums_in(self.missing_path)

    def note_missing(self, checksums: Iterable[str]) -> None:
        """Note durably that these files could not be fetched yet."""
        with map_path_errors("note a missing file", self.missing_path):
            for checksum in checksums:
                create_private(self.missing_path / checksum).close()
            sync_directory(self.missing_path)

    def begin_missing(self, checksums: Iterable[str]) -> None:
        """Begin to note missing files, with these: all of them are noted, or it has not begun."""
        fresh = self.path / NEW_MISSING
        with map_path_errors("note missing files", self.missing_path):
            make_directory(fresh)
            for checksum in checksums:
                create_private(fresh / checksum).close()
            sync_directory(fresh)
            fresh.rename(self.missing_path)
            sync_directory(self.path)

    def forget_missing(self, checksum: str) -> None:
        """Note that this file is not missing any more; a power cut may bring the note back."""
        with map_path_errors("note a missing file", self.missing_path):
            (self.missing_path / checksum).unlink(missing_ok=True)


_checksum: Final = re.compile("[0-9a-f]{64}", re.ASCII)


def is_checksum(text: str) -> bool:
    """Whether this is a SHA-256 as the names of files are."""
    return _checksum.fullmatch(text) is not None


def _checksums_in(path: Path) -> list[str]:
    if not path.is_dir():
        return []
    with map_path_errors("read", path):
        return sorted(one.name for one in path.iterdir() if is_checksum(one.name))


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        op="open",
        why=f"{path} is damaged: {why}",
        hint="the parts can be restored without it (synrepl restore); back up into a new folder",
        tried=False,
    )
