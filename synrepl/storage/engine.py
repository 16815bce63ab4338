"""The log in an SQL database, the same for all databases: what differs is in `LogDatabase`.

Which thread of a log runs what (`Daemon._open_log` makes the two of the log; each runs one call at a time):

    reactor   `Log`, `LogHead`, `LogReads`, `LogCopies`, `CheckedReads`, `Committer` except `_commit_group`,
              all of `EphemeralStore`, and the subscribers; of the database only `disk_usage`, of the engine
              `staging`, which opens nothing
    reading   `pages` except `pages.size`, `digest_at`, `receipts.between`, `check`
    writing   all others of `SQLEngine`, `receipts`, `notes` and `leases`; `pages.size`; what calls several of
              them in one go, as `Committer._commit_group` does; the whole engine of a `StagedCopy`

Two reads are in the writing thread. `snapshot` must tell of one moment, and calls `head`, which loads anew
what only that thread changes. `pages.size` has several statements: no commit or trim comes between them, and
no page for a follower waits for them. Tests of the log refuse other calls (`tests/storage/thread_table.py`).
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from uuid import uuid4

import msgspec
from twisted.logger import Logger

from synrepl.base.history import RESTORED_PREFIX, AppendReceipt, EpochStart, LogSnapshot
from synrepl.base.interfaces import Head, KeysOf
from synrepl.errors import StorageError
from synrepl.storage.beside_facts import StoredLeases, StoredNotes, StoredReceipts
from synrepl.storage.checked_rows import CHECKED_FACT, STORED_FACT, fact_of, facts_of, row_of_fact
from synrepl.storage.continuity import (
    CHECKED_AT_OPEN,
    DiscardedRanges,
    advance,
    check_ascend,
    check_epoch_start,
    check_follow,
    find_inconsistency,
)
from synrepl.storage.fact_pages import FactPages
from synrepl.storage.schema import (
    BESIDE_FACTS,
    DISCARDED_RANGES,
    EPOCH_STARTS,
    LOG_BOUNDS,
    NOTES,
    POSITIONS,
    RECEIPTS,
    LogBounds,
    change_header,
    check_last_fact,
    current_header,
    digest_of,
    end_of_log,
    migrate,
    migrations,
    read_bounds,
    row_of_receipt,
    stored_end,
)
from synrepl.storage.sql import DAMAGED, LogDatabase, SQLConnection
from synrepl.storage.trimming import trim_slice
from synrepl.storage.whole_appends import WholeAppends
from synrepl.storage.write_check import check_writes
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact
from synrepl.streams.writer import Writer
from synrepl.wire.position import LogPosition

_logger = Logger(namespace="synrepl.storage")

HIGHER: Final = "positions.token < excluded.token"
"""A position goes back only in an epoch that says so."""

CHECKED_RECEIPTS: Final = 1_000_000
"""Of more receipts it is not looked at each start whether one is missing, which takes a second."""


class SQLEngine:
    """Storage for facts, over two connections of `database`. Synchronous.

    Two threads call it at the same time, each what the table above says. The reading thread rests during
    `close` and `adopt_staged`. Every method may raise `StorageError`.

    The first open of a new log sets two notes (`notes`), both random: ``uuid`` is the uuid of this copy,
    ``history`` is the uuid of the log and of all its copies. With `is_restored` an open of an empty log sets
    a ``uuid`` that gives way (`RESTORED_PREFIX`).

    Up to `trimmed_upto` the log is sparse (`trimming.py`). Beyond it facts are missing only in a filtered
    copy (`LogBounds.sparse_upto`).
    """

    def __init__(self, database: LogDatabase) -> None:
        self.database = database
        self.is_restored = False
        self._ownership = database.ownership
        self._syntax = database.syntax
        self._discarded = DiscardedRanges()
        self._appends = WholeAppends(self._syntax.unindexed_stream)
        self.pages = FactPages(database, self._appends, self._discarded)
        """Reads of facts."""
        self.receipts = StoredReceipts(database)
        self.notes = StoredNotes(database)
        self.leases = StoredLeases(database)
        # None while unknown: a transaction that changed the bounds is running, or has an uncertain outcome.
        self._bounds: LogBounds | None = None

    def __repr__(self) -> str:
        return f"<SQLEngine {self.database.name}>"

    # -- life cycle ----------------------------------------------------------------------------------------

    def open(self, *, is_whole: bool = True) -> Head:
        """Create or migrate the tables, check the end of the log, count this boot, and return the head.

        Positions of a copy under construction (not `is_whole`) are not compared with its facts: which facts
        its source has lost comes at the end of a snapshot, with the right positions.
        """
        database = self.database
        if database.is_open:
            raise StorageError(op="open", why=f"{database.name} is open already")
        self._ownership.begin()
        with database.map_errors("open"):
            database.acquire()
        database.is_open = True
        try:
            with database.writer_connection("open") as connection:
                with connection.transaction():
                    tables = database.tables(connection)
                    steps = migrations(self._syntax.flavor)
                    migrate(connection.execute, tables, steps, database.name)
                    check_writes(connection, self._syntax, database.name)
                    self._check_receipts(connection)
                    self._reload(connection)
                    self._check_head(connection, with_positions=is_whole)
                    database.check_recorded(connection)
                    database.check_original(connection)
                    self._check_put_back(connection)
                    self._identify(connection)
                    change_header(connection, boots=current_header(connection).boots + 1)
                    database.mark_open(connection)
                head = self.head()
                database.check_in_place("open")
                database.record("open")
            self._ownership.boots = head.boots
            return head
        except BaseException:
            self.close()
            raise

    def _reload(self, connection: SQLConnection) -> None:
        """Reload what is cached in memory: the outcome of the last transaction may be unknown."""
        small = [table.name for table in BESIDE_FACTS if table is not RECEIPTS]
        self.database.check_tables(connection, small)
        self._bounds = read_bounds(connection)
        self._discarded.load(DISCARDED_RANGES.rows(connection.execute))
        self._appends.load(connection)

    def _check_receipts(self, connection: SQLConnection) -> None:
        (count,) = connection.execute("SELECT count(*) FROM receipts").fetchone()
        if count <= CHECKED_RECEIPTS:
            self.database.check_tables(connection, [RECEIPTS.name])

    def _check_head(self, connection: SQLConnection, *, with_positions: bool) -> None:
        floor = self._current_bounds(connection).floor
        with connection.stream(
            f"SELECT {CHECKED_FACT} FROM facts WHERE serial > ? ORDER BY serial DESC LIMIT ?",
            (floor.serial, CHECKED_AT_OPEN + 1),
        ) as rows:
            tail = list(facts_of(rows))[::-1]
        positions = _positions(connection) if with_positions else None
        why = find_inconsistency(tail, floor, positions, self._discarded)
        if why:
            why = f"{self.database.name}: {why}"
            raise StorageError(op="open", why=why, hint=DAMAGED.format(database=self._syntax.kind))

    def _check_put_back(self, connection: SQLConnection) -> None:
        """Refuse as a primary's log a copy that never had all facts: their tokens would be given again."""
        if self.database.is_put_back and [*NOTES.rows(connection.execute, "WHERE name = ?", ("filter",))]:
            why = f"{self.database.name} has only some streams or writers: it was a replica with a filter"
            hint = "start a new replica with --upstream in its place, or put back a log that had all facts"
            raise StorageError(op="restore", why=why, hint=hint, tried=False)

    def _identify(self, connection: SQLConnection) -> None:
        known: dict[str, str] = dict(NOTES.rows(connection.execute))
        fresh = {name: str(uuid4()) for name in ("uuid", "history") if name not in known}
        is_new = not end_of_log(connection, self._current_bounds(connection)).serial and "joined" not in known
        if self.is_restored and is_new and not known.get("uuid", "").startswith(RESTORED_PREFIX):
            fresh["uuid"] = RESTORED_PREFIX + str(uuid4())[len(RESTORED_PREFIX) :]
        NOTES.put(connection, fresh.items())

    def check(self) -> None:
        """Raise `StorageError` if the log cannot be read, or no longer belongs to this process.

        In the second case another process has opened it, or its SQLite file was deleted or replaced; then
        this call and all writes fail until the next `open`. Called every few seconds.
        """
        ownership = self._ownership
        with self.database.map_errors("check"):
            if ownership.not_ours is not None:
                raise ownership.not_ours
            self.database.check_open("check")
            connection = self.database.reader("check")
            boots = current_header(connection).boots
            if ownership.boots is not None and boots != ownership.boots:
                raise ownership.disown(
                    "check",
                    "another process has opened this log",
                    "find out which other program uses the database and stop it, then restart this daemon",
                )
            self.database.check_in_place("check")
            self.database.record_changes(connection)

    def shorten_wal(self) -> frozenset[str] | None:
        """Shorten a long write-ahead log. Returns None if it is short, else the programs that may read it."""
        with self.database.writer_connection("checkpoint"):
            return self.database.shorten_wal()

    def close(self) -> None:
        """Close the database. Idempotent."""
        database = self.database
        if database.is_open and self._ownership.boots is not None:
            # Also of a log that is no longer ours: what it has written is on the disk from now on.
            with suppress(StorageError), database.map_errors("close"):
                database.mark_closed()
            if self._ownership.not_ours is None:
                # The record may be stale; a log that can no longer be read must still close.
                with suppress(StorageError), database.map_errors("close"):
                    database.check_in_place("close")
                    database.record("close")
        self.database.is_open = False
        self._ownership.boots = None
        self.database.release()

    # -- the end of the log --------------------------------------------------------------------------------

    def head(self) -> Head:
        """The end of the log now, which also tells the outcome of a failed commit."""
        with self.database.writer_connection("head") as connection:
            self._reload(connection)
            bounds = self._current_bounds(connection)
            header, end = current_header(connection), end_of_log(connection, bounds)
            epoch_starts = list(EPOCH_STARTS.rows(connection.execute, "ORDER BY epoch"))
            positions = _positions(connection)
            allocated: dict[str, int] = {}
            for (stream, _), token in positions.items():
                allocated[stream] = max(token, allocated.get(stream, token))
            for stream, token in allocated.items():
                not_discarded, values = self._discarded.condition(stream)
                last = connection.execute(
                    f"SELECT {CHECKED_FACT} FROM facts WHERE stream = ?{not_discarded}"
                    " ORDER BY token DESC LIMIT 1",
                    (stream, *values),
                ).fetchone()
                allocated[stream] = token if last is None else max(token, fact_of(last).token)
        # After an uncertain commit the caller decides by this head, and the next commit builds on it.
        self._ownership.committed, self._ownership.attempted = (end.serial, end.digest), None
        return Head(
            epoch=max(header.epoch, end.epoch),
            serial=end.serial,
            digest=end.digest,
            boots=header.boots,
            positions=positions,
            allocated=allocated,
            trimmed_upto=bounds.trimmed_upto,
            epoch_starts=tuple(EpochStart(*row) for row in epoch_starts),
        )

    def digest_at(self, serial: int) -> str | None:
        """The digest at this serial; None if it is beyond the log or no longer known.

        Known are the digests of stored facts, at `trimmed_upto`, and, if it is later, at
        `LogBounds.sparse_upto`.
        """
        with self.database.reader_connection("digest_at") as connection:
            return digest_of(connection, serial)

    def _current_bounds(self, connection: SQLConnection) -> LogBounds:
        if self._bounds is None:
            self._bounds = read_bounds(connection)
        return self._bounds

    def _store_bounds(self, connection: SQLConnection, bounds: LogBounds) -> None:
        """Store the bounds, within a transaction. The caller sets `_bounds` once it has committed."""
        self._bounds = None
        LOG_BOUNDS.put(connection, bounds.rows())

    # -- appending -----------------------------------------------------------------------------------------

    def try_write(self) -> None:
        """Write a fact, read it back and delete it in one transaction, as at the start.

        Raises `StorageError` if the log takes no facts now, and `LogNotOurs` if another process wrote to it.
        """
        with self.database.transaction("try to write") as connection:
            self._check_sole_writer(connection, "try to write")
            check_writes(connection, self._syntax, self.database.name)

    def _check_sole_writer(self, connection: SQLConnection, op: str) -> LogPosition:
        """Return the end of the log, in a transaction.

        Raises `LogNotOurs` if another process wrote to it, and `LogDamage` if its last fact is damaged.
        """
        end = stored_end(connection, self._current_bounds(connection))
        if not self._ownership.is_end(end.serial, end.digest):
            # A flipped bit is nobody's write.
            check_last_fact(connection)
        self._ownership.check_sole_writer(op, end.serial, end.digest)
        return end

    def commit(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        """Store all of these or none, in one transaction, which is synced unless this log is a staged copy.

        Without `upto`, `facts` continue the log without a gap. The position of a writer becomes the highest
        token among its facts, which need not be the last. Raises `LogNotOurs` if another process has written
        to the log, or, after the commit, if its SQLite file is no longer in its place.

        With `upto` the facts are a part of another log's facts up to that position: their serials ascend from
        above the end of this log, and may have gaps. The log then ends at `upto`, whose digest is not
        verified. In both forms, receipts whose keys are known already are skipped.
        """
        ownership = self._ownership
        bounds: LogBounds | None = None
        with self.database.transaction("commit") as connection:
            end = self._check_sole_writer(connection, "commit")
            if upto is None:
                check_follow(facts, end.serial, end.digest)
            else:
                bounds = self._update_floor(connection, facts, upto, end.serial, end.digest)
            connection.insert("facts", STORED_FACT, map(row_of_fact, facts))
            positions: dict[Writer, int] = {}
            advance(positions, facts)
            POSITIONS.put(connection, [(*writer, token) for writer, token in positions.items()], where=HIGHER)
            self._appends.add(positions)
            if receipts:
                self.receipts.add(connection, receipts)
            if upto is not None:
                ownership.attempted = (upto.serial, upto.digest)
            elif facts:
                ownership.attempted = (facts[-1].serial, facts[-1].digest)
        if bounds is not None:
            self._bounds = bounds
        if ownership.attempted is not None:
            ownership.committed, ownership.attempted = ownership.attempted, None
        self.database.check_in_place("commit")

    def _update_floor(
        self, connection: SQLConnection, facts: Sequence[Fact], upto: LogPosition, serial: int, digest: str
    ) -> LogBounds | None:
        """Store `upto` as the end of the log, if the facts themselves do not imply it."""
        check_ascend(facts, serial, upto.serial)
        if upto.serial < serial:
            why = f"the log is at serial {serial} already, beyond its new end {upto.serial}"
            raise StorageError(op="commit", why=why)
        last = (facts[-1].serial, facts[-1].digest, facts[-1].epoch) if facts else ()
        is_whole = len(facts) == upto.serial - serial and last == (upto.serial, upto.digest, upto.epoch)
        if is_whole and verify(facts, digest) is None:
            return None
        bounds = msgspec.structs.replace(self._current_bounds(connection), sparse_upto=upto)
        self._store_bounds(connection, bounds)
        return bounds

    def rows_at_token(self, stream: str, token: int) -> list[tuple[str, bytes]]:
        """The writer and rows of every fact of this stream under this token, in order of serial.

        Discarded facts, those that their source lost, are not among them.
        """
        not_discarded, values = self._discarded.condition(stream)
        with self.database.writer_connection("rows_at_token", stream) as connection:
            found = connection.execute(
                f"SELECT {CHECKED_FACT} FROM facts WHERE stream = ? AND token = ?{not_discarded}"
                " ORDER BY serial",
                (stream, token, *values),
            )
            return [(fact.writer, fact.rows) for fact in facts_of(found)]

    # -- epochs and snapshots ------------------------------------------------------------------------------

    def begin_epoch(self, epoch_start: EpochStart) -> Head:
        """Begin a new epoch at the end of the log, which is the serial and digest of `epoch_start`.

        If it names a stream, the source of that stream lost the facts beyond its token. They keep their
        serials, and no read by token gives them any more; positions beyond the token go back to it. Raises
        `StorageError` unless the epoch is above the current one and starts at the end of the log.
        """
        check_epoch_start(epoch_start, self.head().position)
        with self.database.transaction("begin_epoch", epoch_start.stream) as connection:
            change_header(connection, epoch=epoch_start.epoch)
            self._insert_epoch_starts(connection, [epoch_start])
            if epoch_start.stream:
                beyond = "WHERE stream = ? AND token > ?"
                found = POSITIONS.rows(connection.execute, beyond, (epoch_start.stream, epoch_start.token))
                POSITIONS.put(connection, [(*writer, epoch_start.token) for *writer, _ in found])
        return self.head()

    @staticmethod
    def _insert_epoch_starts(connection: SQLConnection, epoch_starts: Sequence[EpochStart]) -> None:
        discarded = [(one.stream, one.epoch, one.token) for one in epoch_starts if one.stream]
        EPOCH_STARTS.insert(connection, map(msgspec.structs.astuple, epoch_starts))
        DISCARDED_RANGES.insert(connection, discarded)

    def snapshot(self) -> LogSnapshot:
        """The positions, epoch starts and receipts as of now, without facts, notes and leases."""
        with self.database.transaction("snapshot") as connection:
            head = self.head()
            receipts = self.receipts.all(connection)
        return LogSnapshot(
            position=head.position,
            trimmed_upto=head.trimmed_upto,
            epoch_starts=head.epoch_starts,
            positions=head.positions,
            receipts=receipts,
        )

    def restore(self, snapshot: LogSnapshot) -> Head:
        """Replace positions, epoch starts, receipts and `trimmed_upto` by the snapshot's in one transaction.

        Its facts, or those that pass the filter, were committed before. Raises `StorageError` if they do not
        fit the snapshot. Notes and leases stay. Returns the head.
        """
        position = snapshot.position
        with self.database.transaction("restore") as connection:
            known = self._current_bounds(connection)
            self._check_restorable(connection, known, position)
            end = end_of_log(connection, known)
            bounds = msgspec.structs.replace(known, trimmed_upto=snapshot.trimmed_upto)
            if (end.serial, end.digest) != (position.serial, position.digest):
                bounds = msgspec.structs.replace(bounds, sparse_upto=position)
            for table in ("positions", "receipts", "epoch_starts", "discarded_ranges"):
                connection.execute(f"DELETE FROM {table}")
            positions = [(*writer, token) for writer, token in snapshot.positions.items()]
            POSITIONS.insert(connection, positions)
            RECEIPTS.insert(connection, map(row_of_receipt, snapshot.receipts))
            self._insert_epoch_starts(connection, snapshot.epoch_starts)
            change_header(connection, epoch=position.epoch)
            self._store_bounds(connection, bounds)
        return self.head()

    @staticmethod
    def _check_restorable(connection: SQLConnection, bounds: LogBounds, position: LogPosition) -> None:
        found = connection.execute("SELECT serial, digest FROM facts ORDER BY serial DESC LIMIT 1").fetchone()
        serial, digest = found or (0, "")
        why = ""
        if max(serial, end_of_log(connection, bounds).serial) > position.serial:
            why = f"the copy goes beyond serial {position.serial}, the end of the snapshot"
        elif serial == position.serial and digest != position.digest and serial:
            why = f"the copy and the snapshot have different digests at serial {serial}"
        if why:
            raise StorageError(op="restore", why=why, hint="delete the copy, and begin it again")

    # -- trimming --------------------------------------------------------------------------------------------

    def trim(self, upto: int, keys: KeysOf, limit: int) -> LogPosition:
        """Trim the next slice of the log: at most `limit` facts after `trimmed_upto`, none beyond `upto`, and
        at most `limit` facts of a base that is not indexed yet. Returns the new `trimmed_upto`, which is
        never inside an atomic append.

        The digest at the new `trimmed_upto` must be known, so in a log with gaps it may stay before `upto`.
        In any other log it reaches `upto` once enough slices are trimmed.

        In a stream whose rows have keys a fact is deleted once later facts up to `trimmed_upto` have all its
        keys; in a stream without keys every fact is deleted. Discarded facts replace nothing and are deleted.
        Each slice is one transaction.
        """
        with self.database.writer_connection("trim") as connection:
            with connection.transaction():
                known = self._current_bounds(connection)
                upto = min(upto, end_of_log(connection, known).serial)
                upto = self._appends.begin(connection, upto)
                bounds = trim_slice(
                    connection,
                    known,
                    upto,
                    limit,
                    keys=keys,
                    discarded=self._discarded,
                    whole=partial(self._appends.end, connection),
                )
                if bounds != known:
                    self._store_bounds(connection, bounds)
            self._bounds = bounds
            if bounds != known:
                self.database.return_space(connection)
        return bounds.trimmed_upto

    # -- staging a copy ------------------------------------------------------------------------------------

    def staging(self) -> "SQLEngine":
        """A second log of the same kind, stored next to this one, for building a copy; not opened yet.

        An earlier process may have left it with the facts it had committed. Until `adopt_staged`, a power cut
        may lose whole commits to it.
        """
        return SQLEngine(self.database.staging())

    def drop_staged(self) -> None:
        """Delete the closed staged log, if there is one."""
        self.database.check_open("drop_staged")
        with self.database.map_errors("drop_staged"):
            self.database.drop_staged()

    def adopt_staged(self) -> Head:
        """Replace all of this log by the closed staged one, in one step that survives a power cut.

        X, `open` finds one of the two logs, complete. Counts as a boot.
        """
        database = self.database
        with self.database.writer_connection("adopt_staged"):
            if not database.is_staged():
                raise StorageError(op="adopt_staged", why=f"there is no staged copy of {database.name}")
            boots = max(self._ownership.boots or 0, 1)
            staged = self.staging()
            try:
                # Opening migrates and checks the staged log, before this one is gone.
                boots = max(boots, staged.open().boots) + 1
                with staged.database.transaction("adopt_staged") as connection:
                    change_header(connection, boots=boots)
                    staged.database.mark_open(connection, is_adopted=True)
            finally:
                staged.close()
            database.replace(staged.database, boots)
            try:
                database.finish_replacing()
                head = self.head()
                database.check_in_place("adopt_staged")
            except BaseException:
                # The database has the new log now: close, rather than continue the old one.
                self.close()
                raise
            try:
                database.record("adopt_staged")
            except StorageError as error:
                # The previous record fits this log as well.
                _logger.warn("{error}", error=str(error))
        self._ownership.boots = head.boots
        return head


def _positions(connection: SQLConnection) -> dict[Writer, int]:
    found = POSITIONS.rows(connection.execute)
    return {Writer(stream, writer): token for stream, writer, token in found}
