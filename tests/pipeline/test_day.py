"""A recorded day of a homeserver goes through all jobs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import pytest

from synrepl.pipeline.archive.archive import archive
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.report.measurement import measure
from synrepl.pipeline.report.report import report
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.snapshot.compact import compact
from synrepl.pipeline.store import Store
from tests.pipeline.archives import paths_of
from tests.pipeline.recorded import fill_day
from tests.service.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FACTS = 4_000
RETAINED = ("--retain-seconds", "999999999")


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.story)], indirect=True)
def test_a_recorded_day_is_archived_audited_folded_and_drawn(runner: Runner, tmp_path: Path) -> None:
    """What real peers sent has every shape that rows have; nothing of it may be odd to any job."""
    fill_day(tmp_path / "synrepl.db", FACTS)
    position, snapshot = Store(str(tmp_path / "archive")), Store(str(tmp_path / "snapshot"))
    with Daemon(tmp_path, options=RETAINED) as daemon:
        archived = archive(runner, daemon.url, position)
        audited = audit(runner, position, url=daemon.url, deep=True)
        folded = compact(runner, position, snapshot)
        reported = report(runner, position, tmp_path / "report", url=daemon.url)

    assert archived.facts == FACTS == audited.facts == reported.facts
    assert audited.is_clean, audited.findings
    files = [position.uri(path) for path in paths_of(position.location)]
    ((keyless, keys),) = (
        duckdb.connect()
        .execute(
            "select count(*) filter (key is null), count(distinct stream || ' ' || key)"
            f" from read_parquet({files})"
        )
        .fetchall()
    )
    assert 0 == keyless
    gone = keys - folded.snapshot.keys
    # Pushers that were deleted, and state that was removed.
    assert 0 < gone < keys / 10
    assert reported.state in ("good", "busy"), reported.found
    assert 0 == reported.missing
    assert reported.page.stat().st_size > 100_000


def test_both_engines_measure_the_same(spark: "SparkSession", tmp_path: Path) -> None:
    """Each number, in the same order."""
    fill_day(tmp_path / "synrepl.db", 1_000)
    position = Store(str(tmp_path / "archive"))

    def measured(runner: Runner) -> Any:
        found = measure(driver_of(runner), position, top=20, daemon=None, progress=lambda *step: None)
        return msgspec.to_builtins(found, enc_hook=vars)

    with (
        LocalDriver(threads=2) as driver,
        Daemon(tmp_path, options=RETAINED) as daemon,
    ):
        archive(driver, daemon.url, position, batch_facts=300)
        ours = measured(driver)

    assert 1_000 == sum(row["facts"] for row in ours["totals"])
    assert ours == measured(spark)
