"""Flipped bits: a store with one bit changed, at rest or while it is open, and what it then serves.

A bit ends in one of these ways:

* *refused*: the store does not open, or one of its reads fails, with an error that says so;
* *without meaning*: all that is served is what was served before; an examination then doubts it, or does not;
* *like a cut*: what is served is what a power cut may have left, and the store cannot know better;
* *wrong*: something else is served, as if it were right; `doctor` then finds it, or does not;
* *crashed*: an error that nobody meant, such as a traceback.
"""

import random
import shutil
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from synrepl.errors import ReplicationError
from tests.power.cuts import materialize
from tests.power.disk import Choice, Disk, State
from tests.power.journal import Kind, Record

__all__ = ["BitTally", "Flip", "Served", "check_flips", "draw_flips", "flip_bits", "last_state"]

BitOutcome = Literal["refused", "meaningless", "cut", "wrong", "crashed"]


class Served(Protocol):
    """A store in a folder, by all of its ways out."""

    KINDS: ClassVar[Mapping[str, Sequence[str]]]
    """The kinds of files, each with the patterns of its names, as of `Path.match`."""
    WHILE_OPEN: ClassVar[Collection[str]] = ()
    """The kinds whose bits flip while the store is open."""
    once_open: Callable[[], None] = staticmethod(lambda: None)
    """To be called once the store is open, before anything is read."""

    @staticmethod
    def cut(state: State) -> Iterable[State]:  # noqa: ARG004  # most stores know better
        """What a power cut may have left in place of this, of what is acknowledged too."""
        return ()

    def __init__(self, position: str) -> None: ...

    def served(self) -> Any:
        """All that is served: values that can be compared. Raises `ReplicationError`."""

    def complaints(self) -> list[str]:
        """What an examination complains of."""


class Flip(msgspec.Struct, frozen=True):
    """One bit of one file."""

    path: str
    offset: int
    bit: int


class FlipFailed(msgspec.Struct, frozen=True):
    """A flip after which something was wrong, and what."""

    flip: Flip
    outcome: BitOutcome
    why: str


class BitTally(msgspec.Struct):
    """What became of the flips in the files of a kind, which have so many `bytes`.

    `doubted` are the meaningless ones of which an examination complains, such as an index that lacks a row
    which a read finds without it; `unfound` are the wrong ones that none finds.
    """

    bytes: int = 0
    bits: int = 0
    refused: int = 0
    meaningless: int = 0
    doubted: int = 0
    cut: int = 0
    wrong: int = 0
    unfound: int = 0
    crashed: int = 0
    failed: list[FlipFailed] = []


def last_state(records: Sequence[Record]) -> State:
    """Return what is on the disk when the load, which is about to end, is killed."""
    last = max(at for at, one in enumerate(records) if one.kind is Kind.MARK)
    return Disk(records[:last]).state(Choice("everything", 0))


def draw_flips(state: State, patterns: Sequence[str], count: int, seed: int) -> list[Flip]:
    """Draw so many bits, uniformly over all bytes of the files with such names."""
    chance = random.Random(seed)
    files = {
        name: len(data)
        for name, data in sorted(state.items())
        if data and any(Path(name).match(pattern) for pattern in patterns)
    }
    names, sizes = list(files), list(files.values())
    paths = chance.choices(names, sizes, k=count) if names else []
    return [Flip(path, chance.randrange(files[path]), chance.randrange(8)) for path in paths]


def flip_bits(
    store: type[Served], state: State, flips: Sequence[Flip], home: Path, *, while_open: bool = False
) -> BitTally:
    """Flip each bit by itself, and tell what became of it."""
    materialize(state, home / "whole")
    whole = store(str(home / "whole"))
    expected, known = whole.served(), whole.complaints()
    cuts = []
    for number, one in enumerate(store.cut(state)):
        materialize(one, home / f"cut {number}")
        with suppress(ReplicationError):
            cuts.append(store(str(home / f"cut {number}")).served())
    paths = {flip.path for flip in flips}
    tally = BitTally(bytes=sum(len(state[path] or b"") for path in paths))
    for number, flip in enumerate(flips):
        position = home / str(number)
        materialize(state if while_open else _flipped(state, flip), position)
        flipped = store(str(position))
        if while_open:
            flipped.once_open = partial(_flip_in_place, position, flip)
        outcome, why = _judged(flipped, expected, cuts, known)
        tally.bits += 1
        setattr(tally, outcome, getattr(tally, outcome) + 1)
        if outcome == "wrong" and not why:
            tally.unfound += 1
        if outcome == "meaningless" and why:
            tally.doubted += 1
        if outcome in ("wrong", "crashed") or why:
            tally.failed.append(FlipFailed(flip, outcome, why))
        shutil.rmtree(position)
    return tally


def check_flips(store: type[Served], home: Path, *, count: int, seed: int) -> None:
    """Run the load of a store, flip so many bits of each kind of its files, and assert that none is served.

    Nothing of it is lost here: what the disk has is what the load has written.
    """
    scenario: Any = store(str(home / "load"))
    scenario.prepare()
    scenario.run(lambda said: None)
    state: State = {
        str(path.relative_to(home / "load")): None if path.is_dir() else path.read_bytes()
        for path in sorted((home / "load").rglob("*"))
    }
    for kind, patterns in store.KINDS.items():
        flips = draw_flips(state, patterns, count, seed)
        tally = flip_bits(store, state, flips, home / kind)
        assert (count, []) == (tally.bits, tally.failed), kind


def _flipped(state: State, flip: Flip) -> State:
    data = bytearray(state[flip.path] or b"")
    data[flip.offset] ^= 1 << flip.bit
    return {**state, flip.path: bytes(data)}


def _flip_in_place(position: Path, flip: Flip) -> None:
    with (position / flip.path).open("r+b", buffering=0) as file:
        file.seek(flip.offset)
        found = file.read(1)
        file.seek(flip.offset)
        file.write(bytes([found[0] ^ 1 << flip.bit]))


def _judged(
    store: Served, expected: Any, cuts: Sequence[Any], known: Sequence[str]
) -> tuple[BitOutcome, str]:
    try:
        served = store.served()
    except ReplicationError:
        return "refused", ""
    except Exception:
        return "crashed", traceback.format_exc()
    if served != expected and served in cuts:
        return "cut", ""
    try:
        why = "; ".join(one for one in store.complaints() if one not in known)
    except Exception as error:
        why = f"the examination fails: {error}"
    return "meaningless" if served == expected else "wrong", why
