"""A disk promises what was synced, and nothing else.

The table says for some calls which states there may be after them.
"""

from collections.abc import Iterator, Sequence

import pytest

from tests.power.disk import CHOICES, SECTOR, Choice, Disk, State
from tests.power.journal import Kind, Record

ROOT, FOLDER, FILE, OTHER = 1, 2, 10, 11
SEEDS = range(60)


def create(path: str = "a", file: int = FILE) -> Record:
    return Record(Kind.CREATE, file, path=path)


def write(data: bytes, at: int = 0, file: int = FILE) -> Record:
    return Record(Kind.WRITE, file, at, data=data)


def resize(size: int) -> Record:
    return Record(Kind.RESIZE, FILE, size)


def rename(before: str, after: str) -> Record:
    return Record(Kind.RENAME, path=before, data=after.encode())


def unlink(path: str) -> Record:
    return Record(Kind.UNLINK, path=path)


def mkdir(path: str) -> Record:
    return Record(Kind.MKDIR, FOLDER, path=path)


def link(path: str) -> Record:
    return Record(Kind.LINK, FILE, path=path)


def begin(file: int, thread: int = 7) -> Record:
    return Record(Kind.SYNC_BEGIN, file, thread)


def end(file: int, thread: int = 7) -> Record:
    return Record(Kind.SYNC_END, file, thread)


def sync(*files: int) -> list[Record]:
    """Whole syncs, one after another."""
    return [record for file in files for record in (begin(file), end(file))]


def states(calls: Sequence[Record]) -> Iterator[State]:
    """Every state that is drawn."""
    disk = Disk([Record(Kind.ROOT, ROOT), *calls])
    return (disk.state(Choice(extreme, seed)) for extreme in CHOICES for seed in SEEDS)


NOTHING: State = {}
A, B = b"a" * SECTOR, b"b" * SECTOR
ZERO = bytes(SECTOR)

STATES: dict[str, tuple[list[Record], list[State]]] = {
    "a name that is not synced may be missing, the bytes too": (
        [create(), write(b"x")],
        [NOTHING, {"a": b""}, {"a": b"x"}],
    ),
    "the sync of a file says nothing of its name": (
        [create(), write(b"x"), *sync(FILE)],
        [NOTHING, {"a": b"x"}],
    ),
    "the sync of a folder says nothing of its files": (
        [create(), write(b"x"), *sync(ROOT)],
        [{"a": b""}, {"a": b"x"}],
    ),
    "what was synced is there": (
        [create(), write(b"x"), *sync(FILE, ROOT)],
        [{"a": b"x"}],
    ),
    "a sync is a promise once it has ended": (
        [create(), *sync(ROOT), write(b"x"), begin(FILE)],
        [{"a": b""}, {"a": b"x"}],
    ),
    "a sync covers what came before it began": (
        [create(), *sync(ROOT), write(b"x"), begin(FILE), write(b"y"), end(FILE)],
        [{"a": b"x"}, {"a": b"y"}],
    ),
    "syncs of two threads overlap": (
        [create(), *sync(ROOT), begin(FILE, 1), write(b"x"), begin(FILE, 2), end(FILE, 2), end(FILE, 1)],
        [{"a": b"x"}],
    ),
    "sectors come in any order, with zeros between": (
        [create(), *sync(ROOT), write(A + B)],
        [{"a": b""}, {"a": A}, {"a": ZERO + B}, {"a": A + B}],
    ),
    "sectors are parts of the file, not of the write": (
        [create(), *sync(ROOT), write(ZERO), *sync(FILE), write(b"xx", SECTOR - 1)],
        [
            {"a": ZERO},
            {"a": ZERO[1:] + b"x"},
            {"a": ZERO + b"x"},
            {"a": ZERO[1:] + b"xx"},
        ],
    ),
    "a later write does not undo an earlier one that was synced": (
        [create(), *sync(ROOT), write(A), *sync(FILE), write(B)],
        [{"a": A}, {"a": B}],
    ),
    "a size that is not synced may be the old one": (
        [create(), *sync(ROOT), write(A + B), *sync(FILE), resize(SECTOR)],
        [{"a": A + B}, {"a": A}],
    ),
    "a file that was emptied and written again may have any of both": (
        [create(), *sync(ROOT), write(A), *sync(FILE), resize(0), write(b"x")],
        [{"a": A}, {"a": b""}, {"a": b"x"}, {"a": b"x" + A[1:]}],
    ),
    "a rename without a sync of the file may give an empty one": (
        [
            create("a"),
            write(b"old"),
            *sync(FILE, ROOT),
            create("b", OTHER),
            write(b"new", file=OTHER),
            rename("b", "a"),
        ],
        [
            {"a": b"old"},
            {"a": b"old", "b": b""},
            {"a": b"old", "b": b"new"},
            {"a": b""},
            {"a": b"new"},
        ],
    ),
    "the names of a folder come in order": (
        [create("a"), create("b", OTHER), unlink("a")],
        [NOTHING, {"a": b""}, {"a": b"", "b": b""}, {"b": b""}],
    ),
    "a file with two names is one file": (
        [create("a"), *sync(ROOT), link("b"), write(b"x")],
        [{"a": b""}, {"a": b"x"}, {"a": b"", "b": b""}, {"a": b"x", "b": b"x"}],
    ),
    "two folders are of different times": (
        [mkdir("d"), *sync(ROOT), create("d/a"), create("b", OTHER)],
        [{"d": None}, {"d": None, "d/a": b""}, {"d": None, "b": b""}, {"d": None, "d/a": b"", "b": b""}],
    ),
    "a folder without a name has no files": (
        [mkdir("d"), create("d/a"), *sync(FILE, FOLDER)],
        [NOTHING, {"d": None, "d/a": b""}],
    ),
    "a rename between folders is in both or in neither": (
        [mkdir("d"), create("a"), *sync(FILE, FOLDER, ROOT), rename("a", "d/a")],
        [{"d": None, "a": b""}, {"d": None, "d/a": b""}],
    ),
    "the sync of one folder syncs a rename in both": (
        [mkdir("d"), create("a"), *sync(FILE, FOLDER, ROOT), rename("a", "d/a"), *sync(FOLDER)],
        [{"d": None, "d/a": b""}],
    ),
    "and what had to come before it in the other": (
        [mkdir("d"), *sync(ROOT), create("b", OTHER), create("a"), rename("a", "d/a"), *sync(FOLDER)],
        [{"d": None, "d/a": b"", "b": b""}],
    ),
    "a new file has the number of one that is gone": (
        [create("a"), write(b"x"), *sync(FILE, ROOT), unlink("a"), create("b"), write(b"y")],
        [{"a": b"x"}, NOTHING, {"b": b""}, {"b": b"y"}],
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_states_of_a_disk(name: str) -> None:
    """Of those that are drawn none is beyond the table, and all of the table come."""
    calls, expected = STATES[name]

    found = list(states(calls))

    assert [state for state in found if state not in expected] == []
    assert [state for state in expected if state not in found] == []


def test_shared_memory_may_be_anything() -> None:
    """SQLite never syncs it, and has to make it anew."""
    calls = [create("log-shm"), resize(32), *sync(FILE, ROOT)]

    found = [state.get("log-shm") for state in states(calls)]

    assert None in found
    assert bytes(32) in found
    assert any(data and any(data) for data in found)


def test_what_was_not_recorded_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="could not record O_DSYNC of a"):
        Disk([Record(Kind.ROOT, ROOT), Record(Kind.UNSEEN, FILE, path="a", data=b"O_DSYNC")])
