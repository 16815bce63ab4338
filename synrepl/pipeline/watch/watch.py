"""The job `watch`: follows a daemon and writes events for operators as JSON lines.

The job is one streaming query. Tasks reduce the facts of each range to one line (`observations`). The driver
keeps a state per writer and decides (`log_state`), and writes the events of a micro-batch in the order of the
log (`foreachBatch`). With a checkpoint, the state is stored beside the offsets of Spark. One query has one
offset and one order of events; several queries would read the log several times. Windows of Spark would
report a minute only after a fact of a later minute, which may come after hours.

A trigger without new facts makes no batch, but Spark calls `onQueryIdle`, which reports stalls and ended
minutes. Each batch reads up to the head of the log, so a lag of the query does not look like a silent writer.
"""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from synrepl.errors import ConfigError
from synrepl.pipeline.jobs import now_ms
from synrepl.pipeline.session import is_remote, session_settings
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.data_source import register
from synrepl.pipeline.source.options import connection_options, read_options
from synrepl.pipeline.store import Store
from synrepl.pipeline.watch.events import KINDS, WatchEvent, encode, order
from synrepl.pipeline.watch.log_state import LogState, WatchRules
from synrepl.pipeline.watch.observations import COLUMNS, OBSERVED_DDL, Observations, observe

LOOK_SECONDS: Final = 0.2
STOP_SECONDS: Final = 10.0

