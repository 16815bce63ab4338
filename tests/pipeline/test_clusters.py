"""Clusters and Spark Connect: the same session, wherever Spark is."""

import json

from tests.pipeline.clusters import QUICK_JAVA, connect_server, run_python, standalone_cluster

ON_CLUSTER = """
import json, os, sys
from pyspark import BarrierTaskContext
from synrepl.pipeline.session import session

def meet(batches):
    import pyarrow
    # No task goes on until all have come this far, so all of them run at once, one on each core there is.
    BarrierTaskContext.get().barrier()
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"place": [os.getcwd()] * batch.num_rows})

conf = {
    "spark.cores.max": "2",
    "spark.driver.extraJavaOptions": sys.argv[2],
    "spark.executor.extraJavaOptions": sys.argv[2],
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}
spark = session(app="cluster", master=sys.argv[1], memory="512m", conf=conf)
rows = spark.range(0, 10, 1, 2).mapInArrow(meet, "place string", barrier=True).collect()
print(json.dumps([spark.conf.get("spark.sql.session.timeZone"), [row.place for row in rows]]))
"""

OVER_CONNECT = """
import json, sys
from pyspark import SparkContext
from synrepl.pipeline.session import session

spark = session(app="connect", remote=sys.argv[1])
rows = spark.range(0, 10, 1, 2).mapInArrow(lambda batches: batches, "id long").collect()
zone = spark.conf.get("spark.sql.session.timeZone")
spark.stop()
print(json.dumps([SparkContext._gateway is None, zone, sorted(row.id for row in rows)]))
"""


def test_a_cluster_shares_the_work() -> None:
    """Two workers mean two executors, and both are used; each has a folder of its own."""
    with standalone_cluster() as url:
        zone, places = json.loads(run_python(ON_CLUSTER, url, QUICK_JAVA))

    assert zone == "UTC"
    assert len(places) == 10
    assert len(set(places)) == 2


def test_a_query_runs_over_connect() -> None:
    """A machine without Java can use a Spark elsewhere, with Python functions of its own."""
    with connect_server() as url:
        has_no_java, zone, ids = json.loads(run_python(OVER_CONNECT, url))

    assert has_no_java
    assert zone == "UTC"
    assert ids == list(range(10))
