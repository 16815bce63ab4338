"""The journal of a disk: what processes did to the files below a folder, and what they said meanwhile.

`recorder.c` appends the calls of processes under load. `Journal.mark` appends what somebody said: that a fact
was sent, that it was acknowledged. So the place of a mark among the records tells what the disk had been told
by then.
"""

import os
import struct
import subprocess
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

__all__ = ["MAPPED", "Journal", "Kind", "Record", "records_of"]


class Kind(IntEnum):
    """What a record is of. The fields of each are in `recorder.c`, which has the same numbers."""

    CREATE = 1
    WRITE = 2
    RESIZE = 3
    EXTEND = 4
    ZERO = 5
    SYNC_BEGIN = 6
    SYNC_END = 7
    MKDIR = 8
    RENAME = 9
    EXCHANGE = 10
    LINK = 11
    UNLINK = 12
    RMDIR = 13
    MARK = 50
    """What somebody said, as JSON."""
    ROOT = 51
    """The folder itself."""
    UNSEEN = 99
    """Something that the recorder cannot record."""


class Record(NamedTuple):
    """One call that changed something, or a mark. Paths are relative to the folder."""

    kind: Kind
    file: int = 0
    a: int = 0
    b: int = 0
    path: str = ""
    data: bytes = b""

    @property
    def said(self) -> Any:
        """What a mark says."""
        return msgspec.json.decode(self.data)


MAPPED: Final = "-shm"
"""The end of the names of files that are written through a mapping: SQLite's shared memory."""

HEAD: Final = struct.Struct("=IIQQQII")
WRITTEN_AT_ONCE: Final = 1024 * 1024


class Journal:
    """The journal in the file at `path`, to be appended to by several processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, folder: Path) -> None:
        """Begin with what is in the folder, all of it synced; a mark ``begun`` comes after it."""
        self.path.write_bytes(b"".join(map(_packed, _photograph(folder))))
        self.mark(["begun", None])

    def mark(self, said: Any) -> None:
        """Append what somebody says, a JSON value."""
        self._append(Record(Kind.MARK, data=msgspec.json.encode(said)))

    def note_mapped(self, folder: Path) -> None:
        """Append what is in the files that are written through a mapping, which the recorder does not see."""
        for path in folder.rglob(f"*{MAPPED}"):
            # In another process: whoever closes a file of SQLite's here loses its locks on it.
            read = subprocess.run(["cat", path], capture_output=True, check=False)
            if read.returncode == 0:
                self._append(Record(Kind.WRITE, path.stat().st_ino, data=read.stdout))

    def _append(self, record: Record) -> None:
        packed = _packed(record)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            assert os.write(descriptor, packed) == len(packed)
        finally:
            os.close(descriptor)

    def records(self) -> list[Record]:
        """All records, in order."""
        return list(records_of(self.path.read_bytes()))


def records_of(data: bytes) -> Iterator[Record]:
    """Yield the records in the bytes of a journal."""
    at = 0
    while at < len(data):
        total, kind, file, a, b, path_bytes, data_bytes = HEAD.unpack_from(data, at)
        start = at + HEAD.size
        path = os.fsdecode(data[start : start + path_bytes])
        yield Record(Kind(kind), file, a, b, path, data[start + path_bytes : start + path_bytes + data_bytes])
        at += total


def _packed(record: Record) -> bytes:
    path = os.fsencode(record.path)
    total = HEAD.size + len(path) + len(record.data)
    head = HEAD.pack(total, record.kind, record.file, record.a, record.b, len(path), len(record.data))
    return head + path + record.data


def _photograph(folder: Path) -> Iterable[Record]:
    yield Record(Kind.ROOT, folder.stat().st_ino)
    for place, names, files in os.walk(folder):
        for name in names:
            path = Path(place, name)
            yield Record(Kind.MKDIR, path.stat().st_ino, path=str(path.relative_to(folder)))
        for name in files:
            path = Path(place, name)
            file = path.stat().st_ino
            yield Record(Kind.CREATE, file, path=str(path.relative_to(folder)))
            data = path.read_bytes()
            for at in range(0, len(data), WRITTEN_AT_ONCE):
                yield Record(Kind.WRITE, file, at, data=data[at : at + WRITTEN_AT_ONCE])
            yield from (Record(kind, file) for kind in (Kind.SYNC_BEGIN, Kind.SYNC_END))
        for kind in (Kind.SYNC_BEGIN, Kind.SYNC_END):
            yield Record(kind, Path(place).stat().st_ino)
