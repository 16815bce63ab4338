"""The job `archive`: adds the log to a Delta table, each fact exactly once, through crashes at any point.

The table alone defines the position of an archive.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from synrepl.http_api.routes import STATUS
from synrepl.pipeline.archive.committer import BatchCommitter, LogIdentity, Overtaken
from synrepl.pipeline.archive.optimize import FEWEST, optimize
from synrepl.pipeline.archive.reading import parallelism
from synrepl.pipeline.archive.table import Clock
from synrepl.pipeline.archive.writer import WrittenFile, write_files, write_in_tasks
from synrepl.pipeline.jobs import Progress, ignore_progress, now_ms, retry_late_workers
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.offsets import Offset
from synrepl.pipeline.source.options import SourceOptions, read_options
from synrepl.pipeline.source.planner import Planner
from synrepl.pipeline.source.ranges import SerialRange, read_range
from synrepl.pipeline.store import BadArchive, Store
from synrepl.ports.history import EpochStart, LogPosition

__all__ = ["ArchiveResult", "archive"]

BATCH_FACTS: Final = 500_000
TASK_FACTS: Final = 100_000
"""Minimum facts of a task, in a batch of more: each task writes a file for each stream and day."""
EVERY_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1
MERGE_BATCHES: Final = 4 * FEWEST
"""Number of batches after which small files are merged."""


class ArchiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: the archive now ends at `serial`. `merged` is the number of merged files."""

    batches: int
    facts: int
    rows: int
    bytes: int
    serial: int
    epoch: int
    digest: str
    merged: int
    seconds: float


def archive(
    spark: SparkSession,
    url: str,
    store: Store,
    *,
    secret_file: str | None = None,
    follow: bool = False,
    every_seconds: float = EVERY_SECONDS,
    batch_facts: int = BATCH_FACTS,
    progress: Progress = ignore_progress,
    stopped: Callable[[], bool] = lambda: False,
    at: Callable[[str], None] = lambda point: None,
) -> ArchiveResult:
    """Archive the log of the daemon at `url` up to its head; with `follow`, until `stopped` returns true.

    A batch has at most `batch_facts` consecutive facts, none of them split. `at` is called after the ``data``
    and after the ``commit`` of a batch. Raises `BadArchive` for the archive of another log, and `SourceError`
    or `DataLoss` if the daemon refuses a request or lacks facts.
    """
    began = time.monotonic()
    job = _Job(spark, url, store, secret_file, batch_facts, progress, at)
    job.run(follow=follow, every_seconds=every_seconds, stopped=stopped)
    job.merge()
    end = job.committer.end
    return ArchiveResult(
        **job.counts,
        serial=job.committer.serial,
        epoch=1 if end is None else end.epoch,
        digest="" if end is None else end.digest,
        seconds=round(time.monotonic() - began, 3),
    )


