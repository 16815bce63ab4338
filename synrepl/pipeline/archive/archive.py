"""The job `archive`: writes the log as Parquet, each fact exactly once, through crashes at any point.

The manifests alone define the position of an archive. Spark's checkpoint belongs to one run and is removed
with it, so a crash between writing a manifest and Spark's own commit has no effect.
"""

import json
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import msgspec
from pyspark.sql import SparkSession

from synrepl.http_api.routes import STATUS
from synrepl.pipeline.archive.batches import ArchiveBatchWriter, At, now_ms
from synrepl.pipeline.archive.commit import BatchOrigin
from synrepl.pipeline.archive.manifest import BadArchive, Manifest, manifests
from synrepl.pipeline.archive.merge import tidy
from synrepl.pipeline.jobs import Progress, ignore_progress, retry_late_workers
from synrepl.pipeline.session import is_remote
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.data_source import register
from synrepl.pipeline.source.offsets import Offset
from synrepl.pipeline.source.options import read_options
from synrepl.pipeline.store import Store, lock_archive
from synrepl.ports.history import LogPosition

__all__ = ["ArchiveResult", "archive"]

BATCH_FACTS: Final = 500_000
EVERY_SECONDS: Final = 5.0
CHECKPOINTS: Final = "_checkpoints"
LOOK_SECONDS: Final = 1


class ArchiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: the archive now ends at `serial`."""

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
    at: At = lambda point: None,
) -> ArchiveResult:
    """Archive the log of the daemon at `url` up to its head; with `follow`, until `stopped` returns true.

    A batch has at most `batch_facts` consecutive facts, none of them split. Raises `BadArchive` for the
    archive of another log, `ConfigError` if another job is writing the archive, and `SourceError` or
    `DataLoss` if the daemon refuses a request or lacks facts.
    """
    began = time.monotonic()
    with lock_archive(store):
        job = _Job(spark, url, store, secret_file, progress, at)
        writer = job.begin()
        try:
            job.run(follow=follow, every_seconds=every_seconds, batch_facts=batch_facts, stopped=stopped)
        finally:
            store.remove_folder(CHECKPOINTS)
        writer.merge()
    last = writer.before
    return ArchiveResult(
        batches=writer.batches,
        facts=writer.facts,
        rows=writer.rows,
        bytes=writer.bytes,
        serial=writer.serial,
        epoch=1 if last is None else last.epoch,
        digest="" if last is None else last.digest,
        merged=writer.merged,
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
        progress: Progress,
        at: At,
    ) -> None:
        register(spark)
        self._spark = spark
        self._store = store
        self._progress = progress
        self._at = at
        # The same for all runs of this archive: the lease makes the daemon retain facts not archived yet.
        reader = f"archive-{sha256(store.location.encode()).hexdigest()[:12]}"
        self._options = {"url": url, "reader": reader}
        if secret_file is not None:
            self._options["secretFile"] = secret_file
        self._daemon = SourceClient(read_options(self._options))
        self._writer: ArchiveBatchWriter

    def begin(self) -> ArchiveBatchWriter:
        """Read the manifests, remove leftovers of crashes, and return the writer of the next batches."""
        found = manifests(self._store)
        tidy(self._store, found, now_ms=now_ms())
        status = self._daemon.get(STATUS)
        before = found[-1] if found else None
        origin = BatchOrigin(history=status["history"], server_name=status["server_name"])
        if before is not None and before.history != origin.history:
            raise BadArchive(
                f"{self._store} is the archive of another log (history {before.history}, server"
                f" {before.server_name}); use another directory for this log"
            )
        self._writer = ArchiveBatchWriter(
            self._spark, self._store, origin, before, self._daemon, self._progress, self._at
        )
        self._progress("archiving", 0, max(0, status["serial"] - self._writer.serial))
        if before is None:
            self._begin_trimmed(status)
        return self._writer

    def _begin_trimmed(self, status: Mapping[str, Any]) -> None:
        """Archive the remaining facts of the trimmed part of the log as the first batch."""
        whole = self._daemon.extent(limit=1, compacted=True, reader=self._options["reader"])
        if not whole["trimmed_upto"]:
            return
        found = self._daemon.extent(upto=whole["trimmed_upto"], compacted=True)
        self._writer.origin = msgspec.structs.replace(
            self._writer.origin, clock=self._quiet(found["serial"], status["streams"])
        )
        rows = (
            self._spark.read.format("synrepl")
            .options(**self._options, compacted="true", endingOffsets=str(whole["trimmed_upto"]))
            .load()
        )
        self._writer.write(rows, LogPosition(found["epoch"], found["serial"], found["digest"]))

    def _quiet(self, serial: int, streams: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """Return the positions of writers without facts since `serial`, whose facts may have been trimmed.

        The positions of other writers follow from their facts.
        """
        since = self._daemon.extent(since=serial)["clock"]
        return {
            name: quiet
            for name, stream in streams.items()
            if stream["kept"]
            if (
                quiet := {
                    writer: token
                    for writer, token in stream["writers"].items()
                    if token and writer not in since.get(name, {})
                }
            )
        }

    @retry_late_workers
    def run(
        self, *, follow: bool, every_seconds: float, batch_facts: int, stopped: Callable[[], bool]
    ) -> None:
        """Archive the log up to its head, or follow it."""
        if is_remote(self._spark):
            self._run_in_driver(
                follow=follow, every_seconds=every_seconds, batch_facts=batch_facts, stopped=stopped
            )
            return
        rows = (
            self._spark.readStream.format("synrepl")
            .options(**self._options, startingOffsets=self._start(), maxOffsetsPerTrigger=str(batch_facts))
            .load()
        )
        checkpoint = self._store.uri(f"{CHECKPOINTS}/{uuid4().hex}")
        writing = rows.writeStream.foreachBatch(self._writer).option("checkpointLocation", checkpoint)
        if follow:
            writing = writing.trigger(processingTime=f"{int(every_seconds * 1000)} milliseconds")
        else:
            writing = writing.trigger(availableNow=True)
        query = writing.start()
        try:
            while not query.awaitTermination(LOOK_SECONDS) and not stopped():
                pass
        finally:
            query.stop()
        failure = query.exception()
        if failure is not None:
            raise failure

    def _run_in_driver(
        self, *, follow: bool, every_seconds: float, batch_facts: int, stopped: Callable[[], bool]
    ) -> None:
        """Archive with Spark Connect, one range after the other.

        With Spark Connect the server would call the handler of micro-batches, without the state of this run.
        """
        head = self._daemon.extent(limit=1, compacted=True)["head"]
        while not stopped():
            due = time.monotonic() + every_seconds
            since = self._writer.serial
            found = self._daemon.extent(since=since, limit=batch_facts, compacted=True)
            upto = found["serial"] if follow else min(found["serial"], head)
            if upto > since:
                rows = (
                    self._spark.read.format("synrepl")
                    .options(**self._options, startingOffsets=self._start(), endingOffsets=str(upto))
                    .load()
                )
                self._writer.write(rows, None)
            elif not follow:
                return
            while follow and not stopped() and (left := due - time.monotonic()) > 0:
                time.sleep(min(left, LOOK_SECONDS))

    def _start(self) -> str:
        """Return the end of the archive as the start offsets of the source."""
        before = self._writer.before
        return "earliest" if before is None else json.dumps(_offset(before).to_json())


def _offset(manifest: Manifest) -> Offset:
    return Offset(
        serial=manifest.last_serial,
        epoch=manifest.epoch,
        digest=manifest.digest,
        history=manifest.history,
        clock=manifest.end,
        committed_at_ms=manifest.last_at_ms,
    )
