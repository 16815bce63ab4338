"""The archive: batches that are written, merged and tidied up, until the process dies."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.pipeline.archive.commit import BatchOrigin, build_manifest
from synrepl.pipeline.archive.manifest import manifests, next_batch, write_manifest
from synrepl.pipeline.archive.merge import GRACE_MS, merge, tidy
from synrepl.pipeline.archive.writer import write_files
from synrepl.pipeline.keys import KeyExtractor
from synrepl.pipeline.source.rows import FACTS, explode
from synrepl.pipeline.store import Store
from synrepl.streams.facts import Fact
from tests.crash.scenarios import Acknowledge, Acknowledged, Scenario
from tests.storage.builders import facts_after

__all__ = ["ArchiveScenario"]

ARCHIVED_AFTER_MS: Final = 2_000


class OneTask:
    """As much of a SparkSession as `merge` uses: what is mapped is mapped here, at once."""

    def createDataFrame(self, rows: Sequence[tuple[bytes]], schema: str) -> "OneTask":
        self._rows = rows
        return self

    def mapInArrow(self, work: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> "OneTask":
        given = pa.RecordBatch.from_arrays([pa.array([row[0] for row in self._rows], pa.binary())], ["plan"])
        self._found = [value for batch in work(iter([given])) for value in batch["written"].to_pylist()]
        return self

    def collect(self) -> list[Any]:
        return [_Written(value) for value in self._found]


class _Written:
    def __init__(self, written: bytes) -> None:
        self.written = written


class ArchiveScenario(Scenario):
    """Batches written, merged, and tidied up, as the job `archive` does."""

    FACTS: Final = facts_after(
        None,
        *((stream, "w", n, n + 1) for n in range(3) for stream in ("to_device", "push_rules")),
    )
    BATCH: Final = 2

    def run(self, acknowledge: Acknowledge) -> None:
        self.position.mkdir(parents=True, exist_ok=True)
        store = Store(str(self.position))
        now_ms = self.FACTS[-1].committed_at_ms + ARCHIVED_AFTER_MS
        kept = manifests(store)
        tidy(store, kept, now_ms=now_ms)
        before = kept[-1] if kept else None
        while before is None or before.last_serial < len(self.FACTS):
            after = 0 if before is None else before.last_serial
            facts = self.FACTS[after : after + self.BATCH]
            number = next_batch(store)
            written = list(
                write_files(store, number, [KeyExtractor().with_keys(explode(_record_batch(facts)))])
            )
            before = build_manifest(
                written, number=number, before=before, origin=BatchOrigin(history="h"), now_ms=now_ms
            )
            write_manifest(store, before)
            acknowledge(("serial", before.last_serial))
        merge(OneTask(), store, now_ms=now_ms, fewest=2)  # type: ignore[arg-type]
        acknowledge(("merged", None))
        tidy(store, manifests(store), now_ms=now_ms + GRACE_MS)
        acknowledge(("tidy", None))

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        store = Store(str(self.position))
        kept = manifests(store)
        serial = max((told for what, told in acknowledged if what == "serial"), default=0)
        reached = kept[-1].last_serial if kept else 0
        assert reached >= serial
        assert ("merged", None) not in acknowledged or len(kept) == 1
        assert self._read(store) == [
            (fact.serial, fact.digest) for fact in self.FACTS[:reached] for _ in self._rows(fact)
        ]

    @staticmethod
    def _rows(fact: Any) -> list[Any]:
        rows: list[Any] = msgspec.json.decode(fact.rows)
        return rows

    def _read(self, store: Store) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for manifest in manifests(store):
            for file in manifest.files:
                assert store.sha256(file.path) == file.sha256
                with store.filesystem.open_input_file(store.path(file.path)) as source:
                    rows = pq.ParquetFile(source).read(columns=["serial", "digest"], use_threads=False)
                found += [(row["serial"], row["digest"]) for row in rows.to_pylist()]
        return sorted(found)

    def state(self) -> Any:
        store = Store(str(self.position))
        kept = manifests(store)
        named = {file.path for manifest in kept for file in manifest.files}
        named |= {manifest.name for manifest in kept}
        there = {str(path.relative_to(self.position)) for path in self.position.rglob("*") if path.is_file()}
        return {
            "rows": self._read(store),
            "batches": [(one.first_serial, one.last_serial, one.digest, one.end) for one in kept],
            "unnamed": sorted(there - named),
            "missing": sorted(named - there),
        }


def _record_batch(facts: Sequence[Fact]) -> Any:
    """Facts as a daemon answers them."""
    columns = []
    for field in FACTS:
        values = [getattr(fact, field.name) for fact in facts]
        columns.append(pa.array([v.decode() if isinstance(v, bytes) else v for v in values], field.type))
    return pa.record_batch(columns, schema=FACTS)
