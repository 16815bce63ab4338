"""What is cut, and what is damaged: at every byte of a small part."""

from io import BytesIO
from pathlib import Path
from shutil import copytree

import pytest

from synrepl.errors import StorageError
from synrepl.replicas.backup import copy_recorder
from synrepl.replicas.backup.examination import BackupContents
from synrepl.replicas.backup.part_codec import Damage, PartScan
from tests.replicas.backup.recorders import Recorder, examined, forget_end, restored
from tests.replicas.clusters import FakeCluster

MADE = 3
"""So many runs, each with one fact more."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of some runs, in one part."""
    folder = tmp_path_factory.mktemp("made") / "backup"
    cluster = FakeCluster()
    a = cluster.node("a")
    for _ in range(MADE):
        cluster.wrote(a)
        Recorder(cluster, folder).finish()
    a.kill()
    return folder


def part_of(folder: Path, number: int = 1) -> Path:
    """The path of a part."""
    return folder / "parts" / f"{number}.part"


def ends(data: bytes) -> list[int]:
    """The offsets behind the marks of a part."""
    found, at = [], 0
    while (at := data.find(b"BLOCK mark ", at + 1)) >= 0:
        line = data.index(b"\n", at) + 1
        found.append(line + int(data[at:line].split()[3]))
    return found


def serial_of(found: BackupContents) -> int | None:
    """Where the last copy ends."""
    return found.copies[-1].state.position.serial if found.copies else None


def read(data: bytes) -> tuple[PartScan, Damage | None]:
    """Read a part to its end, or to what is damaged."""
    reader = PartScan(BytesIO(data))
    try:
        for _ in reader.blocks():
            pass
    except Damage as error:
        return reader, error
    return reader, None


def test_cut_at_every_byte_it_is_valid_up_to_the_last_mark(made: Path) -> None:
    """And is no damage: so a running backup looks, and one whose power was cut."""
    data = part_of(made).read_bytes()
    marks = ends(data)
    for size in range(len(data) + 1):
        reader, damage = read(data[:size])

        assert damage is None, size
        assert reader.upto == max((one for one in marks if one <= size), default=0), size
        assert reader.is_cut == (size != reader.upto), size


def test_a_flipped_bit_at_every_byte_is_found(made: Path) -> None:
    """As damage before the last mark; in the last mark itself it is as if that was cut."""
    data = part_of(made).read_bytes()
    last = data.rindex(b"BLOCK mark ")
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8

        reader, damage = read(bytes(flipped))

        assert (damage is not None) == (at < last), at
        assert reader.is_cut == (at >= last), at
        assert reader.upto <= at, at


@pytest.mark.parametrize("size", range(1, 2_000, 97))
def test_what_is_written_while_it_is_read_is_no_damage(made: Path, size: int) -> None:
    """The first look finds an end within a block, and the next one a mark behind it."""
    data = part_of(made).read_bytes()

    class Growing(BytesIO):
        """Has the rest from the first look on that comes to its end."""

        def readline(self, most: int | None = -1, /) -> bytes:
            line = super().readline(-1 if most is None else most)
            return line if line.endswith(b"\n") else self._grow(line)

        def read(self, count: int | None = -1, /) -> bytes:
            found = super().read(-1 if count is None else count)
            return found if count is not None and len(found) == count else self._grow(found)

        def _grow(self, found: bytes) -> bytes:
            at = self.tell()
            self.seek(size)
            self.write(data[size:])
            self.seek(at)
            return found

    scan = PartScan(Growing(data[:size]))
    for _ in scan.blocks():
        pass

    assert (scan.upto, scan.is_cut) == (len(data), False)


