"""JOIN: makes a new copy next to the old one, and replaces the old one in one step when complete."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import ge
from typing import Final

import msgspec

from synrepl.base.history import LogSnapshot
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
from synrepl.replicas.replica.fact_batcher import FactBatcher
from synrepl.replicas.replica.own_copies import IOwnCopy, IStagedCopy
from synrepl.replicas.replica.replica_states import ReplicaEvent
from synrepl.replicas.wire.native import Heartbeat, Join, Joined, Joining, Peers
from synrepl.streams.facts import Fact
from synrepl.wire.filter import Filter
from synrepl.wire.position import LogPosition

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


def _shown(position: LogPosition) -> str:
    return f"serial {position.serial} (epoch {position.epoch}, digest {position.digest})"
