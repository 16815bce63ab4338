"""Writer of the batches of an archive, which also merges small batches and removes leftovers."""

import time
from collections.abc import Callable
from functools import partial

import msgspec
from pyspark.sql import DataFrame, SparkSession

from synrepl.errors import ConfigError
from synrepl.http_api.routes import STATUS
from synrepl.pipeline.archive.commit import BatchOrigin, build_manifest
from synrepl.pipeline.archive.manifest import Manifest, manifests, next_batch, write_manifest
from synrepl.pipeline.archive.merge import FEWEST, GRACE_MS, merge, tidy
from synrepl.pipeline.archive.writer import write_files, write_in_tasks
from synrepl.pipeline.jobs import Progress
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.store import Store
from synrepl.ports.history import EpochStart, LogPosition

__all__ = ["At", "ArchiveBatchWriter", "now_ms"]

At = Callable[[str], None]
"""Called after the ``data`` and after the ``manifest`` was written, where tests crash the job."""


def now_ms() -> int:
    """Return the time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


class ArchiveBatchWriter:
    """Handler of micro-batches: writes the files, then the manifest that names them."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        origin: BatchOrigin,
        before: Manifest | None,
        daemon: SourceClient,
        progress: Progress,
        at: At,
    ) -> None:
        self.origin = origin
        self.before = before
        self.batches = self.facts = self.rows = self.bytes = self.merged = 0
        self._spark = spark
        self._store = store
        self._number = next_batch(store)
        self._daemon = daemon
        self._progress = progress
        self._at = at
        self._unmerged = 0
        self._tidy_ms = now_ms()

    @property
    def serial(self) -> int:
        """The last serial of the archive."""
        return 0 if self.before is None else self.before.last_serial

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a micro-batch. Spark's batch number is ignored: it restarts with each run."""
        self.write(rows, None)

    def write(self, rows: DataFrame, compacted_upto: LogPosition | None) -> None:
        """Write these rows as the next batch."""
        written = write_in_tasks(rows, partial(write_files, self._store, self._number))
        if not written and compacted_upto is None:
            return
        self._at("data")
        manifest = build_manifest(
            written,
            number=self._number,
            before=self.before,
            origin=self.origin,
            epoch_starts=self._epoch_starts(max((one.epoch for one in written), default=1)),
            now_ms=now_ms(),
            compacted_upto=compacted_upto,
        )
        try:
            write_manifest(self._store, manifest)
        except FileExistsError:
            raise ConfigError(
                f"{self._store}: another job has written batch {self._number}; stop one of the jobs"
            ) from None
        self._at("manifest")
        self.before = manifest
        self._number += 1
        self.batches += 1
        self.facts += manifest.facts
        self.rows += manifest.rows
        self.bytes += sum(file.bytes for file in manifest.files)
        self._progress("archiving", self.facts, 0)
        self._unmerged += 1
        if self._unmerged >= FEWEST:
            self.merge()

    def _epoch_starts(self, epoch: int) -> list[EpochStart]:
        """Return the starts of epochs up to this epoch."""
        if self.before is not None and self.before.epoch == epoch:
            return self.before.epoch_starts
        return msgspec.convert(self._daemon.get(STATUS)["epoch_starts"], list[EpochStart])

    def merge(self) -> None:
        """Merge small batches if there are enough; from time to time, remove merged batches."""
        now = now_ms()
        self.merged += merge(self._spark, self._store, now_ms=now)
        self._number = next_batch(self._store)
        self._unmerged = 0
        if now - self._tidy_ms >= GRACE_MS:
            tidy(self._store, manifests(self._store), now_ms=now)
            self._tidy_ms = now
