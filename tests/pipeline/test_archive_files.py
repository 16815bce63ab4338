"""Reading of files of an archive, as tasks do."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from synrepl.pipeline import spark as spark_driver
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.spark import frame_of, read_rows
from synrepl.pipeline.store import Store
from tests.pipeline.archives import archive, chained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_table_of_several_chunks_is_a_whole_frame(spark: "SparkSession") -> None:
    """As a table is that was made of others; Spark alone takes the first rows of it."""
    table = pa.table({"a": pa.chunked_array([[1], [2, 3]]), "b": pa.chunked_array([[4, 5, 6]])})

    found = frame_of(spark, table).collect()

    assert [(1, 4), (2, 5), (3, 6)] == sorted(map(tuple, found))


def test_rows_are_the_same_however_many_files(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads a few files by itself; of many, its driver does not learn the names."""
    store = Store(str(tmp_path))
    archive(
        str(tmp_path), chained([("push_rules", "w", [["@a:b"]]), ("receipts", "w", [])] * 5), batch_facts=3
    )
    files, columns = ArchiveTable(store).files, ("serial", "row", "committed_at")
    few = sorted(map(tuple, read_rows(spark, store, files, columns).collect()))
    monkeypatch.setattr(spark_driver, "NAMED_FILES", 1)

    many = sorted(map(tuple, read_rows(spark, store, files, columns).collect()))

    assert few == many
    assert list(range(1, 11)) == [row[0] for row in many]