SETTINGS: Final = {
    # An event at every trigger without new facts.
    "spark.sql.streaming.noDataProgressEventInterval": "0",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
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
    ca_file: str | None = None,
    insecure: bool = False,
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
    if stall_seconds <= 0 or top < 1:
        raise ConfigError(f"stall seconds and top must be above 0, not {stall_seconds:g} and {top}")
    rules = WatchRules(stall_ms=int(stall_seconds * 1000), top=top)
    own = _own(spark)
    options = _options(url, connection_options(secret_file, ca_file, insecure), streams, since)
    rows = own.readStream.format("synrepl").options(**options).load()
    observing = partial(observe, streams=None if streams is None else frozenset(streams))
    running = _Watch(rules, write, CheckpointedState(checkpoint))
    writing = rows.mapInArrow(observing, OBSERVED_DDL).writeStream.foreachBatch(running.follow)
    writing = writing.trigger(processingTime=f"{max(1, int(every_seconds * 1000))} milliseconds")
    if checkpoint is not None:
        writing = writing.option("checkpointLocation", checkpoint)
    own.streams.addListener(running)
    gateway = logging.getLogger("py4j.clientserver")
    gateway.addFilter(_is_unexpected)
    query: Any = writing.start()
    try:
        while not (query.awaitTermination(LOOK_SECONDS) or stopped() or running.failure):
            pass
        running.end()
        # Let Spark commit a batch whose lines are written.
        ends = time.monotonic() + STOP_SECONDS
        while query.status["isTriggerActive"] and time.monotonic() < ends:
            if query.awaitTermination(LOOK_SECONDS):
                break
    except StreamingQueryException:
        if not running.is_stopped:
            raise
    finally:
        running.end()
        query.stop()
        own.streams.removeListener(running)
        gateway.removeFilter(_is_unexpected)
    if running.failure is not None:
        raise running.failure
    return WatchResult(
        lines={name: running.counts[name] for name in (kind.__name__.lower() for kind in KINDS)},
        batches=running.batches,
        seconds=round(time.monotonic() - began, 3),
    )


def _options(
    url: str, files: Mapping[str, str], streams: Collection[str] | None, since: str
) -> dict[str, str]:
    options = {"url": url, "columns": ",".join(COLUMNS), "startingOffsets": since, **files}
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


class Saved(msgspec.Struct):
    """The states before and after a batch, in JSON: Spark repeats a batch that it has not committed."""

    batch: int = -1
    before: msgspec.Raw = msgspec.Raw(b"{}")
    after: msgspec.Raw = msgspec.Raw(b"{}")


class CheckpointedState:
    """The state after the last batch: in the folder of the checkpoint, or in memory without a checkpoint."""

    NAME: Final = "synrepl-watch.json"

    def __init__(self, checkpoint: str | None) -> None:
        # Spark has another name for the same file system.
        self._store = None if checkpoint is None else Store(re.sub("^s3a:", "s3:", checkpoint))
        self._saved = Saved()
        if self._store is not None and self._store.exists(self.NAME):
            self._saved = msgspec.json.decode(self._store.read(self.NAME), type=Saved)
        self.state = msgspec.json.decode(self._saved.after, type=LogState)

    def begin(self, batch: int) -> LogState:
        """Return the state before this batch. The caller changes it, and then calls `save`."""
        if batch > self._saved.batch:
            self._saved = Saved(batch, self._saved.after)
        self.state = msgspec.json.decode(self._saved.before, type=LogState)
        return self.state

    def save(self) -> None:
        """Save the state as it is now."""
        self._saved.after = msgspec.Raw(msgspec.json.encode(self.state))
        if self._store is not None:
            self._store.write(self.NAME, msgspec.json.encode(self._saved))


class _Stopped(Exception):
    """Ends the query: no more events are to be written."""


def _is_unexpected(record: logging.LogRecord) -> bool:
    """False for a record of Spark's gateway about `_Stopped`, by which the job ends the query."""
    return record.exc_info is None or not isinstance(record.exc_info[1], _Stopped)


class _Watch(StreamingQueryListener):
    """Handles micro-batches, and of triggers without new facts: keeps the state, writes the events.

    Spark calls the handlers in threads of its own. The lines of a batch are written before its commit.
    """

    def __init__(self, rules: WatchRules, write: Callable[[bytes], None], file: CheckpointedState) -> None:
        self.counts: Counter[str] = Counter()
        self.batches = 0
        self.failure: BaseException | None = None
        self.is_stopped = False
        self._rules = rules
        self._write = write
        self._file = file
        self._following = threading.Lock()
        self._writing = threading.Lock()

    def end(self) -> None:
        """Stop writing; no line is written after the return."""
        with self._writing:
            self.is_stopped = True

    def follow(self, lines: DataFrame, batch: int) -> None:
        with self._following:
            # Facts were read up to the head of the log at this time, or later.
            now = now_ms()
            state = self._file.begin(batch)
            events: list[WatchEvent] = []
            for seen in _observations(lines):
                events += state.follow(seen, now_ms=now, rules=self._rules)
            self._tell(events + state.pass_time(now_ms=now, rules=self._rules))
            self._file.save()
            self.batches += 1

    def onQueryIdle(self, event: Any) -> None:
        """Write the events of a silence: there are no facts since the last batch (called by Spark)."""
        if self._following.acquire(blocking=False):
            try:
                at = datetime.fromisoformat(event.timestamp).timestamp()
                if events := self._file.state.pass_time(now_ms=int(at * 1000), rules=self._rules):
                    self._tell(events)
                    self._file.save()
            except _Stopped:
                pass
            finally:
                self._following.release()

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing (called by Spark)."""

    onQueryProgress = onQueryTerminated = onQueryStarted

    def _tell(self, events: list[WatchEvent]) -> None:
        """Write these events in the order of the log. Raises `_Stopped` if they are not to be written."""
        with self._writing:
            if self.is_stopped:
                raise _Stopped
            try:
                for event in sorted(events, key=order):
                    self._write(encode(event) + b"\n")
                    self.counts[type(event).__name__.lower()] += 1
            except BaseException as error:
                self.failure, self.is_stopped = error, True
                raise _Stopped from error


def _observations(lines: DataFrame) -> Iterator[Observations]:
    """Yield the observations of each range, in order: computed in parallel, but received one at a time."""
    lines.persist()
    try:
        lines.write.format("noop").mode("overwrite").save()
        for line in lines.toLocalIterator():
            yield msgspec.json.decode(bytes(line["observations"]), type=Observations)
    finally:
        lines.unpersist()
