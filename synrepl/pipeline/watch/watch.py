"""The job `watch`: follows a daemon and writes events for operators as JSON lines.

The job is one streaming query. Tasks reduce the facts to one line per run of a writer and one for the log
(`observations`). A `transformWithState` keyed by stream and writer keeps the state of each, with
processing-time timers (`processor`). The driver writes the events in the order of the log (`foreachBatch`).
One query has one offset, one checkpoint and one order of events; several queries would read the log several
times. The hot list is kept in the same state, under its own key: a window of Spark would wait for facts of a
later minute, which may not come for hours. All decisions are made by `writer_chain` and `log_state`, which do
not depend on Spark.

Spark runs a batch at every trigger, even without new facts, because of the timers: so a stall is reported in
time. Each batch reads up to the head of the log, so a lag of the query does not look like a silent writer.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from synrepl.errors import ConfigError
from synrepl.pipeline.session import is_remote, session_settings
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.data_source import register
from synrepl.pipeline.source.options import read_options
from synrepl.pipeline.watch.events import KINDS
from synrepl.pipeline.watch.observations import COLUMNS, OBSERVED_DDL, observe
from synrepl.pipeline.watch.processor import EVENTS_DDL, WatchProcessor
from synrepl.pipeline.watch.writer_chain import WatchRules

__all__ = ["WatchResult", "watch"]

LOOK_SECONDS: Final = 0.2
STOP_SECONDS: Final = 10.0

SETTINGS: Final = {
    # Tasks emit a line per writer. More partitions would cost a task each, at every trigger.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


class WatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: the number of lines by type."""

    lines: dict[str, int]
    batches: int
    seconds: float


def watch(
    spark: SparkSession,
    url: str,
    *,
    secret_file: str | None = None,
    streams: Collection[str] | None = None,
    stall_seconds: float = 60.0,
    every_seconds: float = 5.0,
    top: int = 10,
    since: str = "latest",
    checkpoint: str | None = None,
    write: Callable[[bytes], None],
    stopped: Callable[[], bool],
) -> WatchResult:
    """Write events (`events`) until `stopped` returns true, one line with its newline per call of `write`.

    The query starts at `since` (the source's ``startingOffsets``), or continues from `checkpoint` with the
    state of the last run. Lines are at-least-once: after a crash those of the last batch may be written
    again. Raises `ConfigError` for invalid arguments, `SourceError` and `DataLoss` (or an error of Spark that
    wraps them) if the daemon refuses a request or lacks facts, and errors of `write`.
    """
    began = time.monotonic()
    printer = _EventPrinter(write)
    rules = _rules(stall_seconds, top)
    query = _start(
        _own(spark),
        _options(url, secret_file, streams, since),
        partial(observe, streams=None if streams is None else frozenset(streams)),
        rules,
        printer,
        every_seconds=every_seconds,
        checkpoint=checkpoint,
    )
    gateway = logging.getLogger("py4j.clientserver")
    gateway.addFilter(_is_unexpected)
    try:
        while not query.awaitTermination(LOOK_SECONDS) and not stopped():
            pass
        printer.end()
        # The next batch raises _Stopped; by then the batch before it is committed.
        query.awaitTermination(STOP_SECONDS + every_seconds)
    except Exception:
        if printer.failure is not None:
            raise printer.failure from None
        if not printer.is_stopped:
            raise
    finally:
        printer.end()
        query.stop()
        gateway.removeFilter(_is_unexpected)
    return WatchResult(
        lines={kind.__name__.lower(): printer.counts[kind.__name__.lower()] for kind in KINDS},
        batches=printer.batches,
        seconds=round(time.monotonic() - began, 3),
    )


def _rules(stall_seconds: float, top: int) -> WatchRules:
    if stall_seconds <= 0 or top < 1:
        raise ConfigError(f"stall seconds and top must be above 0, not {stall_seconds:g} and {top}")
    return WatchRules(stall_ms=int(stall_seconds * 1000), top=top)


def _options(
    url: str, secret_file: str | None, streams: Collection[str] | None, since: str
) -> dict[str, str]:
    options = {"url": url, "columns": ",".join(COLUMNS), "startingOffsets": since}
    if secret_file is not None:
        options["secretFile"] = secret_file
    # Checked here for a one-line error; Spark would report it later, in a long traceback.
    daemon = SourceClient(read_options(options))
    daemon.extent(limit=1, compacted=True)
    for stream in streams or ():
        if not daemon.has_stream(stream):
            raise ConfigError(f"{url} has no stream {stream!r}")
    return options


def _own(spark: SparkSession) -> SparkSession:
    """Return a session with its own settings, on the same Spark."""
    if is_remote(spark):
        raise ConfigError(
            "watch writes from the driver and does not support Spark Connect: use --master, or a local Spark"
        )
    own = spark.newSession()
    for name, value in {**session_settings(None), **SETTINGS}.items():
        own.conf.set(name, value)
    # Spark looks up data sources in the session that created the last frame.
    own.createDataFrame([], "nothing string")
    register(own)
    spark.createDataFrame([], "nothing string")
    return own


def _start(
    spark: SparkSession,
    options: dict[str, str],
    observing: Callable[[Iterable[Any]], Iterator[Any]],
    rules: WatchRules,
    printer: "_EventPrinter",
    *,
    every_seconds: float,
    checkpoint: str | None,
) -> Any:
    rows = spark.readStream.format("synrepl").options(**options).load()
    lines = (
        rows.mapInArrow(observing, OBSERVED_DDL)
        .groupBy("stream", "writer")
        .transformWithState(WatchProcessor(rules), EVENTS_DDL, "append", "processingTime")
    )
    writing = lines.writeStream.foreachBatch(printer).trigger(
        processingTime=f"{max(1, int(every_seconds * 1000))} milliseconds"
    )
    if checkpoint is not None:
        writing = writing.option("checkpointLocation", checkpoint)
    return writing.start()


class _Stopped(Exception):
    """Ends the query: no more events are to be written."""


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Whether a log record of Spark's gateway is not about `_Stopped`, by which the job ends the query."""
    return record.exc_info is None or not isinstance(record.exc_info[1], _Stopped)


class _EventPrinter:
    """Handler that writes the lines of each micro-batch, after the previous one is committed."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.counts: Counter[str] = Counter()
        self.batches = 0
        self.failure: BaseException | None = None
        self.is_stopped = False
        self._write = write
        self._lock = threading.Lock()

    def end(self) -> None:
        """Stop writing; no line is written after the return."""
        with self._lock:
            self.is_stopped = True

    def __call__(self, lines: DataFrame, batch: int) -> None:
        """Write a micro-batch."""
        if self.is_stopped:
            raise _Stopped
        found = sorted(lines.collect(), key=lambda row: (row["serial"], row["kind"], row["line"]))
        with self._lock:
            if self.is_stopped:
                raise _Stopped
            try:
                for row in found:
                    self._write(row["line"].encode() + b"\n")
                    self.counts[_type(row["kind"])] += 1
            except BaseException as error:
                self.failure = error
                raise
            self.batches += 1


def _type(kind: int) -> str:
    return KINDS[kind].__name__.lower()
