"""JOIN: a copy is made beside what is here, and takes its place in one step when it is whole."""

from collections.abc import Callable, Sequence
from operator import ge
from typing import Final

import msgspec

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.ports.history import LogPosition, LogSnapshot
from synrepl.ports.interfaces import IClock
from synrepl.replication.replica.batcher import FactBatcher
from synrepl.replication.replica.conversation import (
    Ephemeral,
    Facts,
    IConversation,
    JoinFinished,
    JoinStarted,
    KnownPeers,
    SnapshotFacts,
    SnapshotMeta,
    UpstreamHeartbeat,
)
from synrepl.replication.replica.interfaces import ICopy, ReplicaLog
from synrepl.replication.wire_positions import wire_position
from synrepl.streams.facts import Fact
from synrepl.wire.filter import Filter
from synrepl.wire.native import JoinRequest

__all__ = ["JoinAttempt", "Progress", "UntrueCopy"]

COMMIT_FACTS: Final = 8_000
"""Facts of a snapshot that are committed together; few commits are fast, many lose less to a cut."""


class UntrueCopy(RemoteProtocolError):
    """The upstream sends other facts than it announced, so that nothing that is staged of them is of use."""


class JoinRecord(msgspec.Struct, frozen=True):
    """What is remembered of a copy in the making: which one, of what, and how far."""

    join: str
    history: str
    filter: Filter
    trimmed_upto: LogPosition
    target: int
    has_meta: bool


class Progress(msgspec.Struct):
    """How far a copy is: serials done of those there were when it began, and how fast that goes."""

    done: int
    total: int
    began: float
    began_at: int

    def status(self, now: float) -> dict[str, float | int | None]:
        """As the status has it."""
        seconds = now - self.began
        rate = (self.done - self.began_at) / seconds if seconds > 0 else 0.0
        left = max(0, self.total - self.done)
        return {
            "done": self.done,
            "total": max(self.total, self.done),
            "rows_per_second": round(rate, 1),
            "eta_seconds": round(left / rate, 1) if rate > 0 else None,
        }


