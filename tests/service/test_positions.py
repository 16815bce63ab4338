"""A follower's place in a file: whole, or told."""

import os
from pathlib import Path

import pytest

from synrepl.errors import StorageError
from synrepl.storage.position_files import ChangelogPlace, FilePositions

POSITIONS = {"events": {"master": 5, "w1": 7}, "typing": {"master": 0}}


def test_saved_positions_are_loaded_by_another_process(tmp_path: Path) -> None:
    """By another process, later."""
    FilePositions(tmp_path / "state").save(POSITIONS)

    assert FilePositions(tmp_path / "state").load() == POSITIONS
    assert ["state"] == [path.name for path in tmp_path.iterdir()]


def test_a_missing_file_is_a_fresh_start(tmp_path: Path) -> None:
    """The first run of all."""
    assert FilePositions(tmp_path / "state").load() == {}
    assert FilePositions(tmp_path / "state").load_place() is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"version":1,"positions":{"events":{"mas',
        b"nonsense",
        b"[]",
        b"\xff",
        b'{"version":2,"positions":{}}',
        b'{"positions":{}}',
        b'{"version":1}',
        b'{"version":1,"positions":{"events":{"master":"x"}}}',
        b'{"version":1,"positions":{},"more":1}',
    ],
)
def test_garbage_is_no_fresh_start(data: bytes, tmp_path: Path) -> None:
    """Starting anew in silence would lose or repeat facts."""
    path = tmp_path / "state"
    path.write_bytes(data)

    with pytest.raises(StorageError, match=r"not a file of positions.*remove it to start again"):
        FilePositions(path).load()


def test_a_flipped_bit_is_no_other_position(tmp_path: Path) -> None:
    """A follower that goes on at another token misses facts, or has them twice."""
    path = tmp_path / "state"
    FilePositions(path).save(POSITIONS)
    whole = path.read_bytes()

    for at in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises(StorageError, match="not a file of positions"):
            FilePositions(path).load()


def test_positions_of_an_earlier_release_are_loaded(tmp_path: Path) -> None:
    """Up to 26.11.1 the file had no checksum."""
    (tmp_path / "state").write_bytes(b'{"version":1,"positions":{"events":{"master":5}}}\n')

    assert {"events": {"master": 5}} == FilePositions(tmp_path / "state").load()


def test_positions_and_a_place_in_a_changelog_are_not_mixed_up(tmp_path: Path) -> None:
    """The file of one kind of tail given to the other."""
    store = FilePositions(tmp_path / "state")

    store.save_place(ChangelogPlace(7, 1))
    assert store.load_place() == ChangelogPlace(7, 1)
    with pytest.raises(StorageError, match="a position in a changelog, not positions"):
        store.load()

    store.save(POSITIONS)
    with pytest.raises(StorageError, match="positions of streams, not a position"):
        store.load_place()


def test_a_crash_between_write_and_rename_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power may go at any instant; the file is the old one or the new one."""
    store = FilePositions(tmp_path / "state")
    store.save(POSITIONS)

    def crash(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(StorageError, match="No space left on device"):
        store.save({"events": {"master": 6}})

    assert store.load() == POSITIONS


def test_the_new_file_is_synced_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut could leave an empty file under the right name."""
    happened: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(descriptor: int) -> None:
        happened.append("sync")
        fsync(descriptor)

    def note_rename(self: Path, target: Path) -> Path:
        happened.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_rename)

    FilePositions(tmp_path / "state").save(POSITIONS)

    assert happened == ["sync", "rename", "sync"]


def test_two_followers_do_not_share_a_file(tmp_path: Path) -> None:
    """Each would overwrite the other's place."""
    first, second = FilePositions(tmp_path / "state"), FilePositions(tmp_path / "state")
    first.open()

    with pytest.raises(StorageError, match=f"process {os.getpid()} uses"):
        second.open()

    first.close()
    second.open()
    second.close()


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    """In one line."""
    with pytest.raises(StorageError, match="No such file or directory"):
        FilePositions(tmp_path / "no" / "state").save(POSITIONS)
