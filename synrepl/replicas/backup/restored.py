"""Restored logs: a copy is received from the folder of a backup, as a replica receives one.

So everything is verified by the same code. Then an epoch begins (``restored``): readers with digests that are
beyond the restored log are told. Its number may be that of a promotion since the backup: the restored log has
a uuid by which it gives way then (`RESTORED_PREFIX`), as it lacks what was acknowledged since. For followers
that know tokens alone see `storage/token_floor.py`.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final

import msgspec
from twisted.logger import Logger

from synrepl.base.access import IssuedKey
from synrepl.base.history import EpochStart
from synrepl.base.interfaces import IClock, IThread
from synrepl.errors import StorageError
from synrepl.html.humanize import at
from synrepl.replicas.backup.backup_folder import BackupFolder
from synrepl.replicas.backup.examination import BackupContents, RecordedCopy
from synrepl.replicas.backup.part_codec import CopyState
from synrepl.replicas.backup.recorded_conversation import Cut, RecordedConversation
from synrepl.replicas.replica.join import JoinAttempt, Progress
from synrepl.replicas.replica.replica_states import ReplicaEvent
from synrepl.storage.databases import Database, engine_for
from synrepl.storage.engine import SQLEngine
from synrepl.storage.log import Log
from synrepl.storage.private_files import create_private, make_directory, map_path_errors, sync_directory
from synrepl.storage.threads import ReactorThread
from synrepl.storage.token_floor import floor_above, floor_of
from synrepl.wire.filter import ALL
from synrepl.wire.position import LogPosition

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Restored(msgspec.Struct, kw_only=True):
    """The result of a restore: the log ends with `serial`, before which `epoch` begins anew.

    `missing_files` are named in the restored log, and are not in the backup, or damaged there.
    """

    serial: int
    epoch: int
    digest: str
    committed_ms: int
    history: str
    server_name: str
    floor: int
    files: int = 0
    missing_files: Sequence[str] = ()


def parse_until(text: str) -> Cut:
    """Parse a serial, or a time with its offset (``2026-11-30T10:00:00Z``). Raises `ValueError`."""
    if text.isascii() and text.isdigit():
        return Cut(serial=int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            "must be a serial, or a time with its offset such as 2026-11-30T10:00:00Z or"
            f" 2026-11-30T11:00:00+01:00, not {text!r}"
        )
    return Cut(ms=(moment - _EPOCH) // timedelta(milliseconds=1))


def choose_copy(folder: BackupFolder, found: BackupContents, cut: Cut | None) -> RecordedCopy:
    """Return the copy from which to restore up to `cut`; None: up to the end. Raises `StorageError`."""
    whole = found.whole
    if not whole:
        raise _refused(
            f"{folder.path} has no complete copy of a log", "synrepl backup verify says what it has"
        )
    last = whole[-1].state
    if cut is None:
        if found.damages:
            one = found.damages[0]
            raise _refused(
                f"{one.path} is damaged: {one.why}",
                f"restore what is before it with --until {last.position.serial}, or another backup",
            )
        return whole[-1]
    if cut.serial is not None and cut.serial > last.position.serial:
        why = f"{folder.path} is valid up to serial {last.position.serial}, and not up to {cut.serial}"
        raise _refused(why, "give a lower serial, or restore another backup")
    if found.damages and _is_beyond(cut, last):
        one = found.damages[0]
        raise _refused(
            f"{folder.path} is valid up to {_end_of(last)}: {one.path} is damaged: {one.why}",
            f"restore what is before it with --until {last.position.serial}, or another backup",
        )
    fit = [one for one in whole if _begins_before(one, cut)]
    if not fit:
        begin = whole[0].state.begin
        assert begin is not None
        newest = f", whose newest fact is of {at(whole[0].state.begin_ms)}" if whole[0].state.begin_ms else ""
        why = f"{folder.path} begins with a copy up to serial {begin.serial}{newest}"
        raise _refused(why, "give a later --until, or restore another backup")
    chosen = fit[-1]
    if chosen is not whole[-1] and _is_beyond(cut, chosen.state):
        begin = whole[whole.index(chosen) + 1].state.begin
        assert begin is not None
        serial = chosen.state.position.serial
        damaged = next((one for one in found.damages if one.serial == serial), None)
        lost = "they were trimmed before they were backed up"
        if damaged is not None:
            lost = f"{damaged.path} is damaged: {damaged.why}"
        why = f"{folder.path} has no facts between {_end_of(chosen.state)}, and serial {begin.serial}: {lost}"
        raise _refused(why, f"use --until {serial} or {begin.serial}")
    return chosen


def _is_beyond(cut: Cut, end: CopyState) -> bool:
    """Whether facts behind this end may be needed: there may be more of its last millisecond."""
    if cut.serial is not None:
        return cut.serial > end.position.serial
    return cut.ms is not None and cut.ms >= end.committed_ms


def _end_of(copy: CopyState) -> str:
    newest = f", whose newest fact is of {at(copy.committed_ms)}" if copy.committed_ms else ""
    return f"serial {copy.position.serial}{newest}"


def _begins_before(copy: RecordedCopy, cut: Cut) -> bool:
    begin = copy.state.begin
    assert begin is not None
    return copy.is_dense or not cut.is_before(begin.serial, copy.state.begin_ms)


def check_empty(log: Log, database: str) -> None:
    """Raise `StorageError` unless this open log is new."""
    if log.head.serial or log.head.trimmed_upto.serial or log.notes.get("joined") is not None:
        why = f"{database} has a log already, up to serial {log.head.serial}"
        raise _refused(why, "name a database that does not exist yet, and keep this one until all is well")


async def restore(
    folder: BackupFolder,
    found: BackupContents,
    log: Log,
    *,
    cut: Cut | None,
    thread: IThread,
    clock: IClock,
    on_progress: Callable[[int, int], object],
) -> Restored:
    """Restore what was `found` in a backup into an empty log that is open. Raises `ReplicationError`.

    `on_progress` is called with the serial that was reached, and the last one.
    """
    copy = choose_copy(folder, found, cut)
    last = copy.state.position.serial if cut is None or cut.serial is None else cut.serial
    newest = found.whole[-1].state
    # Also what is left out was given to somebody.
    beyond = [state for state in found.beyond if state.notes.get("history") == newest.notes.get("history")]
    states = [one.state for one in found.copies] + beyond
    tokens = [state.token for state in states] + [floor_of(state.notes) for state in states]  # type: ignore[arg-type]
    # Nobody has a token of an unfinished attempt before this one: its floor needs no margin.
    floor = max(floor_of(log.notes), floor_above(tokens, clock.seconds()))
    epoch = max(state.position.epoch for state in states) + 1

    def epoch_start(position: LogPosition) -> EpochStart:
        return EpochStart(
            epoch=epoch,
            serial=position.serial,
            digest=position.digest,
            at_ms=int(clock.seconds() * 1000),
            why="restored",
        )

    conversation = RecordedConversation(folder, copy, thread, cut=cut or Cut(), epoch_start=epoch_start)
    notes = newest.notes
    # Before the log is there: a kill must not leave it without.
    await log.note(
        floor=str(floor),
        # A revocation is never taken back: keys are restored as they were last.
        keys=_with_revocations(notes.get("keys"), [state.notes.get("keys") for state in beyond]),
        server_name=notes.get("server_name"),
    )

    def report(event: ReplicaEvent, progress: Progress) -> None:
        on_progress(progress.done, last)

    await JoinAttempt(log, conversation, clock, ALL, on_progress=report).run()
    return Restored(
        serial=log.head.serial,
        epoch=log.head.epoch,
        digest=log.head.digest,
        committed_ms=conversation.committed_ms,
        history=log.history,
        server_name=log.notes.get("server_name", ""),
        floor=floor,
        missing_files=list(conversation.names.missing(found.stored)),
    )


def _with_revocations(keys: str | None, later: Sequence[str | None]) -> str | None:
    """Return issued keys, as a note has them, revoked if they are in one of the `later` notes."""
    read = msgspec.json.Decoder(list[IssuedKey]).decode
    revoked = {
        one.record.id: one for text in later if text for one in read(text) if one.revoked_ms is not None
    }
    if keys is None or not revoked:
        return keys
    return msgspec.json.encode([revoked.get(one.record.id, one) for one in read(keys)]).decode()


async def restore_database(
    reactor: Any,
    path: Path,
    found: BackupContents,
    database: str,
    *,
    cut: Cut | None,
    on_progress: Callable[[int, int], object],
) -> Restored:
    """Restore what was `found` in the folder at `path` into a database. Raises `ReplicationError`."""
    folder = BackupFolder(path)
    choose_copy(folder, found, cut)
    name = Database(database).name
    engine = engine_for(database)
    engine.is_restored = True
    log = _closed_log(engine, reactor)
    thread = ReactorThread(reactor, "reading a backup")
    await log.start()
    try:
        check_empty(log, name)
        return await restore(
            folder, found, log, cut=cut, thread=thread, clock=reactor, on_progress=on_progress
        )
    finally:
        await thread.stop()
        await log.stop()


async def restore_in_place(reactor: Any, database: str) -> Restored:
    """Begin an epoch in a log that was put in its place by other means. Raises `ReplicationError`."""
    described = Database(database)
    if described.flavor == "sqlite" and not described.path.is_file():
        raise _refused(f"there is no file {described.path}", "put the copy of the log there first")
    engine = engine_for(database)
    engine.database.is_put_back = True
    log = _closed_log(engine, reactor)
    await log.start()
    try:
        result = await begin_restored(log, reactor)
        engine.database.is_put_back = False
        return result
    finally:
        await log.stop()


async def begin_restored(log: Log, clock: IClock) -> Restored:
    """Begin an epoch in an open log that was put in its place by other means. Raises `ReplicationError`."""
    tokens = [token for writers in log.head.positions.values() for token in writers.values()]
    floor = floor_above([floor_of(log.notes), *log.head.allocated.values(), *tokens], clock.seconds())
    # What it was is over: the settings of the daemon decide.
    await log.note(
        floor=str(floor),
        role=None,
        promoting=None,
        handover=None,
        primary_at=None,
        upstream_at=None,
        resync=None,
    )
    await log.epochs.begin_next("restored")
    head = log.head
    facts, _ = await log.reads.facts(after=head.serial - 1, upto=head.serial, limit=1)
    return Restored(
        serial=head.serial,
        epoch=head.epoch,
        digest=head.digest,
        committed_ms=facts[-1].committed_at_ms if facts else 0,
        history=log.history,
        server_name=log.notes.get("server_name", ""),
        floor=floor,
    )


def _closed_log(engine: SQLEngine, reactor: Any) -> Log:
    return Log(
        engine,
        ReactorThread(reactor, "writing"),
        ReactorThread(reactor, "reading"),
        reactor,
        ephemeral=(),
        logger=Logger(namespace="synrepl.restore"),
    )


def restore_files(folder: BackupFolder, target: Path) -> int:
    """Copy the files of a backup to the folder of a daemon's files; return how many.

    A file that is there, and has its checksum, stays. One of the backup that has it no longer is not copied.
    """
    count = 0
    for checksum in folder.stored_files():
        source, place = folder.file_path(checksum), target / "sha256" / checksum[:2] / checksum[2:]
        with map_path_errors("restore a file", place):
            make_directory(place.parent)
            if _has_checksum(place, checksum):
                continue
            fresh = place.with_name(f".{place.name}.new")
            with source.open("rb") as read, create_private(fresh) as written:
                shutil.copyfileobj(read, written)
                written.flush()
                os.fsync(written.fileno())
            if not _has_checksum(fresh, checksum):
                fresh.unlink()
                continue
            fresh.replace(place)
            sync_directory(place.parent)
        count += 1
    return count


def _has_checksum(path: Path, checksum: str) -> bool:
    """Whether the file is there, and can be read, and has this SHA-256."""
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest() == checksum
    except OSError:
        return False


def _refused(why: str, hint: str) -> StorageError:
    return StorageError(op="restore", why=why, hint=hint, tried=False)
