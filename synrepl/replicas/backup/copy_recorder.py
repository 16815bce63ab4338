"""CopyRecorder: writes a copy of a log into the parts of a backup, as a replica writes its copy."""

import os
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, BinaryIO, Final, Unpack, cast

import msgspec
from twisted.internet.defer import DeferredLock

from synrepl.base.history import AppendReceipt, EpochStart, LogSnapshot
from synrepl.base.interfaces import IClock, IThread
from synrepl.base.notes import NoteChanges, Notes
from synrepl.base.time import sleep
from synrepl.errors import StorageError
from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.part_codec import (
    FORMAT,
    CopyState,
    Damage,
    Mark,
    PartHead,
    PartScan,
    json_block,
)
from synrepl.replicas.relay.block_encoder import facts_block
from synrepl.replicas.relay.snapshot_codec import meta_block, snapshot_block
from synrepl.storage.continuity import check_epoch_start
from synrepl.storage.private_files import map_path_errors, sync_directory
from synrepl.storage.staged_copy import HistoryMismatch, position_after, verify_added
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition

PART_BYTES: Final = 64 * 1024 * 1024
"""A part is finished once it has so many bytes."""

PAUSE_SECONDS: Final = 0.1
"""The least time from one sync to the next while little arrives: what arrives meanwhile shares a sync."""

PROMPT_BYTES: Final = 256 * 1024
"""From so many bytes on, nothing more is waited for."""

FetchFiles = Callable[[Sequence[Fact]], Awaitable[None]]
"""Stores the files that these facts refer to."""


