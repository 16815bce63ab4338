"""What becomes of a flipped bit, told of stores that are a file each."""

from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import pytest

from synrepl.errors import StorageError
from tests.power.bits import BitTally, Flip, Served, draw_flips, flip_bits
from tests.power.disk import State


class Plain(Served):
    """Serves what is in its file, but the last byte."""

    KINDS: ClassVar = {"file": ["a"]}

    def __init__(self, position: str) -> None:
        self.data = Path(position, "a").read_bytes()

    def served(self) -> Any:
        return self.data[:-1]

    def complaints(self) -> list[str]:
        return []


class Checked(Plain):
    """Serves it if the last byte is its checksum."""

    def served(self) -> Any:
        if self.data[-1] != crc32(self.data[:-1]) & 0xFF:
            raise StorageError(op="read", why="it is damaged")
        return super().served()


class Examined(Plain):
    """Serves it unchecked, and complains when it is asked; of its age in any case."""

    def complaints(self) -> list[str]:
        is_whole = self.data[-1] == crc32(self.data[:-1]) & 0xFF
        return ["it is old"] if is_whole else ["it is old", "it is damaged"]


class Careless(Plain):
    """Takes it for ASCII."""

    def served(self) -> Any:
        return super().served().decode("ascii")


WHOLE: State = {"a": b"text" + bytes([crc32(b"text") & 0xFF])}
FIRST, LAST = Flip("a", 0, 7), Flip("a", 4, 0)


@pytest.mark.parametrize(
    ("store", "flip", "expected"),
    [
        (Plain, FIRST, {"wrong": 1, "unfound": 1}),
        (Plain, LAST, {"meaningless": 1}),
        (Checked, FIRST, {"refused": 1}),
        (Checked, LAST, {"refused": 1}),
        (Examined, FIRST, {"wrong": 1}),
        (Examined, LAST, {"meaningless": 1, "doubted": 1}),
        (Careless, FIRST, {"crashed": 1}),
    ],
)
def test_what_becomes_of_a_bit(
    tmp_path: Path, store: type[Served], flip: Flip, expected: dict[str, Any]
) -> None:
    found = flip_bits(store, WHOLE, [flip], tmp_path)

    found.failed = []
    assert BitTally(bytes=5, bits=1, **expected) == found


def test_bits_are_drawn_over_the_bytes_of_all_files_of_a_kind() -> None:
    """A file of three times the size has three times the bits."""
    state: State = {"d": None, "d/a": bytes(100), "d/b": bytes(300), "c": bytes(900)}

    flips = draw_flips(state, ["d/*"], 4_000, 1)

    assert {"d/a", "d/b"} == {flip.path for flip in flips}
    assert 900 < sum(flip.path == "d/a" for flip in flips) < 1100
    assert {*range(300)} == {flip.offset for flip in flips if flip.path == "d/b"}
    assert {*range(8)} == {flip.bit for flip in flips}