def test_cut_anywhere_the_next_run_goes_on(tmp_path: Path) -> None:
    """What is behind the last mark is recorded again."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    first = tmp_path / "first"
    Recorder(cluster, first).finish()
    data = part_of(first).read_bytes()
    for size in range(0, len(data), 211):
        folder = tmp_path / f"cut-{size}"
        copytree(first, folder)
        part_of(folder).write_bytes(data[:size])
        forget_end(folder)
        is_cut = bool(examined(folder).cut_at)

        Recorder(cluster, folder).finish()

        found = examined(folder)
        assert is_cut or size in ends(data)
        assert (found.damages, found.cut_at) == ([], ""), size
        assert found.whole[-1].state.position == a.log.position, size


@pytest.mark.parametrize("harm", ["a bit", "a mark", "all"])
def test_the_end_of_a_run_that_ended_itself_is_known(tmp_path: Path, harm: str) -> None:
    """What it lacks now was no power cut: without it the newest facts would be missing after a restore."""
    cluster, folder = FakeCluster(), tmp_path / "backup"
    a = cluster.node("a")
    for _ in range(2):
        cluster.wrote(a)
        Recorder(cluster, folder).finish()
    data = part_of(folder).read_bytes()
    if harm == "all":
        part_of(folder).unlink()
    else:
        part_of(folder).write_bytes(data[:-1] + b"x" if harm == "a bit" else data[: ends(data)[-2]])

    (damage,) = examined(folder).damages
    left = 0 if harm == "all" else ends(data)[-2]
    assert f"it is valid up to byte {left}, and the last run ended at byte {len(data)}" == damage.why
    assert "" == examined(folder).cut_at
    with pytest.raises(StorageError, match=r"(it is valid up to byte|no complete copy)"):
        restored(folder, cluster)
    with pytest.raises(StorageError, match=r"1\.part is damaged .*(the last run ended|it is missing)"):
        Recorder(cluster, folder).finish()


def test_while_a_backup_runs_its_end_is_unknown(tmp_path: Path) -> None:
    """And after it was killed: what was written last may be there in part."""
    cluster, folder = FakeCluster(), tmp_path / "backup"
    cluster.wrote(cluster.node("a"))
    Recorder(cluster, folder).finish()
    recorder = Recorder(cluster, folder, follow=True)
    cluster.pass_(5)
    recorder.kill()
    part_of(folder).write_bytes(part_of(folder).read_bytes()[:-1])

    found = examined(folder)

    assert ([], True) == (found.damages, bool(found.cut_at))
    Recorder(cluster, folder).finish()
    assert "" == examined(folder).cut_at


def test_a_damaged_part_is_not_gone_on_with(made: Path, tmp_path: Path) -> None:
    """Whoever restores it later would lack what was damaged."""
    folder = tmp_path / "backup"
    copytree(made, folder)
    data = bytearray(part_of(folder).read_bytes())
    data[ends(bytes(data))[3] + 100] ^= 1
    part_of(folder).write_bytes(data)
    cluster = FakeCluster()
    cluster.node("a")

    with pytest.raises(StorageError, match=r"1\.part is damaged at byte \d+: .*synrepl backup verify"):
        Recorder(cluster, folder).finish()

    assert part_of(folder).read_bytes() == data


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A backup in several parts."""
    monkeypatch.setattr(copy_recorder, "PART_BYTES", 1_000)
    folder = tmp_path / "several"
    cluster = FakeCluster()
    a = cluster.node("a")
    for _ in range(5):
        cluster.wrote(a, 3)
        Recorder(cluster, folder).finish()
    a.kill()
    return folder


def test_parts_form_a_chain(several: Path) -> None:
    """Each is finished once it is large, and never changes again."""
    found = examined(several)

    assert found.parts > 3
    assert (found.damages, found.cut_at, serial_of(found)) == ([], "", 15)


@pytest.mark.parametrize(
    ("number", "harm", "words"),
    [
        (2, "missing", "it is missing"),
        (2, "cut", "it is cut behind byte"),
        (2, "empty", "it has no mark"),
        (3, "other", "it is part 2"),
        (1, "missing", "the parts before it are missing"),
    ],
)
def test_a_broken_chain_is_damage(several: Path, number: int, harm: str, words: str) -> None:
    """It is valid up to the part before; each is told once."""
    path = part_of(several, number)
    match harm:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:-1])
        case "empty":
            path.write_bytes(b"")
        case "other":
            path.write_bytes(part_of(several, 2).read_bytes())

    found = examined(several)

    assert [words in one.why for one in found.damages] == [True], found.damages
    assert (serial_of(found) or 0) < 15


def test_a_file_is_verified_by_its_name(made: Path, tmp_path: Path) -> None:
    """Also one that no part names."""
    folder = tmp_path / "backup"
    copytree(made, folder)
    (folder / "files" / ("0" * 64)).write_bytes(b"other")

    (damage,) = examined(folder).damages

    assert damage.why == "its SHA-256 is not its name"
