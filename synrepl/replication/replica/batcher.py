"""Facts and epochs as they come from an upstream, kept in groups."""

from collections.abc import Sequence
from typing import Protocol

from synrepl.ports.history import AppendReceipt, EpochStart, LogPosition
from synrepl.replication.replica.conversation import Facts, SnapshotMeta, UpstreamHeartbeat
from synrepl.streams.facts import Fact

__all__ = ["FactBatcher", "BatchTarget"]


class BatchTarget(Protocol):
    """What takes facts as they are elsewhere: a log, or a copy in the making."""

    @property
    def position(self) -> LogPosition: ...

    async def follow(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None: ...

    async def begin_epoch(self, epoch_start: EpochStart) -> None: ...


class FactBatcher:
    """Gathers what comes, and gives it to the target in one piece at `flush`.

    Facts that the target has are left out. The receipt of an append comes before its facts, and all of them
    are given together: whoever is promoted must know of an append whole, or not at all. Of a filtered feed
    nothing is given before a place was told up to where that is all.
    """

    def __init__(self, target: BatchTarget, *, is_filtered: bool) -> None:
        self.beat: UpstreamHeartbeat | None = None
        self._target = target
        self._is_filtered = is_filtered
        self._facts: list[Fact] = []
        self._receipts: list[AppendReceipt] = []
        self._upto: LogPosition | None = None

    @property
    def waiting(self) -> int:
        """How many facts wait here."""
        return len(self._facts)

    async def take(self, event: Facts | SnapshotMeta | UpstreamHeartbeat) -> None:
        """One more event; an epoch that begins is begun at once, after what came before it."""
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
            case UpstreamHeartbeat(position):
                self.beat = event
                if self._is_filtered and position.serial > self._target.position.serial:
                    self._upto = position

    async def flush(self) -> None:
        """Keep what was gathered, but for the beginning of an append whose end is still to come."""
        if not self._is_filtered:
            reached = self._facts[-1].serial if self._facts else self._target.position.serial
            cut = [receipt for receipt in self._receipts if _last(receipt) > reached]
            end = min(map(_first, cut), default=reached + 1)
            facts = [fact for fact in self._facts if fact.serial < end]
            receipts = [receipt for receipt in self._receipts if _last(receipt) <= reached]
            self._facts, self._receipts = self._facts[len(facts) :], cut
            if facts or receipts:
                await self._target.follow(facts, receipts)
            return
        upto, self._upto = self._upto, None
        if upto is not None:
            # More may have come since that was told.
            facts = [fact for fact in self._facts if fact.serial <= upto.serial]
            receipts = [receipt for receipt in self._receipts if _first(receipt) <= upto.serial]
            self._facts = self._facts[len(facts) :]
            self._receipts = [receipt for receipt in self._receipts if _first(receipt) > upto.serial]
            await self._target.follow(facts, receipts, upto=upto)


def _first(receipt: AppendReceipt) -> int:
    return receipt.appended.first_serial or 0


def _last(receipt: AppendReceipt) -> int:
    return _first(receipt) + len(receipt.appended.tokens) - 1