class JoinAttempt:
    """One attempt to JOIN; `run` returns once the log is the copy."""

    def __init__(
        self,
        log: ReplicaLog,
        conversation: IConversation,
        clock: IClock,
        wanted: Filter,
        *,
        tell: Callable[[str, Progress], None],
    ) -> None:
        self._log = log
        self._conversation = conversation
        self._clock = clock
        self._wanted = wanted
        self._tell = tell
        self._copy: ICopy
        self._begin: LogPosition | None = None
        self._announced = 0
        self._progress = Progress(0, 0, clock.seconds(), 0)

    @property
    def has_come_further(self) -> bool:
        """Whether this attempt was good for something, even if it was cut off."""
        return self._progress.done > self._progress.began_at

    async def run(self) -> None:
        """Take over what the upstream has. Whatever goes wrong, what was here before is untouched, and what
        came is kept for the next attempt."""
        self._copy = await self._log.open_staged_copy()
        try:
            noted = await self._ask()
            await self._take(noted)
            self._tell("adopting", self._progress)
            is_open = self._wanted.is_open
            await self._copy.note(
                history=noted.history,
                joined="yes",
                filter=None if is_open else msgspec.json.encode(self._wanted).decode(),
                joining=None,
            )
            await self._log.adopt_copy(self._copy)
        except UntrueCopy:
            await self._log.drop_copy(self._copy)
            # It has come no further, so that the next attempts are further apart.
            self._progress.done = self._progress.began_at
            raise
        except Exception:
            await self._copy.close()
            raise

    async def _ask(self) -> JoinRecord:
        """Ask for a copy, for the rest of the one that was cut off if there is one."""
        noted = self._resumable()
        if noted is None:
            asked = JoinRequest(filter=self._wanted)
        else:
            at = self._copy.position
            asked = JoinRequest(
                filter=self._wanted,
                join=noted.join,
                position=wire_position(at),
                has_meta=noted.has_meta,
            )
        self._conversation.join(asked)
        begins = await self._conversation.next()
        while isinstance(begins, UpstreamHeartbeat):
            begins = await self._conversation.next()
        if not isinstance(begins, JoinStarted):
            raise RemoteProtocolError(f"{type(begins).__name__} came where a copy was to begin")
        if not begins.resumed or noted is None:
            await self._log.drop_copy(self._copy)
            self._copy = await self._log.open_staged_copy()
            noted = JoinRecord(
                begins.join,
                begins.history,
                self._wanted,
                begins.trimmed_upto,
                begins.position.serial,
                False,
            )
            await self._note(noted)
        self._begin = begins.trimmed_upto if self._wanted.is_open else None
        self._announced = begins.position.serial
        at_serial = self._copy.position.serial
        total = max(begins.position.serial, at_serial)
        self._progress = Progress(at_serial, total, self._clock.seconds(), at_serial)
        return noted

    def _resumable(self) -> JoinRecord | None:
        text = self._copy.notes.get("joining")
        if text is None:
            return None
        try:
            noted = msgspec.json.decode(text, type=JoinRecord)
        except msgspec.DecodeError:
            return None
        is_same = (noted.history, noted.filter) == (self._conversation.welcome.history, self._wanted)
        return noted if is_same else None

    async def _note(self, noted: JoinRecord) -> None:
        await self._copy.note(joining=msgspec.json.encode(noted).decode())

    async def _take(self, noted: JoinRecord) -> None:
        """Take what comes, until all of it is here."""
        if not noted.has_meta:
            self._tell("snapshot", self._progress)
            await self._take_snapshot(noted)
        self._tell("meanwhile", self._progress)
        taking = FactBatcher(self._copy, is_filtered=not self._wanted.is_open)
        while True:
            event = await self._conversation.next()
            match event:
                case JoinFinished(position):
                    await taking.flush()
                    if self._copy.position != position:
                        raise RemoteProtocolError(
                            f"the copy is said to end at serial {position.serial}, it stands at"
                            f" {self._copy.position.serial}"
                        )
                    return
                case Facts() | SnapshotMeta() | UpstreamHeartbeat():
                    await taking.take(event)
                    if taking.waiting >= COMMIT_FACTS:
                        await taking.flush()
                    self._progress.done = self._copy.position.serial
                    self._tell("meanwhile", self._progress)
                case Ephemeral() | KnownPeers():
                    pass
                case _:
                    raise RemoteProtocolError(f"{type(event).__name__} came in the middle of a copy")

    async def _take_snapshot(self, noted: JoinRecord) -> None:
        waiting: list[Facts] = []
        try:
            snapshot = await self._take_facts(waiting)
        except UntrueCopy:
            raise
        except (NotConnected, RemoteProtocolError):
            # What came is good for the next attempt; over a bad link that may be all that ever comes at once.
            await self._add(waiting)
            raise
        await self._add(waiting)
        at = self._copy.position
        # Its epoch may have begun after the last fact.
        ends = (snapshot.position.serial, snapshot.position.digest)
        is_whole = (at.serial, at.digest) == ends or snapshot.position.serial == snapshot.trimmed_upto.serial
        if self._wanted.is_open and not is_whole:
            raise RemoteProtocolError(
                f"the snapshot is of serial {snapshot.position.serial}, its facts end at {at.serial}"
            )
        await self._copy.restore(snapshot)
        await self._note(msgspec.structs.replace(noted, has_meta=True))

    async def _take_facts(self, waiting: list[Facts]) -> LogSnapshot:
        """Take facts; those of them that are not in the copy yet are in `waiting`."""
        count, reached = 0, self._copy.position.serial
        while True:
            event = await self._conversation.next()
            match event:
                case Facts(facts):
                    if facts:
                        reached = self._checked(facts, reached)
                        waiting.append(event)
                        count += len(facts)
                    if count >= COMMIT_FACTS:
                        together = list(waiting)
                        waiting.clear()
                        count = 0
                        await self._add(together)
                case SnapshotFacts(snapshot):
                    return snapshot
                case UpstreamHeartbeat() | Ephemeral():
                    pass
                case _:
                    raise RemoteProtocolError(f"{type(event).__name__} came in the middle of a snapshot")

    def _checked(self, facts: Sequence[Fact], after: int) -> int:
        """The last serial of these facts. Raises `UntrueCopy` unless they are among those announced, and each
        comes once: that bounds what is staged."""
        serials = [fact.serial for fact in facts]
        if serials[0] <= after or any(map(ge, serials, serials[1:])):
            raise UntrueCopy(f"facts of the copy came twice, or out of order, after serial {after}")
        if serials[-1] > self._announced:
            raise UntrueCopy(
                f"the copy was announced up to serial {self._announced}, and serial {serials[-1]} came"
            )
        return serials[-1]

    async def _add(self, waiting: list[Facts]) -> None:
        facts = [fact for event in waiting for fact in event.facts]
        if facts:
            last = facts[-1]
            await self._copy.add(
                facts, LogPosition(last.epoch, last.serial, last.digest), trimmed_upto=self._begin
            )
            self._progress.done = last.serial
            self._tell("snapshot", self._progress)
