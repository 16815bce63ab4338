"""The job `archive`: adds the log to a Delta table, each fact exactly once, through crashes at any point.

The position of an archive is in its table only.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import Any, Final

import msgspec

from synrepl.base.history import EpochStart
from synrepl.http_api.routes import STATUS
from synrepl.pipeline.archive.batch import Batch, Clock
from synrepl.pipeline.archive.optimize import FEWEST, MergedMeanwhile, optimize
from synrepl.pipeline.archive.row_files import WrittenFile, write_files, write_in_tasks
from synrepl.pipeline.archive.table import ArchiveTable, CommitConflict, create_table
from synrepl.pipeline.driver import Driver
from synrepl.pipeline.jobs import Progress, ignore_progress, now_ms, retry_late_workers
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.source.daemon_client import DataLoss, SourceClient
from synrepl.pipeline.source.offsets import Offset
from synrepl.pipeline.source.options import SourceOptions, connection_options, read_options
from synrepl.pipeline.source.ranges import Planner, SerialRange, read_range
from synrepl.pipeline.store import BadArchive, Store
from synrepl.streams.positions import VClock
from synrepl.wire.position import LogPosition

ATTEMPTS: Final = 8
BATCH_FACTS: Final = 500_000
TASK_FACTS: Final = 100_000
"""The least value of `facts_per_partition`, as each task writes a file for each stream and day."""
EVERY_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1
MERGE_BATCHES: Final = 4 * FEWEST
"""Number of batches after which small files are merged, besides the merge at the end of a run."""

_logger = logging.getLogger("synrepl.pipeline")


class Overtaken(Exception):
    """Another job has archived facts meanwhile: the next batch begins after those."""


class LogIdentity(msgspec.Struct, frozen=True):
    """The log that is archived."""

    history: str
    server_name: str


class ArchiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a run; the archive now ends at `serial`. `merged` files were merged into larger ones."""

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
    runner: Runner,
    url: str,
    store: Store,
    *,
    secret_file: str | None = None,
    ca_file: str | None = None,
    insecure: bool = False,
    follow: bool = False,
    every_seconds: float = EVERY_SECONDS,
    batch_facts: int = BATCH_FACTS,
    progress: Progress = ignore_progress,
    stopped: Callable[[], bool] = lambda: False,
    at: Callable[[str], None] = lambda point: None,
) -> ArchiveResult:
    """Archive the log of the daemon at `url` up to its head (with `follow`: endlessly), or until `stopped`.

    `runner` is a session of Spark, or a driver.
    A batch has at most `batch_facts` consecutive facts, but the first batch of a trimmed log has all facts
    left of the trimmed part. `at` is called with ``data`` when the files of a batch are written, and with
    ``commit`` when it is committed. Raises `BadArchive` for the archive of another log, and, when all is
    archived, for a damaged file that was to be merged; `SourceError` or
    `DataLoss` (or an error of Spark that wraps them) if the daemon refuses a request or lacks facts.
    """
    began = time.monotonic()
    # All runs use one lease, which makes the daemon retain facts that are not archived yet.
    options = {"url": url, "reader": f"archive-{sha256(store.location.encode()).hexdigest()[:12]}"}
    options |= connection_options(secret_file, ca_file, insecure)
    job = _Job(driver_of(runner), store, options, batch_facts, progress, at)
    job.run(follow=follow, every_seconds=every_seconds, stopped=stopped)
    job.merge()
    end = job.committer.offset
    return ArchiveResult(
        **job.counts,
        serial=end.serial,
        epoch=end.epoch,
        digest=end.digest or "",
        seconds=round(time.monotonic() - began, 3),
    )