class _Job:
    """One run of the job."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        store: Store,
        secret_file: str | None,
        batch_facts: int,
        progress: Progress,
        at: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._store = store
        self._batch_facts = batch_facts
        self._progress = progress
        self._at = at
        # The same for all runs of this archive: the lease makes the daemon retain facts not archived yet.
        self._reader = f"archive-{sha256(store.location.encode()).hexdigest()[:12]}"
        self._options = {"url": url, "reader": self._reader}
        if secret_file is not None:
            self._options["secretFile"] = secret_file
        self._daemon = SourceClient(read_options(self._options))
        self.committer: BatchCommitter
        self._log: LogIdentity
        self.counts = Counter(dict.fromkeys(("batches", "facts", "rows", "bytes", "merged"), 0))

    @retry_late_workers
    def run(self, *, follow: bool, every_seconds: float, stopped: Callable[[], bool]) -> None:
        """Archive the log up to its head, or follow it, one range after the other.

        Not as a streaming query: it takes longer, and on Spark Connect its handler runs on the server.
        """
        while True:
            try:
                self._run(follow, every_seconds, stopped)
            except Overtaken:
                # Begin again after the facts that another job has archived.
                continue
            return

    def _run(self, follow: bool, every_seconds: float, stopped: Callable[[], bool]) -> None:
        status = self._daemon.get(STATUS)
        self._log = LogIdentity(status["history"], status["server_name"])
        self.committer = BatchCommitter(self._store, self._log)
        self._progress("archiving", 0, max(0, status["serial"] - self.committer.serial))
        if self.committer.end is None:
            self._begin_trimmed(status)
        limit: int | None = None
        while not stopped():
            due = time.monotonic() + every_seconds
            start = self._start()
            proof = {"epoch": start.epoch, "digest": start.digest, "history": start.history}
            # The log must contain `start`; the daemon retains later facts.
            found = self._daemon.extent(since=start.serial, **proof, limit=1, reader=self._reader)
            limit = found["head"] if follow or limit is None else limit
            # Serials are dense: the end of a batch is known without a look at its facts.
            upto = min(limit, start.serial + self._batch_facts)
            if upto > start.serial:
                self._write(start, upto)
            elif not follow:
                return
            while follow and not stopped() and (left := due - time.monotonic()) > 0:
                time.sleep(min(left, LOOK_SECONDS))

    def merge(self) -> None:
        """Merge small files, if there are enough."""
        # Another job may merge the same files.
        with suppress(BadArchive):
            if self.committer.end is not None:
                self.counts["merged"] += optimize(self._spark, self._store, fewest=FEWEST).merged

    def _begin_trimmed(self, status: Mapping[str, Any]) -> None:
        """Archive the remaining facts of the trimmed part of the log as the first batch."""
        whole = self._daemon.extent(limit=1, compacted=True, reader=self._reader)
        if not whole["trimmed_upto"]:
            return
        found = self._daemon.extent(upto=whole["trimmed_upto"], compacted=True)
        self._write(
            self._start(),
            whole["trimmed_upto"],
            compacted_upto=LogPosition(found["epoch"], found["serial"], found["digest"]),
            clock=self._quiet(found["serial"], status["streams"]),
        )

    def _quiet(self, serial: int, streams: Mapping[str, Any]) -> Clock:
        """Return the positions of writers without facts since `serial`, whose facts may have been trimmed.

        The positions of other writers follow from their facts.
        """
        since = self._daemon.extent(since=serial)["clock"]
        quiet: Clock = {}
        for name, stream in streams.items():
            for writer, token in stream["writers"].items() if stream["kept"] else ():
                if token and writer not in since.get(name, {}):
                    quiet.setdefault(name, {})[writer] = token
        return quiet

    def _start(self) -> Offset:
        """Return the end of the archive."""
        end = self.committer.end
        if end is None:
            return Offset(0, history=self._log.history)
        return Offset(end.last_serial, epoch=end.epoch, digest=end.digest, history=end.history)

    def _write(
        self,
        start: Offset,
        upto: int,
        *,
        compacted_upto: LogPosition | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Write the facts after `start` as the next batch: first files, then the commit of them.

        A task writes what it reads, so that rows do not pass through Spark.
        """
        # Half of the tasks that other jobs have: one for each core, with files of twice the size.
        each = max(TASK_FACTS, 2 * BATCH_FACTS // parallelism(self._spark))
        compacted = "false" if compacted_upto is None else "true"
        options = read_options({**self._options, "compacted": compacted, "factsPerPartition": str(each)})
        ranges = Planner(options, self._daemon).ranges(start, replace(start, serial=upto), {})
        tasks = self._spark.range(len(ranges), numPartitions=len(ranges))
        written = write_in_tasks(tasks, partial(_write_ranges, self._store, options, ranges))
        if not written and compacted_upto is None:
            return
        self._at("data")
        epoch_starts = self._epoch_starts(max((one.epoch for one in written), default=1))
        batch = self.committer.commit(
            written, epoch_starts=epoch_starts, now_ms=now_ms(), compacted_upto=compacted_upto, clock=clock
        )
        self._at("commit")
        self.counts.update(batches=1, facts=batch.facts, rows=batch.rows, bytes=batch.bytes)
        self._progress("archiving", self.counts["facts"], 0)
        if self.counts["batches"] % MERGE_BATCHES == 0:
            self.merge()

    def _epoch_starts(self, epoch: int) -> list[EpochStart]:
        """Return the starts of epochs up to this epoch."""
        end = self.committer.end
        if end is not None and end.epoch == epoch:
            return end.epoch_starts
        return msgspec.convert(self._daemon.get(STATUS)["epoch_starts"], list[EpochStart])


def _write_ranges(
    store: Store, options: SourceOptions, ranges: Sequence[SerialRange], batches: Iterator[Any]
) -> Iterator[WrittenFile]:
    """Read and write the ranges with these numbers (runs in a task)."""
    for batch in batches:
        for number in batch["id"].to_pylist():
            yield from write_files(store, read_range(ranges[number], options, SourceClient(options)))
