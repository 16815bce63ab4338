"""Merging of small batches, as many small files make an archive slow to read, and cleanup of leftovers."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from synrepl.pipeline.archive.manifest import (
    MANIFESTS,
    ArchivedFile,
    Arrival,
    Manifest,
    manifests,
    next_batch,
    write_manifest,
)
from synrepl.pipeline.archive.writer import WrittenFile, write_files, write_in_tasks
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import Store

__all__ = ["FEWEST", "GRACE_MS", "merge", "runs", "thin", "tidy"]

SMALL_FACTS: Final = 100_000
"""A batch of fewer facts is small."""

TARGET_FACTS: Final = 500_000
"""Maximum number of facts of a merged batch, about."""

FEWEST: Final = 8
"""Minimum number of adjacent small batches to merge."""

ARRIVALS: Final = 64
"""Maximum number of arrivals of a merged batch: enough for a plot, and small in a manifest."""

GRACE_MS: Final = 3600 * 1000
"""How long the files of merged batches stay, for readers that are still reading them."""

UNFINISHED: Final = re.compile(r"\.?[0-9]+\.json\.[0-9a-f]{8}")
"""The name that `Store.writing` gives to an incomplete manifest."""


def runs(
    kept: Sequence[Manifest], *, small: int = SMALL_FACTS, target: int = TARGET_FACTS, fewest: int = FEWEST
) -> list[list[Manifest]]:
    """Return the runs of batches to merge: adjacent small batches, at least `fewest`, up to `target` facts.

    No batch of a run has more facts than the others together. So a fact is rewritten only into a batch at
    least twice as large: about seven times at most, however small the original batches are.
    """
    found: list[list[Manifest]] = []
    run: list[Manifest] = []
    for manifest in kept:
        is_small = manifest.facts < small and not manifest.compacted
        if not is_small or sum(one.facts for one in run) + manifest.facts > target:
            found.append(run)
            run = []
        if is_small:
            run.append(manifest)
    return [part for run in [*found, run] for part in _split_uneven(run) if len(part) >= fewest]


def _split_uneven(run: list[Manifest]) -> Iterator[list[Manifest]]:
    """Split a run at batches that have more facts than the rest of their part."""
    if not run:
        return
    heaviest = max(range(len(run)), key=lambda position: run[position].facts)
    if 2 * run[heaviest].facts <= sum(one.facts for one in run):
        yield run
    else:
        yield from _split_uneven(run[:heaviest])
        yield from _split_uneven(run[heaviest + 1 :])


def merge(spark: SparkSession, store: Store, *, now_ms: int, fewest: int = FEWEST) -> int:
    """Merge small batches and return their number. The caller must hold the lock of the archive.

    The new manifest `replaces` the merged batches, whose manifests are then removed. Their files are removed
    after a grace period for readers (`tidy`).
    """
    gone = 0
    for run in runs(manifests(store), fewest=fewest):
        number = next_batch(store)
        plan = msgspec.json.encode([file for manifest in run for file in manifest.files])
        one = spark.createDataFrame([(plan,)], "plan binary")
        written = write_in_tasks(one, partial(_rewrite_files, store, number))
        write_manifest(store, _merged_manifest(run, number, written, now_ms))
        for manifest in run:
            store.remove(f"{MANIFESTS}/{manifest.batch}.json")
        gone += len(run)
    return gone


def _merged_manifest(
    run: Sequence[Manifest], number: int, written: Sequence[WrittenFile], now_ms: int
) -> Manifest:
    """Return the manifest of the merged batch."""
    first, last = run[0], run[-1]
    merged = Manifest(
        batch=number,
        epoch=last.epoch,
        first_serial=first.first_serial,
        last_serial=last.last_serial,
        start=first.start,
        end=last.end,
        files=sorted((one.file for one in written), key=lambda file: (file.first_serial, file.path)),
        facts=sum(one.facts for one in run),
        rows=sum(one.rows for one in run),
        start_digest=first.start_digest,
        digest=last.digest,
        history=last.history,
        server_name=last.server_name,
        first_at_ms=min(one.first_at_ms for one in run),
        last_at_ms=max(one.last_at_ms for one in run),
        archived_at_ms=now_ms,
        replaces=sorted({batch for one in run for batch in (one.batch, *one.replaces)}),
        epoch_starts=last.epoch_starts,
        arrivals=thin([arrival for one in run for arrival in one.all_arrivals]),
    )
    assert merged.rows == sum(file.rows for file in merged.files)
    assert merged.facts == sum(file.facts for file in merged.files)
    return merged


def thin(found: list[Arrival]) -> list[Arrival]:
    """Combine adjacent arrivals, keeping the longer lag, until there are at most `ARRIVALS`."""
    while len(found) > ARRIVALS:
        found = [
            msgspec.structs.replace(
                pair[-1],
                first_serial=pair[0].first_serial,
                facts=sum(one.facts for one in pair),
                last_at_ms=pair[-1].archived_at_ms - max(one.archived_at_ms - one.last_at_ms for one in pair),
            )
            for pair in (found[position : position + 2] for position in range(0, len(found), 2))
        ]
    return found


def _rewrite_files(store: Store, number: int, plans: Iterator[Any]) -> Iterator[WrittenFile]:
    """Rewrite these files, one per stream and day (runs in a task)."""
    for plan in plans:
        for text in plan["plan"].to_pylist():
            files = msgspec.json.decode(text, type=list[ArchivedFile])
            files.sort(key=lambda file: (file.stream, file.date, file.first_serial))
            yield from write_files(store, number, _rows(store, files))


def _rows(store: Store, files: Sequence[ArchivedFile]) -> Iterator[Any]:
    for file in files:
        with store.filesystem.open_input_file(store.path(file.path)) as source:
            for batch in pq.ParquetFile(source).iter_batches(columns=list(ROWS.names)):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=ROWS)


def tidy(store: Store, kept: Sequence[Manifest], *, now_ms: int) -> int:
    """Remove unfinished batches and manifests, and batches merged more than `GRACE_MS` ago.

    Returns the number of removed folders. The caller must hold the lock of the archive.
    """
    for name in store.names(MANIFESTS):
        if UNFINISHED.fullmatch(name):
            store.remove(f"{MANIFESTS}/{name}")
    numbers = {manifest.batch for manifest in kept}
    merged = {batch: manifest for manifest in kept for batch in manifest.replaces}
    for batch in merged:
        store.remove(f"{MANIFESTS}/{batch}.json")
    gone = 0
    for stream in _folders(store, "", "stream="):
        for date in _folders(store, stream, "date="):
            for folder in _folders(store, date, "batch="):
                text = folder.rpartition("=")[2]
                batch = int(text) if text.isdigit() else -1
                if batch in numbers:
                    continue
                if batch in merged and now_ms - merged[batch].archived_at_ms < GRACE_MS:
                    continue
                store.remove_folder(folder)
                gone += 1
    return gone


def _folders(store: Store, parent: str, prefix: str) -> list[str]:
    inside = f"{parent}/" if parent else ""
    return [inside + name for name in store.names(parent) if name.startswith(prefix)]
