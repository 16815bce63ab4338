"""Examination: what a backup has, by the digests of all its parts and files."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from synrepl.errors import StorageError
from synrepl.replicas.backup.backup_folder import IDENTITY, BackupFolder
from synrepl.replicas.backup.part_codec import CopyState, Damage, PartHead, PartScan
from synrepl.replicas.backup.referred_files import ReferredFiles
from synrepl.storage.private_files import map_path_errors

BLOCK: Final = 1024 * 1024


class RecordedCopy(msgspec.Struct, kw_only=True):
    """One copy in a backup, up to the last mark before any damage.

    It is in the parts from `first` to `last`; in the last one it ends at the offset `upto`. `state` is the
    state there.
    """

    number: int
    first: int
    last: int
    upto: int
    state: CopyState

    @property
    def is_dense(self) -> bool:
        """Whether no fact is missing from serial 1 on, so that it can be restored to before its snapshot."""
        return self.state.begin is not None and not self.state.trimmed_upto.serial

    @property
    def lowest_serial(self) -> int:
        """The lowest serial to which it can be restored."""
        return 0 if self.is_dense or self.state.begin is None else self.state.begin.serial


class FoundDamage(msgspec.Struct, frozen=True):
    """Where a backup is damaged: a file in it, what is wrong, and how far the copy is valid before it."""

    path: str
    why: str
    serial: int | None = None


class BackupContents(msgspec.Struct, kw_only=True):
    """What a backup has. `cut_at` is where the last part is incomplete, as that of a running backup is.

    `beyond` are the states of readable parts behind damage: nothing is restored from them, but what they know
    was given to somebody. `missing_files` are named at the end of the last whole copy, and are not there;
    `missing_checksums` are theirs. `stored` are the checksums of the files that are there, and have these.
    """

    copies: list[RecordedCopy] = []
    damages: list[FoundDamage] = []
    beyond: list[CopyState] = []
    parts: int = 0
    bytes: int = 0
    files: int = 0
    missing_files: list[str] = []
    missing_checksums: list[str] = []
    stored: frozenset[str] = frozenset()
    cut_at: str = ""

    @property
    def whole(self) -> list[RecordedCopy]:
        """The copies that are complete, the oldest first."""
        return [one for one in self.copies if one.state.is_whole]


class Examiner:
    """Examines a backup. `on_bytes` is called with the number of bytes that were read."""

    def __init__(self, folder: BackupFolder, on_bytes: Callable[[int], object] = lambda count: None) -> None:
        self._folder = folder
        self._on_bytes = on_bytes
        self._found = BackupContents()
        self._ends: dict[int, int] = {}
        """Where the last mark of each part ends."""
        self._names: dict[int, ReferredFiles] = {}
        """The names of files in each copy."""

    def examine(self, *, with_files: bool = True) -> BackupContents:
        """Read all parts and, `with_files`, all files. Raises `StorageError` if something cannot be read."""
        # First: a backup that runs goes on behind it.
        ended = self._ended()
        numbers = self._folder.part_numbers()
        self._found.parts = len(numbers)
        digest: str | None = None
        for before, number in zip([None, *numbers], numbers, strict=False):
            if before is not None and number != before + 1:
                self._damaged(self._folder.part_path(before + 1), "it is missing")
                digest = None
            digest = self._read_part(number, digest, is_last=number == numbers[-1])
        self._check_end(*ended)
        self._check_files(with_hashes=with_files)
        return self._found

    def _ended(self) -> tuple[int, int]:
        """Where the last run ended: a part, and an offset; 0 if the folder does not say."""
        try:
            identity = self._folder.read_identity()
        except StorageError:
            return 0, 0  # `check_identity` tells it
        return identity.part, identity.upto

    def _check_end(self, number: int, upto: int) -> None:
        path = self._folder.part_path(number)
        there = self._ends.get(number, 0)
        if there < upto and str(path) not in {one.path for one in self._found.damages}:
            self._found.cut_at = ""
            self._damaged(path, f"it is valid up to byte {there}, and the last run ended at byte {upto}")

    def _read_part(self, number: int, before: str | None, *, is_last: bool) -> str | None:
        """Read a part. `before` is the digest of the part before it; None if there is none, or it is damaged.

        Returns the digest of this one; None if it is damaged.
        """
        found, path = self._found, self._folder.part_path(number)
        names: ReferredFiles | None = None
        unmarked: list[bytes] = []
        why = ""
        with map_path_errors("read", path), path.open("rb") as file:
            reader = PartScan(file)
            try:
                for kind, data in reader.blocks():
                    if kind == "mark":
                        names = names or self._names_of(number, reader.head, before)
                        for block in unmarked:
                            names.take_block(block)
                        unmarked = []
                    elif kind == "facts":
                        unmarked.append(data)
            except Damage as error:
                why = f"at byte {error.offset}: {error.why}"
            size = file.seek(0, 2)
        found.bytes += size
        self._on_bytes(size)
        self._ends[number] = reader.upto
        head = reader.head
        if head is None or reader.state is None:
            if not why and is_last:
                found.cut_at = f"{path}, at its beginning"
            else:
                self._damaged(path, why or "it has no mark")
            return None
        if head.number != number:
            self._damaged(path, f"it is part {head.number}")
            return None
        begins_copy = head.state == CopyState()
        if before is not None and head.before != before:
            self._damaged(path, "it does not follow from the part before it")
            before = None
        if before is None and not begins_copy:
            if not found.damages:
                self._damaged(path, "the parts before it are missing")
            # Told already: it continues what is damaged.
            found.beyond.append(reader.state)
            return None
        self._take_copy(number, reader)
        if not why and reader.is_cut:
            if is_last:
                found.cut_at = f"{path}, behind byte {reader.upto}"
            else:
                why = f"it is cut behind byte {reader.upto}"
        if why:
            self._damaged(path, why)
            return None
        return reader.digest

    def _take_copy(self, number: int, reader: PartScan) -> None:
        head, state = reader.head, reader.state
        assert head is not None
        assert state is not None
        copies = self._found.copies
        if not copies or copies[-1].number != head.copy:
            copies.append(
                RecordedCopy(number=head.copy, first=number, last=number, upto=reader.upto, state=state)
            )
        else:
            copies[-1].last, copies[-1].upto, copies[-1].state = number, reader.upto, state

    def _damaged(self, path: Path, why: str) -> None:
        copies = self._found.copies
        serial = copies[-1].state.position.serial if copies else None
        self._found.damages.append(FoundDamage(str(path), why, serial))

    # -- files ---------------------------------------------------------------------------------------------

    def _names_of(self, number: int, head: PartHead | None, before: str | None) -> ReferredFiles:
        """Return the names of the copy to which a part belongs; new ones if it begins one."""
        assert head is not None
        begins = head.state == CopyState()
        if head.number != number or not (begins or before == head.before):
            return ReferredFiles()  # the part does not count
        if begins:
            self._names[head.copy] = ReferredFiles()
        return self._names.setdefault(head.copy, ReferredFiles())

    def _check_files(self, *, with_hashes: bool) -> None:
        found = self._found
        stored = self._folder.stored_files()
        found.files = len(stored)
        wrong = set()
        for checksum in stored if with_hashes else ():
            path = self._folder.file_path(checksum)
            if self._hash(path) != checksum:
                wrong.add(checksum)
                found.damages.append(FoundDamage(str(path), "its SHA-256 is not its name"))
        found.stored = frozenset(stored) - wrong
        if found.whole:
            missing = self._names[found.whole[-1].number].missing(frozenset(stored))
            found.missing_files = list(missing)
            found.missing_checksums = sorted({*missing.values()})

    def _hash(self, path: Path) -> str:
        hashed = sha256()
        with map_path_errors("read", path), path.open("rb") as file:
            while data := file.read(BLOCK):
                hashed.update(data)
                self._found.bytes += len(data)
                self._on_bytes(len(data))
        return hashed.hexdigest()


def check_identity(folder: BackupFolder, found: BackupContents) -> None:
    """Add to what was found that the folder does not say who it is. Raises `StorageError` if it is none."""
    if not found.parts and not (folder.path / IDENTITY).exists():
        raise StorageError(
            op="verify",
            why=f"{folder.path} is no backup: it has no {IDENTITY}",
            hint="name the folder of a backup",
            tried=False,
        )
    try:
        folder.read_identity()
    except StorageError as error:
        found.damages.append(FoundDamage(str(folder.path / IDENTITY), error.why))
