"""Manifest of a new batch, made from the files that its tasks wrote."""

from collections.abc import Sequence

import msgspec

from synrepl.pipeline.archive.manifest import BadArchive, Manifest
from synrepl.pipeline.archive.writer import WrittenFile
from synrepl.ports.history import BEGINNING, EpochStart, LogPosition
from synrepl.streams.positions import VClock

__all__ = ["BatchOrigin", "build_manifest"]


class BatchOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The archived log, and the start of the archive: after `trimmed_upto`, or with a `compacted` batch."""

    history: str = ""
    server_name: str = ""
    trimmed_upto: LogPosition = BEGINNING
    clock: dict[str, dict[str, int]] = {}


def build_manifest(
    written: Sequence[WrittenFile],
    *,
    number: int,
    before: Manifest | None,
    origin: BatchOrigin,
    epoch_starts: Sequence[EpochStart] = (),
    now_ms: int,
    compacted_upto: LogPosition | None = None,
) -> Manifest:
    """Return the manifest of these files, which follow the batch `before`.

    Raises `BadArchive` unless the files contain every serial after `before`. With `compacted_upto` serials
    may be missing up to there.
    """
    if before is None:
        start = VClock.from_json(origin.clock)
        position = BEGINNING if compacted_upto is not None else origin.trimmed_upto
        start_serial, start_digest = position.serial, position.digest
    else:
        start = VClock.from_json(before.end)
        start_serial, start_digest = before.last_serial, before.digest
    facts = sum(one.file.facts for one in written)
    if compacted_upto is not None:
        ends = compacted_upto
    else:
        last = max(written, key=lambda one: one.file.last_serial)
        ends = LogPosition(last.epoch, last.file.last_serial, last.digest)
        first = min(one.file.first_serial for one in written)
        if first != start_serial + 1 or facts != ends.serial - start_serial:
            raise BadArchive(
                f"batch {number} is not whole: {facts} facts from serial {first} to {ends.serial}, expected"
                f" {ends.serial - start_serial} facts after serial {start_serial}"
            )
    # An epoch without facts yet belongs to the next batch.
    known = [epoch_start for epoch_start in epoch_starts if epoch_start.epoch <= ends.epoch]
    new_starts = [epoch_start for epoch_start in known if before is None or epoch_start.epoch > before.epoch]
    return Manifest(
        batch=number,
        epoch=ends.epoch,
        first_serial=start_serial + 1,
        last_serial=ends.serial,
        start=start.to_json(),
        end=_advance_clock(start, written, new_starts).to_json(),
        files=sorted((one.file for one in written), key=lambda file: (file.first_serial, file.path)),
        facts=facts,
        rows=sum(one.file.rows for one in written),
        start_digest=start_digest,
        digest=ends.digest,
        history=origin.history,
        server_name=origin.server_name,
        first_at_ms=min((one.first_at_ms for one in written), default=0),
        last_at_ms=max((one.last_at_ms for one in written), default=0),
        archived_at_ms=now_ms,
        compacted=compacted_upto is not None,
        epoch_starts=known,
    )


def _advance_clock(
    clock: VClock, written: Sequence[WrittenFile], epoch_starts: Sequence[EpochStart]
) -> VClock:
    """Return the clock after these files. An epoch that began with a loss sets positions back."""
    tokens: dict[int, dict[str, dict[str, int]]] = {epoch_start.epoch: {} for epoch_start in epoch_starts}
    for one in written:
        for epoch, of_writers in one.tokens.items():
            writers = tokens.setdefault(epoch, {}).setdefault(one.file.stream, {})
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
