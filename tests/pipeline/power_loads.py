"""What is archived until the power is cut, and what the archive must then have."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final

from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.archive.row_files import open_verified_rows, read_files
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.snapshot.compact import compact
from synrepl.pipeline.snapshot.snapshot import PartFile, read_snapshot
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import BadArchive, Store
from tests.crash.scenarios import Acknowledge, Acknowledged, Scenario
from tests.pipeline.crash_scenarios import ArchiveScenario
from tests.power.bits import Served
from tests.power.facts import Doubled, Lost
from tests.processes.loading import Asker, made_rows
from tests.service.processes import ROOT, Daemon
from tests.storage.builders import facts_after

LOADS: Final = {
    "archive": "tests.pipeline.power_loads:ArchiveLoad",
    "archive-job": "tests.pipeline.power_loads:ArchiveJobLoad",
}

SERVED: Final = {
    "archive": "tests.pipeline.power_loads:ServedArchive",
    "checkpoint": "tests.pipeline.power_loads:ServedCheckpoint",
}


class ArchiveLoad(ArchiveScenario):
    """Two facts of two streams in each of 110 batches; merged and vacuumed at the end.

    So the log of the table has a checkpoint.
    """

    FACTS = facts_after(
        None,
        *((stream, "w", n, n + 1) for n in range(110) for stream in ("to_device", "push_rules")),
    )


class ArchiveJobLoad(Scenario):
    """`synrepl pipeline archive`, `optimize` and `vacuum`, on a daemon elsewhere."""

    RUNS: Final = 5
    FACTS: Final = 60
    """The facts between two runs."""

    def run(self, acknowledge: Acknowledge) -> None:
        with TemporaryDirectory() as folder, Daemon(Path(folder)) as daemon, Asker(daemon.url) as asker:
            for run in range(self.RUNS):
                for number in range(run * self.FACTS, (run + 1) * self.FACTS, 10):
                    stream = ("to_device", "receipts", "events")[number % 3]
                    asker.post(stream, [made_rows(stream, one) for one in range(number, number + 10)])
                self._job("archive", "--url", daemon.url, "--batch-facts", "25")
                acknowledge(("serial", (run + 1) * self.FACTS))
                if run == self.RUNS // 2:
                    self._job("optimize")
                    self._job("vacuum", "--retain-hours", "0")

    def _job(self, name: str, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "synrepl",
            "pipeline",
            name,
            "--archive",
            str(self.position / "archive"),
        ]
        engine = () if name == "vacuum" else ("--engine", "local")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([*command, *options, *engine], check=True, env=environment, stdout=subprocess.DEVNULL)

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        store = Store(str(self.position / "archive"))
        table = ArchiveTable.if_any(store)
        reached = 0 if table is None else table.end.last_serial
        told = max((serial for what, serial in acknowledged if what == "serial"), default=0)
        if reached < told:
            raise Lost(f"the archive ends at serial {reached}, and {told} was acknowledged")
        if table is None:
            return
        self._check_serials(table, reached)
        with LocalDriver(threads=1) as driver:
            optimize(driver, store)
        self._check_serials(ArchiveTable(store), reached)

    @staticmethod
    def _check_serials(table: ArchiveTable, reached: int) -> None:
        """Every serial is there once, in a file whose bytes are those that its name says."""
        found = [serial for serial, seq in ArchiveScenario._read(table, "seq") if seq == 0]
        if found != sorted(set(found)):
            raise Doubled("a serial is there twice")
        if found != list(range(1, reached + 1)):
            raise Lost(f"of {reached} serials {reached - len(found)} are missing")


class ServedArchive(ArchiveScenario, Served):
    """An archive and a snapshot, as the jobs read them: `report`, `compact`, `replay`, and a restore."""

    FACTS = facts_after(
        None,
        *((stream, "w", n, n + 1) for n in range(200) for stream in ("to_device", "push_rules")),
    )
    BATCH = 100
    KINDS: ClassVar[Mapping[str, Sequence[str]]] = {
        "archive": ["archive/stream=*/*/*.parquet"],
        "log of the archive": ["archive/_delta_log/*.json", "archive/_synrepl/end.json"],
        "snapshot": ["snapshot/*", "snapshot/*/*"],
    }

    def run(self, acknowledge: Acknowledge) -> None:
        super().run(acknowledge)
        with LocalDriver(threads=1) as driver:
            compact(driver, self._store("archive"), self._store("snapshot"), made_at_ms=1)
        acknowledge(("snapshot", None))

    def _store(self, name: str) -> Store:
        return Store(str(self.position / name))

    def served(self) -> Any:
        try:
            return self._read_all()
        except OSError as error:  # of which commands make one line
            raise BadArchive(str(error)) from error

    def _read_all(self) -> Any:
        archive, store = ArchiveTable(self._store("archive")), self._store("snapshot")
        rows = [one.to_pylist() for one in read_files(archive.store, archive.files["path"].to_pylist(), ROWS)]
        snapshot = read_snapshot(store)
        assert snapshot is not None
        kept = [self._read_part(store, part) for part in snapshot.files]
        return [archive.batches(), archive.files.to_pylist(), rows, snapshot, kept]

    @staticmethod
    def _read_part(store: Store, part: PartFile) -> Any:
        with open_verified_rows(store, part.path, part.sha256) as data:
            return data.read().to_pylist()

    def complaints(self) -> list[str]:
        """What `synrepl pipeline audit` finds in the archive; it does not look at snapshots."""
        with LocalDriver(threads=1) as driver:
            return [one.what for one in audit(driver, self._store("archive")).findings]


class ServedCheckpoint(ServedArchive):
    """An archive with a checkpoint of its log."""

    BATCH = 4
    KINDS: ClassVar[Mapping[str, Sequence[str]]] = {"checkpoint": ["archive/_delta_log/*checkpoint*"]}
