"""Frames of the source as people use them: more than once, in a session of Spark's own, never registered.

The session of the other tests has no generated code and no adaptive execution. Here are the plans that users
get, in a process of its own; DuckDB says what is right.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from synrepl.http_api.routes import APPEND
from synrepl.http_client import BlockingClient
from synrepl.pipeline.java import make_java_home
from synrepl.pipeline.source.rows import explode
from tests.pipeline.archives import batch_of_facts
from tests.pipeline.clusters import run_python
from tests.processes.loading import changelog
from tests.processes.replicas import fill
from tests.service.processes import Daemon

QUERIES = {
    "filtered": "select count(*) from log where serial > 300",
    "whole": "select count(*) from log",
    "filtered the other way": "select count(*) from log where serial <= 200 and stream = 'push_rules'",
    "filtered three times in one plan": """
        select (select count(*) from log where serial > 200), (select count(*) from log where writer = 'w1'),
        (select count(*) from log)""",
    "union": """
        select count(*), sum(serial) from (select * from log where serial <= 10
        union all select * from log where serial > 290
        union all select * from log where stream in ('events', 'nope'))""",
    "union with itself": "select count(*) from (select * from log union all select * from log)",
    "join with itself": """
        select count(*), sum(a.serial - b.serial) from (select * from log where serial <= 110) a
        join (select * from log where serial > 290) b on a.writer = b.writer""",
    "outer join with itself": """
        select count(*), count(b.serial) from log a
        left join (select * from log where stream = 'events') b on a.serial = b.serial""",
    "except": """
        select count(*), min(serial) from (select serial from log except
        select serial from log where serial < 150)""",
    "intersection": """
        select count(*) from (select token from log where stream = 'events' intersect
        select token from log where stream = 'receipts')""",
    "subquery": """
        select writer, count(*) from log where serial in (select serial from log where stream = 'push_rules')
        group by writer order by writer""",
    "window": """
        select stream, count(*), sum(step) from (select stream, serial - lag(serial) over
        (partition by stream order by serial, seq) as step from log where serial > 20) t
        group by stream order by stream""",
    "groups of a filter": """
        select stream, writer, count(*), max(serial) from log where serial between 50 and 305
        group by stream, writer having count(*) > 1 order by stream, writer""",
    "nothing": "select count(*) from log where stream = 'nope'",
    "the last": "select serial, seq, row from log order by serial desc, seq desc limit 3",
}
"""What is asked of one frame, in Spark and in DuckDB."""

USES = """
import json, sys
from pyspark.sql import SparkSession
from synrepl.http_api.routes import APPEND
from synrepl.http_client import BlockingClient
from synrepl.pipeline.session import session
from synrepl.pipeline.source.data_source import register

url, folder, queries = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])


def load(spark):
    return spark.read.format("synrepl").options(url=url, minPartitions="2").load()


def ask(frame, names):
    frame.createOrReplaceTempView("log")
    return {name: [list(row) for row in spark.sql(queries[name]).collect()] for name in names}


spark = SparkSession.builder.getOrCreate()
rows = load(spark)
told = {"forwards": ask(rows, queries), "backwards": ask(rows, list(queries)[::-1])}

few = rows.where("serial > 300").cache()
told["cached"] = [few.count(), rows.count(), rows.where("serial <= 200").count(), few.count()]
few.unpersist()
rows.where("serial > 300").write.parquet(folder + "/few")
rows.write.parquet(folder + "/all")
told["written"] = [spark.read.parquet(folder + "/" + name).count() for name in ("few", "all")]

register(spark)
register(spark)
spark = session(app="ours")
told["ours"] = ask(load(spark), ["filtered", "whole", "union", "join with itself"])
names = ("spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage")
told["plans"] = [spark.conf.get(name) for name in names]

BlockingClient(url).json(APPEND.request("push_rules"), b'{"facts": [[["@later:h"]]], "writer": "w1"}')
told["later"] = [rows.count(), load(spark).count()]
spark.stop()
print(json.dumps(told))
"""


WITHOUT_ARROW = """
import sys, warnings

sys.modules["pyarrow"] = None
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import pyspark_synrepl
print(hasattr(pyspark_synrepl, "DefaultSource"))
print(*[one.message for one in told if "synrepl" in str(one.message)])
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with 308 facts, some with several rows, of three streams and three writers."""
    folder = tmp_path_factory.mktemp("daemon")
    fill(folder / "synrepl.db", 290, streams=("events", "receipts", "push_rules"))
    with Daemon(folder) as daemon:
        for number in range(18):
            rows = [[f"@{number}.{position}:h"] for position in range(1 + number % 3)]
            body = json.dumps({"facts": [rows], "writer": f"w{number % 2}"}).encode()
            BlockingClient(daemon.url).json(APPEND.request("push_rules"), body)
        yield daemon


@pytest.fixture(scope="module")
def right(daemon: Daemon) -> dict[str, list[list[Any]]]:
    """What DuckDB finds in the changelog itself, before anything else is asked."""
    facts = list(changelog(daemon.url))
    assert 308 == len(facts)
    connection = duckdb.connect()
    connection.register("log", pa.Table.from_batches([explode(batch_of_facts(facts))]))
    return {name: [list(row) for row in connection.execute(one).fetchall()] for name, one in QUERIES.items()}


@pytest.fixture(scope="module")
def told(daemon: Daemon, right: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a program of a user's finds, in a session as Spark makes it by itself."""
    folder = tmp_path_factory.mktemp("frames")
    env = {
        "JAVA_HOME": str(make_java_home(folder / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return json.loads(
        run_python(USES, daemon.url, str(folder), json.dumps(QUERIES), env=env).splitlines()[-1]
    )


@pytest.mark.parametrize("name", QUERIES)
def test_a_frame_is_right_however_often_it_is_used(told: Any, right: Any, name: str) -> None:
    """A filter holds for the query in which it stands, and for no other use of the same frame."""
    assert right[name] == told["forwards"][name]
    assert right[name] == told["backwards"][name]


def test_a_frame_is_right_in_a_session_of_ours(told: Any, right: Any) -> None:
    """Also where somebody registers a source that Spark has found by itself."""
    assert {name: right[name] for name in told["ours"]} == told["ours"]
    assert 4 == len(told["ours"])


def test_a_frame_is_right_beside_one_that_is_cached_or_written(told: Any, right: Any) -> None:
    """What was kept of one part of a frame is not taken for the rest of it."""
    few, everything = (right[name][0][0] for name in ("filtered", "whole"))
    low = right["whole"][0][0] - right["filtered three times in one plan"][0][0]

    assert [few, everything, low, few] == told["cached"]
    assert [few, everything] == told["written"]


def test_a_frame_is_what_there_was_when_it_was_first_asked(told: Any, right: Any) -> None:
    """Two numbers of one notebook are about the same log; whoever wants what came since loads again."""
    (whole,) = right["whole"][0]

    assert [whole, whole + 1] == told["later"]


def test_these_are_the_plans_that_users_get(told: Any) -> None:
    """Adaptive execution and generated code are on, as Spark has them."""
    assert ["true", "true"] == told["plans"]


def test_a_machine_without_arrow_keeps_the_sources_of_others() -> None:
    """PySpark imports all packages `pyspark_*` together: one that raised would take the others with it."""
    has_source, warning = run_python(WITHOUT_ARROW).splitlines()

    assert "False" == has_source
    assert warning.startswith("the Spark data source synrepl cannot be used: ")
    assert warning.endswith("Python of Spark, or set PYSPARK_PYTHON to one that has it.")
