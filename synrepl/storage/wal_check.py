"""Damage of a write-ahead log of SQLite, found before SQLite opens it.

Each frame has a checksum over all before it. SQLite reads up to the first one that is not right, takes that
for the end of the log, and drops what follows. That is so after a power cut: the last commit may be there in
part, and was not acknowledged. But it does the same with a bit that has flipped: then acknowledged commits
follow, and are lost without a word.

The two can be told apart, because a commit is begun when the one before it is synced (``synchronous=FULL``).
If a commit ends behind the frame that is not right, and another frame follows it, then that frame was on the
disk once. These frames must continue each other's checksums: parts of a commit that an earlier power cut left
there do not. The frame itself is not asked whether a commit ends with it, as it may be two halves of
different times. So the last commit, and the last frame of the one before it, cannot be told from what a power
cut leaves.

The format is that of sqlite.org/walformat.html.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

__all__ = ["find_damage"]

HEADER: Final = struct.Struct(">8I")
FRAME: Final = struct.Struct(">6I")
MAGIC: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""The byte order of the checksums, by the first number of the header."""

MASK: Final = 0xFFFFFFFF

Checksum = tuple[int, int]


class _Frame(NamedTuple):
    """A frame: the salts of its round of the log, and whether a commit ends with it."""

    is_commit: bool
    salts: tuple[int, int]
    stored: Checksum
    head: bytes
    page: bytes

    def checksum(self, before: Checksum, order: str) -> Checksum:
        """The checksum that it has behind one with the checksum `before`."""
        return _add(self.page, _add(self.head, before, order), order)


class _Wal:
    """A log whose header is right, read frame by frame, as it may be large."""

    def __init__(self, file: BinaryIO, header: bytes, order: str) -> None:
        _, _, page, _, *salts, first, second = HEADER.unpack(header)
        self._file = file
        self._size = FRAME.size + page
        self.order = order
        self.salts = tuple(salts)
        self.start: Checksum = first, second
        self.count = (os.fstat(file.fileno()).st_size - HEADER.size) // self._size

    def frames(self, number: int) -> Iterator[_Frame]:
        """Yield the frames from this number on, which counts from 0."""
        self._file.seek(HEADER.size + number * self._size)
        for _ in range(number, self.count):
            data = self._file.read(self._size)
            _, commit, first, second, *stored = FRAME.unpack_from(data)
            yield _Frame(commit != 0, (first, second), (stored[0], stored[1]), data[:8], data[FRAME.size :])


def find_damage(path: Path) -> str:
    """Describe the damage of the log at this path; "" if there is none, or no log.

    Raises `OSError`. SQLite must not have opened the database.
    """
    try:
        with path.open("rb") as file:
            return _find_damage(file)
    except FileNotFoundError:
        return ""


def _find_damage(file: BinaryIO) -> str:
    header = file.read(HEADER.size)
    if not any(header) or not file.read(1):
        return ""
    order = MAGIC.get(HEADER.unpack(header)[0])
    if order is None or _add(header[:24], (0, 0), order) != HEADER.unpack(header)[6:]:
        # It is synced before the first frame is written.
        return "its header is damaged: all commits in it are lost"
    wal = _Wal(file, header, order)
    checksum = wal.start
    for number, frame in enumerate(wal.frames(0)):
        computed = frame.checksum(checksum, order)
        if frame.salts != wal.salts or frame.stored != computed:
            # The damage may be in the stored checksum, or in what it is of.
            if any(_is_followed(wal, number, one) for one in (frame.stored, computed)):
                return (
                    f"frame {number + 1} of {wal.count} is damaged: acknowledged commits follow, and are lost"
                )
            return ""
        checksum = computed
    return ""


def _is_followed(wal: _Wal, number: int, checksum: Checksum) -> bool:
    """Whether a commit ends behind this frame, which has this checksum, and another frame follows it."""
    end: _Frame | None = None
    for frame in wal.frames(number + 1):
        if frame.salts != wal.salts or frame.stored != frame.checksum(checksum, wal.order):
            return False
        # The same once more fills a sector: it is of the same commit.
        if end is not None and (frame.head, frame.page) != (end.head, end.page):
            return True
        checksum, end = frame.stored, frame if frame.is_commit else None
    return False


def _add(data: bytes, before: Checksum, order: str) -> Checksum:
    """Add bytes to a checksum."""
    first, second = before
    numbers = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, other in zip(numbers, numbers, strict=True):
        first = (first + one + second) & MASK
        second = (second + other + first) & MASK
    return first, second
