"""JOIN: makes a new copy next to the old one, and replaces the old one in one step when complete.

Also the batches in which received facts are committed, and the last serial that two histories share.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import ge
from typing import Any, Final

import msgspec

from synrepl.base.history import AppendReceipt, LogPosition, LogSnapshot
from synrepl.base.interfaces import IClock
from synrepl.base.notes import YES
from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.replicas.replica.conversation import (
    Ephemeral,
    Facts,
    IConversation,
    SnapshotFacts,
    SnapshotMeta,
)
from synrepl.replicas.replica.own_copies import ICopy, IOwnCopy, IStagedCopy
from synrepl.replicas.replica.replica_states import ReplicaEvent
from synrepl.replicas.wire.native import Heartbeat, Join, Joined, Joining, Peers
from synrepl.storage.log import Log
from synrepl.streams.atomic_appends import STREAM, end_of
from synrepl.streams.facts import Fact
from synrepl.wire.filter import Filter


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


def _shown(position: LogPosition) -> str:
    return f"serial {position.serial} (epoch {position.epoch}, digest {position.digest})"


COMMIT_FACTS: Final = 8_000
"""From this many received facts of a copy on, they are committed. A kill loses those not committed yet."""


class UntrueCopy(RemoteProtocolError):
    """The snapshot has repeated, unordered or unannounced facts, so that the staged copy is useless."""


class JoinRecord(msgspec.Struct, frozen=True):
    """The stored state of an unfinished copy. `join` is its id; `has_meta`: its snapshot is complete."""

    join: str
    history: str
    filter: Filter
    has_meta: bool


class Progress(msgspec.Struct):
    """The progress of a join or of catching up, in serials. At the Unix time `began` it was at `began_at`."""

    done: int
    total: int
    began: float
    began_at: int

    def describe(self, now: float) -> dict[str, float | int | None]:
        """The progress as the status shows it. `eta_seconds` is None before the first progress."""
        seconds = now - self.began
        rate = (self.done - self.began_at) / seconds if seconds > 0 else 0.0
        left = max(0, self.total - self.done)
        return {
            "done": self.done,
            "total": max(self.total, self.done),
            "rows_per_second": round(rate, 1),
            "eta_seconds": round(left / rate, 1) if rate > 0 else None,
        }


@dataclass(eq=False, repr=False)
class JoinAttempt:
    """One attempt to JOIN. `on_progress` is called with what has happened, and the progress."""

    log: IOwnCopy
    conversation: IConversation
    clock: IClock
    query: Filter
    _: KW_ONLY
    on_progress: Callable[[ReplicaEvent, Progress], None]

    def __post_init__(self) -> None:
        self._copy: IStagedCopy
        self._trimmed_upto: LogPosition | None = None
        self._announced = 0
        self._unstaged: list[Fact] = []
        self._progress = Progress(0, 0, self.clock.seconds(), 0)

    @property
    def made_progress(self) -> bool:
        """Whether this attempt stored facts that the next one can use, even if it was cut off."""
        return self._progress.done > self._progress.began_at

    async def run(self) -> None:
        """Make a copy of the facts that `query` selects in the upstream's log, and adopt the copy.

        If receiving fails, the old copy is untouched. The staged facts are kept for the next attempt, except
        after an `UntrueCopy`.
        """
        self._copy = await self.log.copies.open_staged()
        try:
            record = await self._request_copy()
            await self._receive_copy(record)
            self.on_progress(ReplicaEvent.COPIED, self._progress)
            is_open = self.query.is_open
            await self._copy.note(
                history=record.history,
                joined=YES,
                filter=None if is_open else msgspec.json.encode(self.query).decode(),
                joining=None,
            )
            await self.log.copies.adopt(self._copy)
        except UntrueCopy:
            await self.log.copies.drop(self._copy)
            # Without progress the backoff grows.
            self._progress.done = self._progress.began_at
            raise
        except Exception:
            await self._copy.close()
            raise

    async def _request_copy(self) -> JoinRecord:
        record = self._resumable()
        if record is None:
            request = Join(filter=self.query)
        else:
            at, has_meta = self._copy.position, record.has_meta
            request = Join(filter=self.query, join=record.join, position=at, has_meta=has_meta)
        self.conversation.join(request)
        while isinstance(start := await self.conversation.next(), Heartbeat):
            pass
        if not isinstance(start, Joining):
            raise RemoteProtocolError(f"the upstream sent an unexpected {type(start).__name__} before a copy")
        if not start.resumed or record is None:
            await self.log.copies.drop(self._copy)
            self._copy = await self.log.copies.open_staged()
            record = JoinRecord(start.join, start.history, self.query, has_meta=False)
            await self._save_record(record)
        self._trimmed_upto = start.trimmed_upto if self.query.is_open else None
        self._announced = start.position.serial
        at_serial = self._copy.position.serial
        total = max(start.position.serial, at_serial)
        self._progress = Progress(at_serial, total, self.clock.seconds(), at_serial)
        return record

    def _resumable(self) -> JoinRecord | None:
        text = self._copy.notes.get("joining")
        if text is None:
            return None
        try:
            record = msgspec.json.decode(text, type=JoinRecord)
        except msgspec.DecodeError:
            return None
        is_same = (record.history, record.filter) == (self.conversation.welcome.history, self.query)
        return record if is_same else None

    async def _save_record(self, record: JoinRecord) -> None:
        await self._copy.note(joining=msgspec.json.encode(record).decode())

    async def _receive_copy(self, record: JoinRecord) -> None:
        if not record.has_meta:
            self.on_progress(ReplicaEvent.SNAPSHOT, self._progress)
            await self._receive_snapshot(record)
        self.on_progress(ReplicaEvent.MEANWHILE, self._progress)
        batcher = FactBatcher(self._copy, is_filtered=not self.query.is_open)
        while True:
            event = await self.conversation.next()
            match event:
                case Joined(position):
                    await batcher.flush()
                    if self._copy.position != position:
                        why = f"it ends at {_shown(position)}, the received facts at"
                        raise RemoteProtocolError(
                            f"incomplete copy from the upstream: {why} {_shown(self._copy.position)}"
                        )
                    return
                case Facts() | SnapshotMeta() | Heartbeat():
                    await batcher.add(event)
                    if batcher.pending >= COMMIT_FACTS:
                        await batcher.flush()
                    self._progress.done = self._copy.position.serial
                    self.on_progress(ReplicaEvent.MEANWHILE, self._progress)
                case Ephemeral() | Peers():
                    pass
                case _:
                    raise RemoteProtocolError(
                        f"the upstream sent an unexpected {type(event).__name__} within a copy"
                    )

    async def _receive_snapshot(self, record: JoinRecord) -> None:
        try:
            snapshot = await self._receive_facts()
        except UntrueCopy:
            raise
        except (NotConnected, RemoteProtocolError):
            # Keep the received facts for the next attempt: a bad link may never deliver more at once.
            await self._stage()
            raise
        await self._stage()
        position, end = self._copy.position, snapshot.position
        # Compare without the epoch: it may have begun after the last fact.
        is_whole = (position.serial, position.digest) == (end.serial, end.digest)
        if self.query.is_open and not is_whole and end.serial != snapshot.trimmed_upto.serial:
            why = f"it ends at {_shown(end)}, the received facts at {_shown(position)}"
            raise RemoteProtocolError(f"incomplete snapshot from the upstream: {why}")
        await self._copy.restore(snapshot)
        await self._save_record(msgspec.structs.replace(record, has_meta=True))

    async def _receive_facts(self) -> LogSnapshot:
        """Receive the facts of the snapshot; the last ones are not staged yet."""
        last_serial = self._copy.position.serial
        while True:
            event = await self.conversation.next()
            match event:
                case Facts(facts):
                    if facts:
                        last_serial = self._check_serials(facts, last_serial)
                        self._unstaged += facts
                    if len(self._unstaged) >= COMMIT_FACTS:
                        await self._stage()
                case SnapshotFacts(snapshot):
                    return snapshot
                case Heartbeat() | Ephemeral():
                    pass
                case _:
                    why = f"the upstream sent an unexpected {type(event).__name__} within a snapshot"
                    raise RemoteProtocolError(why)

    def _check_serials(self, facts: Sequence[Fact], after: int) -> int:
        """Return the last serial of these facts.

        Raises `UntrueCopy` unless they are among the announced facts, and in order without repeats: that
        bounds the size of the staged copy.
        """
        serials = [fact.serial for fact in facts]
        if serials[0] <= after or any(map(ge, serials, serials[1:])):
            raise UntrueCopy(
                f"the upstream sent repeated or unordered facts in the copy after serial {after}"
            )
        if serials[-1] > self._announced:
            raise UntrueCopy(
                f"the copy was announced up to serial {self._announced}, but serial {serials[-1]} was sent"
            )
        return serials[-1]

    async def _stage(self) -> None:
        facts, self._unstaged = self._unstaged, []
        if facts:
            await self._copy.add(facts, facts[-1].position, trimmed_upto=self._trimmed_upto)
            self._progress.done = facts[-1].serial
            self.on_progress(ReplicaEvent.SNAPSHOT, self._progress)


DIGESTS_PER_REQUEST: Final = 64
PAGE_ROWS: Final = 1_000


async def last_common(log: Log, conversation: IConversation) -> int:
    """Return the last serial at which this log and the upstream's are equal; 0 if there is none.

    A serial without a digest on either side (trimmed, or left out by a filter) counts as different: the
    result may be too low, but never too high.
    """
    # The logs are equal up to `low`; at `high` the digest differs or is unknown.
    low, high = 0, min(log.head.serial, conversation.welcome.position.serial) + 1
    while high - low > 1:
        step = max(1, (high - low) // (DIGESTS_PER_REQUEST + 1))
        serials = list(range(low + step, high, step))[:DIGESTS_PER_REQUEST]
        theirs = await conversation.digests(serials)
        for serial in serials:
            ours = await log.reads.digest(serial)
            if ours is not None and ours == theirs.get(serial):
                low = serial
            else:
                high = serial
                break
    return low


KeepFacts = Callable[[AsyncIterator[Sequence[Fact]]], Awaitable[Any]]
"""Writes facts to a file; returns its path, or None without facts."""


async def keep_diverged(log: Log, keep: KeepFacts, conversation: IConversation) -> tuple[int, Any] | None:
    """Save the facts that only this log has. Returns the first serial and the path; None without any."""
    is_ours = log.history == conversation.welcome.history
    common = await last_common(log, conversation) if is_ours else 0
    path = await keep(facts_after(log, common))
    return None if path is None else (common + 1, path)


async def facts_after(log: Log, serial: int) -> AsyncIterator[Sequence[Fact]]:
    """Yield the facts of this log after a serial, up to its present end, in pages of about 1000 rows."""
    upto = log.head.serial
    while serial < upto:
        facts, serial = await log.reads.facts(after=serial, upto=upto, limit=PAGE_ROWS)
        yield facts
