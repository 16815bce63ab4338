"""The source as Spark knows it: in batches, as a stream, and the other way, as a sink."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.data_sink import SinkBatchWriter, SinkStreamWriter, check_writable
from synrepl.pipeline.source.offsets import Offset
from synrepl.pipeline.source.options import SourceOptions, read_options
from synrepl.pipeline.source.pacer import BatchPacer
from synrepl.pipeline.source.planner import Planner
from synrepl.pipeline.source.range_reader import read_range
from synrepl.pipeline.source.ranges import SerialRange
from synrepl.pipeline.source.schema import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SynreplSource", "pickle_by_value", "progress", "register"]


class RangePartition(InputPartition):
    """What one task reads, by these options: Spark asks another copy of the reader to read than to plan."""

    def __init__(self, planned: SerialRange, options: SourceOptions) -> None:
        super().__init__(None)
        self.planned = planned
        self.options = options


class SynreplSource(DataSource):
    """``format("synrepl")``: the changelog of a daemon; its options are `options.Options`."""

    @classmethod
    def name(cls) -> str:
        """What it is called in ``format``."""
        return "synrepl"

    def schema(self) -> str:
        """The columns that are wanted. Raises `ConfigError` for options that make no sense."""
        return spark_schema(read_options(self.options).columns)

    def reader(self, schema: StructType) -> "BatchReader":
        """For a closed range."""
        return BatchReader(read_options(self.options))

    def streamReader(self, schema: StructType) -> "StreamReader":
        """For what comes."""
        return StreamReader(read_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> SinkBatchWriter:
        """For what is written once."""
        options = read_options(self.options)
        check_writable(options, schema, overwrite=overwrite)
        return SinkBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> SinkStreamWriter:
        """For what is written as it comes."""
        options = read_options(self.options)
        check_writable(options, schema, overwrite=overwrite)
        return SinkStreamWriter(options)


class BatchReader(DataSourceReader):
    """A closed range, as ``spark.read``.

    It has no ``pushFilters``: Spark asks one reader for all uses of a frame, and keeps what the first use
    pushed. Options choose what the daemon sends.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Who reads which part."""
        planning = Planner(self._options, SourceClient(self._options))
        start, end, until = planning.closed()
        return [RangePartition(one, self._options) for one in planning.ranges(start, end, until)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of this part."""
        return _read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What comes, as ``spark.readStream``."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: int | None = None
        self._known: Planner | None = None
        self._pacing = BatchPacer(options)

    @property
    def _planning(self) -> Planner:
        if self._known is None:
            self._known = Planner(self._options, SourceClient(self._options))
        return self._known

    def initialOffset(self) -> dict[str, Any]:
        """Where a query begins that has no checkpoint."""
        return self._planning.start().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxOffsetsPerTrigger`."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        at = Offset.from_json(start)
        if not self._is_due(at):
            return start
        return self._planning.end(at, limit=most, upto=self._target).to_json()

    def _is_due(self, at: Offset) -> bool:
        """Whether there may be a micro-batch now."""
        if self._target is not None:
            return at.serial < self._target
        least = self._options.min_offsets
        return least is None or self._pacing.is_due(self._planning.waiting(at, least))

    def reportLatestOffset(self) -> dict[str, Any]:
        """The head of the log, for who looks at the progress of a query."""
        daemon = SourceClient(self._options)
        head = daemon.extent(limit=1, compacted="true")["head"]
        found = daemon.get("/v1/digests", serials=head)
        return Offset(
            serial=head,
            epoch=found["epoch"],
            digest=found["digests"][str(head)],
            history=found["history"],
        ).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """What there is now is all that this query reads."""
        self._target = int(SourceClient(self._options).extent(limit=1, compacted="true")["head"])

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Who reads which part of a micro-batch."""
        at, to = Offset.from_json(start), Offset.from_json(end)
        return [RangePartition(one, self._options) for one in self._planning.ranges(at, to, {})]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of this part."""
        return _read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """All up to there was dealt with; the lease moves on when the next batch is asked for."""

    def __getstate__(self) -> dict[str, Any]:
        # Tasks are sent the reader, and have no use for the connection of its planning.
        return {"_options": self._options, "_target": self._target, "_known": None, "_pacing": self._pacing}


def _read(partition: InputPartition) -> Iterator[Any]:
    # Spark makes a partition of its own where there is none.
    if not isinstance(partition, RangePartition):
        return iter(())
    return read_range(partition.planned, partition.options, SourceClient(partition.options))


@dataclass(frozen=True)
class ReaderLag:
    """How far a query is behind its daemon, in facts and in seconds."""

    facts: int
    seconds: float


def progress(told: Mapping[str, Any], now_ms: int) -> ReaderLag | None:
    """How far behind a query is, by its ``lastProgress``; None if that has nothing of this source."""
    for source in told.get("sources", ()):
        try:
            end, latest = (_offset(source[name]) for name in ("endOffset", "latestOffset"))
        except (KeyError, TypeError, ValueError):
            continue
        facts = max(0, latest.serial - end.serial)
        seconds = (now_ms - end.committed_at_ms) / 1000 if facts and end.committed_at_ms else 0.0
        return ReaderLag(facts, max(0.0, seconds))
    return None


def _offset(told: Any) -> Offset:
    return Offset.from_json(json.loads(told) if isinstance(told, str) else told)


def register(spark: "SparkSession") -> None:
    """Make ``format("synrepl")`` known to this session, if it is not known yet.

    A session finds the source by itself where synrepl is installed for the Python of its driver. Elsewhere,
    such as on a server of Spark Connect, nothing of ours need be installed: the source travels by value.
    """
    from pyspark.errors import AnalysisException

    pickle_by_value()
    try:
        spark.dataSource.register(SynreplSource)
    except AnalysisException as error:
        # Spark replaces what was registered, but not what it has found by itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def pickle_by_value() -> None:
    """Have PySpark send the source as code, so that tasks need not import it."""
    from pyspark import cloudpickle as pickling

    import synrepl.errors
    import synrepl.http_client
    import synrepl.pipeline.source

    by_value: Any = pickling
    for module in (synrepl.pipeline.source, synrepl.http_client, synrepl.errors):
        if module.__name__ not in by_value.list_registry_pickle_by_value():
            by_value.register_pickle_by_value(module)
