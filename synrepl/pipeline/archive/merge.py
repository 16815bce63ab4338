"""Small batches become one: many small files are what makes an archive slow to read."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.pipeline.archive.cleanup import next_batch
from synrepl.pipeline.archive.manifest import (
    MANIFESTS,
    ArchivedFile,
    Arrival,
    Manifest,
    manifests,
    write_manifest,
)
from synrepl.pipeline.archive.writer import WRITTEN, WrittenFile, write_files
from synrepl.pipeline.source.schema import ROWS
from synrepl.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["merge", "runs", "thinned"]

SMALL_FACTS: Final = 100_000
"""A batch of fewer facts is small."""

TARGET_FACTS: Final = 500_000
"""Merged ones have about as many, at most."""

FEWEST: Final = 8
"""So many small batches in a row are worth it."""

ARRIVALS: Final = 64
"""Of a merged batch at most: enough for a picture, and not much of a manifest."""


def runs(
    kept: Sequence[Manifest], *, small: int = SMALL_FACTS, target: int = TARGET_FACTS, fewest: int = FEWEST
) -> list[list[Manifest]]:
    """Which batches to merge: neighbors that are small, up to `target` facts together, `fewest` at least.

    None of them has more facts than the others together, so that a fact is written again only into a batch
    at least twice as large: up to seven times or so in all, however small the batches are that come in.
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
    return [part for run in [*found, run] for part in _alike(run) if len(part) >= fewest]


def _alike(run: list[Manifest]) -> Iterator[list[Manifest]]:
    """The run in parts, without those that outweigh the rest of theirs."""
    if not run:
        return
    heaviest = max(range(len(run)), key=lambda position: run[position].facts)
    if 2 * run[heaviest].facts <= sum(one.facts for one in run):
        yield run
    else:
        yield from _alike(run[:heaviest])
        yield from _alike(run[heaviest + 1 :])


def merge(spark: "SparkSession", store: Store, *, now_ms: int, fewest: int = FEWEST) -> int:
    """Merge small batches; gives how many went. The caller is the only one who writes to this archive.

    The new manifest says which it `replaces`; from then on these do not count, and their manifests go. Their
    files go when nobody can be reading them any more (`tidying.tidy`).
    """
    gone = 0
    for run in runs(manifests(store), fewest=fewest):
        number = next_batch(store)
        plan = msgspec.json.encode([file for manifest in run for file in manifest.files])
        one = spark.createDataFrame([(plan,)], "plan binary")
        found = one.mapInArrow(partial(_merged, store, number), WRITTEN).collect()
        written = [msgspec.json.decode(bytes(row.written), type=WrittenFile) for row in found]
        write_manifest(store, _of_all(run, number, written, now_ms))
        for manifest in run:
            store.remove(f"{MANIFESTS}/{manifest.batch}.json")
        gone += len(run)
    return gone


def _of_all(run: Sequence[Manifest], number: int, written: Sequence[WrittenFile], now_ms: int) -> Manifest:
    """The manifest that stands for all of these."""
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
        arrivals=thinned([arrival for one in run for arrival in one.came]),
    )
    assert merged.rows == sum(file.rows for file in merged.files)
    assert merged.facts == sum(file.facts for file in merged.files)
    return merged


def thinned(found: list[Arrival]) -> list[Arrival]:
    """Neighbors as one, which waited as long as either, until there are few."""
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


def _merged(store: Store, number: int, plans: Iterator[Any]) -> Iterator[Any]:
    """In a task: write these files anew, those of a stream and day as one."""
    for plan in plans:
        for text in plan["plan"].to_pylist():
            files = msgspec.json.decode(text, type=list[ArchivedFile])
            files.sort(key=lambda file: (file.stream, file.date, file.first_serial))
            found = [msgspec.json.encode(one) for one in write_files(store, number, _rows(store, files))]
            yield pa.RecordBatch.from_arrays([pa.array(found, pa.binary())], names=["written"])


def _rows(store: Store, files: Sequence[ArchivedFile]) -> Iterator[Any]:
    for file in files:
        with store.filesystem.open_input_file(store.path(file.path)) as source:
            for batch in pq.ParquetFile(source).iter_batches(columns=list(ROWS.names)):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=ROWS)
