"""Committer: writes a log's facts. It commits appends in groups, and runs exclusive writes between groups.

A commit is synced to the disk, and a sync takes as long for one fact as for a thousand. So there is always at
most one commit under way, in the writing thread; what is appended meanwhile waits in the queue, and goes
together into the next one. The slower the disk, the larger the groups: nothing is tuned, and no append waits
for a timer.

The head of the log in memory advances only after the commit, and answers go out only then. Thus nobody can
see a fact that a power cut would take back.

The hard case is a commit that fails after it may have been stored: the connection broke while COMMIT was
under way, or the disk was full at the sync. To answer "failed" would be a guess, and to go on would be one
too: the next group would continue a log whose end is unknown. The chain of digests decides. A group knows the
digest of the log before it and after it, so the end of the log as the database reports it says which one
happened: the digest after the group (stored after all: it is applied), the digest before it (nothing was
stored), or neither (another process writes to this database: this one stops writing for good). Until the
database can be asked, no group is built, and appends fail with an error that says that they may have been
stored. An append with an idempotency key can then be repeated without harm.

Everything else that changes the log (an epoch, a trim, a copy's facts) runs between two groups, with a head
that is certain (`exclusive`).

A fact is durable when `SQLEngine.commit` returns: SQLite has synced its WAL then (`sqlite.py`), PostgreSQL
its own (`postgres.py`). A copy that is being received is durable only when it is adopted, and a fact of an
ephemeral stream never. These wait for it:

- A client that appends: `append_routes.py` answers when the Deferred of `Log.append` fires. With acks the
  answer also waits for replicas (`hooks.IAcknowledgements.wait`). At a replica, `WriteForwarder`
  (`replicas/write_forwarder.py`) answers once the fact is in the replica's own log as well.
- Every follower, and every other reader: subscribers of the log are called after the commit.
- The next facts of a source: `Ingester` (`ingest/ingester.py`) repeats an append until it is stored. When its
  buffer is full, whoever calls `submit` waits.
- An upstream, for the ACK of its replica: `Replica` (`replicas/replica/replica.py`) flushes before it
  acknowledges.
- A hand-over: `HandOverPrimary` (`replicas/roles/handover.py`) flushes the log before it tells its position.
- A subscriber of the RESP port, unless the setting `resp_ack` says `sent` (`channel/part.py`).
"""

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.base.gate import Gate
from synrepl.base.history import Appended, AppendKey
from synrepl.base.interfaces import Head, IClock, IThread
from synrepl.base.tasks import Tasks
from synrepl.base.time import Timer
from synrepl.errors import StorageError
from synrepl.storage.append_errors import InvalidValue, KeyReused, LogNotOurs, append_error, as_storage_error
from synrepl.storage.engine import SQLEngine
from synrepl.storage.group_commit import AppendRequest, CommitGroup, build_group
from synrepl.storage.log_head import LogHead
from synrepl.streams.facts import Fact

T = TypeVar("T")

RETRY_SECONDS = 1.0
"""Delay before the outcome of an uncertain commit is looked up again, unless a write does so earlier."""


TRY_SECONDS = 5.0
"""Delay before a log that has refused a commit is tried, unless an append does so earlier."""


