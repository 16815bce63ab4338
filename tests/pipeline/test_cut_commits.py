"""Commits of which a power failure has left the name and a part of the bytes."""

import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from synrepl.pipeline.archive import table as table_module
from synrepl.pipeline.archive.archive import BatchCommitter
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.archive.table_commits import END, read_history
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.store import BadArchive, Store
from tests.pipeline.archives import LOG, forget_checksums, paths_of, write_facts
from tests.pipeline.test_damage import facts_of

Cut = Callable[[bytes], bytes]

CUTS: dict[str, Cut] = {
    "nothing": lambda data: b"",
    "the first half": lambda data: data[: len(data) // 2],
    "all but the last line": lambda data: data[: data.rindex(b"\n")],
    "zeros": lambda data: bytes(len(data)),
    "a hole": lambda data: data[:100] + bytes(200) + data[300:],
    "a hole at the end": lambda data: data[:-100] + bytes(100),
}
"""What there is of the bytes of a commit."""


def cut_commit(place: Path, version: int, cut: Cut) -> None:
    """Leave a part of a commit, as if it had not been acknowledged."""
    path = place / "_delta_log" / f"{version:020}.json"
    path.write_bytes(cut(path.read_bytes()))


def archived(place: Path, batches: int) -> None:
    """Archive up to so many batches, each a commit."""
    store, facts = Store(str(place)), facts_of(batches)
    committer = BatchCommitter(store, LOG)
    while committer.serial < len(facts):
        committer.commit(write_facts(store, facts[committer.serial : committer.serial + 2]), now_ms=1)


def before_the_last(place: Path, batches: int) -> None:
    """The same, with the last commit not acknowledged."""
    archived(place, batches - 1)
    end = (place / END).read_bytes()
    archived(place, batches)
    (place / END).write_bytes(end)


def merge(store: Store) -> int:
    """Merge small files, and tell how many."""
    with LocalDriver(threads=1) as driver:
        return optimize(driver, store).merged


@pytest.mark.parametrize("name", CUTS)
def test_a_batch_that_was_cut_counts_as_not_there_and_comes_again(tmp_path: Path, name: str) -> None:
    """It was not acknowledged: the daemon still has its facts."""
    before_the_last(tmp_path, 3)
    cut_commit(tmp_path, 2, CUTS[name])

    store = Store(str(tmp_path))
    assert 4 == ArchiveTable(store).end.last_serial
    assert [1, 0] == [one.version for one in read_history(store, 10).versions]
    archived(tmp_path, 3)

    whole = ArchiveTable(Store(str(tmp_path)))
    assert (2, 6, 3) == (whole.version, whole.end.last_serial, len(whole.files))
    assert 2 == DeltaTable(tmp_path).version(), "other programs can read it again"


@pytest.mark.parametrize("name", CUTS)
def test_a_table_whose_first_commit_was_cut_is_none(tmp_path: Path, name: str) -> None:
    archived(tmp_path, 1)
    (tmp_path / END).unlink()
    cut_commit(tmp_path, 0, CUTS[name])

    assert ArchiveTable.if_any(Store(str(tmp_path))) is None
    with pytest.raises(BadArchive, match="nothing is archived there yet"):
        ArchiveTable(Store(str(tmp_path)))
    archived(tmp_path, 1)

    assert 2 == ArchiveTable(Store(str(tmp_path))).end.last_serial


def test_a_first_commit_without_its_name_is_none(tmp_path: Path) -> None:
    """So it is left when a job dies before delta-rs has named it, too."""
    archived(tmp_path, 1)
    (tmp_path / END).unlink()
    commit = tmp_path / "_delta_log" / f"{0:020}.json"
    commit.rename(commit.with_name(f"{commit.name}#1"))

    assert ArchiveTable.if_any(Store(str(tmp_path))) is None
    archived(tmp_path, 1)

    assert 2 == ArchiveTable(Store(str(tmp_path))).end.last_serial


@pytest.mark.parametrize("name", CUTS)
def test_a_merge_that_was_cut_is_done_again(tmp_path: Path, name: str) -> None:
    """Its files are still there."""
    archived(tmp_path, 3)
    store, end = Store(str(tmp_path)), (tmp_path / END).read_bytes()
    assert 3 == merge(store)
    cut_commit(tmp_path, 3, CUTS[name])
    (tmp_path / END).write_bytes(end)

    assert 3 == len(ArchiveTable(store).files)
    assert 3 == merge(store)

    assert (3, 1) == (ArchiveTable(store).version, len(ArchiveTable(store).files))


def test_a_merge_that_is_damaged_after_a_vacuum_is_refused(tmp_path: Path) -> None:
    """The files that it replaced are gone: without it the archive would name files that do not exist.

    Earlier releases have left no checksum of it.
    """
    archived(tmp_path, 3)
    store = Store(str(tmp_path))
    merge(store)
    ArchiveTable(store).vacuum(retention_hours=0, dry_run=False)
    cut_commit(tmp_path, 3, CUTS["a hole"])
    with pytest.raises(BadArchive, match=r"3\.json is damaged: its SHA-256 is .* put a copy of it back"):
        ArchiveTable(store)
    forget_checksums(tmp_path)

    with pytest.raises(BadArchive, match=r"the commit of version 3 is damaged; .* is missing"):
        ArchiveTable(store)


@pytest.mark.parametrize("name", CUTS)
def test_a_vacuum_that_was_cut_is_forgotten(tmp_path: Path, name: str) -> None:
    archived(tmp_path, 3)
    store = Store(str(tmp_path))
    merge(store)
    end = (tmp_path / END).read_bytes()
    ArchiveTable(store).vacuum(retention_hours=0, dry_run=False)
    (tmp_path / END).write_bytes(end)
    cut = CUTS["nothing" if name == "all but the last line" else name]  # it has one line
    cut_commit(tmp_path, 4, cut)

    assert (3, 1) == (ArchiveTable(store).version, len(ArchiveTable(store).files))
    ArchiveTable(store).vacuum(retention_hours=0, dry_run=False)

    assert 5 == DeltaTable(tmp_path).version()


def test_an_acknowledged_batch_that_is_damaged_is_refused(tmp_path: Path) -> None:
    """It was synced: what is wrong with it now is not the power's doing."""
    archived(tmp_path, 3)
    cut_commit(tmp_path, 2, CUTS["a hole"])

    with pytest.raises(BadArchive, match="cannot be read"):
        ArchiveTable(Store(str(tmp_path)))


def test_a_commit_of_an_earlier_release_is_not_counted(tmp_path: Path) -> None:
    """It does not say how many files it has."""
    before_the_last(tmp_path, 3)
    cut_commit(
        tmp_path,
        2,
        lambda data: data.replace(b'"synreplActions":1,', b"").replace(b',"synreplActions":1', b""),
    )
    path = tmp_path / "_delta_log" / f"{2:020}.json"
    assert b"synreplActions" not in path.read_bytes()

    assert 6 == ArchiveTable(Store(str(tmp_path))).end.last_serial


def test_a_checkpoint_has_its_name_when_it_is_on_the_disk(tmp_path: Path) -> None:
    """Readers trust a checkpoint that is in part, or refuse the table; and no commit waits for one."""
    written: list[str] = []
    write = Store.write

    def noted(store: Store, name: str, data: bytes) -> None:
        write(store, name, data)
        if store.location == str(tmp_path) and "checkpoint" in name:
            written.append(name)

    with patch.object(table_module, "CHECKPOINT_EVERY", 3), patch.object(Store, "write", noted):
        archived(tmp_path, 7)

    assert [f"_delta_log/{2:020}.checkpoint.parquet", "_delta_log/_last_checkpoint"] * 2 == [
        name.replace(f"{5:020}", f"{2:020}") for name in written
    ]
    there = {path.name for path in tmp_path.glob("_delta_log/*checkpoint*")}
    assert {f"{2:020}.checkpoint.parquet", f"{5:020}.checkpoint.parquet", "_last_checkpoint"} == there
    assert 7 == len(paths_of(tmp_path))


def test_a_new_folder_has_a_durable_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or an archive in a new folder is gone with it."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr("synrepl.pipeline.store.os.fsync", noted)

    Store(str(tmp_path / "some" / "archive")).create()

    assert [str(tmp_path), str(tmp_path / "some")] == synced
