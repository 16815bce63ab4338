"""The log, used from the reactor's thread: group commit for kept streams, memory for ephemeral ones."""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Unpack

import msgspec
from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger

from synrepl.base.history import Appended, AppendKey, Lease
from synrepl.base.interfaces import Head, IClock, IThread, KeysOf
from synrepl.base.notes import NoteChanges, Notes, changed, own_notes
from synrepl.base.settings import UNNAMED
from synrepl.base.tasks import Tasks
from synrepl.base.time import Timer
from synrepl.errors import StorageError
from synrepl.storage.append_checks import AppendChecks
from synrepl.storage.append_errors import KeyReused, append_error, as_storage_error
from synrepl.storage.append_gate import AppendGate
from synrepl.storage.checked_reads import CheckedReads
from synrepl.storage.checkpoints import Checkpoints
from synrepl.storage.committer import Committer, detached
from synrepl.storage.engine import SQLEngine
from synrepl.storage.ephemeral import EphemeralStore, KeyOf
from synrepl.storage.epochs import Epochs
from synrepl.storage.group_commit import ALL_OF_IT, AppendRequest, checksum, parts_of
from synrepl.storage.log_copies import LogCopies
from synrepl.storage.log_head import LogHead
from synrepl.storage.log_reads import LogReads
from synrepl.storage.staged_copy import StagedCopy
from synrepl.storage.token_floor import floor_of
from synrepl.streams.atomic_appends import MAX_ATOMIC_FACTS, opening_rows
from synrepl.streams.catalog import ATOMIC_APPENDS
from synrepl.streams.facts import Fact
from synrepl.streams.origin import Origin
from synrepl.streams.writer import Writer
from synrepl.wire.position import LogPosition

MIB = 1024 * 1024
FORGET_EVERY_SECONDS = 3600.0
RECEIPT_MS = 24 * 3600 * 1000
"""How long, in ms, the receipt of an append with an idempotency key to a kept stream is stored at least."""


