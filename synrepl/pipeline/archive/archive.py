"""The job `archive`: the log as Parquet, each fact once, through crashes at any point.

The manifests alone say how far an archive is. Spark's checkpoint is of one run, and goes with it: what a
crash leaves between our manifest and Spark's own commit is then nothing that anybody looks at.
"""

import json
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from synrepl.pipeline.archive.batches import ArchiveBatchWriter, At, now_ms
from synrepl.pipeline.archive.cleanup import tidy
from synrepl.pipeline.archive.commit import BatchOrigin
from synrepl.pipeline.archive.lock import locked
from synrepl.pipeline.archive.manifest import BadArchive, Manifest, manifests
from synrepl.pipeline.progress import Progress, ignore_progress
from synrepl.pipeline.retries import retry_late_workers
from synrepl.pipeline.session import is_remote
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.data_source import register
from synrepl.pipeline.source.offsets import Offset
from synrepl.pipeline.source.options import read_options
from synrepl.pipeline.store import Store
from synrepl.ports.history import LogPosition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ArchiveResult", "archive"]

BATCH_FACTS: Final = 500_000
EVERY_SECONDS: Final = 5.0
CHECKPOINTS: Final = "_checkpoints"
LOOK_SECONDS: Final = 1


class ArchiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did: the archive now ends at `serial`."""

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
    spark: "SparkSession",
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
    """Bring the archive up to the head of the daemon at `url`; with `follow`, until `stopped` says so.

    The facts of a batch, at most `batch_facts`, are whole and dense. Raises `ConfigError` and its kin: for an
    archive of another log, or one that another job is writing; `SourceError`, `DataLoss` for what the daemon
    does not give.
    """
    began = time.monotonic()
    with locked(store):
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
    """One run."""

    def __init__(
        self,
        spark: "SparkSession",
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
        # The same for all runs of this archive: while it is late, the daemon keeps what it needs.
        reader = f"archive-{sha256(store.place.encode()).hexdigest()[:12]}"
        self._options = {"url": url, "reader": reader}
        if secret_file is not None:
            self._options["secretFile"] = secret_file
        self._daemon = SourceClient(read_options(self._options))
        self._writer: ArchiveBatchWriter

    def begin(self) -> ArchiveBatchWriter:
        """See what is there, and remove what is left of crashes. Gives what goes on from there."""
        found = manifests(self._store)
        tidy(self._store, found, now_ms=now_ms())
        status = self._daemon.get("/v1/status")
        before = found[-1] if found else None
        origin = BatchOrigin(history=status["history"], server_name=status["server_name"])
        if before is not None and before.history != origin.history:
            raise BadArchive(
                f"{self._store} is the archive of another log (of history {before.history}, at"
                f" {before.server_name}); name another folder for this one"
            )
        self._writer = ArchiveBatchWriter(
            self._spark, self._store, origin, before, self._daemon, self._progress, self._at
        )
        self._progress("archiving", 0, max(0, status["serial"] - self._writer.serial))
        if before is None:
            self._begin_trimmed(status)
        return self._writer

    def _begin_trimmed(self, status: Mapping[str, Any]) -> None:
        """What is left of the beginning of a log that was trimmed is a batch of its own."""
        whole = self._daemon.extent(limit=1, compacted="true", reader=self._options["reader"])
        if not whole["trimmed_upto"]:
            return
        found = self._daemon.extent(upto=whole["trimmed_upto"], compacted="true")
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
        """Where those writers are that wrote nothing since `serial`: what they wrote may have been trimmed.

        The others tell it by what they wrote.
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
        """Archive what there is, or what comes."""
        if is_remote(self._spark):
            self._run_here(
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

    def _run_here(
        self, *, follow: bool, every_seconds: float, batch_facts: int, stopped: Callable[[], bool]
    ) -> None:
        """The same with Spark Connect. It would have the server call what is called with each micro-batch,
        away from what this run knows; so here one range after the other is asked for.
        """
        head = self._daemon.extent(limit=1, compacted="true")["head"]
        while not stopped():
            due = time.monotonic() + every_seconds
            since = self._writer.serial
            found = self._daemon.extent(since=since, limit=batch_facts, compacted="true")
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
        """Where the archive ends, as a reader says it."""
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
