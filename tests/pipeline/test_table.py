"""The table of an archive, without Spark: batches, kills and races at each commit, time travel, readers."""

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from synrepl.base.history import EpochStart
from synrepl.pipeline.archive import archive as committing
from synrepl.pipeline.archive import optimize, table
from synrepl.pipeline.archive.archive import BatchCommitter, LogIdentity, Overtaken
from synrepl.pipeline.archive.row_files import read_files, sha256_of, write_files
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.source.rows import ROWS as SCHEMA
from synrepl.pipeline.store import BadArchive, Store
from tests.pipeline.archives import (
    ARCHIVED_MS,
    LOG,
    archive,
    chained,
    counted_by_the_manual,
    forget_checksums,
    paths_of,
    write_facts,
)

ROWS = [["@ada:example.org"]]
FACTS = chained([("push_rules", "w", ROWS), ("receipts", "w", [])] * 6)
BATCH = 3


class Killed(BaseException):
    """In place of a kill."""


def serials(store: Store) -> list[int]:
    """Those of all facts, by delta-rs alone."""
    table = DeltaTable(store.table_uri, storage_options=store.options)
    found: list[int] = table.to_pyarrow_table(columns=["serial"])["serial"].to_pylist()
    return sorted(found)


def run(store: Store, *, upto: int = len(FACTS)) -> None:
    """As the job does: batch after batch, from the end of the archive on; begins again if overtaken."""
    job = BatchCommitter(store, LOG)
    while job.serial < upto:
        some = FACTS[job.serial : job.serial + BATCH]
        try:
            job.commit(write_facts(store, some), now_ms=1)
        except Overtaken:
            job = BatchCommitter(store, LOG)


def merged(store: Store, *, fewest: int = 2) -> None:
    """As the job `optimize` does, without tasks."""
    found = ArchiveTable(store)
    for plan in optimize.plan_merges(found.files, target_bytes=1 << 20, fewest=fewest):
        written = list(write_files(store, read_files(store, plan["path"].to_pylist(), SCHEMA)))
        found = found.replace(plan, written, now_ms=1)


def test_batches_follow_each_other(tmp_path: Path) -> None:
    """A commit for each; every reader of Delta tables sees each row once."""
    made = archive(str(tmp_path), FACTS, batch_facts=5)

    assert [(1, 5, 0), (6, 10, 1), (11, 12, 2)] == [
        (one.first_serial, one.last_serial, one.version) for one in made
    ]
    assert {"push_rules": {"w": 6}, "receipts": {"w": 6}} == made[-1].end
    assert FACTS[4].digest == made[0].digest
    paths = [str(tmp_path / path) for path in paths_of(tmp_path)]
    query = "select count(*), count(distinct serial), min(key) from "
    dataset = DeltaTable(tmp_path).to_pyarrow_dataset()
    expected = (12, 12, '["@ada:example.org"]')
    assert expected == duckdb.connect().execute(f"{query}read_parquet({paths})").fetchone()
    assert expected == duckdb.connect().execute(f"{query}dataset").fetchone(), dataset
    assert 12 == pl.scan_delta(str(tmp_path)).select(pl.col("serial").n_unique()).collect().item()
    assert [("push_rules", 6), ("receipts", 6)] == counted_by_the_manual(tmp_path)
    frame = DeltaTable(tmp_path).to_pandas(columns=["serial", "stream", "date", "row"])
    assert {"push_rules": 6, "receipts": 6} == frame.groupby("stream").size().to_dict()


def killed_at(monkeypatch: pytest.MonkeyPatch, effect: int) -> None:
    """From now on, the process is killed before this effect: a file or a commit, or right after a commit."""
    left = [effect]

    def counted(method: Callable[..., Any], *, is_commit: bool = False) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            for is_after in (False, True) if is_commit else (False,):
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                if not is_after:
                    found = method(*given, **named)
            return found

        return call

    monkeypatch.setattr(Store, "write", counted(Store.write))
    monkeypatch.setattr(committing, "create_table", counted(table.create_table, is_commit=True))
    for name in ("append", "replace"):
        monkeypatch.setattr(ArchiveTable, name, counted(getattr(ArchiveTable, name), is_commit=True))


