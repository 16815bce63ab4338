"""Tables of Arrow become frames of Spark, and work becomes its steps."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.driver import TASK
from synrepl.pipeline.spark import SparkDriver, frame_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOUBLED: Final = pa.schema([("a", pa.int64())])


def test_a_table_of_several_chunks_is_a_whole_frame(spark: "SparkSession") -> None:
    """As a table is that was made of others; Spark alone takes the first rows of it."""
    table = pa.table({"a": pa.chunked_array([[1], [2, 3]]), "b": pa.chunked_array([[4, 5, 6]])})

    found = frame_of(spark, table).collect()

    assert [(1, 4), (2, 5), (3, 6)] == sorted(map(tuple, found))


def test_work_in_turn_is_one_step_of_spark(spark: "SparkSession") -> None:
    """Each step would have a Python process of its own, and pass all rows through the JVM."""
    rows = pa.table({"a": [1, 2, 3]})
    start = SparkDriver(spark).spread(rows.append_column(TASK, pa.array([0, 1, 0], pa.int32())), 2)

    found = start.map(_double, DOUBLED).map(_double, DOUBLED)

    plan = found.frame._jdf.queryExecution().optimizedPlan().toString()
    assert 1 == plan.count("MapInArrow"), plan
    assert [4, 8, 12] == sorted(found.collect()["a"].to_pylist())
    with found.kept() as kept:
        assert [8, 16, 24] == sorted(kept.map(_double, DOUBLED).collect()["a"].to_pylist())
        assert [4, 8, 12] == sorted(value for batch in kept for value in batch["a"].to_pylist())


def _double(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield pa.record_batch([pc.multiply(batch["a"], 2)], DOUBLED)
