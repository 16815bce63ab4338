"""Coverage of an archive, from its manifests alone."""

from collections.abc import Sequence
from typing import Any

import msgspec

from synrepl.pipeline.archive.manifest import Manifest
from synrepl.ports.history import EpochStart

__all__ = ["Coverage", "coverage", "positions_before"]


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The coverage of an archive.

    `lines` are the rows of the Parquet files: one more for each fact without rows. `merged` batches replaced
    others. Up to the serial `compacted` the archive has only the facts that the trimmed log still had.
    """

    server_name: str
    history: str
    first_serial: int
    last_serial: int
    first_ms: int
    last_ms: int
    archived_ms: int
    facts: int
    lines: int
    batches: int
    merged: int
    files: int
    file_bytes: int
    writers: dict[str, list[str]]
    epochs: tuple[int, int]
    compacted: int | None
    epoch_starts: list[EpochStart]
    digest: str

    @property
    def seconds(self) -> float:
        """The time from the first commit to the last."""
        return (self.last_ms - self.first_ms) / 1000


def coverage(found: Sequence[Manifest]) -> Coverage | None:
    """Return the coverage of these ordered manifests; None if they have no facts."""
    nonempty = [manifest for manifest in found if manifest.facts]
    if not nonempty:
        return None
    last = found[-1]
    first_epoch = min((epoch_start.epoch for epoch_start in last.epoch_starts), default=last.epoch + 1) - 1
    return Coverage(
        server_name=last.server_name,
        history=last.history,
        first_serial=found[0].first_serial,
        last_serial=last.last_serial,
        first_ms=min(manifest.first_at_ms for manifest in nonempty),
        last_ms=max(manifest.last_at_ms for manifest in nonempty),
        archived_ms=max(manifest.archived_at_ms for manifest in nonempty),
        facts=sum(manifest.facts for manifest in nonempty),
        lines=sum(manifest.rows for manifest in nonempty),
        batches=len(found),
        merged=sum(bool(manifest.replaces) for manifest in found),
        files=sum(len(manifest.files) for manifest in nonempty),
        file_bytes=sum(file.bytes for manifest in nonempty for file in manifest.files),
        writers={stream: sorted(writers) for stream, writers in sorted(last.end.items())},
        epochs=(min(first_epoch, last.epoch), last.epoch),
        compacted=found[0].last_serial if found[0].compacted else None,
        epoch_starts=list(last.epoch_starts),
        digest=last.digest,
    )


def positions_before(found: Sequence[Manifest]) -> dict[str, dict[str, Any]]:
    """Return the writers' positions at which the chain check starts: after the compacted part, if any."""
    return found[0].end if found[0].compacted else found[0].start
