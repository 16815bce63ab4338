"""StreamApplier: applies one stream's facts in order, detects gaps and repairs them."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import islice
from types import CoroutineType
from typing import Any, Final

import msgspec
from twisted.internet import defer
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from synrepl.errors import GapError, ReplicationError, RowError
from synrepl.ports.interfaces import ICaches
from synrepl.ports.tasks import resume, step_eagerly
from synrepl.replication.follower.apply_queue import ApplyQueue
from synrepl.replication.follower.catchup import ICatchUp, NowhereToFetch
from synrepl.replication.follower.dedup import RecentFacts
from synrepl.replication.follower.listener import CACHES, ApplierListener
from synrepl.replication.follower.positions import AppliedPositions
from synrepl.replication.follower.reorder import ReorderBuffer
from synrepl.replication.follower.strategy import FollowStrategy
from synrepl.replication.follower.updates import Updates
from synrepl.streams.batches import Batches
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.rdata_runs import RdataRun

__all__ = ["ApplyPolicy", "StreamApplier"]

RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)

RESET_ATTEMPTS: Final = 3
"""Attempts to fetch the facts of a restarted writer before the gap is reported as lost: the facts missed from
its new history may be gone.
"""

RECHECK_TOKENS: Final = 1_000
"""Tokens before the last one that are fetched again after a disconnect, where later facts arrive before
earlier ones.
"""

DESCENDING_TOKENS: Final = 50
"""Tokens per request of a stream whose responses descend. Real masters limit these responses to the highest
100 facts and name the lowest of them as the next position: earlier facts would never be requested.
"""


class ApplyPolicy(msgspec.Struct, frozen=True):
    """How a stream is followed.

    `earliest`: a new writer is followed from its first fact. `is_kept`: facts are appended to a log, which
    does not need its own facts again when a writer is rewound. `resumes`: that log followed this channel
    before, so a stream without positions is a new one.
    """

    ordered: bool
    monotonic: bool
    earliest: bool
    descends: bool = False
    is_kept: bool = False
    resumes: bool = False


class StreamApplier:
    """Applies one stream, fact by fact.

    `known` holds the applied position of each writer. Only `applied`, and inlined code in `rdata_run`,
    changes it. A fact that is known already is dropped, whichever source it comes from. While facts are
    missing or a subscriber is busy, the whole stream is blocked.
    """

    def __init__(
        self,
        name: str,
        policy: ApplyPolicy,
        listener: ApplierListener,
        catch_up: ICatchUp,
        batches: Batches[bytes],
        known: dict[str, int],
        caches: ICaches | None = None,
    ) -> None:
        self.name = name
        self.known: Mapping[str, int] = known
        self.applied = AppliedPositions(name, known, caches, listener)
        self._policy = policy
        self._listener = listener
        self._catch_up = catch_up
        self._batches = batches
        self._had_position = bool(known)
        # The last POSITION of each writer whose rows arrive ahead of it: all earlier facts were applied.
        self._announced: dict[str, int] = {}
        # The POSITION being processed. If it is not completed, the next one covers it.
        self._announcing: dict[str, int] = {}
        self._open_gaps: set[str] = set()
        self._gap_ends: dict[str, int] = {}
        self._gaps: dict[str, GapError] = {}
        self._recent = RecentFacts()
        # Whether the server was seen to send later facts before earlier ones, as real masters do.
        self._is_unordered = False
        # Whether the stream had no positions when this connection was opened: it starts here.
        self._is_new_stream = not known
        # State of the current connection (`_connection` counts them):
        self._connection = 0
        self._pushed = False
        self._shared = False
        self._compares = True
        self._decode_many: Callable[[list[bytes]], list[Any]] = list
        self._ready: set[str] = set()
        self._batching: set[str] = set()
        self._in_push = False
        self._awaits_push_end = False
        self._pushed_fact: tuple[str, int, list[bytes]] | None = None
        self._push_start: dict[str, int] = {}
        self._hides_progress = False
        # State of asynchronous work:
        self._busy = False
        self._fetching: Deferred[Any] | None = None
        self._queue = ApplyQueue()
        self._reorder = ReorderBuffer(lambda: listener.clock, self._apply_burst)

    # -- the connection ------------------------------------------------------------------------------------

    def connected(self, strategy: FollowStrategy, decode_many: Callable[[list[bytes]], list[Any]]) -> None:
        """A connection was opened: POSITIONs count from here."""
        self._decode_many = decode_many
        self._pushed = self._in_push = self._awaits_push_end = strategy.pushed
        self._shared = strategy.shared
        self._compares = self._policy.monotonic and strategy.keeps_order(self.name, self._policy.ordered)
        self._push_start = dict(self.known)
        self._is_new_stream = not self._had_position
        # In an unordered push a token says nothing about earlier facts until POSITION ends the push.
        self._hides_progress = strategy.pushed and not self._compares

    def disconnected(self) -> None:
        """The connection was lost: drop everything that was partly received.

        A busy subscriber may finish. A fetch is cancelled; the next POSITION repeats it.
        """
        self._connection += 1
        self._empty_queue()
        self._ready.clear()
        self._pushed_fact = None
        self._batching.clear()
        self._batches.clear(self.name)
        self._reorder.clear()
        if self._hides_progress:
            # Request the whole push again. Its applied facts are remembered, their caches were invalidated,
            # and none of their positions was reported.
            self.applied.rewind(self._push_start)
            self._hides_progress = False
        if self._fetching is not None:
            # Last: rows queued behind the fetch must be gone, or they would be applied beyond the gap.
            self._fetching.cancel()

    def positions(self) -> Mapping[str, int]:
        """The positions that may be reported as applied, by writer."""
        return self._push_start if self._hides_progress else self.known

    @property
    def is_blocked(self) -> bool:
        """Whether the stream is blocked by missing facts or a busy subscriber."""
        return self._busy or bool(self._reorder)

    @property
    def queued(self) -> int:
        """The number of queued rows and positions."""
        return len(self._queue)

    @property
    def missing(self) -> int:
        """The number of tokens that are known to be missing."""
        return sum(max(0, upto - self.known.get(writer, 0)) for writer, upto in self._gap_ends.items())

    @property
    def gaps(self) -> list[GapError]:
        """Open gaps whose facts could not be fetched yet, with the last reason."""
        return list(self._gaps.values())

    # -- received commands ---------------------------------------------------------------------------------

    def rdata(self, command: Rdata) -> None:
        """Handle one row."""
        writer = command.instance
        if self._busy or self._queue.is_dropping(writer):
            self._enqueue(command)
            return
        if writer not in self._ready and not self._accepts_rows(writer):
            return
        token = command.token
        if token is None or writer in self._batching:
            rows = self._batches.add(self.name, writer, token, command.row, len(command.row))
            if rows is None or token is None:
                self._batching.add(writer)
                return
            self._batching.discard(writer)
        else:
            rows = [command.row]
        if self._in_push:
            self._collect_pushed(writer, token, rows)
        elif self._shared and self._policy.descends:
            if not self._reorder.add(writer, token, rows):
                self._apply_burst(writer)
        else:
            self._apply_fact(writer, token, rows)

    def rdata_run(self, run: RdataRun) -> None:
        """Handle many consecutive rows, with the same effect as `rdata` for each."""
        writer = run.instance
        if (
            self._busy
            or self._batching
            or self._pushed
            or not self._compares
            or None in run.tokens
            or (writer not in self._ready and not self._accepts_rows(writer))
            or (rows := self._all_typed(run.rows)) is None
        ):
            for command in run.commands():
                self.rdata(command)
            return
        known, steps = self.applied.tokens, self.applied.steps
        last = known.get(writer, -1)
        for offset, token in enumerate(run.tokens):
            assert token is not None
            if token <= last:
                continue
            updates = Updates(self.name, writer, token, [rows[offset]])
            for index, step in enumerate(steps):
                failure: Exception | None = None
                waiting: Awaitable[None] | None = None
                try:
                    waiting = step(updates)
                    if waiting is None:
                        continue
                    if type(waiting) is CoroutineType:
                        # `step_eagerly` inlined: every row of every stream passes here.
                        try:
                            first = waiting.send(None)
                        except StopIteration:
                            continue
                        waiting = resume(waiting, first)
                except Exception as error:
                    failure = error
                self._listener.positions_changed(self.name)
                self._block_on(self._apply(updates, index, waiting=waiting, failure=failure))
                for command in islice(run.commands(), offset + 1, None):
                    self.rdata(command)
                return
            known[writer] = last = token  # `AppliedPositions.advance`, inlined
        self._listener.positions_changed(self.name)

    def _all_typed(self, rows: list[bytes]) -> list[Any] | None:
        try:
            return self._decode_many(rows)
        except RowError:
            return None  # handle rows one by one: report the bad one, apply the others

    def position(self, command: Position) -> None:
        """Handle a POSITION."""
        if self._busy:
            self._enqueue(command)
            return
        # Only this writer's: on a shared channel, POSITIONs arrive between another writer's rows.
        self._batches.clear(self.name, command.instance)
        self._batching.discard(command.instance)
        self._in_push = False
        if self._pushed_fact is not None and not self._flush_pushed_fact():
            self._queue.put_first(command)
            return
        if self._reorder and not self._apply_burst(command.instance):
            self._queue.put_first(command)
            return
        is_first = command.instance not in self._ready
        self._ready.add(command.instance)
        if self._pushed:
            # Rows arrived before this POSITION, so whether the writer is ready does not matter.
            is_first, self._awaits_push_end = self._awaits_push_end, False
            self._end_push(command, is_first=is_first)
        else:
            self._handle_position(command, is_first=is_first)

    def _accepts_rows(self, writer: str) -> bool:
        """Whether to accept rows of a writer whose POSITION was not received on this connection.

        A push has no POSITION before its rows. Otherwise there may be a gap before the rows, unless the
        writer had no position when positions were announced: then these are its first rows.
        """
        if not self._pushed and (not self._ready or writer in self.known):
            return False
        self._ready.add(writer)
        return True

    def _is_contiguous(self, command: Position, *, is_first: bool) -> bool:
        """Whether all earlier facts of the writer were applied, so that this POSITION can be trusted.

        False for an unknown writer: the facts it wrote since our caches were filled are unknown. False on the
        first POSITION of a connection if tokens can go back: between two connections they may have gone back
        and grown again. False if the master sends facts out of order (such as 211 before 206), because the
        disconnect may have come between two of them.
        """
        if command.instance not in self.known:
            return False
        return not is_first or (self._policy.monotonic and not self._is_unordered)

    def _end_push(self, command: Position, *, is_first: bool) -> None:
        """Handle the POSITION that ends a push: all missed facts were pushed."""
        writer, token = command.instance, command.token
        known = self.known.get(writer, token)
        if is_first and token < self._push_start.get(writer, token):
            self._listener.writer_rewound(self.name, writer, token)
        if token < known:
            self._recent.forget_beyond(token)
        # Only the end of a push certifies. A later POSITION ahead of its rows says nothing about them.
        if self._is_contiguous(command, is_first=is_first) and (
            token == known or (is_first and known < token)
        ):
            self._advance_to(command)
        else:
            self._run_or_block(self._invalidate_and_advance(command))

    def _handle_position(self, command: Position, *, is_first: bool) -> None:
        """Compare a writer's POSITION with the applied one; repair the gap if facts are missing."""
        writer, token = command.instance, command.token
        known = self._known_position(command)
        if self._compares and known <= token:
            external = self._listener.external_position(self.name, writer)
            if external > known:
                known = external
                self.applied.advance_external(writer, known)
                if token < known:
                    return  # the writer lags behind the other source
        prev = token if command.prev_token is None else command.prev_token
        is_contiguous = self._is_contiguous(command, is_first=is_first)
        recheck_start = self._recheck_start(command, known, is_first=is_first)
        if self._shared and not self._compares and self._policy.monotonic and token <= known:
            # Rows arrive ahead of their POSITION in these streams, so a lower POSITION has no meaning.
            command = Position(stream=self.name, instance=writer, prev_token=known, token=known)
            prev = token = known
        if prev <= known <= token:
            self._close_gap(writer)
            if recheck_start is not None:
                self._block_on(self._recheck(command, recheck_start))
            elif is_contiguous:
                self._advance_to(command)
            else:
                self._run_or_block(self._invalidate_and_advance(command))
        elif known < prev:
            after = known if recheck_start is None else min(recheck_start, known)
            self._repair(command, after=after, is_contiguous=is_contiguous)
        elif is_first or self._shared or not self._policy.monotonic:
            if is_first or self._shared:
                self._listener.writer_rewound(self.name, writer, token)
            if self._policy.is_kept:
                self._run_or_block(self._invalidate_and_advance(command))
                return
            self._listener.writer_restarted(self.name, writer)
            self._repair(command, after=0, is_contiguous=False, is_reset=True)
        # else: the POSITION lags behind its own rows and adds nothing

    def _recheck_start(self, command: Position, known: int, *, is_first: bool) -> int | None:
        """The token after which lower facts may be missing; None if none can be.

        Where rows arrive ahead of POSITION, earlier facts may have been sent while this follower was
        disconnected, or never: a writer that was disconnected itself moves on, and then only announces its
        position.
        """
        if not self._shared or self._policy.ordered or not self._policy.monotonic:
            return None
        writer, token = command.instance, command.token
        announced = self._announced.get(writer)
        self._announcing[writer] = token
        if not is_first and command.prev_token != token:
            return None  # sent between its facts
        if announced is None:
            # Without a log, a restarted process cannot know which facts were applied before.
            may_lack = writer in self.known and (self._connection > 0 or self._policy.is_kept)
            return max(0, known - RECHECK_TOKENS) if may_lack else None
        return max(announced, token - RECHECK_TOKENS) if announced < token else None

    def _known_position(self, command: Position) -> int:
        """The applied position of this writer, or the position to start a new writer from."""
        if command.instance in self.known:
            return self.known[command.instance]
        if self._policy.earliest:
            return 0
        if self._is_new_stream:
            # Every writer starts here, not only the one announced first.
            return 0 if self._policy.is_kept and self._policy.resumes else command.token
        # The writer appeared while we were disconnected, so its facts are after our positions of all others.
        return min(self.known.values(), default=command.token)

    def _advance_to(self, command: Position) -> None:
        """Advance to this POSITION: every fact up to it was applied."""
        self.applied.advance(command.instance, command.token)
        self._position_done(command)

    async def _invalidate_and_advance(self, command: Position) -> None:
        """Advance to this POSITION though some facts up to it may not have been applied."""
        if await self._skip_to(command.instance, command.token):
            self._position_done(command)

    async def _skip_to(self, writer: str, token: int, *, advances: bool = True) -> bool:
        """Invalidate all caches of the stream, then advance to `token` over facts that were not applied.

        Returns False, without advancing, if `advances` is False or the connection was lost meanwhile.
        """
        connection = self._connection
        attempt = 0
        while True:
            try:
                self.applied.invalidate_all()
                break
            except Exception as error:
                self._listener.report_error(error, self.name, CACHES)
            await self._sleep(attempt)
            attempt += 1
        if not advances or connection != self._connection:
            return False
        self.applied.advance(writer, token)
        return True

    def _position_done(self, command: Position) -> None:
        writer = command.instance
        if writer in self._announcing:
            token = self._announcing.pop(writer)
            self._announced[writer] = max(token, self._announced.get(writer, token))
        self._had_position = True
        self._hides_progress = False
        self._listener.position_processed(self.name, writer, self.known[writer])
        self._listener.positions_changed(self.name)

    # -- facts ---------------------------------------------------------------------------------------------

    def _apply_burst(self, writer: str) -> bool:
        """Apply a writer's buffered facts. Returns False if the stream is blocked; the rest stays."""
        facts = self._reorder.pop(writer)
        while facts:
            if self._busy:
                self._reorder.put_back(writer, facts)
                return False
            token, rows = facts.pop(0)
            self._apply_fact(writer, token, rows)
        return not self._busy

    def _collect_pushed(self, writer: str, token: int, rows: list[bytes]) -> None:
        """Collect a pushed row: old masters mark the rows of one fact only by their equal token."""
        if self._pushed_fact is not None and self._pushed_fact[:2] == (writer, token):
            self._pushed_fact[2].extend(rows)
            return
        if self._pushed_fact is not None:
            self._flush_pushed_fact()
        self._pushed_fact = (writer, token, rows)

    def _flush_pushed_fact(self) -> bool:
        assert self._pushed_fact is not None
        writer, token, rows = self._pushed_fact
        self._pushed_fact = None
        return self._apply_fact(writer, token, rows)

    def _apply_fact(self, writer: str, token: int, rows: Sequence[bytes]) -> bool:
        """Apply a fact if it is new. Returns False if it is not done yet and blocks the stream."""
        if self._compares and not (self._pushed and self._is_late(writer, token, rows)):
            if token <= self.known.get(writer, -1):
                return True
        elif not self._compares:
            is_news = self._recent.add_if_new(writer, token, rows)
            if not is_news:
                return not self.applied.has_caches or self._run_or_block(
                    self._invalidate_again(writer, token, rows)
                )
            if not self._in_push and token < self.known.get(writer, token):
                self._is_unordered = True
        updates = self._decode(writer, token, rows)
        if updates is None:
            return self._run_or_block(self._skip_fact(writer, token))
        for index, step in enumerate(self.applied.steps):
            try:
                result = step(updates)
                waiting = None if result is None else step_eagerly(result)
            except Exception as error:
                self._block_on(self._apply(updates, index, failure=error))
                return False
            if waiting is not None:
                self._block_on(self._apply(updates, index, waiting=waiting))
                return False
        self._fact_done(writer, token)
        return True

    async def _invalidate_again(self, writer: str, token: int, rows: Sequence[bytes]) -> None:
        """Invalidate caches for a fact that was applied before.

        It may also be an equal fact of a lost history, which cannot be told apart. Repeated invalidation is
        harmless.
        """
        if not self.applied.has_caches:
            return
        updates = self._decode(writer, token, rows)
        if updates is None:
            await self._skip_fact(writer, token, advances=False)
        else:
            await self._apply(updates, len(self.applied.steps) - 1, advances=False)

    def _decode(self, writer: str, token: int, rows: Sequence[bytes]) -> Updates[Any] | None:
        """Decode a fact's rows. A fact that matches no release is reported and skipped: None."""
        try:
            return Updates(self.name, writer, token, self._decode_many(list(rows)))
        except RowError as error:
            self._listener.report_error(error, self.name)
            return None

    def _fact_done(self, writer: str, token: int) -> None:
        self.applied.advance(writer, self._position_after(writer, token))
        self._listener.positions_changed(self.name)

    def _is_late(self, writer: str, token: int, rows: Sequence[bytes]) -> bool:
        """Whether a fact is new though a later one was pushed already.

        Where rows name no writer, several writers share one name and can overtake each other.
        """
        is_news = self._recent.add_if_new(writer, token, rows)
        return is_news and token <= self.known.get(writer, -1)

    def _position_after(self, writer: str, token: int) -> int:
        """The position after this fact: without order, an earlier fact does not lower it."""
        if (self._compares and not self._pushed) or not self._policy.monotonic:
            return token
        return max(token, self.known.get(writer, token))

    async def _skip_fact(self, writer: str, token: int, *, advances: bool = True) -> None:
        """Continue after a fact that cannot be decoded."""
        if await self._skip_to(writer, self._position_after(writer, token), advances=advances):
            self._listener.positions_changed(self.name)

    # -- asynchronous work ---------------------------------------------------------------------------------

    def _block_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Block the stream until `work` is done."""
        self._busy = True
        self._listener.start(self._run_blocking(work), f"following {self.name}")

    def _run_or_block(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work`. Returns False if it must wait: the stream is blocked until it is done."""
        waiting = step_eagerly(work)
        if waiting is not None:
            self._block_on(_wait_for(waiting))
        return waiting is None

    async def _run_blocking(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            # Also if the follower was stopped meanwhile: it may be started again.
            self._busy = False
        while not self._busy and (command := self._queue.pop()) is not None:
            if isinstance(command, Rdata):
                self.rdata(command)
            else:
                self.position(command)
        if not self._queue:
            self._listener.resume(self.name)

    async def _apply(
        self,
        updates: Updates[Any],
        index: int = 0,
        *,
        waiting: Awaitable[None] | None = None,
        failure: Exception | None = None,
        advances: bool = True,
    ) -> None:
        """Continue a fact at the step that waits or failed.

        A failed step is retried with backoff, without limit: its database may be down for a moment, and a
        fact is never skipped.
        """
        connection = self._connection
        attempt = 0
        steps = self.applied.steps
        while index < len(steps):
            try:
                if failure is not None:
                    raise failure
                if waiting is None:
                    result = steps[index](updates)
                    waiting = None if result is None else step_eagerly(result)
                if waiting is not None:
                    await waiting
                index += 1
            except CancelledError:
                raise
            except Exception as error:
                self._listener.report_error(error, self.name, self.applied.step_owner(index))
                failure = None
                await self._sleep(attempt)
                attempt += 1
            waiting = None
        # Without order a token says nothing about earlier facts, which may have been lost with the
        # connection.
        if advances and (self._compares or connection == self._connection):
            self._fact_done(updates.writer, updates.token)

    def _repair(self, command: Position, *, after: int, is_contiguous: bool, is_reset: bool = False) -> None:
        """Fetch the missing facts up to this POSITION."""
        if command.instance not in self._open_gaps:
            self._open_gaps.add(command.instance)
            self._listener.gap_detected()
        self._gap_ends[command.instance] = command.token
        if is_reset:
            # All facts of a restarted writer are new, and its earlier ones are void.
            self._recent.forget_beyond(0)
        self._block_on(self._fetch(command, after, is_contiguous, RESET_ATTEMPTS if is_reset else None))

    async def _fetch(self, command: Position, after: int, is_contiguous: bool, attempts: int | None) -> None:
        writer, upto = command.instance, command.token
        connection = self._connection
        attempt = 0
        # Rechecked facts keep their position; a restarted writer begins lower.
        position = after if attempts is not None else max(after, self.known.get(writer, after))
        if not is_contiguous and not await self._skip_to(writer, position):
            return
        while after < upto:
            try:
                facts, complete_upto = await self._fetch_page(writer, after, upto)
            except CancelledError:
                return
            except ReplicationError as error:
                gap = GapError(stream=self.name, writer=writer, have=after, want=upto, why=str(error))
                self._listener.report_error(gap, self.name)
                self._gaps[writer] = gap
                attempt += 1
                if attempt == attempts or isinstance(error, NowhereToFetch):
                    self._listener.gap_lost(gap)
                    await self._give_up(command)
                    return
                try:
                    await self._cancel_on_disconnect(self._sleep(attempt - 1))
                except CancelledError:
                    return
                continue
            attempt = 0
            for token, rows in facts:
                await self._apply_fetched(writer, token, rows)
            if connection != self._connection:
                return  # disconnected while a subscriber was busy: the next POSITION fetches the rest
            after = complete_upto
        self._close_gap(writer)
        # Real masters return later facts than requested.
        self.applied.advance(writer, max(upto, self.known.get(writer, upto)))
        self._position_done(command)

    async def _fetch_page(
        self, writer: str, after: int, upto: int
    ) -> tuple[Sequence[tuple[int, list[bytes]]], int]:
        """Fetch the next facts after `after`. Returns them and the token up to which they are complete.

        Raises `ReplicationError`, and CancelledError if the connection was lost meanwhile.
        """
        last = min(upto, after + DESCENDING_TOKENS) if self._policy.descends else upto
        page = await self._cancel_on_disconnect(
            self._catch_up.fetch(stream=self.name, writer=writer, after=after, upto=last)
        )
        if page.limited and page.upto <= after:
            raise ReplicationError(f"the response makes no progress beyond {after}")
        facts = sorted(page.facts, key=_token) if self._policy.descends else page.facts
        return facts, page.upto if page.limited else last

    async def _recheck(self, command: Position, after: int) -> None:
        """Fetch the last facts again: some may have been lost with the connection after later ones arrived.

        This is a precaution: without a source, the stream continues.
        """
        writer, upto = command.instance, command.token
        attempt = 0
        while after < upto:
            try:
                facts, after = await self._fetch_page(writer, after, upto)
            except CancelledError:
                return
            except NowhereToFetch:
                break
            except ReplicationError as error:
                self._listener.report_error(error, self.name)
                attempt += 1
                if attempt == RESET_ATTEMPTS:
                    break
                try:
                    await self._cancel_on_disconnect(self._sleep(attempt - 1))
                except CancelledError:
                    return
                continue
            for token, rows in facts:
                await self._apply_fetched(writer, token, rows)
        await self._invalidate_and_advance(command)

    async def _give_up(self, command: Position) -> None:
        """Continue without the missing facts: they cannot be fetched."""
        self._gap_ends.pop(command.instance, None)
        self._gaps.pop(command.instance, None)
        self._open_gaps.discard(command.instance)
        await self._invalidate_and_advance(command)

    async def _apply_fetched(self, writer: str, token: int, rows: Sequence[bytes]) -> None:
        """Apply a fetched fact.

        Without order, fetched facts advance the position only when all of them are applied.
        """
        if self._compares:
            if token <= self.known.get(writer, -1):
                return
        elif not self._recent.add_if_new(writer, token, rows):
            await self._invalidate_again(writer, token, rows)
            return
        updates = self._decode(writer, token, rows)
        if updates is not None:
            await self._apply(updates, advances=self._compares)
        else:
            await self._skip_fact(writer, token, advances=self._compares)

    async def _cancel_on_disconnect(self, work: Awaitable[Any]) -> Any:
        """Wait for `work`; raise CancelledError if the connection is lost."""
        self._fetching = defer.ensureDeferred(work)  # type: ignore[arg-type]  # Deferred or coroutine
        try:
            return await self._fetching
        finally:
            self._fetching = None

    def _close_gap(self, writer: str) -> None:
        self._gap_ends.pop(writer, None)
        self._gaps.pop(writer, None)
        if writer in self._open_gaps:
            self._open_gaps.discard(writer)
            self._listener.gap_repaired()

    def _sleep(self, attempt: int) -> "Deferred[None]":
        seconds = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
        return deferLater(self._listener.clock, seconds, lambda: None)  # type: ignore[arg-type]

    # -- queue ---------------------------------------------------------------------------------------------

    def _enqueue(self, command: Rdata | Position) -> None:
        """Queue a command, within limits.

        If the queue is full, a server that pushes is paused. Where facts can be fetched, the queued rows are
        dropped instead, and the POSITION in their place triggers the fetch.
        """
        self._queue.put(command)
        if self._queue.is_full:
            if self._pushed:
                self._listener.pause(self.name)
            else:
                self._queue.drop_rows()
        if not self._busy:
            self._block_on(_nothing())  # the rest of a dropped fact came late: process the queue

    def _empty_queue(self) -> None:
        self._queue.clear()
        self._listener.resume(self.name)


async def _wait_for(waiting: Awaitable[None]) -> None:
    """Wait for an awaitable, as a coroutine."""
    await waiting


async def _nothing() -> None:
    """Do nothing, so that the queue is processed."""


def _token(fact: tuple[int, list[bytes]]) -> int:
    return fact[0]
