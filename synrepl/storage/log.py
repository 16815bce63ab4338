"""The log, used from the reactor's thread: group commit for durable streams, memory for ephemeral ones."""

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger

from synrepl.errors import StorageError
from synrepl.ports.history import LogRange
from synrepl.ports.interfaces import Appended, Head, IClock, IEngine, IThread
from synrepl.ports.tasks import Tasks
from synrepl.storage.append_errors import FROM_TABLE, GivenElsewhere, InvalidValue, KeyReused, LogLost
from synrepl.storage.ephemeral import EphemeralStream, KeyOf
from synrepl.storage.group_commit import AppendRequest, CommitGroup, LogHead, build_group, checksum
from synrepl.storage.health import Probe, ReadHealth
from synrepl.storage.replica_staging import ReplicaStaging
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.wire.filter import ALL, Filter

__all__ = ["Log"]

MIB = 1024 * 1024
RETRY_SECONDS = 1.0
"""Delay before the outcome of an uncertain commit is looked up again, when no append triggers the lookup."""
FORGET_EVERY_SECONDS = 3600.0
RECEIPT_MS = 24 * 3600 * 1000
"""How long the receipt of an append with an idempotency key is kept."""
MAX_NAME_BYTES = 1024
"""Limit for stream names, writer names and idempotency keys: two of them fit in a PostgreSQL index entry."""
EPHEMERAL_RECEIPTS = 10_000
"""How many receipts are kept in memory for ephemeral streams."""
UNNAMED = "localhost"
"""The server name of an unconfigured daemon. It is not stored: a real name may be configured later."""