class Log:
    """The log over an engine: group commit for kept streams, memory for the `ephemeral` ones.

    A `Committer` writes, `reads` reads, `ephemeral` holds the ephemeral streams. The `head` advances only
    after a commit. An append that would raise the unanswered ones above
    `max_pending_bytes` fails at once; a group has up to `max_batch_bytes`. A single append may be larger.

    * `assigned`: streams whose facts already have tokens (`append_assigned`); `append` refuses these streams.
      As a mapping: stream to the reason for the refusal. As a collection: the reason is `FROM_TABLE`. In
      other streams `append` gives the next tokens, and `append_assigned` takes facts that have one.
    * `append_refusal(stream, writer)` returns the reason why this writer cannot append now; "" if it can.
    * `gate` tells whether appends may go in at all; by default they may.
    * `unordered`: streams whose facts may arrive with lower tokens after higher ones.
    * `any_writer`: streams in which each writer may repeat facts of the others.

    A log with facts belongs to one homeserver: the `server_name` of the first start that had a name. A log
    that is empty, and no copy of another log, takes the name of the next start that has one.

    The log owns the engine and both threads from `start` to `stop`.
    """

    def __init__(
        self,
        engine: SQLEngine,
        writing: IThread,
        reading: IThread,
        clock: IClock,
        *,
        ephemeral: Collection[str],
        key_of: KeyOf | None = None,
        assigned: Mapping[str, str] | Collection[str] = (),
        unordered: Collection[str] = (),
        any_writer: Collection[str] = (),
        append_refusal: Callable[[str, str], str] = lambda stream, writer: "",
        server_name: str = "",
        gate: AppendGate | None = None,
        max_pending_bytes: int = 64 * MIB,
        max_batch_bytes: int = 4 * MIB,
        max_ephemeral_bytes: int = 8 * MIB,
        logger: Logger,
    ) -> None:
        self.table_streams: frozenset[str] = frozenset()
        """The streams that the primary reads from tables, each writer's facts as they are complete."""
        self.gate = AppendGate() if gate is None else gate
        self._engine = engine
        self._writing = writing
        self._reading = reading
        self._clock = clock
        self._logger = logger
        self._tasks = Tasks(logger, "log")
        self.head = LogHead()
        """Where the log ends, after the last commit of known outcome."""
        self._committer = Committer(
            engine,
            writing,
            clock,
            self.head,
            unordered=unordered,
            any_writer=any_writer,
            max_pending_bytes=max_pending_bytes,
            max_batch_bytes=max_batch_bytes,
            on_commit=self._on_commit,
            logger=logger,
        )
        self._checked = CheckedReads(
            engine, reading, clock, on_not_ours=self._committer.disown, logger=logger
        )
        self.ephemeral = EphemeralStore(ephemeral, key_of=key_of, max_bytes=max_ephemeral_bytes)
        """The ephemeral streams."""
        self.reads = LogReads(engine, self._checked, self.head, self.ephemeral, writing=writing)
        """Reads of facts, digests and receipts."""
        self.epochs = Epochs(engine, writing, clock, self.head, self._committer)
        """Begins epochs, and tells who wants to know."""
        self.copies = LogCopies(
            engine,
            writing,
            clock,
            self.head,
            self._committer,
            self._checked,
            self.epochs,
            adopt=self._adopt,
            notify=self._notify,
        )
        """Snapshots for replicas, and following another log."""
        self._checks = AppendChecks(assigned=assigned, append_refusal=append_refusal)
        self._server_name = server_name
        self._subscribers: list[Callable[[Sequence[Fact]], None]] = []
        self.notes: Notes = {}
        """Short texts stored with the log, by name."""
        self.leases: dict[str, Lease] = {}
        """All leases, by uuid."""
        self.boots = 0
        """The number of this boot, which rises with each open and adopted copy; epoch of ephemeral facts."""
        self.checkpoints = Checkpoints(clock, self._tasks, lambda: writing.run(engine.shorten_wal))
        self._forget_timer = Timer(
            clock, lambda: self._tasks.start(self._forget_receipts(), "deleting old idempotency receipts")
        )

    # -- life cycle ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the engine and load the head.

        If the engine cannot be opened, or the log belongs to another homeserver, both threads are stopped,
        and `StorageError` is raised.
        """
        try:
            head = await self._load(self._engine.open)
            try:
                await self._check_server_name(head)
            except BaseException:
                await self._writing.run(self._engine.close)
                raise
        except BaseException:
            # The log owns the threads, and nothing else would stop them after this failure.
            await self._reading.stop()
            await self._writing.stop()
            raise
        self._load_state(head)
        self._committer.open()
        self._checked.open()
        self._forget_timer.start(FORGET_EVERY_SECONDS)
        if self.disk_usage() is not None:
            self.checkpoints.start()

    async def _load(self, open_engine: Callable[[], Head]) -> Head:
        def work() -> tuple[Head, Notes, list[Lease]]:
            return open_engine(), self._engine.notes.all(), self._engine.leases.all()

        head, self.notes, leases = await self._writing.run(work)
        self.leases = {lease.uuid: lease for lease in leases}
        self.table_streams = frozenset(msgspec.json.decode(self.notes.get("tables", "[]"), type=list[str]))
        return head

    async def _check_server_name(self, head: Head) -> None:
        mine, known = self._server_name, self.notes.get("server_name")
        if mine in ("", known):
            return
        is_empty = not head.serial and "joined" not in self.notes
        if known is None or is_empty:
            stored_name = None if mine == UNNAMED else mine
            if stored_name != known:
                await self._note({"server_name": stored_name})
        else:
            raise StorageError(
                op="open",
                why=f"this log belongs to {known}, not to {mine}",
                hint=f"use --server-name {known}, or choose another database",
                tried=False,
            )

    def _load_state(self, head: Head) -> None:
        self._committer.reset()
        self._checked.health.failing.clear()
        self.head.load(head)
        self.head.floor = floor_of(self.notes)
        self.boots = head.boots
        self.ephemeral.restart(head.boots)

    async def stop(self) -> None:
        """Refuse new appends, commit the queued ones, then close the engine and stop both threads."""
        if not self._committer.is_open:
            return
        self._checked.close()
        await self._committer.close()
        self._forget_timer.stop()
        self.checkpoints.stop()
        try:
            await self._wait_for_reads()
            await self._writing.run(self._engine.close)
        finally:
            await self._reading.stop()
            await self._writing.stop()

    def abandon(self) -> object:
        """Stop as a killed process does, for simulations (`Committer.abandon`)."""
        self._checked.close()
        self._forget_timer.stop()
        self.checkpoints.stop()
        return self._committer.abandon()

    async def _wait_for_reads(self) -> None:
        # The file must not be closed or replaced under the last read.
        await self._reading.run(lambda: None)

    async def _forget_receipts(self) -> None:
        self._forget_timer.start(FORGET_EVERY_SECONDS)
        await self._writing.run(partial(self._engine.receipts.forget, self._now_ms() - RECEIPT_MS))

    # -- position, health and history ----------------------------------------------------------------------

    @property
    def position(self) -> LogPosition:
        """Where the log ends: epoch, serial and digest."""
        return self.head.position

    @property
    def uuid(self) -> str:
        """The uuid of this copy of the log; empty before `start`."""
        return self.notes.get("uuid", "")

    @property
    def history(self) -> str:
        """The uuid of the log, the same for all its copies; empty before `start`."""
        return self.notes.get("history", "")

    @property
    def healthy(self) -> tuple[bool, str]:
        """Whether the log works, and the reason if not.

        It does not work if it is closed, if it belongs to another process, if the last commit of appends
        failed (an `InvalidValue` does not count), or while a read or a trim fails (`CheckedReads`).
        """
        if not self._committer.is_open:
            return False, "the log is not open"
        why = self._committer.problem or self._checked.health.why
        return not why, why

    def failing_since(self) -> float:
        """In clock seconds: the last commit if commits fail, the first failure if reads fail, else now."""
        return self._committer.committed_at if self._committer.problem else self._checked.health.since

    def head_age(self) -> float:
        """Seconds since the last commit of facts, or since the start."""
        return self._clock.seconds() - self._committer.committed_at

    def positions(self, stream: str) -> dict[str, int]:
        """The committed position of each writer of this stream."""
        ephemeral = self.ephemeral.streams.get(stream)
        return dict(self.head.positions.get(stream, {}) if ephemeral is None else ephemeral.positions)

    def linear_position(self, stream: str) -> int:
        """The token up to which the facts of all writers are here; 0 if there is none.

        Where tokens are given here, or arrive in order, it is the highest one. In a stream of `table_streams`
        a writer may be ahead of others, and it is the lowest position.
        """
        if stream in self.table_streams and (positions := self.head.positions.get(stream)):
            return min(positions.values())
        ephemeral = self.ephemeral.streams.get(stream)
        return self.head.allocated.get(stream, 0) if ephemeral is None else ephemeral.token

    def positions_by_stream(self) -> dict[str, dict[str, int]]:
        """The positions of every stream that has writers, ephemeral streams included."""
        return {
            stream: positions
            for stream in [*self.head.positions, *self.ephemeral.streams]
            if (positions := self.positions(stream))
        }

    def disk_usage(self) -> dict[str, int] | None:
        """The bytes of the log's files, and those that are free on its disk; None if unknown."""
        return self._engine.database.disk_usage()

    # -- subscribers ---------------------------------------------------------------------------------------

    def subscribe(self, subscriber: Callable[[Sequence[Fact]], None]) -> None:
        """Call `subscriber` with each group of facts, in order, once it is known to be committed.

        Ephemeral facts come in groups of their own, with serial 0. Successful appends are answered after the
        subscribers. The facts of an adopted copy are not given (`LogCopies.on_replaced`).
        """
        self._subscribers.append(subscriber)

    def _on_commit(self, facts: Sequence[Fact]) -> None:
        self._checked.retry_soon()
        self._notify(facts)

    def _notify(self, facts: Sequence[Fact]) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(facts)
            except Exception:
                self._logger.failure("a log subscriber failed")

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)

    # -- notes and leases ----------------------------------------------------------------------------------

    async def note(self, **notes: Unpack[NoteChanges]) -> None:
        """Store these notes; None deletes a note. The write continues if the caller is cancelled."""
        await detached(self._note(notes), Deferred())

    async def _note(self, notes: NoteChanges) -> None:
        await self._writing.run(partial(self._engine.notes.store, notes))
        self.notes = changed(self.notes, notes)
        self.head.floor = floor_of(self.notes)

    async def keep_leases(self, changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None:
        """Store these leases, and delete the dropped uuids."""
        await self._writing.run(partial(self._engine.leases.store, changed, dropped))
        self.leases.update((lease.uuid, lease) for lease in changed)
        for uuid in dropped:
            self.leases.pop(uuid, None)

    # -- appending -----------------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        writer: str,
        facts: Sequence[bytes],
        *,
        key: str | None = None,
        owner: str = "",
        part: int = 0,
        origin: Origin = Origin.APPEND,
    ) -> "Deferred[Appended]":
        """Append facts, each the canonical JSON array of its rows. Fires when durable; if ephemeral, at once.

        Fails with `StorageError`. Nothing is stored in that case, unless the message says that it may be.
        With an idempotency `key` a retry gets the first response: for `RECEIPT_MS`, in an ephemeral stream
        until the next boot or `ephemeral.RECEIPTS` later keys. The key of another request gives `KeyReused`.
        The key belongs to the stream, the `owner` and the `part` of a batch (`AppendKey`). `origin` is the
        way in which the facts came: some streams take only those of the daemon's own code.
        """
        refusal = self._check_request(stream, writer, origin)
        if refusal is not None:
            return fail(refusal)
        if (refusal := self.gate.refusal(stream)) is not None:
            return fail(refusal)
        refusal = self._checks.check_writer(stream, writer)
        if refusal is not None:
            return fail(refusal)
        if not facts:
            return succeed(Appended(self.head.epoch, None, []))
        refusal = self._checks.check_key(stream, key, owner)
        if refusal is not None:
            return fail(refusal)
        append_key = None if key is None else AppendKey(stream, key, owner, part)
        fingerprint = "" if key is None else checksum(stream, writer, facts)
        if stream in self.ephemeral.streams:
            try:
                appended, added = self.ephemeral.append(
                    stream, writer, facts, self._now_ms(), key=append_key, checksum=fingerprint
                )
            except KeyReused as error:
                return fail(error)
            if added:
                self._notify(added)
            return succeed(appended)
        request = AppendRequest(stream, writer, facts, append_key, fingerprint)
        return self._committer.coalesce(request) or self._committer.enqueue(request)

    def append_atomic(
        self, appends: Sequence[tuple[str, str, Sequence[bytes]]], *, key: str, owner: str = ""
    ) -> "Deferred[list[Appended]]":
        """Append facts of several streams and writers: all of them, or none. Fires when they are durable.

        `appends` are ``(stream, writer, facts)``, together at most `MAX_ATOMIC_FACTS` facts. They are
        committed in one transaction, here and at every replica with all streams, since they have one receipt;
        a fact of the stream ``atomic_appends`` before them tells readers how many they are. Fails as `append`
        does; an ephemeral stream is refused, as its facts are not committed.
        """
        writers = [Writer(stream, writer) for stream, writer, facts in appends for _ in facts]
        for stream, writer in dict.fromkeys(writers):
            refusal = self._check_request(stream, writer, Origin.APPEND)
            refusal = refusal or self._checks.check_writer(stream, writer)
            if refusal is None and stream in self.ephemeral.streams:
                refusal = append_error(stream, "its facts are in memory, and cannot be part of one append")
            if refusal is None:
                refusal = self.gate.refusal(stream)
            if refusal is not None:
                return fail(refusal)
        if (refusal := self._checks.check_key(ALL_OF_IT, key, owner)) is not None:
            return fail(refusal)
        if len(writers) > MAX_ATOMIC_FACTS:
            why = f"an atomic append may have {MAX_ATOMIC_FACTS} facts, not {len(writers)}"
            return fail(append_error(ALL_OF_IT, why))
        if not writers:
            return succeed([Appended(self.head.epoch, None, []) for _ in appends])
        request = AppendRequest(
            ALL_OF_IT,
            "",
            [opening_rows(len(writers)), *(rows for _, _, facts in appends for rows in facts)],
            AppendKey(ALL_OF_IT, key, owner),
            checksum(*_joined(appends)),
            writers=[Writer(ATOMIC_APPENDS.name, writers[0].name), *writers],
        )
        stored = self._committer.coalesce(request) or self._committer.enqueue(request)
        return stored.addCallback(parts_of, [1, *(len(facts) for _, _, facts in appends)]).addCallback(
            operator.itemgetter(slice(1, None))
        )

    def append_assigned(self, stream: str, facts: Sequence[tuple[str, int, bytes]]) -> "Deferred[Appended]":
        """Append facts that already have a writer and a token. Fires when durable; if ephemeral, at once.

        `facts` are ``(writer, token, canonical rows)``, those of each writer in order of token. Facts up to
        the writer's position are skipped. In an unordered stream such a fact is stored as a late one, and the
        position stays, if its token is at least 1 and it has rows that are not stored under this token yet. A
        fact without rows (``[]``) says that the writer wrote nothing since its last fact, and one that is
        `LOST` that what it wrote could not be got. In an `any_writer`
        stream, a fact that is not late, and that another writer already sent, is stored without its rows.

        Facts of calls in one iteration of the reactor usually share a commit.
        """
        for writer in {writer for writer, _, _ in facts}:
            refusal = self._check_request(stream, writer, Origin.SOURCE)
            if refusal is not None:
                return fail(refusal)
        if stream in self.ephemeral.streams:
            appended, added = self.ephemeral.append_assigned(stream, facts, self._now_ms())
            if added:
                self._notify(added)
            return succeed(appended)
        if (refusal := self.gate.refusal(stream)) is not None:
            return fail(refusal)
        assigned = [(writer, token) for writer, token, _ in facts]
        request = AppendRequest(stream, "", [rows for _, _, rows in facts], None, "", assigned)
        return self._committer.enqueue(request, delay=True)

    def reset_writer(self, stream: str, writer: str) -> None:
        """Reset a writer of an ephemeral stream: drop its facts and set its position to 0.

        Subscribers get a fact without rows at token 0. Raises `StorageError` for a kept stream, or if the log
        is closed or not ours.
        """
        refusal = self._check_request(stream, writer, Origin.SOURCE)
        if refusal is None and stream not in self.ephemeral.streams:
            why = "only writers of ephemeral streams can be reset: positions in a kept stream never go back"
            refusal = StorageError(op="reset_writer", why=why, stream=stream)
        if refusal is not None:
            raise refusal
        self._notify([self.ephemeral.streams[stream].reset_writer(writer, self._now_ms())])

    def _check_request(self, stream: str, writer: str, origin: Origin) -> StorageError | None:
        if not self._committer.is_open:
            return append_error(stream, "the log is not open", retryable=True)
        checks = self._checks
        return (
            self._committer.not_ours
            or checks.check_names(stream, writer)
            or checks.check_origin(stream, origin)
        )

    async def flush(self) -> None:
        """Wait until all earlier writes succeeded or failed. Raises `StorageError` if the log is closed."""
        await self._committer.flush()

    async def trim(self, upto: int, keys: KeysOf, limit: int) -> LogPosition:
        """Run `SQLEngine.trim` on one slice. Returns the new `trimmed_upto`."""

        async def work() -> LogPosition:
            try:
                trimmed_upto = await self._writing.run(partial(self._engine.trim, upto, keys, limit))
            except Exception as error:
                # Without a probe: by the time of a retry a lease may need the facts.
                failure = as_storage_error(error, "trim")
                self._checked.record_failure("trim", failure, None)
                raise failure from error
            self._checked.health.failing.pop("trim", None)
            self.head.trimmed_upto = trimmed_upto
            return trimmed_upto

        return await self._committer.exclusive(work)

    async def _adopt(self, copy: StagedCopy) -> None:
        await copy.finish(own_notes(self.notes), list(self.leases.values()))
        with self._checked.paused():
            await self._wait_for_reads()
            self._load_state(await self._load(self._engine.adopt_staged))


def _joined(appends: Sequence[tuple[str, str, Sequence[bytes]]]) -> tuple[str, str, list[bytes]]:
    """Return what the checksum of an append to several streams is of."""
    texts: list[bytes] = []
    for stream, writer, facts in appends:
        texts += [f"{stream} {writer} {len(facts)}".encode(), *facts]
    return ALL_OF_IT, "", texts
