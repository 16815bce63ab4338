"""Reader of an archive as a DataFrame of the files that its manifests name."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from synrepl.pipeline.archive.manifest import ArchivedFile, Manifest
from synrepl.pipeline.source.rows import COLUMNS, spark_schema
from synrepl.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["files_of", "rows_of"]

LAST: int = 2**63 - 1


def files_of(
    found: Sequence[Manifest],
    *,
    streams: Collection[str] | None = None,
    after: int = 0,
    upto: int = LAST,
) -> list[ArchivedFile]:
    """Return the files that may have rows of these streams with ``after < serial <= upto``."""
    return [
        file
        for manifest in found
        for file in manifest.files
        if file.last_serial > after
        and file.first_serial <= upto
        and (streams is None or file.stream in streams)
    ]


def rows_of(
    spark: "SparkSession",
    store: Store,
    found: Sequence[Manifest],
    *,
    streams: Collection[str] | None = None,
    after: int = 0,
    upto: int = LAST,
) -> "DataFrame":
    """Return the rows of these batches with ``after < serial <= upto``, unordered."""
    schema = spark_schema(COLUMNS).replace(" NOT NULL", "")
    files = files_of(found, streams=streams, after=after, upto=upto)
    if not files:
        return spark.createDataFrame([], schema)
    # Read by name: other files in the folders are not part of the archive.
    rows = spark.read.schema(schema).parquet(*(store.uri(file.path) for file in files))
    if after > 0 or upto < LAST:
        rows = rows.where(f"serial > {after:d} AND serial <= {upto:d}")
    return rows
