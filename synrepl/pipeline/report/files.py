"""Reader of archive files with pyarrow, in tasks.

For many small files Spark's own reader takes twenty times as long per file, and supports only stores with
drivers.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow.parquet as pq

from synrepl.pipeline.archive.manifest import Manifest
from synrepl.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Part", "parts_of", "read", "read_by_executors"]

TASK_ROWS: Final = 2_000_000
"""Maximum rows per task, as far as files can be distributed."""


class Part(msgspec.Struct, frozen=True):
    """A file and its batch."""

    path: str
    rows: int
    batch: int
    stream: str


def parts_of(found: Sequence[Manifest], stream: str | None = None) -> list[Part]:
    """Return the files of these manifests, or those of one stream."""
    return [
        Part(file.path, file.rows, manifest.batch, file.stream)
        for manifest in found
        for file in manifest.files
        if stream is None or file.stream == stream
    ]


def read(store: Store, part: Part, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the record batches of a file, no larger than a row group."""
    with store.filesystem.open_input_file(store.path(part.path)) as source:
        yield from pq.ParquetFile(source).iter_batches(batch_size=128 * 1024, columns=list(columns))


def read_by_executors(
    spark: "SparkSession",
    parts: Sequence[Part],
    schema: str,
    work: Callable[[Iterable[Part]], Iterator[Any]],
) -> "DataFrame":
    """Apply `work` to these files in tasks. `schema` is the schema of its record batches.

    Executors need synrepl, pyarrow, and the files under the same path.
    """
    hint = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
    count = max(1, min(len(parts), max(hint, sum(part.rows for part in parts) // TASK_ROWS)))
    shares = _distribute(parts, count)

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from work(shares[number])

    return spark.range(0, count, 1, count).mapInArrow(run, schema)


def _distribute(parts: Sequence[Part], count: int) -> list[list[Part]]:
    """Distribute files to tasks with about equal numbers of rows."""
    shares: list[list[Part]] = [[] for _ in range(count)]
    loads = [(0, position) for position in range(count)]
    for part in sorted(parts, key=lambda one: -one.rows):
        load, position = heapq.heappop(loads)
        shares[position].append(part)
        heapq.heappush(loads, (load + part.rows, position))
    return shares
