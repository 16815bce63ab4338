"""SparkDriver: the tasks of a job on Spark."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from synrepl.pipeline.driver import TASK, Work
from synrepl.pipeline.exchange import pack, unpack
from synrepl.pipeline.store import BadArchive

PACKED: Final = "`batch` binary NOT NULL"

_BAD_ARCHIVE: Final = re.compile(
    rf"{re.escape(BadArchive.__module__)}\.BadArchive: (.+?)\s*(?:\\n|$)", re.MULTILINE
)


@dataclass(frozen=True)
class SparkDriver:
    """Runs tasks on the Spark of this session. Executors need synrepl and pyarrow."""

    session: SparkSession

    @property
    def parallelism(self) -> int:
        """The number of tasks that keep the cores of the session busy."""
        return int(self.session.conf.get("spark.sql.shuffle.partitions") or 2)

    def spread(self, rows: Any, count: int) -> "SparkPartitions":
        """Return the rows of a small table in partitions, as `Driver` says."""
        return SparkPartitions(frame_of(self.session, rows), rows.schema).repartition(count)

    def query(self, statement: str, rows: Any) -> Any:
        """Return the result of a SQL statement, as `Driver` says: a partition is computed when it is read."""
        frame = self.session.sql(statement, rows=rows.frame)
        found = SparkPartitions(frame, to_arrow_schema(frame.schema, timezone="UTC"))
        return pa.RecordBatchReader.from_batches(found.schema, iter(found))


@dataclass(frozen=True)
class SparkPartitions:
    """The results of `work` on the rows of a frame of Spark, as `Partitions` says.

    The work of several `map` in turn is one call for Spark: each would have a Python process of its own, and
    all rows would pass through the JVM in between.
    """

    source: DataFrame
    schema: Any
    work: Work | None = None

    @property
    def frame(self) -> DataFrame:
        """The results as a frame."""
        if self.work is None:
            return self.source
        return self.source.mapInArrow(self.work, from_arrow_schema(self.schema))

    def map(self, work: Work, schema: Any) -> "SparkPartitions":
        return SparkPartitions(self.source, schema, self._before(work))

    def _before(self, work: Work) -> Work:
        return work if self.work is None else partial(_run_both, self.work, work)

    def repartition(self, count: int, column: str = TASK) -> "SparkPartitions":
        return SparkPartitions(self.frame.repartitionById(count, column), self.schema)

    def union(self, other: Any) -> "SparkPartitions":
        return SparkPartitions(self.frame.union(other.frame), self.schema)

    @contextmanager
    def kept(self) -> "Iterator[SparkPartitions]":
        frame = self.frame.persist()
        try:
            yield SparkPartitions(frame, self.schema)
        finally:
            frame.unpersist()

    def collect(self) -> Any:
        return pa.Table.from_batches(self._read(lambda packed: packed.collect()), self.schema)

    def __iter__(self) -> Iterator[Any]:
        yield from self._read(lambda packed: packed.toLocalIterator())

    def _read(self, read: Callable[[DataFrame], Iterable[Any]]) -> Iterator[Any]:
        """Yield the batches. PySpark's own stream of a DataFrame fails for columns with times."""
        try:
            for row in read(self.source.mapInArrow(self._before(_pack_batches), PACKED)):
                for batch in unpack(row.batch).to_batches():
                    yield batch.cast(self.schema)
        except Exception as error:
            # Of PySpark, of py4j or of gRPC, by the way in which the rows come.
            if found := _BAD_ARCHIVE.search(str(error)):
                raise BadArchive(found[1]) from error
            raise


def frame_of(session: SparkSession, table: Any) -> DataFrame:
    """Return an Arrow table as a frame. Chunks of columns are combined, as Spark would lose rows of some."""
    return session.createDataFrame(table.combine_chunks())


def _run_both(first: Work, second: Work, batches: Iterator[Any]) -> Iterator[Any]:
    return second(first(batches))


def _pack_batches(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        # Java has several copies of a result at once, and its size of a partition is that of compressed rows.
        packed = pack(batch, compression="lz4")
        yield pa.record_batch({"batch": pa.array([packed], pa.binary())})
