"""The job `archive`: the log as Parquet, each fact once, through crashes at any point.

The manifests alone say how far an archive is. Spark's checkpoint is of one run, and goes with it: what a
crash leaves between our manifest and Spark's own commit is then nothing that anybody looks at.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa

from synrepl.errors import ConfigError
from synrepl.pipeline.archive.committing import Origin, batch_of
from synrepl.pipeline.archive.lock import locked
from synrepl.pipeline.archive.manifest import BadArchive, Manifest, manifests, write_manifest
from synrepl.pipeline.archive.merging import FEWEST, merge
from synrepl.pipeline.archive.tidying import GRACE_MS, next_batch, tidy
from synrepl.pipeline.archive.writing import WRITTEN, Written, write_files
from synrepl.pipeline.session import is_remote
from synrepl.pipeline.source.daemon import Daemon
from synrepl.pipeline.source.offsets import Offset
from synrepl.pipeline.source.options import read_options
from synrepl.pipeline.source.source import register
from synrepl.pipeline.store import Store
from synrepl.pipeline.telling import Tell, nobody
from synrepl.ports.history import Place, Turn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Archived", "archive"]

BATCH_FACTS: Final = 500_000
EVERY_SECONDS: Final = 5.0
CHECKPOINTS: Final = "_checkpoints"
LOOK_SECONDS: Final = 1

At = Callable[[str], None]
"""Told of the points at which a crash is most interesting: ``data`` is written, ``manifest`` is."""


class Archived(msgspec.Struct, frozen=True, kw_only=True):
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
    tell: Tell = nobody,
    stopped: Callable[[], bool] = lambda: False,
    at: At = lambda point: None,
) -> Archived:
    """Bring the archive up to the head of the daemon at `url`; with `follow`, until `stopped` says so.

    The facts of a batch, at most `batch_facts`, are whole and dense. Raises `ConfigError` and its kin: for an
    archive of another log, or one that another job is writing; `SourceError`, `DataLoss` for what the daemon
    does not give.
    """
    began = time.monotonic()
    with locked(store):
        job = _Job(spark, url, store, secret_file, tell, at)
        writer = job.begin()
        try:
            job.run(follow=follow, every_seconds=every_seconds, batch_facts=batch_facts, stopped=stopped)
        finally:
            store.remove_folder(CHECKPOINTS)
        writer.merge()
    last = writer.before
    return Archived(
        batches=writer.batches,
        facts=writer.facts,
        rows=writer.rows,
        bytes=writer.bytes,
        serial=0 if last is None else last.last_serial,
        epoch=1 if last is None else last.epoch,
        digest="" if last is None else last.digest,
        merged=writer.merged,
        seconds=round(time.monotonic() - began, 3),
    )


class _Job:
    """One run."""

    def __init__(
        self, spark: "SparkSession", url: str, store: Store, secret_file: str | None, tell: Tell, at: At
    ) -> None:
        register(spark)
        self._spark = spark
        self._store = store
        self._tell = tell
        self._at = at
        # The same for all runs of this archive: while it is late, the daemon keeps what it needs.
        reader = f"archive-{sha256(store.place.encode()).hexdigest()[:12]}"
        self._options = {"url": url, "reader": reader}
        if secret_file is not None:
            self._options["secretFile"] = secret_file
        self._daemon = Daemon(read_options(self._options))
        self._writer: _BatchWriter

    def begin(self) -> "_BatchWriter":
        """See what is there, and remove what is left of crashes. Gives what goes on from there."""
        found = manifests(self._store)
        tidy(self._store, found, now_ms=_now_ms())
        status = self._daemon.get("/v1/status")
        before = found[-1] if found else None
        origin = Origin(history=status["history"], server_name=status["server_name"])
        if before is not None and before.history != origin.history:
            raise BadArchive(
                f"{self._store} is the archive of another log (of history {before.history}, at"
                f" {before.server_name}); name another folder for this one"
            )
        self._writer = _BatchWriter(
            self._spark, self._store, origin, before, self._daemon, self._tell, self._at
        )
        first = 0 if before is None else before.last_serial
        self._tell("archiving", 0, max(0, status["serial"] - first))
        if before is None:
            self._begin_trimmed(status)
        return self._writer

    def _begin_trimmed(self, status: Mapping[str, Any]) -> None:
        """What is left of the beginning of a log that was trimmed is a batch of its own."""
        whole = self._daemon.extent(limit=1, compacted="true", reader=self._options["reader"])
        if not whole["begin"]:
            return
        found = self._daemon.extent(upto=whole["begin"], compacted="true")
        self._writer.origin = msgspec.structs.replace(
            self._writer.origin, clock=self._quiet(found["serial"], status["streams"])
        )
        rows = (
            self._spark.read.format("synrepl")
            .options(**self._options, compacted="true", endingOffsets=str(whole["begin"]))
            .load()
        )
        self._writer.write(rows, Place(found["epoch"], found["serial"], found["digest"]))

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
            since = 0 if self._writer.before is None else self._writer.before.last_serial
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


class _BatchWriter:
    """What Spark calls with each micro-batch: files, then the manifest that names them."""

    def __init__(
        self,
        spark: "SparkSession",
        store: Store,
        origin: Origin,
        before: Manifest | None,
        daemon: Daemon,
        tell: Tell,
        at: At,
    ) -> None:
        self.origin = origin
        self.before = before
        self.batches = self.facts = self.rows = self.bytes = self.merged = 0
        self._spark = spark
        self._store = store
        self._number = next_batch(store)
        self._daemon = daemon
        self._tell = tell
        self._at = at
        self._unmerged = 0
        self._tidy_ms = _now_ms()

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        """One micro-batch; its number is Spark's, which begins anew with each run."""
        self.write(rows, None)

    def write(self, rows: "DataFrame", compacted_upto: Place | None) -> None:
        """These rows are the next batch."""
        found = rows.mapInArrow(partial(_write, self._store, self._number), WRITTEN).collect()
        written = [msgspec.json.decode(bytes(row.written), type=Written) for row in found]
        if not written and compacted_upto is None:
            return
        self._at("data")
        manifest = batch_of(
            written,
            number=self._number,
            before=self.before,
            origin=self.origin,
            turns=self._turns(max((one.epoch for one in written), default=1)),
            now_ms=_now_ms(),
            compacted_upto=compacted_upto,
        )
        try:
            write_manifest(self._store, manifest)
        except FileExistsError:
            raise ConfigError(
                f"{self._store}: another job has written batch {self._number}; end one of them"
            ) from None
        self._at("manifest")
        self.before = manifest
        self._number += 1
        self.batches += 1
        self.facts += manifest.facts
        self.rows += manifest.rows
        self.bytes += sum(file.bytes for file in manifest.files)
        self._tell("archiving", self.facts, 0)
        self._unmerged += 1
        if self._unmerged >= FEWEST:
            self.merge()

    def _turns(self, epoch: int) -> list[Turn]:
        """Where epochs began, up to this one."""
        if self.before is not None and self.before.epoch == epoch:
            return self.before.turns
        return msgspec.convert(self._daemon.get("/v1/status")["turns"], list[Turn])

    def merge(self) -> None:
        """Make one of small batches, where there are enough; at times, remove what was merged long ago."""
        now_ms = _now_ms()
        self.merged += merge(self._spark, self._store, now_ms=now_ms)
        self._number = next_batch(self._store)
        self._unmerged = 0
        if now_ms - self._tidy_ms >= GRACE_MS:
            tidy(self._store, manifests(self._store), now_ms=now_ms)
            self._tidy_ms = now_ms


def _write(store: Store, batch: int, rows: Iterator[Any]) -> Iterator[Any]:
    """In a task."""
    found = [msgspec.json.encode(one) for one in write_files(store, batch, rows)]
    yield pa.RecordBatch.from_arrays([pa.array(found, pa.binary())], names=["written"])


def _offset(manifest: Manifest) -> Offset:
    return Offset(
        serial=manifest.last_serial,
        epoch=manifest.epoch,
        digest=manifest.digest,
        history=manifest.history,
        clock=manifest.end,
        committed_at_ms=manifest.last_at_ms,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
