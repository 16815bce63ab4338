"""Archives whose log was cleaned up: commits below a checkpoint are gone. Made by delta-rs itself."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable

from synrepl.pipeline.archive.archive import BatchCommitter
from synrepl.pipeline.archive.batch import Batch
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.archive.table_commits import END
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.store import BadArchive, Store
from tests.pipeline.archives import LOG, archive, chained, clean_up, write_facts

FACTS = chained(
    [
        (stream, "w", [["@a:hs"]] * (1 + number % 2))
        for number in range(10)
        for stream in ("caches", "push_rules")
    ]
)
MORE = chained([("push_rules", "w", [["@b:hs"]])] * 3, after=FACTS)
FACTS_OF_BATCH = 5


@pytest.fixture(scope="module")
def driver() -> Iterator[LocalDriver]:
    """The engine without Spark."""
    with LocalDriver(threads=2) as driver:
        yield driver


def made(place: Path, head: str, driver: LocalDriver) -> Batch:
    """An archive whose newest commit is a batch, a merge of files or of another program; its last batch."""
    end = archive(str(place), FACTS, batch_facts=FACTS_OF_BATCH)[-1]
    if head == "merge":
        assert optimize(driver, Store(str(place))).merged
    if head == "another":
        DeltaTable(place).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    return end


@pytest.mark.parametrize("all_commits", [False, True], ids=["cleaned", "all"])
@pytest.mark.parametrize("head", ["batch", "merge", "another"])
def test_a_log_without_its_commits_is_read_from_its_checkpoint(
    tmp_path: Path, driver: LocalDriver, head: str, all_commits: bool
) -> None:
    """All that was archived is there, and the archive goes on."""
    end, store = made(tmp_path, head, driver), Store(str(tmp_path))

    assert len(clean_up(tmp_path, all_commits=all_commits)) == (not all_commits)

    table = ArchiveTable(store)
    assert table.end == end
    batches = table.batches()
    assert (1, len(FACTS)) == (batches[0].first_serial, batches[-1].last_serial)
    assert len(FACTS) == sum(one.facts for one in batches)
    assert sum(len(msgspec.json.decode(fact.rows)) for fact in FACTS) == sum(one.rows for one in batches)
    assert FACTS[0].committed_at_ms == batches[0].first_at_ms
    assert ["unverified-log"] == [one.what for one in audit(driver, store).findings]
    assert end.history == batches[-1].history
    BatchCommitter(store, LOG).commit(write_facts(store, MORE), now_ms=MORE[-1].committed_at_ms)
    assert [] == audit(driver, store, deep=True).findings
    assert len(FACTS) + len(MORE) == sum(one.facts for one in ArchiveTable(store).batches())


def test_a_time_is_looked_for_in_the_commits_that_are_left(tmp_path: Path, driver: LocalDriver) -> None:
    """An earlier one is refused, with the first that can be had."""
    made(tmp_path, "batch", driver)
    clean_up(tmp_path)
    store = Store(str(tmp_path))
    BatchCommitter(store, LOG).commit(write_facts(store, MORE), now_ms=MORE[-1].committed_at_ms)

    assert 4 == ArchiveTable(store, "2030-01-01T00:00:00Z").version
    assert 3 == ArchiveTable(store, "2026-11-21T00:20:03Z").version
    with pytest.raises(
        BadArchive, match=r"earlier commits were removed from _delta_log; version 3 is of 2026-11-21"
    ):
        ArchiveTable(store, "2026-11-21T00:10:00Z")


def test_an_archive_whose_end_nothing_tells_is_refused(tmp_path: Path, driver: LocalDriver) -> None:
    """With what can be done; never taken for one that is not an archive."""
    made(tmp_path, "another", driver)
    clean_up(tmp_path)
    (tmp_path / END).unlink()

    with pytest.raises(BadArchive, match=r"up to serial 20\) was removed .* put the removed files back"):
        ArchiveTable(Store(str(tmp_path)))


def test_an_end_of_another_batch_is_not_believed(tmp_path: Path, driver: LocalDriver) -> None:
    """It is of a run that was killed before it wrote the last one."""
    end = made(tmp_path, "another", driver)
    clean_up(tmp_path)
    (tmp_path / END).write_bytes(msgspec.json.encode(msgspec.structs.replace(end, last_serial=15)))

    with pytest.raises(BadArchive, match="put the removed files back"):
        ArchiveTable(Store(str(tmp_path)))
