"""RecordedCopies: what a replica has instead of a log when it is a backup: the copies in a folder."""

from collections.abc import Callable, Mapping, Sequence
from typing import Unpack, cast

import msgspec

from synrepl.base.access import IssuedKey
from synrepl.base.history import AppendReceipt, EpochStart
from synrepl.base.interfaces import Head, IClock, IThread
from synrepl.base.notes import NoteChanges, Notes, changed, own_notes
from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.copy_recorder import CopyRecorder, FetchFiles, OpenPart, damaged, next_part
from synrepl.replicas.backup.part_codec import CopyState, Damage
from synrepl.storage.log_head import LogHead
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition


class RecordedCopies:
    """The log of a backup (`own_copies.IOwnCopy`, and its `copies`).

    Copies stand behind each other in the folder. The last whole one is followed. One that is incomplete is
    the last, and stands for the staged copy of a replica; when it is complete, the copies before it stay, so
    that the backup can still be restored to what they have.
    """

    def __init__(
        self, folder: BackupFolder, thread: IThread, clock: IClock, *, fetch_files: FetchFiles
    ) -> None:
        self.head = LogHead()
        self.table_streams: frozenset[str] = frozenset()
        self.notes: Notes = {}
        self.on_advanced: Callable[[], object] = lambda: None
        """Called when the whole copy has advanced."""
        self._folder = folder
        self._thread = thread
        self._clock = clock
        self._fetch_files = fetch_files
        self._whole: CopyRecorder | None = None
        self._staged: CopyRecorder | None = None

    @property
    def copies(self) -> "RecordedCopies":
        """The copies."""
        return self

    @property
    def uuid(self) -> str:
        """The uuid of the backup as a reader."""
        return self._folder.identity.uuid

    @property
    def history(self) -> str:
        """The history of the log; empty as long as there is no copy."""
        return self.notes.get("history", "")

    @property
    def position(self) -> LogPosition:
        """Where the whole copy ends."""
        return self.head.position

    @property
    def recorded(self) -> tuple[int, int]:
        """The serials up to which there is something of the whole copy, and of one that is not whole yet."""
        staged = 0 if self._staged is None else self._staged.state.position.serial
        return self.position.serial, staged

    @property
    def state(self) -> CopyState:
        """What is known of the whole copy."""
        return CopyState() if self._whole is None else self._whole.state

    @property
    def copy_number(self) -> int:
        """The number of the whole copy; 0 without one."""
        return 0 if self._whole is None else self._whole.number

    def positions_by_stream(self) -> Mapping[str, Mapping[str, int]]:
        """Nothing: the positions of writers are in the parts, and are not read to go on."""
        return {}

    async def open(self) -> None:
        """Find the copies, and go on with them. Raises `StorageError`."""
        last = await self._thread.run(self._resume_last)
        if last is not None:
            part, state = last
            if state.is_whole:
                self._whole = self._recording(part, state)
            else:
                self._staged = self._recording(part, state)
                if part.head.copy > 1:
                    found = await self._thread.run(lambda: self._resume_before(part.head.copy))
                    self._whole = None if found is None else self._recording(*found)
        # Until it ends, nobody knows where.
        await self._thread.run(lambda: self._save_end(0, 0))
        self._load()

    def _save_end(self, part: int, upto: int) -> None:
        identity = msgspec.structs.replace(self._folder.identity, part=part, upto=upto)
        if identity != self._folder.identity:
            self._folder.save_identity(identity)

    def _resume_last(self) -> tuple[OpenPart, CopyState] | None:
        numbers, ended = self._folder.part_numbers(), self._folder.identity.part
        if ended > max(numbers, default=0):
            raise damaged(self._folder, ended, Damage(0, "it is missing"))
        for number in reversed(numbers):
            resumed = OpenPart.resume(self._folder, number)
            if resumed is not None:
                return resumed
            # A kill cut it off at its beginning.
            self._folder.remove_part(number)
        return None

    def _resume_before(self, copy: int) -> tuple[OpenPart, CopyState] | None:
        for number in reversed(self._folder.part_numbers()):
            resumed = OpenPart.resume(self._folder, number)
            if resumed is None:
                continue
            if resumed[0].head.copy < copy:
                return resumed
            resumed[0].close()
        return None

    def _recording(self, part: OpenPart, state: CopyState) -> CopyRecorder:
        return CopyRecorder(
            self._folder, self._thread, self._clock, part, state, fetch_files=self._fetch_files
        )

    def _load(self) -> None:
        """Take over what is known of the whole copy."""
        state = self.state
        identity = self._folder.identity
        named = {"uuid": identity.uuid}
        if identity.server_name:
            named["server_name"] = identity.server_name
        self.notes = cast(Notes, {**self.notes, **named, **state.notes})
        self._load_head()

    def _advance(self) -> None:
        self._load_head()
        self.on_advanced()

    def _load_head(self) -> None:
        state, at = self.state, self.state.position
        self.head.load(
            Head(
                epoch=at.epoch,
                serial=at.serial,
                digest=at.digest,
                boots=0,
                positions={},
                allocated={},
                trimmed_upto=state.trimmed_upto,
                epoch_starts=state.epoch_starts,
            )
        )

    # -- notes ---------------------------------------------------------------------------------------------

    async def note(self, **notes: Unpack[NoteChanges]) -> None:
        """Store these notes; None deletes a note. Before there is a copy they are stored with it."""
        name = notes.get("server_name")
        if name and name != self._folder.identity.server_name:
            identity = msgspec.structs.replace(self._folder.identity, server_name=name)
            await self._thread.run(lambda: self._folder.save_identity(identity))
        if self._whole is not None:
            await self._whole.note(**notes)
        self.notes = changed(self.notes, notes)

    async def take_keys(self, keys: Sequence[IssuedKey]) -> None:
        """Store all issued keys of the upstream, as a replica does."""
        text = msgspec.json.encode(list(keys)).decode()
        if text != self.notes.get("keys"):
            await self.note(keys=text)

    # -- copies --------------------------------------------------------------------------------------------

    async def follow(
        self,
        facts: Sequence[Fact],
        receipts: Sequence[AppendReceipt],
        *,
        upto: LogPosition | None = None,
    ) -> None:
        """Append facts and receipts to the whole copy."""
        try:
            await (await self._followed()).follow(facts, receipts, upto=upto)
        finally:
            self._advance()

    async def begin_epoch(self, epoch_start: EpochStart) -> None:
        """Begin an epoch at the end of the whole copy."""
        try:
            await (await self._followed()).begin_epoch(epoch_start)
        finally:
            self._advance()

    async def _followed(self) -> CopyRecorder:
        if self._staged is not None:
            # The upstream goes on with the copy before it after all.
            await self.drop(self._staged)
        assert self._whole is not None, "a replica joins before it follows"
        return self._whole

    async def open_staged(self) -> CopyRecorder:
        """Open the staged copy; it may be empty."""
        if self._staged is None:
            before = None if self._whole is None else self._whole.part
            number = 1 if before is None else before.head.copy + 1
            part = await self._thread.run(lambda: next_part(self._folder, before, number, CopyState()))
            self._staged = self._recording(part, CopyState())
        return self._staged

    async def drop(self, copy: CopyRecorder) -> None:
        """Close a staged copy and delete it."""
        await copy.close()
        await self._thread.run(lambda: self._remove(copy.number))
        self._staged = None

    def _remove(self, copy: int) -> None:
        for number in reversed(self._folder.part_numbers()):
            found = OpenPart.resume(self._folder, number)
            if found is not None:
                found[0].close()
                if found[0].head.copy != copy:
                    return
            self._folder.remove_part(number)

    async def adopt(self, copy: CopyRecorder) -> None:
        """Follow this staged copy from now on: it is whole."""
        if own := own_notes(self.notes):
            await copy.note(**cast(NoteChanges, {name: own[name] for name in own if name != "uuid"}))
        identity = msgspec.structs.replace(self._folder.identity, history=copy.notes.get("history", ""))
        await self._thread.run(lambda: self._folder.save_identity(identity))
        if self._whole is not None:
            await self._whole.close()
        self._whole, self._staged = copy, None
        self._load()

    async def close(self) -> None:
        """Close the parts."""
        for copy in (self._whole, self._staged):
            if copy is not None:
                await copy.close()
        if self._whole is not None:
            part = self._whole.part
            await self._thread.run(lambda: self._save_end(part.head.number, part.marked))
        self._whole = self._staged = None
