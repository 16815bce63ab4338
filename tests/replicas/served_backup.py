"""A backup in which bits flip at rest, by what is restored from it."""

import random
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final

from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.examination import BackupContents, Examiner, check_identity
from synrepl.replicas.backup.restored import restore_files
from synrepl.streams.facts import Fact
from tests.crash.scenarios import Acknowledge, Scenario
from tests.power.bits import Served
from tests.processes.loading import drawn_seed
from tests.replicas.backup.recorders import Recorder, restored
from tests.replicas.clusters import FakeCluster


class ServedBackup(Scenario, Served):
    """Three runs of a backup, with files, and all that `synrepl restore` makes of its folder."""

    RUNS: Final = 3
    FACTS: Final = 60
    KINDS: ClassVar[Mapping[str, Sequence[str]]] = {
        "backup": ["backup/parts/*"],
        "identity of backup": ["backup/backup.json"],
        "files of backup": ["backup/files/*"],
    }

    @property
    def _folder(self) -> Path:
        return self.position / "backup"

    def run(self, acknowledge: Acknowledge) -> None:
        chance = random.Random(drawn_seed())
        cluster = FakeCluster()
        node = cluster.node("a")
        for run in range(self.RUNS):
            for _ in range(self.FACTS):
                cluster.wrote(node, chance.randint(1, 3), key=chance.choice((None, str(chance.random()))))
            Recorder(cluster, self._folder, fetch_files=self._store_file).finish()
            acknowledge(("run", run))
        node.kill()

    async def _store_file(self, facts: Sequence[Fact]) -> None:
        data = str(facts[0].serial).encode() * 500
        BackupFolder(self._folder).file_path(sha256(data).hexdigest()).write_bytes(data)

    def _examined(self) -> BackupContents:
        folder = BackupFolder(self._folder)
        found = Examiner(folder).examine()
        check_identity(folder, found)
        return found

    def served(self) -> Any:
        """What is restored: the log, what is beside its facts, and the files, as `restore` does."""
        result = restored(self._folder, FakeCluster(), found=self._examined())
        with TemporaryDirectory() as target:
            restore_files(BackupFolder(self._folder), Path(target))
            files = {
                str(path.relative_to(target)): path.read_bytes()
                for path in Path(target).rglob("*")
                if path.is_file()
            }
        engine, log = result.engine, result.log
        notes = {name: note for name, note in log.notes.items() if name != "uuid"}  # a new one each time
        return [engine.facts, engine.receipts_by_key, notes, log.head.epoch_starts, result.result, files]

    def complaints(self) -> list[str]:
        """What `synrepl backup verify` ends with exit code 1 for."""
        found = self._examined()
        return [*(f"{one.path}: {one.why}" for one in found.damages), *found.missing_files]
