"""Committer of batches: adds the files that tasks wrote to the table of an archive, each fact once."""

from collections.abc import Sequence
from typing import Final

import msgspec
from deltalake.transaction import AddAction

from synrepl.pipeline.archive.table import ArchiveTable, Batch, Clock, CommitConflict, create_table
from synrepl.pipeline.archive.writer import WrittenFile
from synrepl.pipeline.store import BadArchive, Store
from synrepl.ports.history import EpochStart, LogPosition
from synrepl.streams.positions import VClock

__all__ = ["BatchCommitter", "LogIdentity", "Overtaken", "add_action"]

ATTEMPTS: Final = 8


class Overtaken(Exception):
    """Another job has archived facts meanwhile: the next batch begins after them."""


class LogIdentity(msgspec.Struct, frozen=True):
    """The log that is archived."""

    history: str
    server_name: str


class BatchCommitter:
    """The end of an archive, and the writer of its next commit.

    Raises `BadArchive` if the archive is of another log.
    """

    def __init__(self, store: Store, log: LogIdentity) -> None:
        self._store = store
        self._log = log
        store.create()
        self._table = ArchiveTable.if_any(store)
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
        """The last serial of the archive."""
        return 0 if self.end is None else self.end.last_serial

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

        With `compacted_upto` serials may be missing up to there; `clock` has positions of writers without
        facts. Raises `BadArchive` unless the files contain every serial after the archive, and `Overtaken`.
        """
        batch = self._build_batch(written, epoch_starts, now_ms, compacted_upto, clock)
        added = [add_action(one, now_ms) for one in written]
        for _ in range(ATTEMPTS):
            try:
                if self._table is None:
                    self._table = create_table(self._store, batch, added)
                else:
                    self._table = self._table.append(batch, added)
            except CommitConflict as error:
                cause = error
            else:
                return batch
            before, self._table = self.serial, ArchiveTable.if_any(self._store)
            if self.serial != before:
                raise Overtaken(f"{self._store}: another job has archived facts up to serial {self.serial}")
        raise BadArchive(f"{self._store}: a batch cannot be committed: {cause}")

    def _build_batch(
        self,
        written: Sequence[WrittenFile],
        epoch_starts: Sequence[EpochStart],
        now_ms: int,
        compacted_upto: LogPosition | None,
        clock: Clock | None,
    ) -> Batch:
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
                    f"the batch is not whole: {facts} facts from serial {first} to {ends.serial}, expected"
                    f" {ends.serial - start_serial} facts after serial {start_serial}"
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
        return Batch(
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


def add_action(written: WrittenFile, now_ms: int, *, data_change: bool = True) -> AddAction:
    """Return the entry of a file in the log of the table."""
    partition = {"stream": written.stream, "date": written.date}
    return AddAction(written.path, written.bytes, partition, now_ms, data_change, written.stats)


def _advance_clock(
    clock: VClock, written: Sequence[WrittenFile], epoch_starts: Sequence[EpochStart]
) -> VClock:
    """Return the clock after these files. An epoch that began with a loss sets positions back."""
    tokens: dict[int, dict[str, dict[str, int]]] = {epoch_start.epoch: {} for epoch_start in epoch_starts}
    for one in written:
        for epoch, of_writers in one.tokens.items():
            writers = tokens.setdefault(epoch, {}).setdefault(one.stream, {})
            for writer, token in of_writers.items():
                writers[writer] = max(token, writers.get(writer, token))
    lost = {epoch_start.epoch: epoch_start for epoch_start in epoch_starts if epoch_start.stream}
    for epoch in sorted(tokens):
        if (epoch_start := lost.get(epoch)) is not None:
            for stream, writer, token in list(clock):
                if stream == epoch_start.stream and token > epoch_start.token:
                    clock = clock.with_position(stream, writer, epoch_start.token)
        clock = clock.merge(VClock(tokens[epoch]))
    return clock
