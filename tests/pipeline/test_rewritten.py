"""An archive that another program has rewritten: a right Delta table whose files lack the column `stream`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from synrepl.pipeline.archive.archive import BatchCommitter
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.snapshot.compact import compact
from synrepl.pipeline.store import Store
from synrepl.streams.facts import Fact
from tests.pipeline.archives import LOG, archive, chained, rows_of_snapshot, write_facts


@pytest.fixture
def driver() -> Iterator[LocalDriver]:
    """The engine without a JVM."""
    with LocalDriver(threads=2) as driver:
        yield driver


def facts() -> list[Fact]:
    """Facts of two streams, in small files."""
    return chained(
        (
            stream,
            "w",
            [[f"@{number}:h"]] if stream == "push_rules" else [["get_user_by_id", [f"@{number}:h"], 1]],
        )
        for number in range(20)
        for stream in ("push_rules", "caches")
    )


@pytest.fixture
def rewritten(tmp_path: Path) -> Path:
    """An archive whose files delta-rs has merged."""
    place = tmp_path / "archive"
    archive(str(place), facts(), batch_facts=4)
    archive(str(tmp_path / "as-written"), facts(), batch_facts=4)
    DeltaTable(place).optimize.compact()
    return place


def test_the_audit_reads_all_rows(driver: LocalDriver, rewritten: Path) -> None:
    """Nothing says what the bytes of its commit are."""
    done = audit(driver, Store(str(rewritten)))

    assert (40, ["unverified-log"]) == (done.facts, [one.what for one in done.findings])


def test_a_snapshot_of_it_is_that_of_the_archive_as_written(
    driver: LocalDriver, rewritten: Path, tmp_path: Path
) -> None:
    for name in ("archive", "as-written"):
        compact(driver, Store(str(tmp_path / name)), Store(str(tmp_path / f"snapshot-of-{name}")))

    first, second = (rows_of_snapshot(tmp_path / f"snapshot-of-{name}") for name in ("archive", "as-written"))
    assert second.sort_by("serial").equals(first.sort_by("serial"))


def test_it_goes_on_and_is_merged_again(driver: LocalDriver, rewritten: Path) -> None:
    """With the files of later facts: in the order of serials, and with all columns."""
    more = chained([("push_rules", "w", [[f"@more{number}:h"]]) for number in range(2)], after=facts())
    committer = BatchCommitter(Store(str(rewritten)), LOG)
    for fact in more:
        committer.commit(write_facts(Store(str(rewritten)), [fact]), now_ms=fact.committed_at_ms)

    done = optimize(driver, Store(str(rewritten)))

    assert (3, 1) == (done.merged, done.made)
    checked = audit(driver, Store(str(rewritten)))
    assert (42, []) == (checked.facts, [one.what for one in checked.findings])
