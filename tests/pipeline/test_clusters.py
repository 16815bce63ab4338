"""Clusters: the same session and the same jobs, wherever Spark is."""

import json
from pathlib import Path
from typing import Final

from tests.pipeline.clusters import QUICK, run_python, standalone_cluster
from tests.processes.loading import LONG, size
from tests.processes.replicas import fill
from tests.service.processes import Daemon

ON_CLUSTER = """
import json, os, sys
from synrepl.pipeline.archive.archive import archive
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.session import session
from synrepl.pipeline.snapshot.compact import compact
from synrepl.pipeline.source.data_source import register
from synrepl.pipeline.store import Store

master, given, url, folder, facts = sys.argv[1:]

def where(batches):
    import pyarrow
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"place": [os.getcwd()], "rows": [batch.num_rows]})

conf = {
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    **json.loads(given),
}
spark = session(app="cluster", master=master, memory="512m", conf=conf)
register(spark)
options = {"url": url, "columns": "serial,row", "factsPerPartition": facts}
rows = spark.read.format("synrepl").options(**options).load()
read = rows.mapInArrow(where, "place string, rows bigint").groupBy("place").sum("rows").collect()
archived = archive(spark, url, Store(folder + "/archive"))
folded = compact(spark, Store(folder + "/archive"), Store(folder + "/snapshot"))
audited = audit(spark, Store(folder + "/archive"), url=url)
print(json.dumps([
    spark.conf.get("spark.sql.session.timeZone"), [list(row) for row in read],
    archived.facts, folded.snapshot.serial, audited.is_clean,
]))
"""

CONF: Final = {
    **({} if LONG else QUICK),
    "spark.sql.shuffle.partitions": "4",
}


def test_the_jobs_run_unchanged_on_a_cluster(tmp_path: Path) -> None:
    """Two workers mean two executors, each with a folder of its own, and both read; in long runs 5,000,000
    facts."""
    facts = size(6_000, 5_000_000)
    fill(tmp_path / "synrepl.db", facts, streams=("receipts", "push_rules"))
    with Daemon(tmp_path) as daemon, standalone_cluster() as master:
        part = str(facts // size(6, 50))
        said = run_python(ON_CLUSTER, master, json.dumps(CONF), daemon.url, str(tmp_path), part)
        zone, read, archived, folded, is_clean = json.loads(said)

    assert zone == "UTC"
    assert len(read) == 2
    assert min(rows for _, rows in read) > facts / 10
    assert (facts, facts, True) == (archived, folded, is_clean)
