"""Files and manifests of archives, without Spark."""

import os
import stat
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from synrepl.pipeline.archive.manifest import BadArchive, manifests, write_manifest
from synrepl.pipeline.archive.merge import tidy
from synrepl.pipeline.store import Store
from synrepl.ports.history import EpochStart
from tests.pipeline.archives import archive, chained, counted_by_the_manual

ROWS = [["@ada:example.org"]]


def test_an_archive_is_what_its_manifests_name(tmp_path: Path) -> None:
    """Whoever reads the files that manifests name, by whatever means, has each row once."""
    facts = chained([("push_rules", "master", ROWS), ("pushers", "w1", [["@a:b", "app", "k", False]])] * 50)

    made = archive(str(tmp_path), facts, batch_facts=30)

    assert made == manifests(Store(str(tmp_path)))
    assert [(1, 30), (31, 60), (61, 90), (91, 100)] == [(m.first_serial, m.last_serial) for m in made]
    assert {"push_rules": {"master": 50}, "pushers": {"w1": 50}} == made[-1].end
    files = [str(tmp_path / file.path) for manifest in made for file in manifest.files]
    found = duckdb.connect().execute(
        f"select count(*), count(distinct serial), min(key) from read_parquet({files})"
    )
    assert (100, 100, '["@a:b","app","k"]') == found.fetchone()
    assert "stream" in pq.read_table(files[0]).column_names


def test_a_fact_of_many_rows_and_one_of_none(tmp_path: Path) -> None:
    """A fact without rows certifies a position: it has one line, without a row."""
    facts = chained([("push_rules", "w", [["@a:b"], ["@c:d"]]), ("push_rules", "w", [])])

    archive(str(tmp_path), facts)

    (file,) = manifests(Store(str(tmp_path)))[0].files
    found = pq.read_table(tmp_path / file.path).select(["serial", "seq", "key", "row"]).to_pylist()
    assert [
        {"serial": 1, "seq": 0, "key": '["@a:b"]', "row": '["@a:b"]'},
        {"serial": 1, "seq": 1, "key": '["@c:d"]', "row": '["@c:d"]'},
        {"serial": 2, "seq": 0, "key": None, "row": None},
    ] == found
    assert (3, 2) == (file.rows, file.facts)


def test_a_missing_manifest_is_told(tmp_path: Path) -> None:
    """Nobody reads an archive with a hole in it as if it were whole."""
    archive(str(tmp_path), chained([("push_rules", "w", ROWS)] * 9), batch_facts=3)
    (tmp_path / "_manifests" / "1.json").unlink()

    with pytest.raises(BadArchive, match="batch 0 ends at serial 3, batch 2 begins at 7"):
        manifests(Store(str(tmp_path)))


def test_facts_that_are_missing_make_no_batch(tmp_path: Path) -> None:
    """A batch is written whole or not at all."""
    facts = chained([("push_rules", "w", ROWS)] * 9)

    with pytest.raises(BadArchive, match="batch 0 is not whole: 8 facts"):
        archive(str(tmp_path), [*facts[:4], *facts[5:]])

    assert [] == manifests(Store(str(tmp_path)))


def test_what_was_lost_goes_back_in_the_clock(tmp_path: Path) -> None:
    """Where facts of a stream were lost, positions went back: a snapshot that claimed the lost ones would
    keep a replica from ever taking those tokens again."""
    facts = chained([("push_rules", "w", ROWS)] * 9 + [("pushers", "w", [["@a:b", "app", "k", False]])] * 3)
    lost = EpochStart(
        epoch=2, serial=6, digest=facts[5].digest, at_ms=1, why="lost", stream="push_rules", token=4
    )
    after = [replace(fact, epoch=1 if fact.serial <= 6 else 2) for fact in facts[:6] + facts[9:]]
    again = [replace(fact, serial=number) for number, fact in enumerate(after, 1)]

    first, second = archive(str(tmp_path), again, batch_facts=5, epoch_starts=[lost])

    assert ({"push_rules": {"w": 5}}, []) == (first.end, first.epoch_starts)
    assert ({"push_rules": {"w": 4}, "pushers": {"w": 3}}, [lost]) == (second.end, second.epoch_starts)


def test_the_query_of_the_manual_reads_an_archive(tmp_path: Path) -> None:
    """With nothing of ours; also when a merge, or a crash in it, has left two manifests of the same facts."""
    facts = chained([("push_rules", "w", ROWS * 2), ("pushers", "w", [])] * 5)
    (made,) = archive(str(tmp_path), facts)

    before = counted_by_the_manual(tmp_path)
    write_manifest(Store(str(tmp_path)), replace(made, batch=7, replaces=[made.batch]))
    after = counted_by_the_manual(tmp_path)

    assert [("push_rules", 10), ("pushers", 5)] == before == after


@pytest.mark.parametrize("left", [".1.json.0a1b2c3d", "1.json.0a1b2c3d"])
def test_a_manifest_that_was_never_finished_goes(tmp_path: Path, left: str) -> None:
    """A kill leaves it under a name that nobody looks for, one for each kill, for ever."""
    archive(str(tmp_path), chained([("push_rules", "w", ROWS)] * 3))
    folder = tmp_path / "_manifests"
    (folder / left).write_bytes(b"{")
    (folder / "notes.txt").write_bytes(b"of a person")
    store = Store(str(tmp_path))

    tidy(store, manifests(store), now_ms=0)

    assert ["0.json", "notes.txt"] == sorted(path.name for path in folder.iterdir())


def test_a_file_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut leaves a manifest of nothing, or one that names empty files; the log may be trimmed by
    then. Names are synced as well, those of the folders above included."""
    happened: list[str] = []
    synced = os.fsync
    named = tmp_path / "folder" / "file"

    def sync(descriptor: int) -> None:
        what = os.fstat(descriptor)
        size = what.st_size if stat.S_ISREG(what.st_mode) else "folder"
        happened.append(f"{size} {'named' if named.exists() else 'unnamed'}")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", sync)

    Store(str(tmp_path)).write("folder/file", b"data", new=True)
    Store(str(tmp_path)).write("folder/file", b"other")

    folders = ["folder named", "folder named"]
    assert ["4 unnamed", *folders, "5 named", *folders] == happened
    assert ["file"] == [path.name for path in named.parent.iterdir()]
