"""Merging and tidying of archives in one process: what a crash leaves, and what readers still need."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from synrepl.errors import ConfigError
from synrepl.pipeline.archive.manifest import Manifest, manifests, next_batch, write_manifest
from synrepl.pipeline.archive.merge import GRACE_MS, merge, tidy
from synrepl.pipeline.store import Store, lock_archive
from tests.pipeline.archives import archive, chained

FACTS = 12


class Killed(BaseException):
    """In place of a kill."""


class Here:
    """As much of a Spark session, and of its frames, as `merge` uses; the task runs in this process."""

    def __init__(self, rows: Iterable[tuple[Any, ...]] = ()) -> None:
        self._rows = list(rows)

    def createDataFrame(self, rows: Iterable[tuple[Any, ...]], schema: str) -> "Here":
        return Here(rows)

    def mapInArrow(self, task: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> "Here":
        plans = pa.record_batch([pa.array([row[0] for row in self._rows], pa.binary())], names=["plan"])
        return Here((value,) for batch in task(iter([plans])) for value in batch["written"].to_pylist())

    def collect(self) -> list[Any]:
        return [SimpleNamespace(written=row[0]) for row in self._rows]


SPARK: Any = Here()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An archive of twelve facts in four batches."""
    facts = chained([("push_rules", "w", [["@a:b"]]), ("receipts", "w", [])] * (FACTS // 2))
    archive(str(tmp_path), facts, batch_facts=3)
    return Store(str(tmp_path))


def serials(store: Store) -> list[int]:
    """Those of all facts in the files that manifests name."""
    paths = [Path(store.path(file.path)) for one in manifests(store) for file in one.files]
    tables = [pq.read_table(path, partitioning=None) for path in paths if path.exists()]
    return sorted(serial for table in tables for serial in table["serial"].to_pylist())


def killed_at(monkeypatch: pytest.MonkeyPatch, effect: int) -> None:
    """From now on, the process is killed before this effect on its disk: a name given, a file removed."""
    left = [effect]

    def before(method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return method(*given, **named)

        return counted

    for method in ("writing", "remove", "remove_folder"):
        monkeypatch.setattr(Store, method, before(getattr(Store, method)))


def run_job(store: Store) -> None:
    """As a run of the archive job does, when nothing new has come."""
    tidy(store, manifests(store), now_ms=GRACE_MS + 1)
    merge(SPARK, store, now_ms=1, fewest=2)
    tidy(store, manifests(store), now_ms=GRACE_MS + 1)


def test_a_merge_that_is_killed_anywhere_loses_and_doubles_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of its effects, and in the tidying around it; the next run leaves nothing of that."""
    whole = list(range(1, FACTS + 1))
    kills = 0
    is_killed = True
    while is_killed and kills < 50:
        copy = Store(str(shutil.copytree(store.path(), tmp_path.with_name(f"killed-{kills}"))))
        with monkeypatch.context() as patch:
            killed_at(patch, kills)
            try:
                run_job(copy)
                is_killed = False
            except Killed:
                kills += 1
        assert whole == serials(copy), f"killed before effect {kills}"
        run_job(copy)

        (merged,) = manifests(copy)
        assert whole == serials(copy), f"killed before effect {kills}"
        assert {file.path for file in merged.files} == {
            str(path.relative_to(copy.path())) for path in Path(copy.path()).rglob("*.parquet")
        }, f"killed before effect {kills}"

    # A file of each of two streams and a manifest are written; four manifests and eight folders go, and
    # tidying looks for the manifests again.
    assert 2 + 1 + 4 + 8 + 4 == kills


def test_files_of_merged_batches_stay_for_an_hour(store: Store) -> None:
    """A reader that listed the archive before the merge reads them yet."""
    before = [Path(store.path(file.path)) for one in manifests(store) for file in one.files]
    merge(SPARK, store, now_ms=1_000, fewest=2)

    assert 0 == tidy(store, manifests(store), now_ms=1_000 + GRACE_MS - 1)
    assert all(path.exists() for path in before)
    assert 8 == tidy(store, manifests(store), now_ms=1_000 + GRACE_MS)
    assert not any(path.exists() for path in before)
    assert 3_600_000 == GRACE_MS


def test_the_second_of_two_jobs_fails_at_its_manifest(store: Store) -> None:
    """It would take the first one's batch out of the archive; whoever read it would have read nothing."""
    last = manifests(store)[-1]
    mine = replace(last, batch=next_batch(store), first_serial=FACTS + 1, last_serial=FACTS + 1, facts=1)
    write_manifest(store, replace(mine, start_digest=last.digest))
    first = store.read(mine.name)

    with pytest.raises(FileExistsError):
        write_manifest(store, replace(mine, digest="other"))

    assert first == store.read(mine.name)


def test_one_job_at_a_time_writes(store: Store) -> None:
    """The second one is told; when the first is over, it may."""
    with lock_archive(store), pytest.raises(ConfigError, match="another job is writing this archive"):
        with lock_archive(store):
            raise AssertionError("two write")
    with lock_archive(store):
        pass


def test_numbers_of_merged_batches_are_not_given_again(store: Store) -> None:
    """Files of the old batch of that number lie there for an hour yet."""
    merge(SPARK, store, now_ms=1, fewest=2)

    assert 5 == next_batch(store)


def test_a_merged_batch_names_all_that_it_stands_for(store: Store) -> None:
    """Also what those had replaced before, whose files may be there still."""
    merge(SPARK, store, now_ms=1, fewest=2)
    more: Manifest = replace(
        manifests(store)[0],
        batch=5,
        replaces=[],
        first_serial=FACTS + 1,
        last_serial=2 * FACTS,
        start_digest=manifests(store)[0].digest,
    )
    write_manifest(store, more)

    merge(SPARK, store, now_ms=2, fewest=2)

    assert [0, 1, 2, 3, 4, 5] == manifests(store)[0].replaces
