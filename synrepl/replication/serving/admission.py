"""Admission: whether the position that a reader states lies in this log's history.

A reader on a diverged history must be refused at once. Otherwise it would receive facts that do not follow
its own, or wait forever. Every transport calls these functions. The codes are those of
`error_codes.REFUSALS`.
"""

from collections.abc import Mapping

import msgspec

from synrepl.storage.log import Log
from synrepl.wire.position import LogPosition
from synrepl.wire.text import printable


class ReaderPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A reader's position in its own log, as far as the reader states it.

    `epoch_start`, `began_ms`, `lost_stream` and `lost_upto` describe the start of the reader's epoch, `clock`
    the tokens of its writers (`wire.native.Subscribe`). It was told of the streams `seen` (None: all), and
    of no facts of other streams that an epoch has lost. `compacted`: the reader accepts a trimmed log.
    `digest_decides`: a right digest makes up for an epoch that is too low.
    """

    name: str = "the reader"
    history: str | None = None
    serial: int
    epoch: int | None = None
    digest: str | None = None
    epoch_start: LogPosition | None = None
    began_ms: int = 0
    lost_stream: str = ""
    lost_upto: int = 0
    seen: frozenset[str] | None = None
    clock: Mapping[str, Mapping[str, int]] = {}
    compacted: bool = False
    digest_decides: bool = False


class Mismatch(msgspec.Struct, frozen=True):
    """Why a reader is refused: a code for programs, and a message for people."""

    code: str
    message: str


def history_mismatch(log: Log, reader: ReaderPosition) -> Mismatch | None:
    """Return why the reader has another log or is in a later epoch; None if not."""
    name = reader.name
    if reader.history is not None and reader.history != log.history:
        why = f"{name} is a copy of the log {printable(reader.history)}, not of this log, {log.history}"
        return Mismatch("other_history", why)
    if reader.epoch is not None and reader.epoch > log.head.epoch:
        why = f"{name} is in epoch {reader.epoch}, later than epoch {log.head.epoch} here"
        return Mismatch("other_epoch", why)
    return None


async def position_mismatch(log: Log, reader: ReaderPosition) -> Mismatch | None:
    """Return why this log cannot continue from this position; None if it can. Raises `StorageError`."""
    name, serial, head = reader.name, reader.serial, log.position
    known = None
    if reader.digest is not None:
        known = head.digest if serial == head.serial else await log.reads.digest(serial)
    starts = log.head.epoch_starts
    same = [start for start in starts if reader.epoch_start == start.position]
    told = [one for start in same for one in (start, start.seen_by(reader.seen))]
    if reader.epoch_start is not None and not any(
        (start.stream, start.token) == (reader.lost_stream, reader.lost_upto) for start in told
    ):
        began = reader.epoch_start
        why = f"this log lacks the epoch start of {name}: epoch {began.epoch}, serial {began.serial}"
        if same:
            why = f"epoch {began.epoch} began for another reason at {name} than in this log"
        return Mismatch("fork", f"the histories differ: {why}")
    next_start = next(
        (start for start in starts if reader.epoch is not None and start.epoch > reader.epoch), None
    )
    is_proven = reader.digest_decides and known is not None and known == reader.digest
    if next_start is not None and next_start.serial < serial and not is_proven:
        why = f"{name} has serial {serial} of epoch {reader.epoch}, which ended here at {next_start.serial}"
        return Mismatch("fork", f"the histories differ: {why}")
    if serial > head.serial:
        return Mismatch("ahead", f"{name} is at serial {serial}, beyond the end of this log, {head.serial}")
    if serial < log.head.trimmed_upto.serial and not reader.compacted:
        if same and reader.began_ms and reader.began_ms not in [start.at_ms for start in same]:
            why = f"the histories differ: {name} began epoch {same[0].epoch} at another time"
            return Mismatch("fork", why)
        why = f"{name} is at serial {serial}, but this log begins after {log.head.trimmed_upto.serial}"
        return Mismatch("trimmed", why)
    if known is not None and known != reader.digest:
        return Mismatch("fork", f"the histories differ at serial {serial} or earlier")
    for stream, writers in reader.clock.items():
        positions = log.positions(stream)
        for writer, token in writers.items():
            if token > (at := positions.get(writer, 0)):
                why = f"{name} has {printable(stream)} of {printable(writer)} up to token {token}"
                return Mismatch("ahead", f"{why}, beyond the last token here, {at}")
    return None
