"""Archives on an object store that speaks S3, without Spark: races, merges, and other readers."""

from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread

import polars as pl
import pytest

from synrepl.pipeline.archive.archive import BatchCommitter, Overtaken
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.store import Store
from tests.pipeline.archives import LOG, write_facts
from tests.pipeline.object_stores import CREDENTIALS, s3_bucket
from tests.pipeline.test_table import FACTS, merged, run, serials


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A new bucket."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_bucket() as location:
        yield Store(location)


def test_an_archive_on_an_object_store(store: Store) -> None:
    """As in a folder: committed, merged, read by others and as of a version."""
    run(store)
    merged(store)

    assert list(range(1, 13)) == serials(store)
    assert (4, 2, 12) == (
        len(ArchiveTable(store).batches()),
        len(ArchiveTable(store).files),
        ArchiveTable(store).end.last_serial,
    )
    assert 6 == ArchiveTable(store, "1").end.last_serial
    frame = pl.scan_delta(store.table_uri, storage_options=store.options)
    assert 12 == frame.select(pl.col("serial").n_unique()).collect().item()
    ArchiveTable(store).vacuum(retention_hours=0, dry_run=False)
    assert list(range(1, 13)) == serials(store)


@pytest.mark.parametrize("is_local", [False, True])
def test_of_many_jobs_one_commits_each_batch(store: Store, tmp_path: Path, is_local: bool) -> None:
    """Conditional writes of the store decide, from the first commit on."""
    store = Store(str(tmp_path)) if is_local else store
    start = Barrier(4)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            start.wait()
            run(store)
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == failures
    assert list(range(1, 13)) == serials(store)
    assert [3, 6, 9, 12] == [one.last_serial for one in ArchiveTable(store).batches()]


def test_the_second_of_two_creations_begins_again(store: Store) -> None:
    """Neither overwrites the other."""
    one, other = (BatchCommitter(store, LOG) for _ in range(2))
    one.commit(write_facts(store, FACTS[:4]), now_ms=1)

    with pytest.raises(Overtaken, match="up to serial 4"):
        other.commit(write_facts(store, FACTS[:3]), now_ms=1)

    assert [1, 2, 3, 4] == serials(store)
