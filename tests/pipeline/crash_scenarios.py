"""The archive: batches that are committed, merged and vacuumed, until the process dies."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.pipeline.archive.archive import BatchCommitter, LogIdentity
from synrepl.pipeline.archive.optimize import plan_merges
from synrepl.pipeline.archive.row_files import read_files, sha256_of, write_files
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.keys import KeyExtractor
from synrepl.pipeline.source.rows import FACTS, ROWS, explode
from synrepl.pipeline.store import Store
from synrepl.streams.facts import Fact
from tests.crash.scenarios import Acknowledge, Acknowledged, Scenario
from tests.storage.builders import facts_after

__all__ = ["ArchiveScenario"]


class ArchiveScenario(Scenario):
    """Batches committed, merged, and vacuumed, as the jobs do."""

    FACTS = facts_after(
        None,
        *((stream, "w", n, n + 1) for n in range(3) for stream in ("to_device", "push_rules")),
    )
    BATCH = 2
    HAS_THREADS = True

    def run(self, acknowledge: Acknowledge) -> None:
        store = Store(str(self.position / "archive"))
        job = BatchCommitter(store, LogIdentity("h", "localhost"))
        while job.serial < len(self.FACTS):
            facts = self.FACTS[job.serial : job.serial + self.BATCH]
            job.commit(
                list(write_files(store, [KeyExtractor().with_keys(explode(_record_batch(facts)))])), now_ms=1
            )
            acknowledge(("serial", job.serial))
        table = ArchiveTable(store)
        for plan in plan_merges(table.files, target_bytes=1 << 20, fewest=2):
            written = list(write_files(store, read_files(store, plan["path"].to_pylist(), ROWS)))
            table = table.replace(plan, written, now_ms=1)
        acknowledge(("merged", None))
        table.vacuum(retention_hours=0, dry_run=False)
        acknowledge(("vacuumed", None))

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        table = ArchiveTable.if_any(Store(str(self.position / "archive")))
        reached = 0 if table is None else table.end.last_serial
        assert reached >= max((told for what, told in acknowledged if what == "serial"), default=0)
        if table is None:
            return
        assert ("merged", None) not in acknowledged or len(table.files) == 2
        assert self._read(table) == [
            (fact.serial, fact.digest) for fact in self.FACTS[:reached] for _ in self._rows(fact)
        ]

    @staticmethod
    def _rows(fact: Any) -> list[Any]:
        rows: list[Any] = msgspec.json.decode(fact.rows)
        return rows

    @staticmethod
    def _read(table: ArchiveTable, column: str = "digest") -> list[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []
        for path in table.files["path"].to_pylist():
            assert table.store.sha256(path) == sha256_of(path)
            with table.store.filesystem.open_input_file(table.store.path(path)) as source:
                rows = pq.ParquetFile(source).read(columns=["serial", column], use_threads=False)
            found += [(row["serial"], row[column]) for row in rows.to_pylist()]
        return sorted(found)

    def state(self) -> Any:
        table = ArchiveTable(Store(str(self.position / "archive")))
        named = set(table.files["path"].to_pylist())
        root = self.position / "archive"
        there = {str(path.relative_to(root)) for path in root.rglob("stream=*/**/*.parquet")}
        return {
            "rows": self._read(table),
            "batches": [(one.first_serial, one.last_serial, one.digest, one.end) for one in table.batches()],
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
