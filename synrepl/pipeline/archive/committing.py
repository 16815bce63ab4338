"""What was written becomes a batch: the manifest that names it."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from synrepl.pipeline.archive.manifest import BadArchive, Manifest
from synrepl.pipeline.archive.writing import Written
from synrepl.ports.history import BEGINNING, Place, Turn
from synrepl.streams.positions import VClock

__all__ = ["Origin", "batch_of"]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Whose log it is, and where the archive of it begins: after `begin`, unless what is left of the facts
    up to there is its first batch (`compacted`)."""

    history: str = ""
    server_name: str = ""
    begin: Place = BEGINNING
    clock: dict[str, dict[str, int]] = {}


def batch_of(
    written: Sequence[Written],
    *,
    number: int,
    before: Manifest | None,
    origin: Origin,
    turns: Sequence[Turn] = (),
    now_ms: int,
    compacted_upto: Place | None = None,
) -> Manifest:
    """The manifest of these files, which go on after the batch `before`.

    Raises `BadArchive` unless they hold every serial after it; with `compacted_upto` what is left of those up
    to there will do.
    """
    if before is None:
        start = VClock.from_json(origin.clock)
        place = BEGINNING if compacted_upto is not None else origin.begin
        start_serial, start_digest = place.serial, place.digest
    else:
        start = VClock.from_json(before.end)
        start_serial, start_digest = before.last_serial, before.digest
    facts = sum(one.file.facts for one in written)
    if compacted_upto is not None:
        ends = compacted_upto
    else:
        last = max(written, key=lambda one: one.file.last_serial)
        ends = Place(last.epoch, last.file.last_serial, last.digest)
        first = min(one.file.first_serial for one in written)
        if first != start_serial + 1 or facts != ends.serial - start_serial:
            raise BadArchive(
                f"batch {number} is not whole: {facts} facts from serial {first} to {ends.serial}, where"
                f" {ends.serial - start_serial} come after {start_serial}"
            )
    return Manifest(
        batch=number,
        epoch=ends.epoch,
        first_serial=start_serial + 1,
        last_serial=ends.serial,
        start=start.to_json(),
        end=_advanced(start, written).to_json(),
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
        turns=[turn for turn in turns if turn.serial <= ends.serial],
    )


def _advanced(clock: VClock, written: Iterable[Written]) -> VClock:
    tokens: dict[str, Any] = {}
    for one in written:
        writers = tokens.setdefault(one.file.stream, {})
        for writer, token in one.tokens.items():
            writers[writer] = max(token, writers.get(writer, token))
    return clock.merge(VClock(tokens))
