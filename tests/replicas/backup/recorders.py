"""Backups of nodes on a network in memory, and logs restored from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.base.metrics import Metrics
from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.backup_run import CAPABILITIES, BackupRun
from synrepl.replicas.backup.examination import BackupContents, Examiner
from synrepl.replicas.backup.recorded_conversation import Cut
from synrepl.replicas.backup.recorded_copies import RecordedCopies
from synrepl.replicas.backup.restored import Restored, check_empty, restore
from synrepl.replicas.native_client import NativeUpstream
from synrepl.replication.addresses import Address
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.facts import Fact
from synrepl.testing.memory_engine import DelayedThread
from synrepl.testing.network import MemoryEndpoint
from synrepl.transports.credentials import Credentials
from tests.memory_engine import FaultyEngine
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import NodeSettings

__all__ = ["Recorder", "RestoredLog", "examined", "forget_end", "restored"]


async def no_files(facts: Sequence[Fact]) -> None:
    """Fetch none."""


class Recorder:
    """A backup that runs on the clock of a cluster, in a folder."""

    killed: ClassVar[list["Recorder"]] = []

    def __init__(
        self,
        cluster: FakeCluster,
        folder: Path,
        upstream: str = "a",
        *,
        follow: bool = False,
        secret: str | None = None,
        fetch_files: Any = no_files,
        patience: float | None = 60.0,
        disk_seconds: float | None = None,
    ) -> None:
        self.cluster = cluster
        self.folder = BackupFolder(folder)
        self.folder.open_to_write("backup")
        clock: Any = cluster.clock
        thread = ImmediateThread() if disk_seconds is None else DelayedThread(clock, lambda: disk_seconds)
        self.log = RecordedCopies(self.folder, thread, clock, fetch_files=fetch_files)
        settings = NodeSettings(replica_name=self.folder.identity.name)
        self.outcome: list[Any] = []
        self.error: Exception | None = None
        self.run: BackupRun
        native = NativeUpstream(
            MemoryEndpoint(cluster.network, "backup", upstream),
            clock,
            Metrics(CollectorRegistry()),
            settings,
            where=Address(upstream),
            secret=Credentials(secret),
            capabilities=CAPABILITIES,
        )

        async def run() -> None:
            await self.log.open()
            self.run = BackupRun(
                self.folder, self.log, [native], clock, settings, follow=follow, patience=patience
            )
            self.run.start()
            try:
                await self.run.done
            finally:
                await self.run.stop()
                self.folder.close()

        Deferred.fromCoroutine(run()).addBoth(self._ended)

    def _ended(self, result: Any) -> None:
        self.outcome.append(result)
        if isinstance(result, Failure):
            self.error = result.value  # type: ignore[assignment]

    def finish(self, seconds: float = 10) -> "Recorder":
        """Let time pass until it ends; raise its error."""
        for _ in range(round(seconds * 20)):
            if self.outcome:
                break
            self.cluster.pass_(0.05)
        assert self.outcome, f"it did not end: {self.run.replica.state}: {self.run.replica.why}"
        if self.error is not None:
            raise self.error
        return self

    def kill(self) -> None:
        """Stop as SIGKILL does: what is in the folder stays."""
        # Alive: a freed coroutine would run its cleanup.
        Recorder.killed.append(self)
        self.run.replica.stop()
        self.folder.close()


def forget_end(folder: Path) -> None:
    """Leave the folder as if the last run had been killed."""
    backup = BackupFolder(folder)
    backup.save_identity(replace(backup.read_identity(), part=0, upto=0))


def examined(folder: Path) -> BackupContents:
    """What is in a folder."""
    return Examiner(BackupFolder(folder)).examine()


@dataclass
class RestoredLog:
    """A restored log, and how that went."""

    log: Log
    engine: FaultyEngine
    result: Restored


def restored(
    folder: Path,
    cluster: FakeCluster,
    *,
    cut: Cut | None = None,
    engine: FaultyEngine | None = None,
    found: BackupContents | None = None,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> RestoredLog:
    """Restore a folder into a new log in memory."""
    engine = FaultyEngine() if engine is None else engine
    engine.is_restored = True
    thread = ImmediateThread()
    clock: Any = cluster.clock
    log = Log(engine, thread, thread, clock, ephemeral=(), logger=Logger())

    async def run() -> Restored:
        await log.start()
        check_empty(log, "the database")
        return await restore(
            BackupFolder(folder),
            examined(folder) if found is None else found,
            log,
            cut=cut,
            thread=ImmediateThread(),
            clock=clock,
            on_progress=on_progress,
        )

    return RestoredLog(log, engine, cluster.done(Deferred.fromCoroutine(run())))
