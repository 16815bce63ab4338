"""Archives on an object store that speaks S3, without Spark: races, merges, and other readers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread
from urllib.request import Request, urlopen

import polars as pl
import pytest

from synrepl.pipeline.archive.committer import BatchCommitter, Overtaken
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.store import Store
from tests.pipeline.archives import LOG, write_facts
from tests.pipeline.test_table import FACTS, merged, run, serials

BUCKET = "archives"


# In a process of its own: delta-rs holds the lock of the interpreter while it reads a history.
SERVER = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
input()
"""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A new bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            address = f"127.0.0.1:{int(server.stdout.readline())}"
            bucket = Request(f"http://{address}/{BUCKET}", method="PUT")
            urlopen(bucket).close()
            given = f"endpoint_override={address}&scheme=http&region=us-east-1"
            yield Store(f"s3://{BUCKET}/one/archive?{given}")
        finally:
            server.kill()


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
