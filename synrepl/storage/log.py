"""The log as the reactor's thread sees it: appends go together, commits go one after the other."""

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
from synrepl.storage.group_commit import AppendRequest, CommitGroup, LogHead, checksum, form
from synrepl.storage.health import Probe, ReadHealth
from synrepl.storage.replica_staging import ReplicaStaging
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.wire.filter import ALL, Filter

__all__ = ["Log"]

MIB = 1024 * 1024
RETRY_SECONDS = 1.0
"""How long after a commit of unknown outcome the engine is asked again, when nobody appends meanwhile."""
FORGET_EVERY_SECONDS = 3600.0
RECEIPT_MS = 24 * 3600 * 1000
"""How long the answer of an append with an idempotency key is remembered."""
MAX_NAME_BYTES = 1024
"""Of a stream, a writer, an idempotency key. Two of them must fit in PostgreSQL's entry of an index."""
EPHEMERAL_RECEIPTS = 10_000
"""How many such answers are remembered for ephemeral streams."""
UNNAMED = "localhost"
"""The server name of a daemon that was given none. It is not kept: a real one may be given later."""


class Log(ReplicaStaging):
    """An `ILog` over an engine: group commit for kept streams, memory for the `ephemeral` ones.

    One commit is under way at a time; what is appended meanwhile goes together into the next, up to
    `max_batch_bytes`. Serials, tokens and digests are given when a group is formed, and adopted when it is
    kept. Over `max_pending_bytes` of unanswered appends, further ones fail at once.

    The facts of `adopted` streams come with tokens that were given elsewhere (`adopt`), those of all others
    get them here (`append`). Where they come from is told to who appends nevertheless: a mapping says it of
    each stream, without one it is the homeserver's table. `refuses` says why nothing can be appended to a
    stream by a writer, if that is so just now. Of the `unordered` streams lower tokens may be
    adopted after higher ones; any writer may tell the facts of the others in those `told_by_all`.

    The log is of one homeserver, `server_name`, from when it is first opened with a name.

    The engine and both threads are the log's own from `start` to `stop`.
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
        adopted: Mapping[str, str] | Collection[str] = (),
        unordered: Collection[str] = (),
        told_by_all: Collection[str] = (),
        refuses: Callable[[str, str], str] = lambda stream, writer: "",
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

        self._standing = LogHead()
        self._watchers: list[Callable[[Sequence[Fact]], None]] = []
        self._queue: deque[AppendRequest] = deque()
        self._keyed: dict[str, AppendRequest] = {}
        self._pending_bytes = 0
        self._is_writing = False
        self._idle: list[Deferred[None]] = []
        # The group whose commit failed in a way that leaves open whether it was kept.
        self._doubted: CommitGroup | None = None

        self._ephemeral_names = frozenset(ephemeral)
        self._ephemeral: dict[str, EphemeralStream] = {}
        self._ephemeral_receipts: OrderedDict[str, tuple[str, Appended]] = OrderedDict()
        self._adopted = adopted if isinstance(adopted, Mapping) else dict.fromkeys(adopted, FROM_TABLE)
        self._unordered = frozenset(unordered)
        self._told_by_all = frozenset(told_by_all)
        self._refuses = refuses
        self._server_name = server_name
        self.sealed: Callable[[str], StorageError] | None = None
        """Why nothing is added here just now but by `follow`, told of a stream; None while it is."""
        self._names: set[str] = set()

        self._boots = 0
        self._is_open = False
        self._trouble = ""
        self._lost: LogLost | None = None
        self._reads = ReadHealth(clock.seconds)
        self._is_looking = False
        self._committed_at = 0.0
        self._timers: dict[str, Any] = {}

    # Its life

    async def start(self) -> None:
        """Open the engine and take up where it stands.

        When it cannot be opened, or is of another homeserver (`StorageError`), both threads are ended.
        """
        try:
            head = await self._load(self._engine.open)
            try:
                await self._check_server_name(head)
            except BaseException:
                await self._writing.run(self._engine.close)
                raise
        except BaseException:
            # Threads left running would keep alive a process that wants to end because of this.
            await self._reading.stop()
            await self._writing.stop()
            raise
        self._begin_life(head)
        self._committed_at = self._clock.seconds()
        self._is_open = True
        self._later("forget", FORGET_EVERY_SECONDS, self._forget_receipts)
        self._later("look", self._reads.next_seconds, self._look_now)

    async def _check_server_name(self, head: Head) -> None:
        """Refuse a log of another homeserver; keep the name with one that has none, or nothing else yet."""
        mine, known = self._server_name, self._notes.get("server_name")
        if mine in ("", known):
            return
        is_empty = not head.serial and "joined" not in self._notes
        if known is None or is_empty:
            kept = None if mine == UNNAMED else mine
            if kept != known:
                await self._note({"server_name": kept})
        else:
            raise StorageError(
                op="open",
                why=f"this log is of {known}, not of {mine}",
                hint=f"say --server-name {known}, or name another database",
                tried=False,
            )

    def _begin_life(self, head: Head) -> None:
        """Stand where the engine says; what is ephemeral begins anew."""
        self._doubted = None
        self._trouble = ""
        self._reads.clear()
        self._standing.take(head)
        self._boots = head.boots
        self._ephemeral = {
            name: EphemeralStream(
                name, epoch=head.boots, key_of=self._key_of, max_bytes=self._max_ephemeral_bytes
            )
            for name in self._ephemeral_names
        }

    async def stop(self) -> None:
        """Finish what is queued, then close the engine and end both threads. Refuses appends at once."""
        if not self._is_open:
            return
        self._is_open = False
        if self._queue:
            self._write_soon()
        while self._is_writing:
            await self._until_idle()
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        try:
            # After the last read, so that nobody closes the file under it.
            await self._reading.run(_nothing)
            await self._writing.run(self._engine.close)
        finally:
            await self._reading.stop()
            await self._writing.stop()

    # Where it stands

    @property
    def epoch(self) -> int:
        """The epoch of this history."""
        return self._standing.epoch

    @property
    def serial(self) -> int:
        """The last committed serial."""
        return self._standing.serial

    @property
    def digest(self) -> str:
        """The digest at `serial`."""
        return self._standing.digest

    @property
    def boots(self) -> int:
        """How often this log was opened: the epoch of the facts of ephemeral streams."""
        return self._boots

    @property
    def pending_bytes(self) -> int:
        """About how many bytes of appends are not answered yet."""
        return self._pending_bytes

    @property
    def healthy(self) -> tuple[bool, str]:
        """Whether the log can be expected to work; if not, why: the log is not ours any more, the last commit
        failed, or a read fails.
        """
        if not self._is_open:
            return False, "the log is not open"
        why = self._trouble or self._reads.why
        return not why, why

    def failing_since(self) -> float:
        """When it was last known to work, if it is not healthy; in seconds of the clock."""
        return self._committed_at if self._trouble else self._reads.since

    def head_age(self) -> float:
        """Seconds since a group was last committed, or since the start."""
        return self._clock.seconds() - self._committed_at

    def positions(self, stream: str) -> dict[str, int]:
        """The committed position of each writer of this stream."""
        held = self._ephemeral.get(stream)
        return dict(self._standing.positions.get(stream, {}) if held is None else held.positions)

    def linear_position(self, stream: str) -> int:
        """The highest committed token of the stream, whoever wrote it; 0 when there is none."""
        held = self._ephemeral.get(stream)
        return self._standing.allocated.get(stream, 0) if held is None else held.token

    def clock(self) -> dict[str, dict[str, int]]:
        """The positions of every stream that has any facts, ephemeral ones included."""
        return {
            stream: positions
            for stream in [*self._standing.positions, *self._ephemeral]
            if (positions := self.positions(stream))
        }

    def watch(self, watcher: Callable[[Sequence[Fact]], None]) -> None:
        """Call `watcher` with each group of facts, in order, right after it is committed.

        Ephemeral facts come in groups of their own, with serial 0. Whoever appended is answered after it.
        """
        self._watchers.append(watcher)

    # Adding to it

    def append(
        self, stream: str, writer: str, facts: Sequence[bytes], *, key: str | None = None
    ) -> "Deferred[Appended]":
        """Add facts (each the canonical JSON array of its rows); done when they are durable.

        Fails with `StorageError`, and then nothing of it is stored, unless the text says that it may be. With
        an idempotency `key` asking again is harmless, and gives the first answer; `KeyReused` when the key
        stands for another request.
        """
        refusal = self._refusal(stream, writer)
        if refusal is not None:
            return fail(refusal)
        if self.sealed is not None:
            return fail(self.sealed(stream))
        if stream in self._adopted:
            return fail(GivenElsewhere(stream=stream, why=self._adopted[stream]))
        if why := self._refuses(stream, writer):
            return fail(GivenElsewhere(stream=stream, why=why))
        if not facts:
            return succeed(Appended(self.epoch, None, []))
        if key is not None and not _is_text(key):
            return fail(_refused(stream, f"{key[:100]!r} cannot be an idempotency key: too long, or no text"))
        asked = "" if key is None else checksum(stream, writer, facts)
        held = self._ephemeral.get(stream)
        if held is not None:
            return self._hold(held, writer, facts, key, asked)
        if key is not None and (first := self._keyed.get(key)) is not None:
            if first.checksum != asked:
                return fail(KeyReused(key=key, stream=stream))
            shared: Deferred[Appended] = Deferred()
            first.sharers.append(shared)
            return shared
        answer = self._ask(AppendRequest(stream, writer, facts, key, asked))
        self._write_soon()
        return answer

    def adopt(self, stream: str, facts: Sequence[tuple[str, int, bytes]]) -> "Deferred[Appended]":
        """Add facts that have a writer and a token already: ``(writer, token, canonical rows)``; done when
        they are durable.

        Each writer's come in the order of their tokens; those that it has reached already are left out. Of an
        unordered stream only those are that the log has, with the same rows: others came late, are kept, and
        leave the position where it is. A fact without rows (``[]``) certifies that the writer wrote nothing
        since its last one. Of a stream told by all, what another writer has told is kept as such a fact.

        What is adopted in one turn of the reactor goes together.
        """
        for writer in {writer for writer, _, _ in facts}:
            refusal = self._refusal(stream, writer)
            if refusal is not None:
                return fail(refusal)
        held = self._ephemeral.get(stream)
        if held is None and self.sealed is not None:
            return fail(self.sealed(stream))
        if held is not None:
            now = self._now_ms()
            made = [fact for given in facts if (fact := held.adopt(*given, now)) is not None]
            if made:
                self._show(made)
            return succeed(Appended(held.epoch, None, [fact.token for fact in made]))
        places = [(writer, token) for writer, token, _ in facts]
        answer = self._ask(AppendRequest(stream, "", [rows for _, _, rows in facts], None, "", places))
        if not self._is_writing:
            self._later("adopted", 0, self._write_soon)
        return answer

    def restart(self, stream: str, writer: str) -> None:
        """The writer of an ephemeral stream began anew: its facts are forgotten, its position is 0.

        Watchers are shown a fact without rows at token 0. `StorageError` of a kept stream, which never goes
        back.
        """
        refusal = self._refusal(stream, writer)
        if refusal is None and stream not in self._ephemeral:
            refusal = StorageError(op="restart", why="it is kept, and never goes back", stream=stream)
        if refusal is not None:
            raise refusal
        self._show([self._ephemeral[stream].restart(writer, self._now_ms())])

    async def lose(self, stream: str, upto: int) -> None:
        """The history of this stream beyond `upto` was lost where it came from: a new epoch begins.

        Followers that have more are beside this history from now on: the caller must close their connections.
        """
        await self.next_epoch("lost", stream=stream, token=upto)

    async def _turn_to_write(self) -> None:
        if self._queue:
            self._write_soon()
        while self._is_writing:
            await self._until_idle()
        if not self._is_open:
            raise _refused("", "the log is not open", retryable=True)
        self._is_writing = True

    def _end_turn(self) -> None:
        self._is_writing = False
        self._wake_idle()
        if self._queue or self._doubted is not None:
            self._write_soon()

    def _until_idle(self) -> "Deferred[None]":
        idle: Deferred[None] = Deferred()
        self._idle.append(idle)
        return idle

    def _refusal(self, stream: str, writer: str) -> StorageError | None:
        if not self._is_open:
            return _refused(stream, "the log is not open", retryable=True)
        if self._lost is not None:
            return self._lost
        if stream not in self._names or writer not in self._names:
            for name in (stream, writer):
                if name.split() != [name] or not _is_text(name):
                    return _refused(stream, f"{name[:100]!r} cannot be a name: empty, too long, or no word")
                self._names.add(name)
        return None

    def _ask(self, request: AppendRequest) -> "Deferred[Appended]":
        """Queue a request for the next group."""
        if self._pending_bytes and self._pending_bytes + request.size > self._max_pending_bytes:
            return fail(_refused(request.stream, "the log is busy", hint="try again later", retryable=True))
        if request.key is not None:
            self._keyed[request.key] = request
        self._pending_bytes += request.size
        self._queue.append(request)
        return request.answer

    def _hold(
        self, held: EphemeralStream, writer: str, facts: Sequence[bytes], key: str | None, asked: str
    ) -> "Deferred[Appended]":
        """Append to an ephemeral stream: answered at once."""
        if key is not None and (known := self._ephemeral_receipts.get(key)) is not None:
            return succeed(known[1]) if known[0] == asked else fail(KeyReused(key=key, stream=held.name))
        made = held.append(writer, facts, self._now_ms())
        appended = Appended(held.epoch, None, [fact.token for fact in made])
        if key is not None:
            self._ephemeral_receipts[key] = (asked, appended)
            if len(self._ephemeral_receipts) > EPHEMERAL_RECEIPTS:
                self._ephemeral_receipts.popitem(last=False)
        self._show(made)
        return succeed(appended)

    # Reading it

    def read(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        wanted: Filter = ALL,
    ) -> Awaitable[tuple[list[Fact], int]]:
        """`IEngine.read`, in the reading thread; nothing that watchers have not seen yet."""
        upto = min(upto, self.serial)
        return self._read(
            "read", partial(self._engine.read, after=after, upto=upto, limit=limit, wanted=wanted)
        )

    def read_text(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        wanted: Filter = ALL,
    ) -> Awaitable[tuple[bytes, int]]:
        """`IEngine.read_text`, likewise."""
        upto = min(upto, self.serial)
        return self._read(
            "read_text", partial(self._engine.read_text, after=after, upto=upto, limit=limit, wanted=wanted)
        )

    def extent(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        wanted: Filter = ALL,
    ) -> Awaitable[LogRange]:
        """`IEngine.extent`, likewise."""
        upto = min(upto, self.serial)
        return self._read(
            "extent", partial(self._engine.extent, after=after, upto=upto, limit=limit, wanted=wanted)
        )

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> Awaitable[tuple[list[Fact], bool]]:
        """`IEngine.read_tokens`, in the reading thread; ephemeral streams are read from memory."""
        held = self._ephemeral.get(stream)
        if held is not None:
            return succeed(held.read_tokens(writer=writer, after=after, upto=upto, limit=limit))
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
        """What memory holds of an ephemeral stream beyond token `after`, in order."""
        held = self._ephemeral.get(stream)
        return [] if held is None else held.after(after)

    def held_ephemeral(self) -> list[Fact]:
        """All that memory holds of them, and behind that where each writer is: a fact without rows, whose
        token may be lower than it was. Who was told otherwise knows by it that the writer began anew.
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

    def restarts(self, stream: str) -> int:
        """How often a writer of this ephemeral stream began anew while the log was open."""
        held = self._ephemeral.get(stream)
        return 0 if held is None else held.restarts

    def forget(self, stream: str, upto: int) -> None:
        """Let go of an ephemeral stream's facts up to this token: all who read it have them."""
        held = self._ephemeral.get(stream)
        if held is not None:
            held.forget(upto)

    # The writing: one coroutine while there is anything to write

    def _write_soon(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._tasks.start(self._write(), "writing")

    async def _write(self) -> None:
        try:
            while self._queue or self._doubted is not None:
                if self._doubted is not None and (error := await self._settle_doubt()) is not None:
                    self._fail_queue(error)
                    break
                if self._queue:
                    await self._write_group(self._take_group())
        finally:
            self._is_writing = False
            self._wake_idle()

    def _wake_idle(self) -> None:
        idle, self._idle = self._idle, []
        for waiter in idle:
            waiter.callback(None)

    def _take_group(self) -> list[AppendRequest]:
        """The next requests, at least one, up to the bound of a batch."""
        taken: list[AppendRequest] = []
        room = self._max_batch_bytes
        while self._queue and (not taken or self._queue[0].size <= room):
            request = self._queue.popleft()
            room -= request.size
            taken.append(request)
        return taken

    async def _write_group(self, requests: list[AppendRequest]) -> None:
        try:
            group, error, is_known = await self._writing.run(partial(self._keep, requests, self._now_ms()))
        except Exception as unexpected:
            # The thread itself failed, so that nothing was tried.
            group, error, is_known = None, _as_storage_error(unexpected), True
        if error is not None:
            if not isinstance(error, InvalidValue):
                self._trouble = str(error)
            if isinstance(error, LogLost):
                self._lose(error)
                # What it became, if anything, is in a database that is not ours any more.
                is_known = True
            if group is not None and not is_known:
                self._doubted = group
                error = StorageError(
                    op="append",
                    why=f"{error.why}; it may have been kept",
                    hint=error.hint or "ask again with the same idempotency key",
                    retryable=True,
                )
                self._later("doubt", RETRY_SECONDS, self._write_soon)
            self._logger.error("{count} appends failed: {error}", count=len(requests), error=str(error))
            for request in requests:
                self._answer(request, error)
            return
        assert group is not None
        self._adopt(group)
        for request, appended in zip(requests, group.answers, strict=True):
            self._answer(request, appended)

    def _keep(
        self, requests: list[AppendRequest], at_ms: int
    ) -> tuple[CommitGroup | None, StorageError | None, bool]:
        """In the writing thread: form a group and commit it. Gives what failed, and whether that is certain.

        It may look at where the log stands: that changes only between groups.
        """
        group = None
        try:
            group = form(
                self._standing,
                requests,
                at_ms,
                self._engine.receipt,
                held=self._engine.held,
                unordered=self._unordered,
                told_by_all=self._told_by_all,
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

    async def _settle_doubt(self) -> StorageError | None:
        """Find out what became of the doubted group; why not, while the engine does not say."""
        group = self._doubted
        assert group is not None
        try:
            head: Head = await self._writing.run(self._engine.head)
        except Exception as error:
            failure = _as_storage_error(error)
            if isinstance(failure, LogLost):
                self._lose(failure)
                self._doubted = None
                return failure
            self._trouble = f"nobody knows where the log stands: {failure}"
            self._later("doubt", RETRY_SECONDS, self._write_soon)
            return failure
        self._doubted = None
        if head.digest == group.after:
            self._logger.info("{count} facts were kept after all", count=len(group.facts))
            self._adopt(group)
        elif head.digest != group.before:
            lost = LogLost(
                op="append",
                why=f"somebody else writes to this log: it is at serial {head.serial}, this process left it"
                f" at {self._standing.serial}",
                hint="find out which other program has the database and stop it, then restart this daemon",
                retryable=True,
                tried=False,
            )
            self._lose(lost)
            return lost
        return None

    def _lose(self, lost: LogLost) -> None:
        """Take no facts any more, for good."""
        if self._lost is None:
            self._lost = lost
            self._logger.critical("no more appends: {why}", why=str(lost))
        self._trouble = str(self._lost)

    def _fail_queue(self, failure: StorageError) -> None:
        """Fail what waits: it cannot be given serials as long as nobody knows which are taken."""
        error = StorageError(
            op="append",
            why=self._trouble,
            hint="try again later" if failure.retryable else "",
            retryable=failure.retryable,
            tried=False,
        )
        waiting, self._queue = self._queue, deque()
        for request in waiting:
            self._answer(request, error)

    def _adopt(self, group: CommitGroup) -> None:
        """Stand after this group, which is kept, and show it."""
        if group.facts:
            self._trouble = ""
            self._committed_at = self._clock.seconds()
            if self._reads.probes:
                # A database that takes facts again may be read again.
                self._look_soon(0)
            self._standing.advance(group.facts)
            if group.receipts:
                self._standing.receipts_upto = self._standing.serial
            self._show(group.facts)

    def _show(self, facts: Sequence[Fact]) -> None:
        for watcher in self._watchers:
            try:
                watcher(facts)
            except Exception:
                self._logger.failure("a watcher of the log failed")

    def _answer(self, request: AppendRequest, answer: Appended | StorageError | None) -> None:
        self._pending_bytes -= request.size
        if request.key is not None:
            del self._keyed[request.key]
            if answer is None:
                answer = KeyReused(key=request.key, stream=request.stream)
        for waiter in (request.answer, *request.sharers):
            if isinstance(answer, Appended):
                waiter.callback(answer)
            elif answer is not None:
                waiter.errback(answer)

    # Whether it can be read, and is ours

    def _read_failed(self, kind: str, error: StorageError, probe: Probe | None) -> None:
        if not self._is_open:
            return
        if isinstance(error, LogLost):
            self._lose(error)
            return
        was_well = not self._reads.why
        self._reads.failed(kind, error, probe)
        if was_well and self._reads.why:
            self._logger.error("the log cannot be read: {why}", why=self._reads.why)
        self._look_soon(self._reads.next_seconds)

    def _look_soon(self, seconds: float) -> None:
        due = self._timers.get("look")
        if due is not None and due.active() and due.getTime() > self._clock.seconds() + seconds:
            due.cancel()
        if not self._is_looking:
            self._later("look", seconds, self._look_now)

    def _look_now(self) -> None:
        self._tasks.start(self._look(), "looking at the log")

    async def _look(self) -> None:
        """Try again what failed, and whether a restart would find this log."""
        self._is_looking = True
        was_well = not self._reads.why
        try:
            for kind, probe in self._reads.probes:
                await self._try_again(kind, probe)
            if "check" not in dict(self._reads.probes):
                await self._read("check", self._engine.check)
        except StorageError:
            # It is noted where it was read.
            pass
        finally:
            self._is_looking = False
            if not was_well and not self._reads.why:
                self._logger.info("the log can be read again")
            self._later("look", self._reads.next_seconds, self._look_now)

    async def _try_again(self, kind: str, probe: Probe) -> None:
        try:
            await probe()
        except StorageError as error:
            self._read_failed(kind, error, probe)
        else:
            self._reads.worked(kind)

    # Time

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)

    def _later(self, what: str, seconds: float, work: Callable[[], None]) -> None:
        """Do `work` then, unless the same is due already."""
        due = self._timers.get(what)
        if self._is_open and (due is None or not due.active()):
            self._timers[what] = self._clock.callLater(seconds, work)

    def _forget_receipts(self) -> None:
        before_ms = self._now_ms() - RECEIPT_MS
        self._tasks.start(self._forget_before(before_ms), "forgetting old idempotency keys")
        self._later("forget", FORGET_EVERY_SECONDS, self._forget_receipts)

    async def _forget_before(self, before_ms: int) -> None:
        await self._writing.run(partial(self._engine.forget_receipts, before_ms))


def _nothing() -> None:
    pass


def _is_text(name: str) -> bool:
    """Whether every database keeps it. Refused alone, before it spoils the group that it would go with."""
    try:
        return len(name.encode()) <= MAX_NAME_BYTES and "\0" not in name
    except UnicodeEncodeError:
        return False


def _refused(stream: str, why: str, *, hint: str = "", retryable: bool = False) -> StorageError:
    return StorageError(op="append", why=why, hint=hint, stream=stream, retryable=retryable)


def _as_storage_error(error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    unexpected = StorageError(op="append", why=f"unexpected {type(error).__name__}: {error}")
    unexpected.__cause__ = error
    return unexpected
