"""Power cuts: a disk as it may be found after one, what is checked on it, and what became of all of them."""

import lzma
import random
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal
from unittest.mock import patch

import msgspec

from synrepl.errors import ConfigError, ReplicationError
from synrepl.storage.lock import DatabaseFile
from tests.crash.scenarios import Acknowledged, named
from tests.power.disk import CHOICES, Choice, Disk, Extreme, State
from tests.power.facts import Doubled, Lost
from tests.power.journal import Kind, Record, records_of

__all__ = ["Cut", "Tally", "check_power_cuts", "cut_power", "draw", "memory", "unsynced"]

PATIENCE_SECONDS: Final = 120
EXAMPLES: Final = 5

Outcome = Literal["kept", "lost", "doubled", "refused", "wrong"]


class Cut(msgspec.Struct, frozen=True):
    """The power is cut after so many records. What the disk then has is chosen by `extreme` and `seed`."""

    at: int
    extreme: Extreme
    seed: int


class Failed(msgspec.Struct, frozen=True):
    """A cut after which something was wrong, and what."""

    cut: Cut
    outcome: Outcome
    why: str


class Tally(msgspec.Struct):
    """What became of the cuts of a store."""

    cuts: int = 0
    kept: int = 0
    lost: int = 0
    doubled: int = 0
    refused: int = 0
    wrong: int = 0
    failed: list[Failed] = []

    def count(self, cut: Cut, outcome: Outcome, why: str = "") -> None:
        """Count a cut."""
        self.cuts += 1
        setattr(self, outcome, getattr(self, outcome) + 1)
        if outcome != "kept":
            self.failed.append(Failed(cut, outcome, why))


def draw(records: Sequence[Record], count: int, seed: int) -> list[Cut]:
    """Draw so many cuts, in the order of the journal.

    A third of them come right after an acknowledgement, where the least is on the disk that must be. All
    extremes come in turn.
    """
    chance = random.Random(seed)
    marks = [at for at, one in enumerate(records, 1) if one.kind is Kind.MARK]
    cuts = []
    for number in range(count):
        at = chance.choice(marks) if number % 3 == 0 else chance.randint(marks[0], len(records))
        cuts.append(Cut(at, CHOICES[number % len(CHOICES)], chance.getrandbits(32)))
    return sorted(cuts, key=lambda cut: cut.at)


def cut_power(
    load: str, records: Sequence[Record], cuts: Sequence[Cut], home: Path, *, to_end: bool = False
) -> Tally:
    """Make these cuts, check what the load's store has after each, and tell what became of it.

    With `to_end` the load also goes on after each cut, and must end as one that was not cut off.
    """
    whole = None
    if to_end:
        scenario = named(load, str(home / "whole"))
        scenario.run(lambda said: None)
        whole = scenario.state()
    tally = Tally()
    for number, (cut, state, said, inodes) in enumerate(states(records, cuts)):
        position = home / str(number)
        materialize(state, position)
        scenario = named(load, str(position))

        def look(scenario: Any = scenario, said: list[Acknowledged] = said) -> None:
            scenario.check(said)
            if whole is not None:
                scenario.run(lambda said: None)
                found = scenario.state()
                assert found == whole, f"it ended otherwise:\n{found}\nand not as\n{whole}"

        with kept_inodes(position, inodes):
            tally.count(cut, *_judged(look))
        shutil.rmtree(position)
    return tally


def unsynced(records: Sequence[Record]) -> list[Record]:
    """Return these records as if the disk had ignored the syncs of files, though not those of folders."""
    folders = {one.file for one in records if one.kind in (Kind.ROOT, Kind.MKDIR)}
    return [one for one in records if one.kind is not Kind.SYNC_END or one.file in folders]


def states(
    records: Sequence[Record], cuts: Sequence[Cut]
) -> Iterator[tuple[Cut, State, list[Acknowledged], Mapping[str, int]]]:
    """Yield each cut with the state of the disk after it, what was said before it, and the files' inodes."""
    disk, said, done = Disk(), [], 0
    for cut in cuts:
        for record in records[done : cut.at]:
            if record.kind is Kind.MARK:
                said.append(tuple(record.said))
            else:
                disk.apply(record)
        done = max(done, cut.at)
        state = disk.state(Choice(cut.extreme, cut.seed))
        yield cut, state, list(said), disk.inodes


@contextmanager
def kept_inodes(folder: Path, inodes: Mapping[str, int]) -> Iterator[None]:
    """Let the logs in this folder have these inodes: a power cut makes no copies, and copies are refused."""
    own: Any = DatabaseFile.inode

    def inode(file: DatabaseFile) -> str:
        path = file.path
        kept = inodes.get(str(path.relative_to(folder))) if path.is_relative_to(folder) else None
        return str(kept or own.fget(file))

    with patch.object(DatabaseFile, "inode", property(inode)):
        yield


def materialize(state: State, folder: Path) -> None:
    """Make the folder as the disk has it."""
    folder.mkdir(parents=True, mode=0o700)
    for name, data in state.items():
        path = folder / name
        if data is None:
            path.mkdir(mode=0o700)
        else:
            path.write_bytes(data)
            path.chmod(0o600)


def check_power_cuts(
    load: str, recorded: Path, home: Path, *, count: int, seed: int, to_end: bool = True
) -> None:
    """Make so many cuts of a recorded journal, and assert that all are survived."""
    records = list(records_of(lzma.decompress(recorded.read_bytes())))
    tally = cut_power(load, records, draw(records, count, seed), home, to_end=to_end)
    assert not tally.failed, f"{len(tally.failed)} of {tally.cuts}\n{tally.failed[0]}"


def memory() -> Path:
    """Make a folder, in memory where that can be had. This machine's own disk has no part in it."""
    shared = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="synrepl-power-", dir=shared if shared.is_dir() else None))
    # Some loads have processes of another user.
    made.chmod(0o711)
    return made


def _judged(look: Callable[[], None]) -> tuple[Outcome, str]:
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(PATIENCE_SECONDS)
    try:
        look()
    except (ReplicationError, ConfigError) as error:
        return "refused", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    except Lost as error:
        return "lost", str(error)
    except Doubled as error:
        return "doubled", str(error)
    except Exception:
        return "wrong", traceback.format_exc()
    finally:
        signal.alarm(0)
    return "kept", ""


def _hangs(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no end after {PATIENCE_SECONDS} s")
