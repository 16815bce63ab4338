"""The Spark data source: batch reader, stream reader and sinks."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark import cloudpickle as pickling
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import synrepl.errors
import synrepl.http_api
import synrepl.http_client
import synrepl.pipeline.source
from synrepl import key_rules, small_files
from synrepl.errors import ConfigError
from synrepl.http_api.routes import DECLARED, DIGESTS
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.data_sink import FactSink, check_writable
from synrepl.pipeline.source.offsets import Clock, Offset
from synrepl.pipeline.source.options import SourceOptions, read_options
from synrepl.pipeline.source.ranges import Planner, read_range
from synrepl.pipeline.source.rows import Layout, declared_layout, spark_schema
from synrepl.wire import acks, address_list, error_codes
from synrepl.wire import text as text_of_peers

LAYOUTS: Mapping[str, Layout] = {}
with suppress(ImportError):  # without msgspec
    from synrepl.pipeline.typed import catalog_layouts

    LAYOUTS = catalog_layouts()

__all__ = ["BatchPacer", "SynreplSource", "pickle_by_value", "progress", "register"]


class SynreplSource(DataSource):
    """The data source ``format("synrepl")``: the changelog of a daemon. See `options.SourceOptions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "synrepl"

    def schema(self) -> str:
        """Return the selected columns as DDL. Raises `ConfigError` for invalid options."""
        options = self._read_options()
        return spark_schema(options.columns, options.layout.fields if options.layout else ())

    def reader(self, schema: StructType) -> "BatchReader":
        """Return the reader of a batch query."""
        return BatchReader(self._read_options())

    def streamReader(self, schema: StructType) -> "StreamReader":
        """Return the reader of a streaming query."""
        return StreamReader(self._read_options())

    def writer(self, schema: StructType, overwrite: bool) -> FactSink:
        """Return the writer of a batch query. Raises `ConfigError` for invalid options or columns."""
        return self._sink(schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> FactSink:
        """Return the writer of a streaming query. Raises `ConfigError` for invalid options or columns."""
        return self._sink(schema, overwrite=overwrite, is_streaming=True)

    def _sink(self, schema: StructType, *, overwrite: bool, is_streaming: bool = False) -> FactSink:
        options = read_options(self.options)
        check_writable(options, schema, overwrite=overwrite)
        return FactSink(options, is_streaming=is_streaming)

    def _read_options(self) -> SourceOptions:
        return read_options(self.options, _find_layout)


def _find_layout(options: SourceOptions) -> Layout:
    """Return the layout of the option `stream`: from the catalog, or as the daemon declares it."""
    name = str(options.stream)
    if name in LAYOUTS:
        return LAYOUTS[name]
    for declared in SourceClient(options).get(DECLARED)["streams"]:
        if declared["name"] == name:
            return declared_layout(declared)
    why = "" if LAYOUTS else "; the streams of Synapse need msgspec for the driver's Python"
    raise ConfigError(f"there is no declared stream {name!r} at {', '.join(options.url)}{why}")


class _RangeReader:
    """Base of both readers: plans ranges in the driver, and reads them in tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._opened_planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks receive the reader, but not the connection of its planner.
        return {**self.__dict__, "_opened_planner": None}

    @property
    def _planner(self) -> Planner:
        if self._opened_planner is None:
            self._opened_planner = Planner(self._options, SourceClient(self._options))
        return self._opened_planner

    def _plan(self, start: Offset, end: Offset, until: Clock) -> Sequence[InputPartition]:
        return list(map(InputPartition, enumerate(self._planner.ranges(start, end, until))))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the rows of this partition."""
        if partition.value is None:  # Spark adds a partition if there is none.
            return iter(())
        number, planned = partition.value
        return read_range(planned, self._options, SourceClient(self._options, first=number))


class BatchReader(_RangeReader, DataSourceReader):
    """Reader of a closed range, for ``spark.read``.

    The reader has no ``pushFilters``: Spark uses one reader for all uses of a frame and keeps the filters of
    the first use. Options select the facts that the daemon sends.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the range."""
        return self._plan(*self._planner.closed_range())


class BatchPacer:
    """Decides when micro-batches start. The first starts with any waiting fact, as its age is unknown."""

    def __init__(self, options: SourceOptions, *, seconds: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._seconds = seconds
        self._began: float | None = None

    def is_due(self, waiting: int) -> bool:
        """Whether to start a micro-batch now, with `waiting` facts. If so, the delay starts again."""
        enough, now = self._options.min_offsets_per_trigger, self._seconds()
        if enough is not None and waiting < enough:
            is_late = self._began is None or now - self._began >= self._options.max_trigger_delay
            if not (waiting and is_late):
                return False
        self._began = now
        return True


class StreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a live log, for ``spark.readStream``."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._target: int | None = None
        self._pacer = BatchPacer(options)

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a query without a checkpoint."""
        return self._planner.start().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit set by `maxOffsetsPerTrigger`; without the option, no limit."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end offset of the next micro-batch; `start` if none is due."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        at = Offset.from_json(start)
        least = self._options.min_offsets_per_trigger
        if self._target is not None:
            is_due = at.serial < self._target
        else:
            is_due = least is None or self._pacer.is_due(self._planner.count_waiting(at, least))
        return self._planner.end(at, limit=most, upto=self._target).to_json() if is_due else start

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the head of the log, for the progress of the query."""
        daemon = SourceClient(self._options)
        head = daemon.extent(limit=1, compacted=True)["head"]
        found = daemon.get(DIGESTS, serials=[head])
        return Offset(head, found["epoch"], found["digests"][str(head)], found["history"]).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the current head the end of this query."""
        self._target = int(SourceClient(self._options).extent(limit=1, compacted=True)["head"])

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a micro-batch."""
        return self._plan(Offset.from_json(start), Offset.from_json(end), {})

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the lease advances when the next batch is requested."""


@dataclass(frozen=True)
class ReaderLag:
    """The lag of a query: unread facts of the log, and, if any, the age of the last read fact in seconds."""

    facts: int
    seconds: float


def progress(last_progress: Mapping[str, Any], now_ms: int) -> ReaderLag | None:
    """Return the lag of a query from its ``lastProgress``; None if it has no offsets of this source."""
    for source in last_progress.get("sources", ()):
        try:
            end, latest = (_offset(source[name]) for name in ("endOffset", "latestOffset"))
        except (KeyError, TypeError, ValueError):
            continue
        facts = max(0, latest.serial - end.serial)
        seconds = (now_ms - end.committed_at_ms) / 1000 if facts and end.committed_at_ms else 0.0
        return ReaderLag(facts, max(0.0, seconds))
    return None


def _offset(value: Any) -> Offset:
    return Offset.from_json(json.loads(value) if isinstance(value, str) else value)


def register(spark: SparkSession) -> None:
    """Register ``format("synrepl")`` in this session. Idempotent.

    A session finds the source by itself if synrepl is installed for the Python of its driver. A Spark Connect
    server needs no installation: the source is pickled by value.
    """
    pickle_by_value()
    try:
        spark.dataSource.register(SynreplSource)
    except AnalysisException as error:
        # Spark has found the source by itself, and does not replace such a source.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def pickle_by_value() -> None:
    """Make PySpark pickle the source by value, so that tasks need not import it."""
    by_value: Any = pickling
    ours = (synrepl.pipeline.source, synrepl.http_client, synrepl.http_api, synrepl.errors)
    for module in (*ours, key_rules, small_files, acks, address_list, error_codes, text_of_peers):
        if module.__name__ not in by_value.list_registry_pickle_by_value():
            by_value.register_pickle_by_value(module)