def test_a_job_that_is_killed_anywhere_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, during and after each commit of a batch or of a merge; the next run goes on."""
    whole = list(range(1, len(FACTS) + 1))
    kills, is_killed = 0, True
    while is_killed and kills < 50:
        store = Store(str(tmp_path / f"killed-{kills}"))
        with monkeypatch.context() as patch:
            killed_at(patch, kills)
            try:
                run(store)
                merged(store)
                is_killed = False
            except Killed:
                kills += 1
        run(store)
        assert whole == serials(store), f"killed before effect {kills}"
        merged(store)
        assert whole == serials(store), f"killed before effect {kills}"
        assert 4 == len(ArchiveTable(store).batches())
        ArchiveTable(store).vacuum(retention_hours=0, dry_run=False)
        there = {str(path.relative_to(store.path())) for path in Path(store.path()).rglob("*.parquet")}
        assert set(paths_of(store.path())) == {path for path in there if not path.startswith("_")}
    # Four batches of two files, and two merges; each commit has an edge before and after it, and one more
    # write: of the end.
    assert 4 * (2 + 2 + 1) + 2 * (1 + 2 + 1) == kills


def test_of_two_jobs_one_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each commit the other one is faster, by one batch or by two, or has merged files only."""
    store = Store(str(tmp_path))
    races = iter([3, None, 12])
    lost: list[int | str | None] = []

    def racing(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            upto = next(races, "over")
            with monkeypatch.context() as patch:
                patch.setattr(committing, "create_table", table.create_table)
                patch.setattr(ArchiveTable, "append", append)
                if upto is None:
                    merged(store)
                elif upto != "over":
                    run(store, upto=int(upto))
            try:
                return method(*given, **named)
            except table.CommitConflict:
                lost.append(upto)
                raise

        return call

    append = ArchiveTable.append
    monkeypatch.setattr(committing, "create_table", racing(table.create_table))
    monkeypatch.setattr(ArchiveTable, "append", racing(append))
    run(store)

    assert [3, 12] == lost
    assert list(range(1, 13)) == serials(store)
    assert [3, 6, 9, 12] == [one.last_serial for one in ArchiveTable(store).batches()]


def test_a_retried_batch_is_recognised(tmp_path: Path) -> None:
    """A commit that succeeded although its answer was lost is not repeated."""
    store = Store(str(tmp_path))
    job = BatchCommitter(store, LOG)
    written = write_facts(store, FACTS[:BATCH])
    job.commit(written, now_ms=1)
    again = BatchCommitter(store, LOG)
    again._table = None  # as it was before the commit

    with pytest.raises(Overtaken, match="up to serial 3"):
        again.commit(written, now_ms=1)

    assert [1, 2, 3] == serials(store)


def test_an_archive_is_of_one_log(tmp_path: Path) -> None:
    """Two histories in one archive could never be told apart again."""
    archive(str(tmp_path), FACTS)

    with pytest.raises(BadArchive, match="the archive of another log"):
        BatchCommitter(Store(str(tmp_path)), LogIdentity("another", "localhost"))


def test_other_folders_are_refused(tmp_path: Path) -> None:
    """By name, and with what to do."""
    (tmp_path / "former" / "_manifests").mkdir(parents=True)
    (tmp_path / "former" / "_manifests" / "0.json").write_text("{}")
    former = Store(str(tmp_path / "former"))

    with pytest.raises(BadArchive, match="former format, with manifests in _manifests; archive into a new"):
        ArchiveTable(former)
    with pytest.raises(BadArchive, match="former format"):
        BatchCommitter(former, LOG)
    with pytest.raises(BadArchive, match="nothing is archived there yet; run synrepl pipeline archive first"):
        ArchiveTable(Store(str(tmp_path / "nothing")))
    pl.DataFrame({"a": [1]}).write_delta(str(tmp_path / "other"))
    with pytest.raises(BadArchive, match="a Delta table, but not an archive"):
        ArchiveTable(Store(str(tmp_path / "other")))


def test_a_fact_of_many_rows_and_one_of_none(tmp_path: Path) -> None:
    """A fact without rows certifies a position: it has one line, without a row."""
    archive(str(tmp_path), chained([("push_rules", "w", [["@a:b"], ["@c:d"]]), ("push_rules", "w", [])]))

    (file,) = ArchiveTable(Store(str(tmp_path))).files.to_pylist()
    found = pl.read_parquet(tmp_path / file["path"]).select("serial", "seq", "key", "row").rows()
    assert [(1, 0, '["@a:b"]', '["@a:b"]'), (1, 1, '["@c:d"]', '["@c:d"]'), (2, 0, None, None)] == found
    assert (3, 1, 1, 2) == tuple(file[name] for name in ("rows", "last_seq", "first_serial", "last_serial"))


def test_facts_that_are_missing_make_no_batch(tmp_path: Path) -> None:
    """A batch is written whole or not at all."""
    with pytest.raises(BadArchive, match="the batch is not whole: it has 11 facts"):
        archive(str(tmp_path), [*FACTS[:4], *FACTS[5:]])

    assert ArchiveTable.if_any(Store(str(tmp_path))) is None


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


def test_an_older_version_is_read_as_it_was(tmp_path: Path) -> None:
    """Also after a merge, until a vacuum; by version, or by time."""
    store = Store(str(tmp_path))
    archive(str(tmp_path), FACTS, batch_facts=BATCH)
    before = ArchiveTable(store)
    merged(store)

    found = ArchiveTable(store, "1")
    assert (1, 6, 2) == (found.version, found.end.last_serial, len(found.batches()))
    assert before.files == ArchiveTable(store, "3").files
    assert 12 == ArchiveTable(store, "2100-01-01T00:00:00Z").end.last_serial
    for wrong in ("9", "tomorrow"):
        with pytest.raises(BadArchive, match=f"cannot be read as of {wrong}"):
            ArchiveTable(store, wrong)
    ArchiveTable(store).vacuum(retention_hours=0, dry_run=False)
    assert not (tmp_path / before.files["path"][0].as_py()).exists()


def test_a_batch_that_is_gone_is_reported(tmp_path: Path) -> None:
    """Nobody reads an archive with a hole in it as if it were whole."""
    archive(str(tmp_path), FACTS, batch_facts=BATCH)
    forget_checksums(tmp_path)
    commit = tmp_path / "_delta_log" / f"{1:020}.json"
    commit.write_text(commit.read_text().replace('"synrepl"', '"other"'))

    with pytest.raises(BadArchive, match="version 2 begins at serial 7, expected serial 4"):
        ArchiveTable(Store(str(tmp_path))).batches()


def test_a_commit_survives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may be trimmed once it is archived, and delta-rs does not sync."""
    synced: list[str] = []
    sync = Store.sync

    def told(self: Store, name: str = "") -> None:
        synced.append(name)
        sync(self, name)

    monkeypatch.setattr(Store, "sync", told)
    archive(str(tmp_path), FACTS, batch_facts=6)

    assert [f"_delta_log/{number:020}.json" for number in (0, 1)] == [
        name for name in synced if name.startswith("_delta_log")
    ]


def test_a_merge_keeps_order_and_facts(tmp_path: Path) -> None:
    """A file for each stream and day, in order of serial; its name still has its checksum."""
    store = Store(str(tmp_path))
    archive(str(tmp_path), FACTS, batch_facts=BATCH)

    merged(store)

    files = ArchiveTable(store).files.to_pylist()
    assert [("push_rules", 1, 11, 6), ("receipts", 2, 12, 6)] == [
        (one["stream"], one["first_serial"], one["last_serial"], one["rows"]) for one in files
    ]
    for one in files:
        assert sha256_of(one["path"]) == store.sha256(one["path"])
        found = pl.read_parquet(tmp_path / one["path"])["serial"].to_list()
        assert sorted(found) == found
    assert [] == list(optimize.plan_merges(ArchiveTable(store).files, target_bytes=1 << 20, fewest=2))


def test_which_files_are_merged(tmp_path: Path) -> None:
    """Neighbors that are small, enough of them, not too large together, and none outweighs the others: a fact
    is written again only into a file twice as large at least."""

    def chosen(*sizes: int, fewest: int = 3, target: int = 20) -> list[list[int]]:
        files = table.FILES.empty_table().to_pylist()
        for number, size in enumerate(sizes):
            files.append(
                dict.fromkeys(("path", "stream"), "x")
                | {"bytes": size, "rows": 1, "date": None, "first_serial": number, "last_serial": number}
                | {"last_seq": 0}
            )
        found = optimize.plan_merges(
            pa.Table.from_pylist(files, table.FILES), target_bytes=target, fewest=fewest
        )
        return [plan["first_serial"].to_pylist() for plan in found]

    assert [] == chosen()
    assert [] == chosen(1, 1)
    assert [[0, 1]] == chosen(1, 1, fewest=2)
    assert [[0, 1, 2]] == chosen(1, 2, 3)
    assert [[1, 2, 3], [5, 6, 7]] == chosen(50, 3, 3, 3, 99, 1, 1, 1)
    assert [[0, 1], [2, 3]] == chosen(9, 9, 9, 9, fewest=2)
    assert [] == chosen(7, 1, 1)
    assert [[0, 1, 2]] == chosen(7, 1, 1, fewest=2)
    assert [[1, 2, 3]] == chosen(9, 1, 1, 1)


def test_a_stream_of_any_name_is_archived_and_merged(tmp_path: Path) -> None:
    """Paths are encoded in folders, and again in the log."""
    store = Store(str(tmp_path))
    facts = chained([("a b%/ü", "w", [["@a:b"]])] * 4)
    archive(str(tmp_path), facts, batch_facts=1)

    merged(store)

    assert [1, 2, 3, 4] == serials(store)
    assert 1 == len(paths_of(tmp_path))
    assert all((tmp_path / path).exists() for path in paths_of(tmp_path))


def test_a_commit_that_always_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not tried for ever: it may be no race at all."""
    store = Store(str(tmp_path))
    job = BatchCommitter(store, LOG)

    def failing(*_: Any) -> ArchiveTable:
        raise table.CommitConflict("no permission")

    monkeypatch.setattr(committing, "create_table", failing)

    with pytest.raises(BadArchive, match="a batch cannot be committed: no permission"):
        job.commit(write_facts(store, FACTS), now_ms=1)


def test_history_and_files_survive_a_checkpoint(tmp_path: Path) -> None:
    """Delta writes one each hundred commits, which has no history."""
    store = Store(str(tmp_path))
    archive(str(tmp_path), chained([("push_rules", "w", ROWS)] * 110), batch_facts=1)

    assert list(tmp_path.glob("_delta_log/*.checkpoint.parquet"))
    found = ArchiveTable(store)
    assert (110, 110, 110) == (len(found.batches()), len(found.files), found.end.last_serial)


@pytest.mark.parametrize("hours", [-1, 0, 1], ids=["older", "same", "newer"])
def test_a_time_reads_the_same_version_of_each_copy(tmp_path: Path, hours: int) -> None:
    """Whatever times the files have: a copy or a restore gives them others. Merges have times, too."""
    place = tmp_path / "archive"
    archive(str(place), FACTS, batch_facts=BATCH)
    merged(Store(str(place)))
    at_ms = [FACTS[number * BATCH - 1].committed_at_ms + ARCHIVED_MS for number in range(1, 5)]
    copy = Path(shutil.copytree(place, tmp_path / "copy"))
    for number, file in enumerate(sorted((copy / "_delta_log").iterdir())):
        at = at_ms[0] / 1000 + 3600 * hours * (number + 1)
        os.utime(file, (at, at))

    def as_of(ms: int) -> int:
        time = datetime.fromtimestamp(ms / 1000, UTC).isoformat()
        return ArchiveTable(Store(str(copy)), time).version

    # The clock of the merge is that of this machine, which is later.
    assert as_of(4_000_000_000_000) > 3
    assert [0, 0, 1, 2, 3, 3] == [
        *(as_of(ms) for ms in (at_ms[0], at_ms[1] - 1, at_ms[1], at_ms[2], at_ms[3], at_ms[3] + 10**6)),
    ]
    with pytest.raises(BadArchive, match=r"as of .*: the archive begins at 2026-11-21T00:03:02"):
        as_of(at_ms[0] - 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-11-21", "without an offset from UTC is another one elsewhere; take a version, such as 17, or"),
        ("2026-11-21T00:03:00", "without an offset from UTC"),
        ("2026-11-21 00:03:00", "without an offset from UTC"),
        ("yesterday", "take a version, such as 17, or a time with its offset, such as 2026-01-31T00:00:00Z"),
        ("", "take a version"),
        ("-1", "take a version"),
        ("\u0663", "take a version"),
        ("1.5", "take a version"),
        ("2026-13-01T00:00:00Z", "month must be in 1..12.*; take a version"),
        ("2026-02-30T00:00:00Z", "; take a version"),
        ("2026-11-21T25:00:00Z", "; take a version"),
        ("0001-01-01T00:00:00+14:00", "the archive begins at 2026-11-21T00:12:02"),
        ("2026-11-21T00:03:00Z\x1b[2J", "take a version"),
        ("7", "the newest version is 0$"),
        ("9" * 5000, "Exceeds the limit"),
        (
            "1795219380",
            "the newest version is 0; as the Unix time 2026-11-21T00:03:00Z it must be written so",
        ),
        ("1795219380000", "as the Unix time 2026-11-21T00:03:00Z it must be written so"),
    ],
)
def test_what_is_no_version_and_no_time_is_refused(tmp_path: Path, text: str, why: str) -> None:
    """With what can be written. A time without an offset would be another one on another machine."""
    archive(str(tmp_path), FACTS)

    with pytest.raises(BadArchive, match=f"cannot be read as of .*: .*{why}") as refused:
        ArchiveTable(Store(str(tmp_path)), text)

    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "2027-01-31T00:00:00Z",
        "2027-01-31 00:00:00+01:00",
        "2027-01-31T00:00:00.5-0330",
        "2027-W05-1T00Z",
        "00",
    ],
)
def test_a_time_is_written_as_in_iso_8601(tmp_path: Path, text: str) -> None:
    """With any offset, and with a space for the T."""
    archive(str(tmp_path), FACTS)

    assert 0 == ArchiveTable(Store(str(tmp_path)), text).version
