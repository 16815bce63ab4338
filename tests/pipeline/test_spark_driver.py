"""Tables of Arrow become frames of Spark."""

from typing import TYPE_CHECKING

import pyarrow as pa

from synrepl.pipeline.spark import frame_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_table_of_several_chunks_is_a_whole_frame(spark: "SparkSession") -> None:
    """As a table is that was made of others; Spark alone takes the first rows of it."""
    table = pa.table({"a": pa.chunked_array([[1], [2, 3]]), "b": pa.chunked_array([[4, 5, 6]])})

    found = frame_of(spark, table).collect()

    assert [(1, 4), (2, 5), (3, 6)] == sorted(map(tuple, found))