class Log(ReplicaStaging):
    """An `ILog` over an engine: group commit for durable streams, memory for the `ephemeral` ones.

    One commit runs at a time. Appends that arrive meanwhile go together into the next group, up to
    `max_batch_bytes`. A group gets its serials, tokens and digests when it is built; the log's head advances
    only after the commit. Above `max_pending_bytes` of unanswered appends, further appends fail at once.

    Facts of the `assigned` streams already have tokens (`append_assigned`); `append` refuses these streams. A
    mapping gives the reason of the refusal for each stream; without a mapping it is the homeserver's table.
    Facts of all other streams get their tokens in `append`. `append_refusal(stream, writer)` gives the reason
    for which the writer cannot append at the moment, or "". Facts of `unordered` streams may arrive with
    lower tokens after higher ones. In the streams `any_writer` each writer may repeat facts of the others.

    A log belongs to one homeserver: the `server_name` of the first start that had a name.

    The log owns the engine and both threads from `start` to `stop`.
    """

    def __init__(
        self,
        engine: IEngine,
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
        max_pending_bytes: int = 64 * MIB,
        max_batch_bytes: int = 4 * MIB,
        max_ephemeral_bytes: int = 8 * MIB,
        logger: Logger,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._writing = writing
        self._reading = reading
        self._clock = clock
        self._key_of = key_of
        self._max_pending_bytes = max_pending_bytes
        self._max_batch_bytes = max_batch_bytes
        self._max_ephemeral_bytes = max_ephemeral_bytes
        self._logger = logger
        self._tasks = Tasks(logger, "log")

        self._head = LogHead()
        self._watchers: list[Callable[[Sequence[Fact]], None]] = []
        self._queue: deque[AppendRequest] = deque()
        self._keyed: dict[str, AppendRequest] = {}
        self._pending_bytes = 0
        self._is_writing = False
        self._idle: list[Deferred[None]] = []
        # The group whose commit failed with an unknown outcome.
        self._uncertain_commit: CommitGroup | None = None

        self._ephemeral_names = frozenset(ephemeral)
        self._ephemeral: dict[str, EphemeralStream] = {}
        self._ephemeral_receipts: OrderedDict[str, tuple[str, Appended]] = OrderedDict()
        self._assigned = assigned if isinstance(assigned, Mapping) else dict.fromkeys(assigned, FROM_TABLE)
        self._unordered = frozenset(unordered)
        self._any_writer = frozenset(any_writer)
        self._append_refusal = append_refusal
        self._server_name = server_name
        self.write_barrier: Callable[[str], StorageError] | None = None
        """Gives the error that refuses appends to a stream; `follow` passes. None while appends are open."""
        self._valid_names: set[str] = set()

        self._boots = 0
        self._is_open = False
        self._problem = ""
        self._lost: LogLost | None = None
        self._reads = ReadHealth(clock.seconds)
        self._is_checking = False
        self._committed_at = 0.0
        self._timers: dict[str, Any] = {}

    # Life cycle

    async def start(self) -> None:
        """Open the engine and load the head.

        Raises `StorageError` when the engine cannot be opened or the log belongs to another homeserver. Both
        threads are stopped then.
        """
        try:
            head = await self._load(self._engine.open)
            try:
                await self._check_server_name(head)
            except BaseException:
                await self._writing.run(self._engine.close)
                raise
        except BaseException:
            # Running threads would keep the process alive after this failure.
            await self._reading.stop()
            await self._writing.stop()
            raise
        self._load_state(head)
        self._committed_at = self._clock.seconds()
        self._is_open = True
        self._call_later("forget", FORGET_EVERY_SECONDS, self._forget_receipts)
        self._call_later("check", self._reads.next_check_seconds, self._start_check)

    async def _check_server_name(self, head: Head) -> None:
        """Refuse the log of another homeserver; store the name in a log that is empty or has no name."""
        mine, known = self._server_name, self._notes.get("server_name")
        if mine in ("", known):
            return
        is_empty = not head.serial and "joined" not in self._notes
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
        """Take the engine's head, and start the ephemeral streams empty."""
        self._uncertain_commit = None
        self._problem = ""
        self._reads.clear()
        self._head.load(head)
        self._boots = head.boots
        self._ephemeral = {
            name: EphemeralStream(
                name, epoch=head.boots, key_of=self._key_of, max_bytes=self._max_ephemeral_bytes
            )
            for name in self._ephemeral_names
        }

    async def stop(self) -> None:
        """Refuse new appends, commit the queued ones, then close the engine and stop both threads."""
        if not self._is_open:
            return
        self._is_open = False
        if self._queue:
            self._start_writing()
        while self._is_writing:
            await self._when_idle()
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        try:
            # Wait for the last read: the file must not be closed under it.
            await self._reading.run(_do_nothing)
            await self._writing.run(self._engine.close)
        finally:
            await self._reading.stop()
            await self._writing.stop()

    # Position and health

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._head.epoch

    @property
    def serial(self) -> int:
        """The last committed serial."""
        return self._head.serial

    @property
    def digest(self) -> str:
        """The digest at `serial`, the end of the log."""
        return self._head.digest

    @property
    def boots(self) -> int:
        """How often this log was opened; also the epoch of ephemeral facts."""
        return self._boots

    @property
    def pending_bytes(self) -> int:
        """The approximate size of the appends that are not answered yet, in bytes."""
        return self._pending_bytes

    @property
    def healthy(self) -> tuple[bool, str]:
        """Whether the log works, and the reason if it does not: the log is closed or belongs to another
        process, the last commit failed, or a read fails.
        """
        if not self._is_open:
            return False, "the log is not open"
        why = self._problem or self._reads.why
        return not why, why

    def failing_since(self) -> float:
        """When an unhealthy log was last known to work, in seconds of the clock."""
        return self._committed_at if self._problem else self._reads.since

    def head_age(self) -> float:
        """Seconds since the last commit, or since the start."""
        return self._clock.seconds() - self._committed_at

    def positions(self, stream: str) -> dict[str, int]:
        """The committed position of each writer of this stream."""
        ephemeral = self._ephemeral.get(stream)
        return dict(self._head.positions.get(stream, {}) if ephemeral is None else ephemeral.positions)

    def linear_position(self, stream: str) -> int:
        """The highest committed token of the stream over all writers; 0 if there is none."""
        ephemeral = self._ephemeral.get(stream)
        return self._head.allocated.get(stream, 0) if ephemeral is None else ephemeral.token

    def positions_by_stream(self) -> dict[str, dict[str, int]]:
        """The positions of every stream that has facts, ephemeral streams included."""
        return {
            stream: positions
            for stream in [*self._head.positions, *self._ephemeral]
            if (positions := self.positions(stream))
        }

    def subscribe(self, watcher: Callable[[Sequence[Fact]], None]) -> None:
        """Call `watcher` with each group of facts, in order, right after its commit.

        Ephemeral facts come in groups of their own, with serial 0. Appends are answered after the watchers.
        """
        self._watchers.append(watcher)

    # Appending

    def append(
        self, stream: str, writer: str, facts: Sequence[bytes], *, key: str | None = None
    ) -> "Deferred[Appended]":
        """Append facts, each the canonical JSON array of its rows. Fires when they are durable.

        Fails with `StorageError`. Nothing was stored then, unless the message says that it may have been.
        With an idempotency `key` a retry is safe and gets the first response. Fails with `KeyReused` if the
        key belongs to another request.
        """
        refusal = self._check_request(stream, writer)
        if refusal is not None:
            return fail(refusal)
        if self.write_barrier is not None:
            return fail(self.write_barrier(stream))
        if stream in self._assigned:
            return fail(GivenElsewhere(stream=stream, why=self._assigned[stream]))
        if why := self._append_refusal(stream, writer):
            return fail(GivenElsewhere(stream=stream, why=why))
        if not facts:
            return succeed(Appended(self.epoch, None, []))
        if key is not None and not _is_storable(key):
            return fail(
                _append_error(stream, f"{key[:100]!r} is not a valid idempotency key: too long, or not text")
            )
        fingerprint = "" if key is None else checksum(stream, writer, facts)
        ephemeral = self._ephemeral.get(stream)
        if ephemeral is not None:
            return self._append_ephemeral(ephemeral, writer, facts, key, fingerprint)
        if key is not None and (first := self._keyed.get(key)) is not None:
            if first.checksum != fingerprint:
                return fail(KeyReused(key=key, stream=stream))
            shared: Deferred[Appended] = Deferred()
            first.coalesced.append(shared)
            return shared
        response = self._enqueue(AppendRequest(stream, writer, facts, key, fingerprint))
        self._start_writing()
        return response

    def append_assigned(self, stream: str, facts: Sequence[tuple[str, int, bytes]]) -> "Deferred[Appended]":
        """Append facts that already have a writer and a token. Fires when they are durable.

        `facts` are ``(writer, token, canonical rows)``.

        The facts of each writer come in order of token, and those up to its position are skipped. In an
        unordered stream a fact is skipped only if the log has the same rows under its token: a late fact is
        stored and leaves the position where it is. A fact without rows (``[]``) certifies that the writer
        wrote nothing since its last fact. In a stream told by all, a fact that another writer already
        reported is stored without its rows.

        Facts that arrive in one iteration of the reactor are committed together.
        """
        for writer in {writer for writer, _, _ in facts}:
            refusal = self._check_request(stream, writer)
            if refusal is not None:
                return fail(refusal)
        ephemeral = self._ephemeral.get(stream)
        if ephemeral is None and self.write_barrier is not None:
            return fail(self.write_barrier(stream))
        if ephemeral is not None:
            now = self._now_ms()
            added = [fact for item in facts if (fact := ephemeral.append_assigned(*item, now)) is not None]
            if added:
                self._notify(added)
            return succeed(Appended(ephemeral.epoch, None, [fact.token for fact in added]))
        assigned = [(writer, token) for writer, token, _ in facts]
        response = self._enqueue(
            AppendRequest(stream, "", [rows for _, _, rows in facts], None, "", assigned)
        )
        if not self._is_writing:
            self._call_later("adopted", 0, self._start_writing)
        return response

    def reset_writer(self, stream: str, writer: str) -> None:
        """Reset a writer of an ephemeral stream: drop its facts and set its position to 0.

        Watchers get a fact without rows at token 0. Raises `StorageError` for a durable stream, whose
        positions never go back.
        """
        refusal = self._check_request(stream, writer)
        if refusal is None and stream not in self._ephemeral:
            why = "its facts are durable, and its position never goes back"
            refusal = StorageError(op="reset_writer", why=why, stream=stream)
        if refusal is not None:
            raise refusal
        self._notify([self._ephemeral[stream].reset_writer(writer, self._now_ms())])

    async def rewind_stream(self, stream: str, upto: int) -> None:
        """Start a new epoch in which the stream's facts beyond token `upto` are discarded: its source lost
        them.

        Followers beyond `upto` have a diverged history: the caller must close their connections.
        """
        await self.next_epoch("lost", stream=stream, token=upto)

    async def _exclusive(self) -> None:
        if self._queue:
            self._start_writing()
        while self._is_writing:
            await self._when_idle()
        if not self._is_open:
            raise _append_error("", "the log is not open", retryable=True)
        self._is_writing = True

    def _end_exclusive(self) -> None:
        self._is_writing = False
        self._resolve_idle()
        if self._queue or self._uncertain_commit is not None:
            self._start_writing()

    def _when_idle(self) -> "Deferred[None]":
        idle: Deferred[None] = Deferred()
        self._idle.append(idle)
        return idle

    def _check_request(self, stream: str, writer: str) -> StorageError | None:
        if not self._is_open:
            return _append_error(stream, "the log is not open", retryable=True)
        if self._lost is not None:
            return self._lost
        if stream not in self._valid_names or writer not in self._valid_names:
            for name in (stream, writer):
                if name.split() != [name] or not _is_storable(name):
                    return _append_error(
                        stream, f"{name[:100]!r} is not a valid name: empty, too long, or not one word"
                    )
                self._valid_names.add(name)
        return None

    def _enqueue(self, request: AppendRequest) -> "Deferred[Appended]":
        """Queue a request for the next group, unless too much is pending."""
        if self._pending_bytes and self._pending_bytes + request.size > self._max_pending_bytes:
            return fail(
                _append_error(request.stream, "the log is busy", hint="try again later", retryable=True)
            )
        if request.key is not None:
            self._keyed[request.key] = request
        self._pending_bytes += request.size
        self._queue.append(request)
        return request.response

    def _append_ephemeral(
        self,
        ephemeral: EphemeralStream,
        writer: str,
        facts: Sequence[bytes],
        key: str | None,
        fingerprint: str,
    ) -> "Deferred[Appended]":
        """Append to an ephemeral stream, and respond at once."""
        if key is not None and (known := self._ephemeral_receipts.get(key)) is not None:
            return (
                succeed(known[1])
                if known[0] == fingerprint
                else fail(KeyReused(key=key, stream=ephemeral.name))
            )
        added = ephemeral.append(writer, facts, self._now_ms())
        appended = Appended(ephemeral.epoch, None, [fact.token for fact in added])
        if key is not None:
            self._ephemeral_receipts[key] = (fingerprint, appended)
            if len(self._ephemeral_receipts) > EPHEMERAL_RECEIPTS:
                self._ephemeral_receipts.popitem(last=False)
        self._notify(added)
        return succeed(appended)

    # Reading

    def read(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> Awaitable[tuple[list[Fact], int]]:
        """Run `IEngine.read` in the reading thread, up to the facts that watchers have seen."""
        upto = min(upto, self.serial)
        return self._read(
            "read", partial(self._engine.read, after=after, upto=upto, limit=limit, filter=filter)
        )

    def read_text(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> Awaitable[tuple[bytes, int]]:
        """Run `IEngine.read_text`, as `read` does."""
        upto = min(upto, self.serial)
        return self._read(
            "read_text", partial(self._engine.read_text, after=after, upto=upto, limit=limit, filter=filter)
        )

    def extent(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> Awaitable[LogRange]:
        """Run `IEngine.extent`, as `read` does."""
        upto = min(upto, self.serial)
        return self._read(
            "extent", partial(self._engine.extent, after=after, upto=upto, limit=limit, filter=filter)
        )

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> Awaitable[tuple[list[Fact], bool]]:
        """Run `IEngine.read_tokens` in the reading thread; ephemeral streams are read from memory."""
        ephemeral = self._ephemeral.get(stream)
        if ephemeral is not None:
            return succeed(ephemeral.read_tokens(writer=writer, after=after, upto=upto, limit=limit))
        return self._read(
            "read_tokens",
            partial(
                self._engine.read_tokens,
                stream=stream,
                writer=writer,
                after=after,
                upto=upto,
                serial=min(serial, self.serial),
                limit=limit,
            ),
        )

    def ephemeral_after(self, stream: str, after: int) -> list[Fact]:
        """The facts of an ephemeral stream beyond token `after` that are in memory, in order of token."""
        ephemeral = self._ephemeral.get(stream)
        return [] if ephemeral is None else ephemeral.after(after)

    def ephemeral_snapshot(self) -> list[Fact]:
        """The ephemeral facts in memory, then one position marker per writer: a fact without rows.

        The token of a marker is lower than before when the writer was reset.
        """
        found: list[Fact] = []
        for name in sorted(self._ephemeral):
            stream = self._ephemeral[name]
            found += stream.after(0)
            found += [
                Fact(0, self._boots, name, writer, token, token, NO_ROWS, 0, "")
                for writer, token in sorted(stream.positions.items())
            ]
        return found

    def writer_resets(self, stream: str) -> int:
        """How often writers of this ephemeral stream were reset since the log was opened."""
        ephemeral = self._ephemeral.get(stream)
        return 0 if ephemeral is None else ephemeral.writer_resets

    def forget(self, stream: str, upto: int) -> None:
        """Drop an ephemeral stream's facts up to this token: every reader has them."""
        ephemeral = self._ephemeral.get(stream)
        if ephemeral is not None:
            ephemeral.forget(upto)

    # Writing: one coroutine, while the queue has requests or a commit is uncertain

    def _start_writing(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._tasks.start(self._write(), "writing")

    async def _write(self) -> None:
        try:
            while self._queue or self._uncertain_commit is not None:
                if (
                    self._uncertain_commit is not None
                    and (error := await self._resolve_uncertain_commit()) is not None
                ):
                    self._fail_queue(error)
                    break
                if self._queue:
                    await self._write_group(self._next_batch())
        finally:
            self._is_writing = False
            self._resolve_idle()

    def _resolve_idle(self) -> None:
        idle, self._idle = self._idle, []
        for waiter in idle:
            waiter.callback(None)

    def _next_batch(self) -> list[AppendRequest]:
        """Take the next requests off the queue: at least one, up to `max_batch_bytes`."""
        batch: list[AppendRequest] = []
        room = self._max_batch_bytes
        while self._queue and (not batch or self._queue[0].size <= room):
            request = self._queue.popleft()
            room -= request.size
            batch.append(request)
        return batch

    async def _write_group(self, requests: list[AppendRequest]) -> None:
        try:
            group, error, is_known = await self._writing.run(
                partial(self._commit_group, requests, self._now_ms())
            )
        except Exception as unexpected:
            # The thread itself failed: nothing was attempted.
            group, error, is_known = None, _as_storage_error(unexpected), True
        if error is not None:
            if not isinstance(error, InvalidValue):
                self._problem = str(error)
            if isinstance(error, LogLost):
                self._set_lost(error)
                # Its outcome no longer matters: the database belongs to another process.
                is_known = True
            if group is not None and not is_known:
                self._uncertain_commit = group
                error = StorageError(
                    op="append",
                    why=f"{error.why}; it may have been stored",
                    hint=error.hint or "retry with the same idempotency key",
                    retryable=True,
                )
                self._call_later("resolve", RETRY_SECONDS, self._start_writing)
            self._logger.error("{count} appends failed: {error}", count=len(requests), error=str(error))
            for request in requests:
                self._resolve(request, error)
            return
        assert group is not None
        self._apply_group(group)
        for request, appended in zip(requests, group.results, strict=True):
            self._resolve(request, appended)

    def _commit_group(
        self, requests: list[AppendRequest], at_ms: int
    ) -> tuple[CommitGroup | None, StorageError | None, bool]:
        """Build a group and commit it, in the writing thread. Gives the group, the error, and whether the
        outcome is certain.

        Reading `_head` from this thread is safe: it changes only between groups.
        """
        group = None
        try:
            group = build_group(
                self._head,
                requests,
                at_ms,
                self._engine.receipt,
                rows_at_token=self._engine.rows_at_token,
                unordered=self._unordered,
                any_writer=self._any_writer,
            )
            if group.facts:
                self._engine.commit(group.facts, group.receipts)
        except Exception as error:
            failure = _as_storage_error(error)
            if group is None or not failure.tried:
                return None, failure, True
            try:
                now = self._engine.head()
            except Exception:
                return group, failure, False
            if now.digest == group.after:
                return group, None, True
            return group, failure, now.digest == group.before
        return group, None, True

    async def _resolve_uncertain_commit(self) -> StorageError | None:
        """Look up the outcome of the uncertain commit. Gives the error if the engine cannot say."""
        group = self._uncertain_commit
        assert group is not None
        try:
            head: Head = await self._writing.run(self._engine.head)
        except Exception as error:
            failure = _as_storage_error(error)
            if isinstance(failure, LogLost):
                self._set_lost(failure)
                self._uncertain_commit = None
                return failure
            self._problem = f"the log's position is unknown: {failure}"
            self._call_later("resolve", RETRY_SECONDS, self._start_writing)
            return failure
        self._uncertain_commit = None
        if head.digest == group.after:
            self._logger.info("{count} facts were stored after all", count=len(group.facts))
            self._apply_group(group)
        elif head.digest != group.before:
            lost = LogLost(
                op="append",
                why=f"another process writes to this log: it is at serial {head.serial}, this process left it"
                f" at {self._head.serial}",
                hint="find out which other program uses the database and stop it, then restart this daemon",
                retryable=True,
                tried=False,
            )
            self._set_lost(lost)
            return lost
        return None

    def _set_lost(self, lost: LogLost) -> None:
        """Refuse all further appends until a restart."""
        if self._lost is None:
            self._lost = lost
            self._logger.critical("the log takes no more appends: {why}", why=str(lost))
        self._problem = str(self._lost)

    def _fail_queue(self, failure: StorageError) -> None:
        """Fail the queued requests: no serials can be given while the log's position is unknown."""
        error = StorageError(
            op="append",
            why=self._problem,
            hint="try again later" if failure.retryable else "",
            retryable=failure.retryable,
            tried=False,
        )
        waiting, self._queue = self._queue, deque()
        for request in waiting:
            self._resolve(request, error)

    def _apply_group(self, group: CommitGroup) -> None:
        """Advance the head over this committed group, and notify the watchers."""
        if group.facts:
            self._problem = ""
            self._committed_at = self._clock.seconds()
            if self._reads.probes:
                # A commit succeeded, so retry the failed reads at once.
                self._check_soon(0)
            self._head.advance(group.facts)
            if group.receipts:
                self._head.receipts_upto = self._head.serial
            self._notify(group.facts)

    def _notify(self, facts: Sequence[Fact]) -> None:
        for watcher in self._watchers:
            try:
                watcher(facts)
            except Exception:
                self._logger.failure("a log subscriber failed")

    def _resolve(self, request: AppendRequest, response: Appended | StorageError | None) -> None:
        self._pending_bytes -= request.size
        if request.key is not None:
            del self._keyed[request.key]
            if response is None:
                response = KeyReused(key=request.key, stream=request.stream)
        for waiter in (request.response, *request.coalesced):
            if isinstance(response, Appended):
                waiter.callback(response)
            elif response is not None:
                waiter.errback(response)

    # Read health and ownership

    def _read_failed(self, kind: str, error: StorageError, probe: Probe | None) -> None:
        if not self._is_open:
            return
        if isinstance(error, LogLost):
            self._set_lost(error)
            return
        was_readable = not self._reads.why
        self._reads.record_failure(kind, error, probe)
        if was_readable and self._reads.why:
            self._logger.error("the log cannot be read: {why}", why=self._reads.why)
        self._check_soon(self._reads.next_check_seconds)

    def _check_soon(self, seconds: float) -> None:
        due = self._timers.get("check")
        if due is not None and due.active() and due.getTime() > self._clock.seconds() + seconds:
            due.cancel()
        if not self._is_checking:
            self._call_later("check", seconds, self._start_check)

    def _start_check(self) -> None:
        self._tasks.start(self._check_log(), "checking the log")

    async def _check_log(self) -> None:
        """Retry the failed reads, and check that this process still owns the log."""
        self._is_checking = True
        was_readable = not self._reads.why
        try:
            for kind, probe in self._reads.probes:
                await self._retry_read(kind, probe)
            if "check" not in dict(self._reads.probes):
                await self._read("check", self._engine.check)
        except StorageError:
            # `_read` has recorded the failure.
            pass
        finally:
            self._is_checking = False
            if not was_readable and not self._reads.why:
                self._logger.info("the log is readable again")
            self._call_later("check", self._reads.next_check_seconds, self._start_check)

    async def _retry_read(self, kind: str, probe: Probe) -> None:
        try:
            await probe()
        except StorageError as error:
            self._read_failed(kind, error, probe)
        else:
            self._reads.record_success(kind)

    # Timers

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)

    def _call_later(self, what: str, seconds: float, work: Callable[[], None]) -> None:
        """Call `work` after `seconds`, unless the same timer is already running."""
        due = self._timers.get(what)
        if self._is_open and (due is None or not due.active()):
            self._timers[what] = self._clock.callLater(seconds, work)

    def _forget_receipts(self) -> None:
        before_ms = self._now_ms() - RECEIPT_MS
        self._tasks.start(self._delete_receipts(before_ms), "deleting old idempotency receipts")
        self._call_later("forget", FORGET_EVERY_SECONDS, self._forget_receipts)

    async def _delete_receipts(self, before_ms: int) -> None:
        await self._writing.run(partial(self._engine.forget_receipts, before_ms))


def _do_nothing() -> None:
    pass


def _is_storable(name: str) -> bool:
    """Whether every database can store this name. A bad name would fail its whole group."""
    try:
        return len(name.encode()) <= MAX_NAME_BYTES and "\0" not in name
    except UnicodeEncodeError:
        return False


def _append_error(stream: str, why: str, *, hint: str = "", retryable: bool = False) -> StorageError:
    return StorageError(op="append", why=why, hint=hint, stream=stream, retryable=retryable)


def _as_storage_error(error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    unexpected = StorageError(op="append", why=f"unexpected {type(error).__name__}: {error}")
    unexpected.__cause__ = error
    return unexpected
