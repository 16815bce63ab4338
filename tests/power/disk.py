"""A disk that forgets what was not synced: the states that it may be found in after a power cut.

The difficulty is to promise no more than disks do, and no less. A file system may write back what it was told
in any order, in parts, or not at all, until a sync returns; what it then has to have is:

* The bytes and the size of a file, as they were when its sync began. Of the later changes of each file any
  set is on the disk: of a write any of its sectors. What lies between them is zeros.
* The names in a folder, as they were when the sync of that folder began. Of its later changes the disk has
  the first ones, up to any: file systems keep a journal of names. A rename between two folders is on the disk
  in both or in neither. The names of two folders may be of different times.
* The sync of a file promises nothing of its name. (Common file systems do more. Nobody has to rely on it.)

Sectors are whole: of 512 bytes the old or the new ones. `Disk.apply` takes the records of a journal, one
after another. `Disk.state` gives a state at that moment, chosen by a `Choice`.

Shared memory of SQLite (``-shm``) is written through a mapping, which no recorder sees, and never synced: see
`Choice.shared_memory`.
"""

import random
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from tests.power.journal import MAPPED, Kind, Record

__all__ = ["CHOICES", "Choice", "Disk", "State"]

SECTOR: Final = 512

State = dict[str, bytes | None]
"""The content of each file by its path; None for a folder."""

Extreme = Literal["nothing", "everything", "last", "all but first", "some", "few", "most", "prefix"]

CHOICES: Final[tuple[Extreme, ...]] = (
    "nothing",
    "everything",
    "last",
    "all but first",
    "some",
    "few",
    "most",
    "prefix",
)
SHARES: Final = {"some": 0.5, "few": 0.1, "most": 0.9}
SHARED_MEMORY: Final = ("absent", "zeros", "garbage", "as it was")


class Choice:
    """Which of the unsynced changes are on the disk.

    ``nothing``; ``everything``; ``last``: the last write alone; ``all but first``: all but the first write;
    ``prefix``: the first changes up to one, as if the power had been cut earlier; ``some``, ``few``,
    ``most``: any, by this chance each.
    """

    def __init__(self, extreme: Extreme, seed: int) -> None:
        self.extreme = extreme
        self._random = random.Random(seed)

    def changes(self, count: int) -> "list[bool]":
        """Which of so many changes, or sectors of changes, are there."""
        match self.extreme:
            case "nothing":
                return [False] * count
            case "everything":
                return [True] * count
            case "last":
                return [at == count - 1 for at in range(count)]
            case "all but first":
                return [at > 0 for at in range(count)]
            case "prefix":
                kept = self._random.randint(0, count)
                return [at < kept for at in range(count)]
        return [self._random.random() < SHARES[self.extreme] for _ in range(count)]

    def names(self, count: int) -> int:
        """How many of so many changes of names are there."""
        match self.extreme:
            case "nothing":
                return 0
            case "everything" | "last" | "all but first":
                return count
        return self._random.randint(0, count)

    def shared_memory(self, data: bytes) -> bytes | None:
        """What is in a file that was written through a mapping; None if it is not there."""
        match self._random.choice(SHARED_MEMORY):
            case "absent":
                return None
            case "zeros":
                return bytes(len(data))
            case "garbage":
                return self._random.randbytes(len(data) or 32768)
        return data


class _File:
    """A file: what is on the disk for certain, and the changes since."""

    def __init__(self) -> None:
        self.synced = bytearray()
        self.pending: list[Record] = []
        self.syncing: dict[int, int] = {}
        """By thread: how many of `pending` a sync that has begun covers."""

    def begin_sync(self, thread: int) -> None:
        self.syncing[thread] = len(self.pending)

    def end_sync(self, thread: int) -> None:
        covered = self.syncing.pop(thread)
        for record in self.pending[:covered]:
            _change(self.synced, record)
        del self.pending[:covered]
        self.syncing = {other: max(0, count - covered) for other, count in self.syncing.items()}

    def content(self, choice: Choice) -> bytes:
        data = bytearray(self.synced)
        parts = [part for record in self.pending for part in _parts(record)]
        for part, is_there in zip(parts, choice.changes(len(parts)), strict=True):
            if is_there:
                _change(data, part)
        return bytes(data)


