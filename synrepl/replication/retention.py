"""Retention: trims old facts, except the last of each key, a slice at a time."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from twisted.logger import Logger

from synrepl.base.interfaces import IClock, KeysOf
from synrepl.base.tasks import Tasks
from synrepl.base.time import ExpiryClock, sleep
from synrepl.errors import ReplicationError
from synrepl.replication.hooks import ILeases
from synrepl.replication.settings import RetentionSettings
from synrepl.storage.log import Log
from synrepl.streams.table import StreamTable
from synrepl.wire import jsontext
from synrepl.wire.dialect import NEWEST

CHECK_SECONDS: Final = 10.0
SLICE_FACTS: Final = 1_000
PAUSE_SECONDS: Final = 0.02
"""Pause between slices, so that appends and reads come first."""


@dataclass(eq=False, repr=False)
class Retention:
    """Trims facts that are older than `retain_seconds`, by `expiry`, and not held by a lease.

    In streams with keys, the last old fact of each key stays (`SQLEngine.trim`).
    """

    _logger = Logger()
    log: Log
    clock: IClock
    settings: RetentionSettings
    _: KW_ONLY
    keys: KeysOf
    leases: ILeases
    expiry: ExpiryClock

    def __post_init__(self) -> None:
        self._check_seconds = min(CHECK_SECONDS, self.settings.retain_seconds)
        self._tasks = Tasks(self._logger, "retention")

    def start(self) -> None:
        """Start trimming periodically."""
        self._tasks.start(self._run(), "trimming the log")

    def stop(self) -> None:
        """Stop. A slice that is being trimmed is finished."""
        self._tasks.cancel_all()

    async def _run(self) -> None:
        await self._resume()
        while True:
            started_at, first = self.clock.seconds(), self.log.head.trimmed_upto.serial
            try:
                while await self.trim_some():
                    await sleep(self.clock, PAUSE_SECONDS)
            except ReplicationError as error:
                self._logger.warn("cannot trim the log, retrying later: {why}", why=str(error))
            trimmed = self.log.head.trimmed_upto.serial - first
            if trimmed:
                self._logger.info(
                    "trimmed the log by {count} serials, up to serial {upto}, in {seconds:.1f} seconds",
                    count=trimmed,
                    upto=self.log.head.trimmed_upto.serial,
                    seconds=self.clock.seconds() - started_at,
                )
            await sleep(self.clock, self._check_seconds)

    async def _resume(self) -> None:
        """Let the time go on from the last commit before the start."""
        serial = self.log.head.serial
        try:
            facts, _ = await self.log.reads.facts(after=max(0, serial - 1), upto=serial, limit=1)
        except ReplicationError as error:
            self._logger.warn("cannot read the last fact: {why}", why=str(error))
        else:
            for fact in facts:
                self.expiry.resume(fact.committed_at_ms / 1000)

    async def trim_some(self) -> bool:
        """Trim one slice. Returns False if there is nothing to trim. Raises `StorageError`."""
        log = self.log
        lowest = self.leases.lowest()
        upto = log.head.serial if lowest is None else min(lowest, log.head.serial)
        trimmed_upto = log.head.trimmed_upto.serial
        if upto <= trimmed_upto:
            return False
        facts, _ = await log.reads.facts(after=trimmed_upto, upto=upto, limit=SLICE_FACTS)
        before_ms = (self.expiry.seconds() - self.settings.retain_seconds) * 1000
        old = 0
        for fact in facts:
            if fact.committed_at_ms >= before_ms:
                break
            old = fact.serial
        # Ask again: a lease may have been created during the read.
        lowest = self.leases.lowest()
        upto = old if lowest is None else min(lowest, old)
        if upto <= trimmed_upto:
            return False
        position = await log.trim(upto, self.keys, SLICE_FACTS)
        return position.serial > trimmed_upto


def keys_of(table: StreamTable) -> KeysOf:
    """A function that returns the keys of a fact's rows; None if its stream is unknown or has no keys."""

    def keys(stream: str, rows: bytes) -> list[bytes] | None:
        declared = table.get(stream)
        if declared is None or declared.key is None:
            return None
        found: list[bytes] = []
        for row in jsontext.split(rows):
            key: Any = declared.key(declared.decode(row, NEWEST))
            # A row without a key is replaced only by an equal one.
            found.append(row if key is None else repr(key).encode())
        return found

    return keys
