"""A recorded day of a homeserver goes through all jobs."""

from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from synrepl.pipeline.archive.archive import archive
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.report.report import report
from synrepl.pipeline.snapshot.compact import compact
from synrepl.pipeline.store import Store
from tests.pipeline.archives import paths_of
from tests.pipeline.recorded import fill_day
from tests.service.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FACTS = 4_000


@pytest.mark.story
def test_a_recorded_day_is_archived_audited_folded_and_drawn(spark: "SparkSession", tmp_path: Path) -> None:
    """What real peers sent has every shape that rows have; nothing of it may be odd to any job."""
    fill_day(tmp_path / "synrepl.db", FACTS)
    position, snapshot = Store(str(tmp_path / "archive")), Store(str(tmp_path / "snapshot"))
    with Daemon(tmp_path, options=("--retain-seconds", "999999999")) as daemon:
        archived = archive(spark, daemon.url, position)
        audited = audit(spark, position, url=daemon.url, deep=True)
        folded = compact(spark, position, snapshot)
        reported = report(spark, position, tmp_path / "report", url=daemon.url)

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