@dataclass
class _Job:
    driver: Driver
    store: Store
    options: dict[str, str]
    batch_facts: int
    progress: Progress
    at: Callable[[str], None]
    counts: Counter[str] = field(
        default_factory=lambda: Counter(batches=0, facts=0, rows=0, bytes=0, merged=0), init=False
    )
    committer: "BatchCommitter" = field(init=False)

    def __post_init__(self) -> None:
        self._daemon = SourceClient(read_options(self.options))

    @retry_late_workers
    def run(self, *, follow: bool, every_seconds: float, stopped: Callable[[], bool]) -> None:
        """Archive range by range: a streaming query's handler would run on the server of Spark Connect."""
        while True:
            # Begin again after the facts that another job has archived.
            with suppress(Overtaken):
                return self._run(follow, every_seconds, stopped)

    def _run(self, follow: bool, every_seconds: float, stopped: Callable[[], bool]) -> None:
        status = self._daemon.get(STATUS)
        self.committer = BatchCommitter(self.store, LogIdentity(status["history"], status["server_name"]))
        self.progress("archiving", 0, max(0, status["serial"] - self.committer.serial))
        if self.committer.end is None:
            self._begin_trimmed(status)
        limit: int | None = None
        while not stopped():
            due = time.monotonic() + every_seconds
            start = self.committer.offset
            proof = {"epoch": start.epoch, "digest": start.digest, "history": start.history}
            # The daemon verifies that its log has `start`, and retains later facts.
            found = self._daemon.extent(since=start.serial, **proof, limit=1, reader=self.options["reader"])
            limit = found["head"] if follow or limit is None else limit
            # Serials are dense: the end of a batch is known without a look at its facts.
            upto = min(limit, start.serial + self.batch_facts)
            if upto > start.serial:
                self._write(start, upto)
            elif not follow:
                return
            while follow and not stopped() and (left := due - time.monotonic()) > 0:
                time.sleep(min(left, LOOK_SECONDS))

    def merge(self) -> None:
        """Merge small files. Raises `BadArchive` if one of them is damaged."""
        # Another job may merge the same files.
        with suppress(MergedMeanwhile):
            if self.committer.end is not None:
                self.counts["merged"] += optimize(self.driver, self.store, fewest=FEWEST).merged

    def _begin_trimmed(self, status: Mapping[str, Any]) -> None:
        """Archive the remaining facts of the trimmed part of the log as the first batch."""
        upto = self._keep_untrimmed()
        if not upto:
            return
        found = self._daemon.extent(upto=upto, compacted=True)
        self._write(
            self.committer.offset,
            upto,
            compacted_upto=LogPosition(found["epoch"], found["serial"], found["digest"]),
            clock=self._quiet(found["serial"], status["streams"]),
        )

    def _keep_untrimmed(self) -> int:
        """Make the daemon keep all facts that are not trimmed yet; return the last serial that is."""
        while True:
            whole = self._daemon.extent(limit=1, compacted=True, reader=self.options["reader"])
            upto = int(whole["trimmed_upto"])
            # It was trimmed further before it heard of us.
            with suppress(DataLoss):
                if upto:
                    self._daemon.extent(since=upto, limit=1, reader=self.options["reader"])
                return upto

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
        # Half of the tasks that other jobs have, for files of twice the size: one for each core.
        each = max(TASK_FACTS, 2 * BATCH_FACTS // self.driver.parallelism)
        compacted = "false" if compacted_upto is None else "true"
        options = read_options({**self.options, "compacted": compacted, "factsPerPartition": str(each)})
        ranges = Planner(options, self._daemon).ranges(start, replace(start, serial=upto, digest=None), {})
        written = write_in_tasks(self.driver, ranges, partial(_write_range, self.store, options))
        if not written and compacted_upto is None:
            return
        self.at("data")
        starts = self._epoch_starts(max((one.epoch for one in written), default=1))
        batch = self.committer.commit(
            written, epoch_starts=starts, now_ms=now_ms(), compacted_upto=compacted_upto, clock=clock
        )
        self.at("commit")
        self.counts.update(batches=1, facts=batch.facts, rows=batch.rows, bytes=batch.bytes)
        self.progress("archiving", self.counts["facts"], 0)
        if self.counts["batches"] % MERGE_BATCHES == 0:
            try:
                self.merge()
            except BadArchive as error:
                # What the log may trim soon goes first; the end of the run raises it.
                _logger.warning("files are not merged: %s", error)

    def _epoch_starts(self, epoch: int) -> list[EpochStart]:
        """Return the epoch starts of the log, up to that of an epoch which it has begun.

        Those of the archive's last epoch are known. The status of release 26.11.0 may be a second old.
        """
        if (end := self.committer.end) is not None and end.epoch == epoch:
            return end.epoch_starts
        for _ in range(ATTEMPTS):
            starts = msgspec.convert(self._daemon.get(STATUS)["epoch_starts"], list[EpochStart])
            if epoch == 1 or any(start.epoch >= epoch for start in starts):
                break
            time.sleep(LOOK_SECONDS)
        return starts


def _write_range(store: Store, options: SourceOptions, planned: SerialRange) -> Iterator[WrittenFile]:
    """Read and write a range (runs in a task)."""
    return write_files(store, read_range(planned, options, SourceClient(options)))


class BatchCommitter:
    """The end of an archive, and the writer of its next commit.

    Raises `BadArchive` if the archive is of another log.
    """

    def __init__(self, store: Store, log: LogIdentity) -> None:
        self._store = store
        self._log = log
        self._table = ArchiveTable.if_any(store)
        store.create()
        end = self.end
        if end is not None and end.history != log.history:
            raise BadArchive(
                f"{store} is the archive of another log (history {end.history}, server {end.server_name});"
                " use another directory for this log"
            )

    @property
    def end(self) -> Batch | None:
        """The last batch; None if nothing is archived yet."""
        return None if self._table is None else self._table.end

    @property
    def serial(self) -> int:
        """The last serial of the archive; 0 if nothing is archived yet."""
        return self.offset.serial

    @property
    def offset(self) -> Offset:
        """The end of the archive, as an offset of the log."""
        end = self.end
        if end is None:
            return Offset(0, history=self._log.history)
        return Offset(end.last_serial, epoch=end.epoch, digest=end.digest, history=end.history)

    def commit(
        self,
        written: Sequence[WrittenFile],
        *,
        epoch_starts: Sequence[EpochStart] = (),
        now_ms: int,
        compacted_upto: LogPosition | None = None,
        clock: Clock | None = None,
    ) -> Batch:
        """Commit these files as the next batch.

        Raises `BadArchive` unless the files continue the archive without a missing serial; up to
        `compacted_upto` serials may be missing. `clock` has positions of writers without facts, for the first
        batch. Raises `Overtaken` if another job has committed a batch.
        """
        before, start_serial = self.end, self.serial
        facts = sum(one.facts for one in written)
        if compacted_upto is not None:
            ends = compacted_upto
        else:
            last = max(written, key=lambda one: one.last_serial)
            ends = LogPosition(last.epoch, last.last_serial, last.digest)
            first = min(one.first_serial for one in written)
            if first != start_serial + 1 or facts != ends.serial - start_serial:
                raise BadArchive(
                    f"the batch is not whole: it has {facts} facts, serials {first} to {ends.serial}, not"
                    f" all facts of serials {start_serial + 1} to {ends.serial}; run the job again"
                )
        # An epoch without facts yet belongs to the next batch.
        known = [start for start in epoch_starts if start.epoch <= ends.epoch]
        new_starts = [start for start in known if before is None or start.epoch > before.epoch]
        start = VClock.from_json((clock or {}) if before is None else before.end)
        end = _advance_clock(start, written, new_starts).to_json()
        if before is not None:
            compacted_serial, origin = before.compacted_upto, before.origin
        else:
            compacted_serial, origin = (0, {}) if compacted_upto is None else (compacted_upto.serial, end)
        batch = Batch(
            first_serial=start_serial + 1,
            last_serial=ends.serial,
            facts=facts,
            rows=sum(one.rows for one in written),
            bytes=sum(one.bytes for one in written),
            epoch=ends.epoch,
            digest=ends.digest,
            end=end,
            history=self._log.history,
            server_name=self._log.server_name,
            first_at_ms=min((one.first_at_ms for one in written), default=0),
            last_at_ms=max((one.last_at_ms for one in written), default=0),
            archived_at_ms=now_ms,
            compacted_upto=compacted_serial,
            origin=origin,
            epoch_starts=known,
        )
        self._append(batch, written)
        return batch

    def _append(self, batch: Batch, written: Sequence[WrittenFile]) -> None:
        for _ in range(ATTEMPTS):
            try:
                if self._table is None:
                    self._table = create_table(self._store, batch, written)
                else:
                    self._table = self._table.append(batch, written)
            except CommitConflict as error:
                cause = error
            else:
                return
            before, self._table = self.serial, ArchiveTable.if_any(self._store)
            if self.serial != before:
                raise Overtaken(f"{self._store}: another job has archived facts up to serial {self.serial}")
        raise BadArchive(f"{self._store}: a batch cannot be committed: {cause} (after {ATTEMPTS} attempts)")


def _advance_clock(
    clock: VClock, written: Sequence[WrittenFile], epoch_starts: Sequence[EpochStart]
) -> VClock:
    """Return the clock after these files. An epoch that began with a loss sets positions back."""
    lost = {epoch_start.epoch: epoch_start for epoch_start in epoch_starts if epoch_start.stream}
    for epoch in sorted({*lost, *chain.from_iterable(one.tokens for one in written)}):
        if (epoch_start := lost.get(epoch)) is not None:
            for stream, writer, token in list(clock):
                if stream == epoch_start.stream and token > epoch_start.token:
                    clock = clock.with_position(stream, writer, epoch_start.token)
        for one in written:
            if epoch in one.tokens:
                clock = clock.merge(VClock({one.stream: one.tokens[epoch]}))
    return clock