class Committer:
    """Commits requests in groups, one commit at a time.

    Requests that arrive during a commit go together into the next group, up to `max_batch_bytes`. A request
    that would raise the unanswered ones above `max_pending_bytes` fails at once. A single request may exceed
    both. A group gets its serials, tokens and digests when it is built; `head` advances only after the
    commit, and `on_commit` gets the new facts.

    A commit can fail with an unknown outcome. Until the engine tells which one it was, no group is built.
    """

    def __init__(
        self,
        engine: SQLEngine,
        thread: IThread,
        clock: IClock,
        head: LogHead,
        *,
        unordered: Collection[str],
        any_writer: Collection[str],
        max_pending_bytes: int,
        max_batch_bytes: int,
        on_commit: Callable[[Sequence[Fact]], None],
        logger: Logger,
    ) -> None:
        self.is_open = False
        self.problem = ""
        """Why the last commit of a group failed (`InvalidValue` apart), or the log is not ours; else empty.

        It is empty again once facts are committed, or a trial shows that they could be.
        """
        self.committed_at = 0.0
        self.pending_bytes = 0
        """The approximate size of the appends that are not answered yet, in bytes."""
        self.not_ours: LogNotOurs | None = None
        """Why this process may not write to the log until a restart; None if it may."""
        self._engine = engine
        self._thread = thread
        self._clock = clock
        self._head = head
        self._unordered = frozenset(unordered)
        self._any_writer = frozenset(any_writer)
        self._max_pending_bytes = max_pending_bytes
        self._max_batch_bytes = max_batch_bytes
        self._on_commit = on_commit
        self._logger = logger
        self._tasks = Tasks(logger, "log")
        self._queue: deque[AppendRequest] = deque()
        # How many requests were ever queued, and answered; both in the order of the queue.
        self._queued = 0
        self._answered = 0
        self._waiting_writes = 0
        self._keyed: dict[AppendKey, AppendRequest] = {}
        # Closed while a group or an exclusive write is under way.
        self._idle = Gate()
        self._uncertain_commit: CommitGroup | None = None
        # After a failed exclusive write of unknown outcome: what applies it, given the head of the database.
        self._uncertain_write: Callable[[Head], None] | None = None
        self._timer = Timer(clock, self._start_writing)
        self._trial = Timer(clock, self._start_trial)

    def open(self) -> None:
        """Accept requests: the engine is open."""
        self.is_open = True
        self.committed_at = self._clock.seconds()

    async def close(self) -> None:
        """Refuse new requests, and commit the queued ones."""
        self.is_open = False
        await self._wait_for_earlier()
        self._timer.stop()
        self._trial.stop()

    def abandon(self) -> object:
        """Stop as a killed process does, for simulations. Returns what was waiting, which must stay alive:
        freed coroutines would run their cleanup.
        """
        self.is_open = False
        self._timer.stop()
        self._trial.stop()
        waiting = self._queue, self._idle
        self._queue, self._idle = deque(), Gate(is_open=self._idle.is_open)
        return waiting

    def reset(self) -> None:
        """Forget the outcome of earlier commits: the engine was opened again, or its log replaced."""
        self._uncertain_commit = None
        self.problem = ""

    def coalesce(self, request: AppendRequest) -> "Deferred[Appended] | None":
        """The response, or `KeyReused`, if a request with the same key is unanswered; otherwise None."""
        first = None if request.key is None else self._keyed.get(request.key)
        if first is None or request.key is None:
            return None
        if first.checksum != request.checksum:
            return fail(KeyReused(request.key))
        shared: Deferred[Appended] = Deferred()
        first.coalesced.append(shared)
        return shared

    def enqueue(self, request: AppendRequest, *, delay: bool = False) -> "Deferred[Appended]":
        """Queue a request for the next group, unless too much is pending.

        With `delay` the group is built in the next iteration of the reactor, with what arrives until then.
        """
        if self.pending_bytes and self.pending_bytes + request.size > self._max_pending_bytes:
            size, most = self.pending_bytes + request.size, self._max_pending_bytes
            why = f"the log is busy: with this append, {size} bytes would wait; the limit is {most} bytes"
            return fail(append_error(request.stream, why, hint="try again later", retryable=True))
        if request.key is not None:
            self._keyed[request.key] = request
        self.pending_bytes += request.size
        self._queued += 1
        self._queue.append(request)
        if not delay:
            self._start_writing()
        elif self._idle.is_open:
            self._start_later(0)
        return request.response

    async def flush(self) -> None:
        """Wait until all earlier writes succeeded or failed. Raises `StorageError` if the log is closed."""
        await self._exclude()
        self._include()

    def exclusive(self, work: Callable[[], Awaitable[T]]) -> "Deferred[T]":
        """Run `work` while no facts are written otherwise and the head is certain; appends wait.

        Raises a `StorageError` if the log is closed or not ours, or if the outcome of the last commit stays
        unknown. Once started, `work` runs to its end even if the caller is cancelled, so that the log knows
        its position.
        """

        async def run() -> T:
            await self._exclude()
            try:
                if result.called:
                    raise StorageError(op="write", why="the caller was cancelled", retryable=True)
                if (error := await self._resolve_uncertain_commit()) is not None:
                    raise error
                if self.not_ours is not None:
                    raise self.not_ours
                await self._resolve_uncertain_write()
                return await work()
            finally:
                self._include()

        result = Deferred[T]()
        return detached(run(), result)

    def doubt(self, settle: Callable[[Head], None]) -> None:
        """The outcome of the current exclusive write is unknown: before the next write of any kind, `settle`
        gets the head of the database, and applies to the log's what was stored after all.
        """
        self._uncertain_write = settle

    async def _exclude(self) -> None:
        await self._wait_for_earlier()
        if not self.is_open:
            raise StorageError(op="write", why="the log is not open", retryable=True)
        self._idle.close()

    def _include(self) -> None:
        self._idle.open()
        if self._queue or self._uncertain_commit is not None:
            self._start_writing()

    async def _wait_for_earlier(self) -> None:
        """Wait until all requests of now are answered, and nothing is being written.

        Later ones may have to wait: a queue that never empties must not hold up an exclusive write.
        """
        earlier = self._queued
        self._waiting_writes += 1
        try:
            while (self._queue and self._answered < earlier) or not self._idle.is_open:
                self._start_writing()
                await self._idle.wait_open()
        finally:
            self._waiting_writes -= 1

    def _start_writing(self) -> None:
        if self._idle.is_open:
            self._idle.close()
            self._tasks.start(self._write(), "writing")

    def _start_later(self, seconds: float) -> None:
        if self.is_open:
            self._timer.start_within(seconds)

    def _try_later(self) -> None:
        if self.is_open:
            self._trial.start_within(TRY_SECONDS)

    def _start_trial(self) -> None:
        if not self.problem or self.not_ours is not None:
            return
        is_certain = self._uncertain_commit is None and self._uncertain_write is None
        if not self._idle.is_open or not is_certain:
            # What may have been stored would look like another process' write.
            self._try_later()
            return
        self._idle.close()
        self._tasks.start(self._try_to_write(), "trying to write")

    async def _try_to_write(self) -> None:
        try:
            await self._thread.run(self._engine.try_write)
        except Exception as error:
            failure = as_storage_error(error)
            self.problem = str(failure)
            if isinstance(failure, LogNotOurs):
                self.disown(failure)
            self._try_later()
        else:
            self.problem = ""
            self._logger.info("the log takes appends again")
        finally:
            self._include()

    async def _write(self) -> None:
        try:
            while self._queue or self._uncertain_commit is not None or self._uncertain_write is not None:
                error = await self._resolve_uncertain_commit()
                if error is None and self._uncertain_write is not None:
                    error = await self._look_up_write()
                if error is not None:
                    self._fail_queue(error)
                    break
                if self._queue:
                    await self._write_group(self._next_batch())
                if self._waiting_writes:
                    break  # they go on with the queue
        finally:
            self._idle.open()

    def _next_batch(self) -> list[AppendRequest]:
        batch: list[AppendRequest] = []
        left = self._max_batch_bytes
        while self._queue and (not batch or self._queue[0].size <= left):
            request = self._queue.popleft()
            left -= request.size
            batch.append(request)
        return batch

    async def _write_group(self, requests: list[AppendRequest]) -> None:
        at_ms = int(self._clock.seconds() * 1000)
        try:
            group, error = await self._thread.run(partial(self._commit_group, requests, at_ms))
        except Exception as unexpected:
            # The thread itself failed: nothing was attempted.
            group, error = None, as_storage_error(unexpected)
        if error is not None:
            if not isinstance(error, InvalidValue):
                self.problem = str(error)
                self._try_later()
            if isinstance(error, LogNotOurs):
                self.disown(error)
                # The group's outcome no longer matters: the database is not this process's any more.
                group = None
            if group is not None:
                self._uncertain_commit = group
                error = StorageError(
                    op="append",
                    why=f"{error.why}; the append may have been stored",
                    hint=error.hint or "retry with the same idempotency key, if the append has one",
                    retryable=True,
                )
                self._start_later(RETRY_SECONDS)
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
    ) -> tuple[CommitGroup | None, StorageError | None]:
        """Build a group and commit it, in the writing thread. Returns the group, if it was or may have been
        stored, and the error.

        Reading `_head` from this thread is safe: it changes only between groups.
        """
        group = None
        try:
            group = build_group(
                self._head,
                requests,
                at_ms,
                self._engine.receipts.get,
                rows_at_token=self._engine.rows_at_token,
                unordered=self._unordered,
                any_writer=self._any_writer,
            )
            if group.facts:
                # One transaction of the database, synced when this returns.
                self._engine.commit(group.facts, group.receipts)
        except Exception as error:
            failure = as_storage_error(error)
            if group is None or not failure.tried:
                return None, failure
            try:
                now = self._engine.head()
            except Exception:
                return group, failure
            if now.digest == group.after:
                return group, None
            return (None if now.digest == group.before else group), failure
        return group, None

    async def _resolve_uncertain_write(self) -> None:
        if self._uncertain_write is not None:
            head = await self._thread.run(self._engine.head)
            settle, self._uncertain_write = self._uncertain_write, None
            settle(head)

    async def _look_up_write(self) -> StorageError | None:
        """As `_resolve_uncertain_write`, but returns why that failed."""
        try:
            await self._resolve_uncertain_write()
        except Exception as error:
            failure = as_storage_error(error)
            self.problem = f"the log's position is unknown: {failure}"
            self._start_later(RETRY_SECONDS)
            return failure
        if self.problem:
            self._try_later()
        return None

    async def _resolve_uncertain_commit(self) -> StorageError | None:
        """Look up the outcome of an uncertain commit. Returns why that failed, or why the log is not ours."""
        group = self._uncertain_commit
        if group is None:
            return None
        try:
            head: Head = await self._thread.run(self._engine.head)
        except Exception as error:
            failure = as_storage_error(error)
            if isinstance(failure, LogNotOurs):
                self.disown(failure)
                self._uncertain_commit = None
                return failure
            self.problem = f"the log's position is unknown: {failure}"
            self._start_later(RETRY_SECONDS)
            return failure
        self._uncertain_commit = None
        if head.digest == group.after:
            self._logger.info("{count} facts were stored after all, despite an error", count=len(group.facts))
            self._apply_group(group)
        elif head.digest != group.before:
            failure = LogNotOurs(
                op="append",
                why=f"another process writes to this log: it ends at serial {head.serial} (digest"
                f" {head.digest:.8}), this process left it at {self._head.serial} ({group.before:.8})",
                hint="find out which other program uses the database and stop it, then restart this daemon",
                retryable=True,
                tried=False,
            )
            self.disown(failure)
            return failure
        else:
            self._try_later()
        return None

    def disown(self, why: LogNotOurs) -> None:
        """Refuse all further writes until a restart."""
        if self.not_ours is None:
            self.not_ours = why
            self._logger.critical("the log takes no more appends: {why}", why=str(why))
        self.problem = str(self.not_ours)

    def _fail_queue(self, failure: StorageError) -> None:
        error = StorageError(
            op="append",
            why=self.problem,
            hint="try again later" if failure.retryable else "",
            retryable=failure.retryable,
            tried=False,
        )
        waiting, self._queue = self._queue, deque()
        for request in waiting:
            self._resolve(request, error)

    def _apply_group(self, group: CommitGroup) -> None:
        if group.facts:
            self.problem = ""
            self.committed_at = self._clock.seconds()
            self._head.advance(group.facts)
            if group.receipts:
                self._head.receipts_upto = self._head.serial
            self._on_commit(group.facts)

    def _resolve(self, request: AppendRequest, response: Appended | StorageError | None) -> None:
        self.pending_bytes -= request.size
        self._answered += 1
        if request.key is not None:
            del self._keyed[request.key]
            if response is None:
                response = KeyReused(request.key)
        for waiter in (request.response, *request.coalesced):
            if isinstance(response, Appended):
                waiter.callback(response)
            elif response is not None:
                waiter.errback(response)


def detached(work: Coroutine[Any, Any, T], result: "Deferred[T]") -> "Deferred[T]":
    """Start `work` and return `result`, which fires at its end. Cancelling `result` does not stop `work`."""

    def ended(outcome: T | Failure) -> None:
        if not result.called:
            result.callback(outcome)

    Deferred.fromCoroutine(work).addBoth(ended)
    return result