class OpenPart:
    """The part that is written. All of it is blocking."""

    def __init__(self, path: Any, file: BinaryIO, head: PartHead, digest: Any, size: int) -> None:
        self.head = head
        self.size = size
        self.marked = size
        """Its size up to the last mark."""
        self._path = path
        self._file = file
        self._hash = digest

    @classmethod
    def begin(cls, folder: BackupFolder, head: PartHead) -> "OpenPart":
        """Begin a new part."""
        path = folder.part_path(head.number)
        with map_path_errors("begin a part", path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            made = cls(path, os.fdopen(descriptor, "wb", buffering=0), head, sha256(), 0)
            try:
                made.write(json_block("head", head))
                made.mark(head.state)
                sync_directory(folder.parts_path)
            except BaseException:
                made.close()
                path.unlink()
                raise
        return made

    @classmethod
    def resume(cls, folder: BackupFolder, number: int) -> "tuple[OpenPart, CopyState] | None":
        """Go on with the last part: what is behind its last mark is cut off. None if it has no mark.

        Raises `StorageError` if it is damaged.
        """
        path = folder.part_path(number)
        with map_path_errors("read", path), path.open("rb") as read:
            scan = PartScan(read)
            try:
                for _ in scan.blocks():
                    pass
            except Damage as error:
                raise damaged(folder, number, error) from error
        identity = folder.identity
        if number == identity.part and scan.upto < identity.upto:
            raise damaged(folder, number, Damage(scan.upto, f"the last run ended at byte {identity.upto}"))
        if scan.head is None or scan.state is None:
            return None
        if scan.head.number != number:
            raise damaged(folder, number, Damage(0, f"it is part {scan.head.number}"))
        with map_path_errors("open a part", path):
            # Without a buffer: what is synced must have been written.
            file = cast(BinaryIO, path.open("r+b", buffering=0))
            try:
                file.truncate(scan.upto)
                os.fsync(file.fileno())
                file.seek(scan.upto)
            except BaseException:
                file.close()
                raise
        return cls(path, file, scan.head, scan.hashed(), scan.upto), scan.state

    @property
    def digest(self) -> str:
        """The SHA-256 of the part."""
        digest: str = self._hash.hexdigest()
        return digest

    def write(self, data: bytes) -> None:
        """Write blocks."""
        with map_path_errors("write", self._path):
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        self._hash.update(data)
        self.size += len(data)

    def mark(self, state: CopyState) -> None:
        """Sync what was written, then mark that it counts."""
        with map_path_errors("sync", self._path):
            os.fdatasync(self._file.fileno())
        mark = Mark(
            position=state.position,
            token=state.token,
            committed_ms=state.committed_ms,
            written_ms=state.written_ms,
            sha256=self.digest,
        )
        self.write(json_block("mark", mark))
        with map_path_errors("sync", self._path):
            os.fdatasync(self._file.fileno())
        self.marked = self.size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def damaged(folder: BackupFolder, number: int, error: Damage) -> StorageError:
    """Make the error for a damaged part."""
    return StorageError(
        op="read",
        why=f"{folder.part_path(number)} is {error}",
        hint=f"synrepl backup verify {folder.path} says what is left; back up into a new folder",
        tried=False,
    )


class CopyRecorder:
    """One copy in a backup, as an `IStagedCopy`: each call returns once what it wrote counts.

    `fetch_files` stores the files of facts before these are written. Blocking work is done in `thread`.
    """

    def __init__(
        self,
        folder: BackupFolder,
        thread: IThread,
        clock: IClock,
        part: OpenPart,
        state: CopyState,
        *,
        fetch_files: FetchFiles,
    ) -> None:
        self.state = state
        self.folder = folder
        self._thread = thread
        self._clock = clock
        self._part = part
        self._fetch_files = fetch_files
        self._lock = DeferredLock()
        """Held from the state before a write to the state after it: notes come beside facts."""
        self._synced_at = float("-inf")
        self._is_doubtful = False
        """Whether the outcome of the last write is unknown."""

    @property
    def number(self) -> int:
        """The number of the copy."""
        return self._part.head.copy

    @property
    def part(self) -> OpenPart:
        """The part that is written."""
        return self._part

    @property
    def position(self) -> LogPosition:
        """Where the copy ends."""
        return self.state.position

    @property
    def notes(self) -> Notes:
        """The notes of the copy."""
        return cast(Notes, self.state.notes)

    @notes.setter
    def notes(self, notes: Notes) -> None:
        raise AttributeError("notes are stored by `note`")

    async def note(self, **notes: Unpack[NoteChanges]) -> None:
        """Store these notes with the copy; None deletes a note."""
        async with self._lock:
            await self._go_on()
            changes = cast("dict[str, str | None]", notes)
            await self._write(json_block("note", changes), self.state.noted(changes))

    async def add(
        self, facts: Sequence[Fact], upto: LogPosition, *, trimmed_upto: LogPosition | None
    ) -> None:
        """Add facts of the snapshot, as `StagedCopy.add` does."""
        async with self._lock:
            await self._go_on()
            verify_added(self.position, facts, trimmed_upto)
            await self._record(facts, b"", upto)

    async def restore(self, snapshot: LogSnapshot) -> None:
        """Store the rest of the snapshot, after its facts."""
        async with self._lock:
            await self._go_on()
            state = self.state.with_snapshot(snapshot)
            await self._write(snapshot_block(snapshot), state)

    async def follow(
        self,
        facts: Sequence[Fact],
        receipts: Sequence[AppendReceipt],
        *,
        upto: LogPosition | None = None,
    ) -> None:
        """Append facts as `LogCopies.follow` does. Raises `HistoryMismatch` if one does not follow."""
        async with self._lock:
            await self._go_on()
            if upto is None and (wrong := verify(facts, self.position.digest)) is not None:
                raise HistoryMismatch(wrong)
            meta = meta_block(receipts=receipts) if receipts else b""
            await self._record(facts, meta, position_after(facts, upto, self.position))

    async def begin_epoch(self, epoch_start: EpochStart) -> None:
        """Begin an epoch at the end of the copy."""
        async with self._lock:
            await self._go_on()
            check_epoch_start(epoch_start, self.position)
            state = msgspec.structs.replace(
                self.state,
                position=epoch_start.position,
                epoch_starts=(*self.state.epoch_starts, epoch_start),
            )
            await self._write(meta_block([epoch_start]), state)

    async def close(self) -> None:
        """Close the part."""
        await self._thread.run(self._part.close)

    async def _record(self, facts: Sequence[Fact], meta: bytes, upto: LogPosition) -> None:
        if facts:
            await self._fetch_files(facts)
        state = msgspec.structs.replace(
            self.state,
            position=upto,
            token=max([self.state.token, *(fact.token for fact in facts)]),
            committed_ms=max([self.state.committed_ms, *(fact.committed_at_ms for fact in facts)]),
        )
        data = meta + facts_block("facts", facts)
        # Facts that come one by one would need a sync each.
        wait = self._synced_at + PAUSE_SECONDS - self._clock.seconds()
        if len(data) < PROMPT_BYTES and 0 < wait <= PAUSE_SECONDS:
            await sleep(self._clock, wait)
        await self._write(data, state)

    async def _write(self, data: bytes, state: CopyState) -> None:
        """Write these blocks, after which the copy is in this state."""
        before = self.state
        state = msgspec.structs.replace(state, written_ms=int(self._clock.seconds() * 1000))

        def work() -> None:
            part = self._part
            if part.size >= PART_BYTES:
                part.close()
                part = self._part = next_part(self.folder, part, part.head.copy, before)
            part.write(data)
            part.mark(state)

        self._is_doubtful = True
        await self._thread.run(work)
        self._is_doubtful = False
        self.state = state
        self._synced_at = self._clock.seconds()

    async def _go_on(self) -> None:
        """After a failed write, of which a part may be on the disk, find out where the copy ends.

        Raises `StorageError` then: what was about to be written may not follow.
        """
        if not self._is_doubtful:
            return

        def work() -> CopyState:
            self._part.close()
            resumed = OpenPart.resume(self.folder, self._part.head.number)
            if resumed is None:
                raise StorageError(op="write", why="the backup lacks the part it was writing", tried=False)
            self._part, state = resumed
            return state

        self.state = await self._thread.run(work)
        self._is_doubtful = False
        raise StorageError(
            op="write",
            why=f"an earlier write has failed; the backup goes on after serial {self.position.serial}",
            retryable=True,
        )


def next_part(folder: BackupFolder, part: OpenPart | None, copy: int, state: CopyState) -> OpenPart:
    """Begin the part after this one."""
    number, before = (1, "") if part is None else (part.head.number + 1, part.digest)
    return OpenPart.begin(
        folder, PartHead(format=FORMAT, number=number, copy=copy, before=before, state=state)
    )
