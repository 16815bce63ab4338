"""Batches of received facts and epoch starts, committed in groups."""

from synrepl.ports.history import AppendReceipt, LogPosition
from synrepl.replication.replica.conversation import Facts, SnapshotMeta
from synrepl.storage.log import Log
from synrepl.storage.staged_copy import StagedCopy
from synrepl.streams.facts import Fact
from synrepl.wire.native import Heartbeat

__all__ = ["FactBatcher"]


class FactBatcher:
    """Collects received facts and commits them to the target in one piece at `flush`.

    Facts that the target already has are dropped. The receipt of an append comes before its facts, and both
    are committed together: a promoted replica must know an append wholly or not at all. Facts of a filtered
    feed are committed only up to a position that the upstream has confirmed.
    """

    def __init__(self, target: Log | StagedCopy, *, is_filtered: bool) -> None:
        self.heartbeat: Heartbeat | None = None
        self._target = target
        self._is_filtered = is_filtered
        self._facts: list[Fact] = []
        self._receipts: list[AppendReceipt] = []
        self._upto: LogPosition | None = None

    @property
    def pending(self) -> int:
        """How many facts are waiting for `flush`."""
        return len(self._facts)

    async def add(self, event: Facts | SnapshotMeta | Heartbeat) -> None:
        """Add one event. An epoch start is committed at once, after the facts before it."""
        match event:
            case Facts(facts):
                after = self._facts[-1].serial if self._facts else self._target.position.serial
                if facts and facts[0].serial <= after:
                    facts = [fact for fact in facts if fact.serial > after]
                self._facts += facts
            case SnapshotMeta(epoch_starts, receipts):
                self._receipts += receipts
                for epoch_start in epoch_starts:
                    if self._is_filtered:
                        self._upto = LogPosition(
                            self._target.position.epoch, epoch_start.serial, epoch_start.digest
                        )
                    await self.flush()
                    if epoch_start.epoch > self._target.position.epoch:
                        await self._target.begin_epoch(epoch_start)
            case Heartbeat(position=position):
                self.heartbeat = event
                if self._is_filtered and position.serial > self._target.position.serial:
                    self._upto = position

    async def flush(self) -> None:
        """Commit the collected facts, except the beginning of an append whose end is still to come."""
        if not self._is_filtered:
            last_serial = self._facts[-1].serial if self._facts else self._target.position.serial
            incomplete = [receipt for receipt in self._receipts if _last(receipt) > last_serial]
            end = min(map(_first, incomplete), default=last_serial + 1)
            facts = [fact for fact in self._facts if fact.serial < end]
            receipts = [receipt for receipt in self._receipts if _last(receipt) <= last_serial]
            self._facts, self._receipts = self._facts[len(facts) :], incomplete
            if facts or receipts:
                await self._target.follow(facts, receipts)
            return
        upto, self._upto = self._upto, None
        if upto is not None:
            # Facts received after that confirmation wait for the next one.
            facts = [fact for fact in self._facts if fact.serial <= upto.serial]
            receipts = [receipt for receipt in self._receipts if _first(receipt) <= upto.serial]
            self._facts = self._facts[len(facts) :]
            self._receipts = [receipt for receipt in self._receipts if _first(receipt) > upto.serial]
            await self._target.follow(facts, receipts, upto=upto)


def _first(receipt: AppendReceipt) -> int:
    return receipt.appended.first_serial or 0


def _last(receipt: AppendReceipt) -> int:
    return _first(receipt) + len(receipt.appended.tokens) - 1
