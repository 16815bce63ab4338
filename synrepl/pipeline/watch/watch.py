"""The job `watch`: follows a daemon, and tells in lines of JSON what an operator should look at.

It is one query. Tasks boil down what they read to a few lines, one for each writer and one for the log
(`observing`); a `transformWithState` keyed by stream and writer keeps what is known of each, with timers of
processing time (`processor`); what is to be told is written by the driver, in the order of the log
(`foreachBatch`). One query has one place in the log, one checkpoint, and an order in which lines of all kinds
can be told; several would start one after the other, and read everything as many times. The hot list is kept
in the same state, under a key of its own, as a window of Spark's would wait for facts of a later minute, and
such may not come for hours. What is decided is decided by `chain` and `minutes`, which know nothing of Spark.

Spark runs a batch at every trigger, whether anything came or not, as there may be timers: silence is told in
time. Each batch goes up to the head of the log, so a writer is not silent because we are late.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synrepl.errors import ConfigError
from synrepl.pipeline.session import is_remote, session_settings
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.data_source import register
from synrepl.pipeline.source.options import read_options
from synrepl.pipeline.watch.events import KINDS
from synrepl.pipeline.watch.observations import COLUMNS, OBSERVED_DDL, observe
from synrepl.pipeline.watch.writer_chain import WatchRules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["WatchResult", "watch"]

LOOK_SECONDS: Final = 0.2
STOP_SECONDS: Final = 10.0

SETTINGS: Final = {
    # What tasks leave is a line for each writer. More partitions cost a task each, at every trigger.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


class WatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run told: how many lines of each type."""

    lines: dict[str, int]
    batches: int
    seconds: float


def watch(
    spark: "SparkSession",
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
    """Write what `lines` lists, a line and its end a call, until `stopped` says so.

    It begins at `since` (as the source's ``startingOffsets``), or where the run before it ended that had the
    same `checkpoint`, with all that was known then. After a crash the lines of the last batch may be written
    again. Raises `ConfigError` for what makes no sense, `SourceError` and `DataLoss` (or Spark's own, around
    them) for what the daemon does not give, and whatever `write` raises.
    """
    began = time.monotonic()
    told = _EventPrinter(write)
    rules = _rules(stall_seconds, top)
    query = _start(
        _own(spark),
        _options(url, secret_file, streams, since),
        partial(observe, streams=None if streams is None else frozenset(streams)),
        rules,
        told,
        every_seconds=every_seconds,
        checkpoint=checkpoint,
    )
    gateway = logging.getLogger("py4j.clientserver")
    gateway.addFilter(_is_news)
    try:
        while not query.awaitTermination(LOOK_SECONDS) and not stopped():
            pass
        told.end()
        # The next batch finds that it is over, and by then all that was told is committed.
        query.awaitTermination(STOP_SECONDS + every_seconds)
    except Exception:
        if told.failure is not None:
            raise told.failure from None
        if not told.is_over:
            raise
    finally:
        told.end()
        query.stop()
        gateway.removeFilter(_is_news)
    return WatchResult(
        lines={kind.__name__.lower(): told.counts[kind.__name__.lower()] for kind in KINDS},
        batches=told.batches,
        seconds=round(time.monotonic() - began, 3),
    )


def _rules(stall_seconds: float, top: int) -> WatchRules:
    if stall_seconds <= 0 or top < 1:
        raise ConfigError(f"seconds and numbers are more than nothing, not {stall_seconds:g} and {top}")
    return WatchRules(stall_ms=int(stall_seconds * 1000), top=top)


def _options(
    url: str, secret_file: str | None, streams: Collection[str] | None, since: str
) -> dict[str, str]:
    options = {"url": url, "columns": ",".join(COLUMNS), "startingOffsets": since}
    if secret_file is not None:
        options["secretFile"] = secret_file
    # Here what is wrong is told in a line; Spark would tell it in many, and later.
    daemon = SourceClient(read_options(options))
    daemon.extent(limit=1, compacted="true")
    for stream in streams or ():
        if not daemon.has_stream(stream):
            raise ConfigError(f"{url} has no stream {stream!r}")
    return options


def _own(spark: "SparkSession") -> "SparkSession":
    """A session with settings of its own, on the same Spark."""
    if is_remote(spark):
        raise ConfigError("watch writes from where it runs: it needs a Spark of its own, not Spark Connect")
    own = spark.newSession()
    for name, value in {**session_settings(None), **SETTINGS}.items():
        own.conf.set(name, value)
    # Spark looks for a source of this name in the session that made a frame last, whichever is asked.
    own.createDataFrame([], "nothing string")
    register(own)
    spark.createDataFrame([], "nothing string")
    return own


def _start(
    spark: "SparkSession",
    options: dict[str, str],
    observing: Callable[[Iterable[Any]], Iterator[Any]],
    rules: WatchRules,
    told: "_EventPrinter",
    *,
    every_seconds: float,
    checkpoint: str | None,
) -> Any:
    from synrepl.pipeline.watch.processor import TOLD_DDL, WatchProcessor

    rows = spark.readStream.format("synrepl").options(**options).load()
    lines = (
        rows.mapInArrow(observing, OBSERVED_DDL)
        .groupBy("stream", "writer")
        .transformWithState(WatchProcessor(rules), TOLD_DDL, "append", "processingTime")
    )
    writing = lines.writeStream.foreachBatch(told).trigger(
        processingTime=f"{max(1, int(every_seconds * 1000))} milliseconds"
    )
    if checkpoint is not None:
        writing = writing.option("checkpointLocation", checkpoint)
    return writing.start()


class _Over(Exception):
    """No more is to be told."""


def _is_news(record: logging.LogRecord) -> bool:
    """What Spark's gateway logs of an exception that ends a query, where that is how we end it."""
    return record.exc_info is None or not isinstance(record.exc_info[1], _Over)


class _EventPrinter:
    """What Spark calls with the lines of each micro-batch, once the one before it is committed."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.counts: Counter[str] = Counter()
        self.batches = 0
        self.failure: BaseException | None = None
        self.is_over = False
        self._write = write
        self._lock = threading.Lock()

    def end(self) -> None:
        """When this returns nothing is being written, and nothing will be."""
        with self._lock:
            self.is_over = True

    def __call__(self, lines: "DataFrame", batch: int) -> None:
        """One micro-batch."""
        if self.is_over:
            raise _Over
        found = sorted(lines.collect(), key=lambda row: (row["serial"], row["kind"], row["line"]))
        with self._lock:
            if self.is_over:
                raise _Over
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