class _Folder:
    """A folder: its names, those that are there for certain, and the changes since."""

    def __init__(self) -> None:
        self.names: dict[str, _File | _Folder] = {}
        self.synced: dict[str, _File | _Folder] = {}
        self.syncing: dict[int, int] = {}
        """By thread: the number of the first change of names that a sync which has begun does not cover."""


class _Renaming:
    """A change of names: what each of some names in folders is of from then on, None for nothing."""

    def __init__(self, number: int, changes: "list[tuple[_Folder, str, _File | _Folder | None]]") -> None:
        self.number = number
        self.changes = changes

    def touches(self, folder: _Folder) -> bool:
        return any(one is folder for one, _, _ in self.changes)


class Disk:
    """The files below a folder, as the records of a journal leave them."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._root = _Folder()
        self._by_inode: dict[int, _File | _Folder] = {}
        self._renamings: list[_Renaming] = []
        self._number = 0
        self.inodes: dict[str, int] = {}
        """The inodes of the files of the last `state`, by their paths."""
        for record in records:
            self.apply(record)

    def apply(self, record: Record) -> None:
        """Take the next record."""
        match record.kind:
            case Kind.ROOT:
                self._by_inode[record.file] = self._root
            case Kind.CREATE | Kind.MKDIR:
                self._create(record)
            case Kind.WRITE | Kind.RESIZE | Kind.EXTEND | Kind.ZERO:
                file = self._by_inode.get(record.file)
                # Of a file that came from elsewhere, or without a name, nothing is known.
                if isinstance(file, _File):
                    file.pending.append(record)
            case Kind.SYNC_BEGIN | Kind.SYNC_END:
                self._sync(record)
            case Kind.RENAME | Kind.EXCHANGE:
                self._rename(record)
            case Kind.LINK:
                self._change_names((record.path, self._by_inode[record.file]))
            case Kind.UNLINK | Kind.RMDIR:
                self._change_names((record.path, None))
            case Kind.UNSEEN:
                raise ValueError(f"the recorder could not record {record.data.decode()} of {record.path}")

    def state(self, choice: Choice) -> State:
        """A state in which the disk may be found if the power is cut now."""
        folders = {id(folder): dict(folder.synced) for folder in self._folders()}
        for renaming in self._kept(choice):
            for folder, name, now in renaming.changes:
                names = folders.setdefault(id(folder), dict(folder.synced))
                if now is None:
                    names.pop(name, None)
                else:
                    names[name] = now
        found: State = {}
        contents: dict[int, bytes] = {}
        inodes = {id(one): inode for inode, one in self._by_inode.items()}
        self.inodes = {}

        def walk(folder: _Folder, path: str) -> None:
            for name, one in sorted(folders.get(id(folder), folder.synced).items()):
                if isinstance(one, _Folder):
                    found[path + name] = None
                    walk(one, f"{path}{name}/")
                else:
                    if id(one) not in contents:
                        contents[id(one)] = one.content(choice)
                    data: bytes | None = contents[id(one)]
                    if name.endswith(MAPPED) and choice.extreme != "everything":
                        data = choice.shared_memory(data or b"")
                    if data is not None:
                        found[path + name] = data
                        self.inodes[path + name] = inodes.get(id(one), 0)

        walk(self._root, "")
        return found

    # Names

    def _create(self, record: Record) -> None:
        known = self._find(record.path) if record.path else None
        if known is not None and known is self._by_inode.get(record.file):
            return  # two threads have seen that it was new
        made = _Folder() if record.kind is Kind.MKDIR else _File()
        self._by_inode[record.file] = made
        if record.path:
            self._change_names((record.path, made))

    def _rename(self, record: Record) -> None:
        before, after = record.path, record.data.decode()
        moved, other = self._find(before), self._find(after)
        if moved is None:
            raise ValueError(f"{before} was renamed, and not recorded before")
        self._change_names((before, other if record.kind is Kind.EXCHANGE else None), (after, moved))

    def _change_names(self, *named: "tuple[str, _File | _Folder | None]") -> None:
        changes = []
        for path, now in named:
            folder, name = self._parent(path)
            if now is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = now
            changes.append((folder, name, now))
        self._renamings.append(_Renaming(self._number, changes))
        self._number += 1

    def _parent(self, path: str) -> tuple[_Folder, str]:
        *parents, name = path.split("/")
        folder = self._find("/".join(parents)) if parents else self._root
        assert isinstance(folder, _Folder), f"{path} is in no known folder"
        return folder, name

    def _find(self, path: str) -> "_File | _Folder | None":
        found: _File | _Folder | None = self._root
        for name in path.split("/") if path else ():
            found = found.names.get(name) if isinstance(found, _Folder) else None
        return found

    def _folders(self) -> Iterator[_Folder]:
        yield from (one for one in self._by_inode.values() if isinstance(one, _Folder))

    # Syncing

    def _sync(self, record: Record) -> None:
        one, thread = self._by_inode.get(record.file), record.a
        if isinstance(one, _File):
            one.begin_sync(thread) if record.kind is Kind.SYNC_BEGIN else one.end_sync(thread)
        elif isinstance(one, _Folder) and record.kind is Kind.SYNC_BEGIN:
            one.syncing[thread] = self._number
        elif isinstance(one, _Folder):
            self._settle(one, one.syncing.pop(thread))

    def _settle(self, folder: _Folder, before: int) -> None:
        """Count a folder's changes of names as synced, with those of others that must have come before."""
        needed = {
            id(one)
            for one in self._closed([r for r in self._renamings if r.number < before and r.touches(folder)])
        }
        for renaming in self._renamings:
            if id(renaming) in needed:
                for one, name, now in renaming.changes:
                    if now is None:
                        one.synced.pop(name, None)
                    else:
                        one.synced[name] = now
        self._renamings = [one for one in self._renamings if id(one) not in needed]

    def _closed(self, chosen: list[_Renaming]) -> list[_Renaming]:
        """Return these, and all that their folders must have before."""
        upto: dict[int, int] = {}
        for renaming in reversed(self._renamings):
            folders = [id(folder) for folder, _, _ in renaming.changes]
            if renaming in chosen or any(upto.get(folder, -1) > renaming.number for folder in folders):
                for folder in folders:
                    upto[folder] = max(upto.get(folder, -1), renaming.number + 1)
        return [
            one
            for one in self._renamings
            if any(upto.get(id(folder), -1) > one.number for folder, _, _ in one.changes)
        ]

    def _kept(self, choice: Choice) -> list[_Renaming]:
        """Which changes of names are on the disk: of each folder the first ones."""
        chosen: list[_Renaming] = []
        by_folder: dict[int, list[_Renaming]] = {}
        for renaming in self._renamings:
            for folder in {id(folder) for folder, _, _ in renaming.changes}:
                by_folder.setdefault(folder, []).append(renaming)
        for renamings in by_folder.values():
            chosen += renamings[: choice.names(len(renamings))]
        return self._closed(chosen)


def _parts(record: Record) -> Iterator[Record]:
    """The parts of a change that reach the disk or do not."""
    if record.kind is not Kind.WRITE:
        yield record
        return
    at, data = record.a, record.data
    while data:
        count = SECTOR - at % SECTOR
        yield record._replace(a=at, data=data[:count])
        at, data = at + count, data[count:]


def _change(data: bytearray, record: Record) -> None:
    match record.kind:
        case Kind.WRITE:
            _extend(data, record.a)
            data[record.a : record.a + len(record.data)] = record.data
        case Kind.RESIZE:
            del data[record.a :]
            _extend(data, record.a)
        case Kind.EXTEND:
            _extend(data, record.a)
        case Kind.ZERO:
            end = min(record.a + record.b, len(data))
            data[record.a : end] = bytes(max(0, end - record.a))


def _extend(data: bytearray, size: int) -> None:
    if len(data) < size:
        data += bytes(size - len(data))
