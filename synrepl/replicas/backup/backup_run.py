"""A run of a backup: it follows an upstream as a replica does, until it has what it came for."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import gt
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.errors import NotConnected, ReplicationError
from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.recorded_copies import RecordedCopies
from synrepl.replicas.replica.conversation import IConversation, IUpstream, RefusedByUpstream
from synrepl.replicas.replica.replica import Replica
from synrepl.replicas.replica.replica_states import ReplicaState
from synrepl.replicas.settings import CopySettings
from synrepl.replicas.wire import native
from synrepl.replication.addresses import Address

LAST_ACK_SECONDS: Final = 0.2
"""How long the last acknowledgement has to get away before the connection is closed."""

CAPABILITIES: Final = ("digests", "receipts", native.KEYS, native.ATOMIC)
"""What a backup can take. It serves nobody, so that it needs no peers, and no facts of memory alone."""

NEW_FOLDER: Final = "back up into a new folder; what this one has can be restored (synrepl restore)"

WAYS_OUT: Final = {
    "fork": NEW_FOLDER,
    "ahead": f"if the daemon was restored, {NEW_FOLDER}; if it is a replica, back up its primary",
    "other_history": f"if the daemon is the right one, {NEW_FOLDER}",
}


class BackupUpstream:
    """An upstream that a backup may use: one that tells it from a replica (`IUpstream`)."""

    def __init__(self, upstream: IUpstream) -> None:
        self.where: Address = upstream.where
        self._upstream = upstream

    async def connect(self, uuid: str, name: str) -> IConversation:
        """Connect. Raises `RefusedByUpstream` if it would count the backup as a replica, too."""
        conversation = await self._upstream.connect(uuid, name)
        if native.BACKUP not in conversation.welcome.capabilities:
            conversation.close()
            why = "the daemon is of an older release, which would take a backup for a replica: update it"
            raise RefusedByUpstream(native.refusal("version", why))
        return conversation


class BackupFailed(ReplicationError):
    """A backup cannot go on."""


@dataclass(eq=False, repr=False)
class BackupRun:
    """Records what the upstream sends in the folder, up to its head as the run began; with `follow` for ever.

    If nothing can be recorded for `patience` seconds the run fails (None: it goes on trying). `on_progress`
    is called with each change. Without `retry` the first failure ends it.
    """

    _logger = Logger()
    folder: BackupFolder
    log: RecordedCopies
    upstreams: Sequence[IUpstream]
    clock: IClock
    settings: CopySettings
    _: KW_ONLY
    follow: bool
    patience: float | None
    retry: bool = True
    jitter: Callable[[], float] = lambda: 1.0
    on_progress: Callable[["BackupRun"], object] = lambda run: None

    def __post_init__(self) -> None:
        self.done: Deferred[None] = Deferred()
        self.target: int | None = None
        """The serial of the upstream's head as the run began; None before that is known."""
        self._has_subscribed = False
        self._patience_timer = Timer(self.clock, self._lose_patience)
        self._waits_since: float | None = None
        """Since when nothing more was recorded, however often the daemon was reached."""
        self._recorded = (0, 0)
        self._end_timer = Timer(self.clock, lambda: self._end(None))
        self.replica = Replica(
            self.log,
            list(map(BackupUpstream, self.upstreams)),
            self.clock,
            self.settings,
            jitter=self.jitter,
            on_change=self._changed,
            take_keys=self.log.take_keys,
        )

    def start(self) -> None:
        """Begin."""
        self.log.on_advanced = self._changed
        self._wait()
        self.replica.start()

    async def stop(self) -> None:
        """Stop, and close the folder."""
        self._patience_timer.stop()
        self._end_timer.stop()
        self.log.on_advanced = lambda: None
        if self.replica.state is not ReplicaState.OFF:
            self.replica.stop()
        await self.log.close()

    def _end(self, error: Exception | None) -> None:
        if self.done.called:
            return
        self._patience_timer.stop()
        if error is None:
            self.done.callback(None)
        else:
            self.done.errback(error)

    def _changed(self) -> None:
        if self.done.called:
            return
        replica = self.replica
        match replica.state:
            case ReplicaState.STOPPED:
                assert replica.refusal is not None
                code = replica.refusal.code
                self._fail(f"{code}: {replica.refusal.message}; {WAYS_OUT.get(code, NEW_FOLDER)}")
            case ReplicaState.REFUSED:
                refusal = replica.refusal
                assert refusal is not None
                is_passing = refusal.retryable or refusal.code == "trimmed" or refusal.code in WAYS_OUT
                if not is_passing and not (self.follow and self._has_subscribed):
                    self._fail(f"the daemon refuses: {refusal.code}: {refusal.message}")
                else:
                    self._wait()
            case ReplicaState.DISCONNECTED if not self.retry:
                self._fail(replica.why)
            case ReplicaState.CONNECTING | ReplicaState.DISCONNECTED:
                self._wait()
            case ReplicaState.READY:
                if self.target is None and replica.welcome is not None:
                    self.target = replica.welcome.position.serial
            case ReplicaState.SNAPSHOT | ReplicaState.MEANWHILE:
                self._patience_timer.stop()
            case ReplicaState.CATCHING_UP | ReplicaState.LIVE:
                self._patience_timer.stop()
                if not self._has_subscribed:
                    self._has_subscribed = True
                    self._logger.info(
                        "backing up {where} to {folder}, from serial {serial} on",
                        where=replica.upstream.where.words,
                        folder=str(self.folder.path),
                        serial=self.log.position.serial,
                    )
                if not self.follow and self.target is not None and self.log.position.serial >= self.target:
                    # What was recorded last is about to be acknowledged.
                    self._end_timer.start(LAST_ACK_SECONDS)
        self.on_progress(self)

    def _wait(self) -> None:
        if self.patience is None:
            return
        now, recorded = self.clock.seconds(), self.log.recorded
        if self._waits_since is None or any(map(gt, recorded, self._recorded)):
            self._waits_since = now
        self._recorded = recorded
        self._patience_timer.start(max(0.0, self._waits_since + self.patience - now))

    def _fail(self, why: str) -> None:
        # In a turn of its own: the replica is in the middle of a change.
        self.clock.callLater(0, self._end, BackupFailed(why))

    def _lose_patience(self) -> None:
        why = self.replica.why or "the daemon does not respond"
        self._end(NotConnected(f"nothing can be backed up: {why}"))

    def describe(self) -> dict[str, Any]:
        """What the folder has."""
        position, state = self.log.position, self.log.state
        return {
            "serial": position.serial,
            "epoch": position.epoch,
            "digest": position.digest,
            "committed_ms": state.committed_ms,
            "copy": self.log.copy_number,
        }
