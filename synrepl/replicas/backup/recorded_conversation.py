"""A backup as an upstream: it says again what was recorded, and ends with the epoch of the restore."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from synrepl.base.history import BEGINNING, AppendReceipt, EpochStart, LogSnapshot
from synrepl.base.interfaces import IThread
from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.examination import RecordedCopy
from synrepl.replicas.backup.part_codec import Damage, PartScan
from synrepl.replicas.backup.referred_files import ReferredFiles
from synrepl.replicas.command_forwarder import Numbered
from synrepl.replicas.relay.snapshot_codec import SnapshotDecoder, read_meta
from synrepl.replicas.replica.conversation import Event, Facts, IConversation, SnapshotFacts, SnapshotMeta
from synrepl.replicas.wire.native import Join, Joined, Joining, Subscribe, Welcome
from synrepl.storage.private_files import map_path_errors
from synrepl.streams.atomic_appends import STREAM, end_of
from synrepl.streams.facts import Fact, decode_facts
from synrepl.wire.position import LogPosition

JOIN_ID: Final = "backup"


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Where a restore ends: before the first fact with a serial above `serial`, or one committed after `ms`.

    None: neither counts. Appends that would be cut are left out as a whole.
    """

    serial: int | None = None
    ms: int | None = None

    def is_before(self, serial: int, ms: int) -> bool:
        """Whether this is before a serial, or the time of the newest fact up to there."""
        is_earlier = self.ms is not None and self.ms < ms
        return is_earlier or (self.serial is not None and self.serial < serial)


class _Cutter:
    """Cuts facts at whole appends: receipts, and what opens an atomic append, come before their facts."""

    def __init__(self, cut: Cut) -> None:
        self._serial = cut.serial
        self._ms = cut.ms
        self.is_done = False

    def _ends_within(self, first: int, last: int) -> bool:
        return self._serial is not None and first <= self._serial < last

    def receipts(self, receipts: Sequence[AppendReceipt]) -> list[AppendReceipt]:
        """Return the receipts of appends that are restored."""
        for receipt in receipts:
            first, last = _span(receipt)
            if self._ends_within(first, last):
                self._serial = first - 1
        return [one for one in receipts if self._serial is None or _span(one)[1] <= self._serial]

    def epoch_start(self, start: EpochStart) -> bool:
        """Whether this start of an epoch is restored."""
        if self._ms is not None and start.at_ms > self._ms:
            self.is_done = True
        return not self.is_done

    def facts(self, facts: Sequence[Fact]) -> Sequence[Fact]:
        """Return the facts that are restored."""
        if self._ms is None and self._serial is None:
            return facts
        for index, fact in enumerate(facts):
            if fact.stream == STREAM and self._ends_within(fact.serial, end_of(fact)):
                self._serial = fact.serial - 1
            is_late = self._ms is not None and fact.committed_at_ms > self._ms
            if is_late or (self._serial is not None and fact.serial > self._serial):
                self.is_done = True
                return facts[:index]
        return facts


def _span(receipt: AppendReceipt) -> tuple[int, int]:
    first = receipt.appended.first_serial or 0
    return first, first + len(receipt.appended.tokens) - 1


