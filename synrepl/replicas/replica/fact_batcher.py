"""FactBatcher: the batches in which a copy commits the facts that it receives."""

from synrepl.base.history import AppendReceipt
from synrepl.replicas.replica.conversation import Facts, SnapshotMeta
from synrepl.replicas.replica.own_copies import ICopy
from synrepl.replicas.wire.native import Heartbeat
from synrepl.streams.atomic_appends import STREAM, end_of
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition


class FactBatcher:
    """Collects received facts, and commits them to the target at `flush` and before an epoch start.

    Facts that the target already has are dropped. The receipt of an append comes before its facts. Without a
    filter both are committed together: a promoted replica must know an append wholly or not at all. So it is
    with an atomic append, whose receipt may be forgotten already. With a filter facts are committed only up
    to a position from the upstream: a heartbeat or an epoch start.
    """

    def __init__(self, target: ICopy, *, is_filtered: bool) -> None:
        self.heartbeat: Heartbeat | None = None
        self._target = target
        self._is_filtered = is_filtered
        self._facts: list[Fact] = []
        self._receipts: list[AppendReceipt] = []
        self._upto: LogPosition | None = None
        self._opening: Fact | None = None
        """The fact that opens the last atomic append received."""

    @property
    def pending(self) -> int:
        """How many facts are waiting for `flush`."""
        return len(self._facts)

    async def add(self, event: Facts | SnapshotMeta | Heartbeat) -> None:
        """Add one event. The start of a new epoch is committed at once, after the facts before it."""
        match event:
            case Facts(facts):
                after = self._facts[-1].serial if self._facts else self._target.position.serial
                if facts and facts[0].serial <= after:
                    facts = [fact for fact in facts if fact.serial > after]
                self._facts += facts
                if openings := [one for one in facts if one.stream == STREAM]:
                    self._opening = openings[-1]
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
        """Commit facts: up to the first incomplete append; with a filter, up to the upstream's position."""
        if not self._is_filtered:
            last_serial = self._facts[-1].serial if self._facts else self._target.position.serial
            incomplete = [receipt for receipt in self._receipts if _last(receipt) > last_serial]
            end = min(map(_first, incomplete), default=last_serial + 1)
            if self._opening is not None and end_of(self._opening) > last_serial:
                end = min(end, self._opening.serial)
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