class RecordedConversation(IConversation):
    """Says again the conversation of one copy in a backup up to `cut`, as the answer to JOIN.

    `epoch_start` makes the start of the epoch of the restore, after a position. Parts are read in `thread`,
    one block ahead of who listens.
    """

    is_full = False

    def __init__(
        self,
        folder: BackupFolder,
        copy: RecordedCopy,
        thread: IThread,
        *,
        cut: Cut,
        epoch_start: Callable[[LogPosition], EpochStart],
    ) -> None:
        state = copy.state
        assert state.begin is not None
        self.position = state.begin
        """Where what was said so far ends."""
        self.committed_ms = 0
        """When the newest fact of what was said was committed."""
        self.names = ReferredFiles()
        """The names of files after what was said."""
        self.on_channel = lambda data: None
        self.on_space = lambda: None
        self.welcome = Welcome(
            history=state.notes.get("history", ""),
            uuid=JOIN_ID,
            instance=JOIN_ID,
            server_name=state.notes.get("server_name", ""),
            role=JOIN_ID,
            position=state.position,
            trimmed_upto=state.trimmed_upto.serial,
        )
        self._folder = folder
        self._copy = copy
        self._begin = state.begin
        self._is_within_snapshot = copy.is_dense and cut.is_before(state.begin.serial, state.begin_ms)
        self._thread = thread
        self._cutter = _Cutter(cut)
        self._epoch_start = epoch_start
        self._events: Iterator[Event] = iter(())
        self._next: Any = None
        self._has_snapshot = False
        self._snapshots = SnapshotDecoder()

    # -- what is asked -------------------------------------------------------------------------------------

    def join(self, request: Join) -> None:
        """Begin to say it."""
        self._events = self._say()
        self._next = self._read()

    def subscribe(self, request: Subscribe) -> None:
        """Not possible: nothing comes after a backup."""
        raise LocalProtocolError("a backup cannot be followed")

    async def next(self) -> Event:
        """Return the next event. Raises `RemoteProtocolError` if the backup is damaged."""
        event: Event | None = await self._next
        if event is None:
            raise RemoteProtocolError("the backup has ended")
        self._next = self._read()
        return event

    def ready(self) -> Event | None:
        """Nothing is ready without waiting."""
        return None

    def acknowledge(self, position: LogPosition, at_ms: int) -> None:
        """Nobody waits for it."""

    def forward(self, origin: str, commands: Sequence[Numbered]) -> None:
        """Nobody takes commands."""

    async def digests(self, serials: Sequence[int]) -> dict[int, str | None]:
        """Nothing is known of single serials."""
        return dict.fromkeys(serials)

    def close(self) -> None:
        """Nothing is open."""

    def join_channel(self) -> None:
        """There is no channel."""

    def encode_published(self, publisher: str, channel: str, lines: Sequence[bytes]) -> bytes | None:
        """There is no channel."""

    def encode_lost(self, publisher: str) -> bytes | None:
        """There is no channel."""

    def write(self, data: bytes) -> None:
        """There is no channel."""

    # -- what is said --------------------------------------------------------------------------------------

    def _read(self) -> Any:
        return self._thread.run(lambda: next(self._events, None))

    def _say(self) -> Iterator[Event]:
        yield from self._say_facts() if self._is_within_snapshot else self._say_snapshot()
        start = self._epoch_start(self.position)
        self.position = start.position
        yield SnapshotMeta([start], [])
        yield Joined(self.position)

    def _joining(self, position: LogPosition) -> Joining:
        return Joining(
            join=JOIN_ID,
            history=self.welcome.history,
            position=position,
            trimmed_upto=self._copy.state.trimmed_upto,
            after=0,
            resumed=False,
        )

    def _say_snapshot(self) -> Iterator[Event]:
        yield self._joining(self._begin)
        for kind, data in self._blocks():
            yield from self._events_of(kind, data)
            if self._cutter.is_done:
                break

    def _say_facts(self) -> Iterator[Event]:
        """Say the facts of a snapshot without gaps one after the other, as if they had come so."""
        self.position = BEGINNING
        snapshot = self._find_snapshot()
        yield self._joining(BEGINNING)
        yield SnapshotFacts(
            LogSnapshot(
                position=BEGINNING, trimmed_upto=BEGINNING, epoch_starts=(), positions={}, receipts=()
            )
        )
        self._has_snapshot = True
        if receipts := self._cutter.receipts(snapshot.receipts):
            yield SnapshotMeta([], receipts)
        starts = deque(snapshot.epoch_starts)
        for kind, data in self._blocks():
            if kind == "snapshot":
                return
            facts = decode_facts(data) if kind == "facts" else []
            while facts:
                upto = starts[0].serial if starts else facts[-1].serial
                some = [fact for fact in facts if fact.serial <= upto]
                facts = facts[len(some) :]
                yield from self._facts(some)
                if self._cutter.is_done or (facts and not self._cutter.epoch_start(starts[0])):
                    return
                if facts:
                    self.position = starts[0].position
                    yield SnapshotMeta([starts.popleft()], [])

    def _find_snapshot(self) -> LogSnapshot:
        decoder = SnapshotDecoder()
        for kind, data in self._blocks():
            snapshot = decoder.receive(data) if kind == "snapshot" else None
            if snapshot is not None:
                return snapshot
        raise RemoteProtocolError("the backup has no snapshot")

    def _facts(self, facts: Sequence[Fact]) -> Iterator[Event]:
        if self._has_snapshot:
            facts = self._cutter.facts(facts)
            if facts:
                self.position = facts[-1].position
        if facts:
            self.names.take(facts)
            self.committed_ms = max(self.committed_ms, *(one.committed_at_ms for one in facts))
            yield Facts(facts)

    def _events_of(self, kind: str, data: bytes) -> Iterator[Event]:
        match kind:
            case "facts":
                yield from self._facts(decode_facts(data))
            case "meta":
                starts, receipts = read_meta(data)
                receipts = self._cutter.receipts(receipts)
                starts = [start for start in starts if self._cutter.epoch_start(start)]
                if starts:
                    self.position = starts[-1].position
                if starts or receipts:
                    yield SnapshotMeta(starts, receipts)
            case "snapshot":
                snapshot = self._snapshots.receive(data)
                if snapshot is not None:
                    self._has_snapshot = True
                    self.position = snapshot.position
                    yield SnapshotFacts(snapshot)

    def _blocks(self) -> Iterator[tuple[str, bytes]]:
        """Yield the blocks of the copy that count."""
        for number in range(self._copy.first, self._copy.last + 1):
            path = self._folder.part_path(number)
            with map_path_errors("read", path), path.open("rb") as file:
                reader = PartScan(file)
                unmarked: list[tuple[str, bytes]] = []
                try:
                    for kind, data in reader.blocks():
                        unmarked.append((kind, data))
                        if kind == "mark":
                            yield from unmarked
                            unmarked = []
                            if number == self._copy.last and reader.upto >= self._copy.upto:
                                break
                except Damage as error:
                    why = f"{path} is damaged at byte {error.offset}: {error.why}"
                    raise RemoteProtocolError(why) from None
