"""One stream on the follower's side: what is news, what is missing, and applying it in order."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import islice
from types import CoroutineType
from typing import Any, Final

import msgspec
from twisted.internet import defer
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from synrepl.errors import GapError, ReplicationError, RowError
from synrepl.ports.coroutines import rest_of, run_now
from synrepl.ports.interfaces import ICaches
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
"""A writer that went back may have lost for good what we missed of its new life: ask so often, then say
so."""

LOOK_BACK: Final = 1_000
"""Tokens before the last one that are asked for again after a cut, where later facts come before earlier
ones."""

DESCENDING_TOKENS: Final = 50
"""What is asked for at a time of a stream whose answers descend. Real masters limit these to the highest 100
facts, and name the lowest of them as where to go on from: what lies before it would never be asked for."""


class ApplyPolicy(msgspec.Struct, frozen=True):
    """How a stream is to be followed.

    `earliest`: a writer never heard of is followed from its first fact. `is_kept`: what is applied goes into
    a log, which need not be told again what it has when a writer goes back. `resumes`: that log has been on
    this channel before, so that a stream it never heard of is new.
    """

    ordered: bool
    monotonic: bool
    earliest: bool
    descends: bool = False
    is_kept: bool = False
    resumes: bool = False


class StreamApplier:
    """Applies one stream, fact by fact.

    `known` holds, by writer, the token up to which facts were applied; only `standing` moves it, and `run` in
    its place. A fact that is known already is dropped, whoever brings it. While something is missing, or a
    subscriber is not done, everything of the stream waits.
    """

    def __init__(
        self,
        name: str,
        settings: ApplyPolicy,
        host: ApplierListener,
        catch_up: ICatchUp,
        batches: Batches[bytes],
        known: dict[str, int],
        caches: ICaches | None = None,
    ) -> None:
        self.name = name
        self.known: Mapping[str, int] = known
        self.standing = AppliedPositions(name, known, caches, host)
        self._settings = settings
        self._host = host
        self._catch_up = catch_up
        self._batches = batches
        self._had_position = bool(known)
        # The last position of each writer that tells facts ahead of its position: all before it was applied.
        self._told: dict[str, int] = {}
        # The position that is being dealt with. What it leaves undone, the next one does.
        self._telling: dict[str, int] = {}
        self._open_gaps: set[str] = set()
        self._wanted: dict[str, int] = {}
        self._gaps: dict[str, GapError] = {}
        self._repetitions = RecentFacts()
        # Whether the server was seen to send later facts before earlier ones, as real masters do.
        self._is_untidy = False
        # Whether nothing was known of this stream when this connection was opened: it begins here.
        self._is_beginning = not known
        # Of this connection, the first, second ...:
        self._connection = 0
        self._pushed = False
        self._shared = False
        self._compares = True
        self._decode_many: Callable[[list[bytes]], list[Any]] = list
        self._ready: set[str] = set()
        self._batching: set[str] = set()
        self._in_push = False
        self._awaits_end = False
        self._held: tuple[str, int, list[bytes]] | None = None
        self._began: dict[str, int] = {}
        self._claims_nothing = False
        # Of what takes time:
        self._busy = False
        self._fetching: Deferred[Any] | None = None
        self._waiting = ApplyQueue()
        self._bursts = ReorderBuffer(lambda: host.clock, self._settle)

    # -- the connection ------------------------------------------------------------------------------------

    def connected(self, way: FollowStrategy, decode_many: Callable[[list[bytes]], list[Any]]) -> None:
        """A new connection: what is said of positions counts from here."""
        self._decode_many = decode_many
        self._pushed = self._in_push = self._awaits_end = way.pushed
        self._shared = way.shared
        self._compares = self._settings.monotonic and way.keeps_order(self.name, self._settings.ordered)
        self._began = dict(self.known)
        self._is_beginning = not self._had_position
        # Where a push is without order, a token says nothing of the others until POSITION ends it.
        self._claims_nothing = way.pushed and not self._compares

    def disconnected(self) -> None:
        """The connection is gone, and with it whatever was half received.

        A subscriber that is at work is let finish; what is being fetched is asked for again by the next
        POSITION.
        """
        self._connection += 1
        self._empty_queue()
        self._ready.clear()
        self._held = None
        self._batching.clear()
        self._batches.clear(self.name)
        self._bursts.clear()
        if self._claims_nothing:
            # Ask for all of the push again. What was applied of it is remembered as such, its caches are
            # dropped, and no position of it was ever told.
            self.standing.go_back(self._began)
            self._claims_nothing = False
        if self._fetching is not None:
            # Last: what waited for it must be gone, or it would be applied beyond the hole.
            self._fetching.cancel()

    def positions(self) -> Mapping[str, int]:
        """What may be claimed as applied, by writer."""
        return self._began if self._claims_nothing else self.known

    @property
    def is_waiting(self) -> bool:
        """Whether something holds this stream up now: missing facts, or a busy subscriber."""
        return self._busy or bool(self._bursts)

    @property
    def queued(self) -> int:
        """How many rows and positions wait."""
        return len(self._waiting)

    @property
    def missing(self) -> int:
        """How many tokens are known to be missing now."""
        return sum(max(0, upto - self.known.get(writer, 0)) for writer, upto in self._wanted.items())

    @property
    def gaps(self) -> list[GapError]:
        """What is missing now and could not be fetched yet, with the last reason."""
        return list(self._gaps.values())

    # -- what comes ----------------------------------------------------------------------------------------

    def rdata(self, command: Rdata) -> None:
        """A row came."""
        writer = command.instance
        if self._busy or self._waiting.lets_go_of(writer):
            self._enqueue(command)
            return
        if writer not in self._ready and not self._accepts(writer):
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
            self._push(writer, token, rows)
        elif self._shared and self._settings.descends:
            if not self._bursts.add(writer, token, rows):
                self._settle(writer)
        else:
            self._fact(writer, token, rows)

    def run(self, run: RdataRun) -> None:
        """Many rows came, one right after the other: the same as `rdata` for each."""
        writer = run.instance
        if (
            self._busy
            or self._batching
            or self._pushed
            or not self._compares
            or None in run.tokens
            or (writer not in self._ready and not self._accepts(writer))
            or (rows := self._all_typed(run.rows)) is None
        ):
            for command in run.commands():
                self.rdata(command)
            return
        known, steps = self.standing.tokens, self.standing.steps
        last = known.get(writer, -1)
        for log_position, token in enumerate(run.tokens):
            assert token is not None
            if token <= last:
                continue
            updates = Updates(self.name, writer, token, [rows[log_position]])
            for index, step in enumerate(steps):
                failure: Exception | None = None
                waiting: Awaitable[None] | None = None
                try:
                    waiting = step(updates)
                    if waiting is None:
                        continue
                    if type(waiting) is CoroutineType:
                        # As `run_now` does, but for the call: this is where every row of every stream passes.
                        try:
                            first = waiting.send(None)
                        except StopIteration:
                            continue
                        waiting = rest_of(waiting, first)
                except Exception as error:
                    failure = error
                self._host.moved(self.name)
                self._hold(self._apply(updates, index, waiting=waiting, failure=failure))
                for command in islice(run.commands(), log_position + 1, None):
                    self.rdata(command)
                return
            known[writer] = last = token  # `AppliedPositions.reach`, but for the call
        self._host.moved(self.name)

    def _all_typed(self, rows: list[bytes]) -> list[Any] | None:
        try:
            return self._decode_many(rows)
        except RowError:
            return None  # one by one then: the bad one is reported, the others are applied

    def position(self, command: Position) -> None:
        """A POSITION came."""
        if self._busy:
            self._enqueue(command)
            return
        # Of others a fact may be under way: on a shared channel POSITIONs come between its rows.
        self._batches.clear(self.name, command.instance)
        self._batching.discard(command.instance)
        self._in_push = False
        if self._held is not None and not self._flush_held():
            self._waiting.put_first(command)
            return
        if self._bursts and not self._settle(command.instance):
            self._waiting.put_first(command)
            return
        is_first = command.instance not in self._ready
        self._ready.add(command.instance)
        if self._pushed:
            is_first, self._awaits_end = self._awaits_end, False  # rows came before it, and are no news of it
            self._end_push(command, is_first=is_first)
        else:
            self._compare(command, is_first=is_first)

    def _accepts(self, writer: str) -> bool:
        """Rows before this connection's POSITION: there may be a hole before them, which POSITION will tell.

        But a writer that was not there when positions were told has none: these are its first.
        """
        if not self._pushed and (not self._ready or writer in self.known):
            return False
        self._ready.add(writer)
        return True

    def _leads_on(self, command: Position, *, is_first: bool) -> bool:
        """Whether what is applied of this writer is all there was, so that what follows it can be trusted.

        It is not if we never heard of it, so that what it wrote since our caches were filled is unknown.
        Between two connections tokens that may go back can have done so, and grown again; and a master that
        sends 211 before 206 may have been cut off between the two.
        """
        if command.instance not in self.known:
            return False
        return not is_first or (self._settings.monotonic and not self._is_untidy)

    def _end_push(self, command: Position, *, is_first: bool) -> None:
        """All that was missed has been pushed."""
        writer, token = command.instance, command.token
        known = self.known.get(writer, token)
        if is_first and token < self._began.get(writer, token):
            self._host.went_back(self.name, writer, token)
        if token < known:
            self._repetitions.forget_beyond(token)
        # It is the end of a push that certifies; a later POSITION ahead of the rows says nothing of them.
        if self._leads_on(command, is_first=is_first) and (token == known or (is_first and known < token)):
            self._stand(command)
        else:
            self._do(self._jump_and_stand(command))

    def _compare(self, command: Position, *, is_first: bool) -> None:
        """A writer says where it stands: is something missing?"""
        writer, token = command.instance, command.token
        known = self._start_of(command)
        if self._compares and known <= token and (elsewhere := self._host.reached(self.name, writer)) > known:
            known = elsewhere
            self.standing.reach_elsewhere(writer, known)
            if token < known:
                return  # it lags behind what came here by another way
        prev = token if command.prev_token is None else command.prev_token
        leads_on = self._leads_on(command, is_first=is_first)
        back = self._look_back_from(command, known, is_first=is_first)
        if self._shared and not self._compares and self._settings.monotonic and token <= known:
            # Rows are told ahead of their position here, so that one that is lower means nothing.
            command = Position(stream=self.name, instance=writer, prev_token=known, token=known)
            prev = token = known
        if prev <= known <= token:
            self._close_gap(writer)
            if back is not None:
                self._hold(self._look_back(command, back))
            elif leads_on:
                self._stand(command)
            else:
                self._do(self._jump_and_stand(command))
        elif known < prev:
            after = known if back is None else min(back, known)
            self._repair(command, after=after, leads_on=leads_on)
        elif is_first or self._shared or not self._settings.monotonic:
            if is_first or self._shared:
                self._host.went_back(self.name, writer, token)
            if self._settings.is_kept:
                self._do(self._jump_and_stand(command))
                return
            self._host.restarted(self.name, writer)
            self._repair(command, after=0, leads_on=False, is_reset=True)
        # else: it lags behind its own rows, which tells nothing new

    def _look_back_from(self, command: Position, known: int, *, is_first: bool) -> int | None:
        """From where facts may be lacking that are lower than what is here; None if none can be.

        Where facts come ahead of the position, those before them may have been told while nobody listened
        here, or never: a writer that was cut off itself moves on, and then says only where it stands.
        """
        if not self._shared or self._settings.ordered or not self._settings.monotonic:
            return None
        writer, token = command.instance, command.token
        told = self._told.get(writer)
        self._telling[writer] = token
        if not is_first and command.prev_token != token:
            return None  # said in the course of its facts
        if told is None:
            # Where what is applied is not kept, nobody can tell after a start what was applied before it.
            may_lack = writer in self.known and (self._connection > 0 or self._settings.is_kept)
            return max(0, known - LOOK_BACK) if may_lack else None
        return max(told, token - LOOK_BACK) if told < token else None

    def _start_of(self, command: Position) -> int:
        """What we have of this writer, also when we never heard of it."""
        if command.instance in self.known:
            return self.known[command.instance]
        if self._settings.earliest:
            return 0
        if self._is_beginning:
            # Every writer, not only the one that is told first.
            return 0 if self._settings.is_kept and self._settings.resumes else command.token
        # It came while we were away, so it wrote nothing before what we had of all the others.
        return min(self.known.values(), default=command.token)

    def _stand(self, command: Position) -> None:
        """Stand where this says: every fact up to there was applied."""
        self.standing.reach(command.instance, command.token)
        self._reached(command)

    async def _jump_and_stand(self, command: Position) -> None:
        """Stand where this says, though it is not certain that every fact up to there was applied."""
        if await self._jump(command.instance, command.token):
            self._reached(command)

    async def _jump(self, writer: str, token: int, *, counts: bool = True) -> bool:
        """Stand at `token` though facts before it were not applied: what they can invalidate goes first.

        False, and it stands where it stood, if `counts` is False or the connection was lost meanwhile.
        """
        connection = self._connection
        attempt = 0
        while True:
            try:
                self.standing.skip()
                break
            except Exception as error:
                self._host.trouble(error, self.name, CACHES)
            await self._sleep(attempt)
            attempt += 1
        if not counts or connection != self._connection:
            return False
        self.standing.reach(writer, token)
        return True

    def _reached(self, command: Position) -> None:
        writer = command.instance
        if writer in self._telling:
            told = self._telling.pop(writer)
            self._told[writer] = max(told, self._told.get(writer, told))
        self._had_position = True
        self._claims_nothing = False
        self._host.positioned(self.name, writer, self.known[writer])
        self._host.moved(self.name)

    # -- facts ---------------------------------------------------------------------------------------------

    def _settle(self, writer: str) -> bool:
        """Apply what came of a burst. False: something holds the stream up, and the rest waits."""
        facts = self._bursts.take(writer)
        while facts:
            if self._busy:
                self._bursts.put_back(writer, facts)
                return False
            token, rows = facts.pop(0)
            self._fact(writer, token, rows)
        return not self._busy

    def _push(self, writer: str, token: int, rows: list[bytes]) -> None:
        """A row of what was missed: old masters do not mark which ones make a fact, but for their token."""
        if self._held is not None and self._held[:2] == (writer, token):
            self._held[2].extend(rows)
            return
        if self._held is not None:
            self._flush_held()
        self._held = (writer, token, rows)

    def _flush_held(self) -> bool:
        assert self._held is not None
        writer, token, rows = self._held
        self._held = None
        return self._fact(writer, token, rows)

    def _fact(self, writer: str, token: int, rows: Sequence[bytes]) -> bool:
        """Apply a fact if it is news. False: it is not done yet, and the stream waits for it."""
        if self._compares and not (self._pushed and self._is_late(writer, token, rows)):
            if token <= self.known.get(writer, -1):
                return True
        elif not self._compares:
            is_news = self._repetitions.is_news(writer, token, rows)
            if not is_news:
                return not self.standing.has_caches or self._do(self._drop_again(writer, token, rows))
            if not self._in_push and token < self.known.get(writer, token):
                self._is_untidy = True
        updates = self._updates(writer, token, rows)
        if updates is None:
            return self._do(self._pass_over(writer, token))
        for index, step in enumerate(self.standing.steps):
            try:
                result = step(updates)
                waiting = None if result is None else run_now(result)
            except Exception as error:
                self._hold(self._apply(updates, index, failure=error))
                return False
            if waiting is not None:
                self._hold(self._apply(updates, index, waiting=waiting))
                return False
        self._advance(writer, token)
        return True

    async def _drop_again(self, writer: str, token: int, rows: Sequence[bytes]) -> None:
        """A fact was here already, or one just like it of a history that is lost: nobody can tell.

        So caches hear of it again, which does no harm.
        """
        if not self.standing.has_caches:
            return
        updates = self._updates(writer, token, rows)
        if updates is None:
            await self._pass_over(writer, token, counts=False)
        else:
            await self._apply(updates, len(self.standing.steps) - 1, counts=False)

    def _updates(self, writer: str, token: int, rows: Sequence[bytes]) -> Updates[Any] | None:
        """The typed fact; None, and reported, if a row is none of any release: then the stream goes on
        without it."""
        try:
            return Updates(self.name, writer, token, self._decode_many(list(rows)))
        except RowError as error:
            self._host.trouble(error, self.name)
            return None

    def _advance(self, writer: str, token: int) -> None:
        self.standing.reach(writer, self._beyond(writer, token))
        self._host.moved(self.name)

    def _is_late(self, writer: str, token: int, rows: Sequence[bytes]) -> bool:
        """Whether a fact is news though a later one was pushed already.

        Where rows name no writer, several can be behind one name, and one overtakes the other.
        """
        is_news = self._repetitions.is_news(writer, token, rows)
        return is_news and token <= self.known.get(writer, -1)

    def _beyond(self, writer: str, token: int) -> int:
        """Where the stream stands after a fact: without order an earlier one does not lead back."""
        if (self._compares and not self._pushed) or not self._settings.monotonic:
            return token
        return max(token, self.known.get(writer, token))

    async def _pass_over(self, writer: str, token: int, *, counts: bool = True) -> None:
        """Go on without a fact that cannot be read."""
        if await self._jump(writer, self._beyond(writer, token), counts=counts):
            self._host.moved(self.name)

    # -- what takes time -----------------------------------------------------------------------------------

    def _hold(self, work: Coroutine[Any, Any, None]) -> None:
        """Let everything of this stream wait for `work`."""
        self._busy = True
        self._host.start(self._until_done(work), f"following {self.name}")

    def _do(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do this at once if it need not wait. False: it is not done yet, and the stream waits for it."""
        waiting = run_now(work)
        if waiting is not None:
            self._hold(_done(waiting))
        return waiting is None

    async def _until_done(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            # Also when the follower is stopped in the middle of it: it may be started again.
            self._busy = False
        while not self._busy and (command := self._waiting.take()) is not None:
            if isinstance(command, Rdata):
                self.rdata(command)
            else:
                self.position(command)
        if not self._waiting:
            self._host.speed_up(self.name)

    async def _apply(
        self,
        updates: Updates[Any],
        index: int = 0,
        *,
        waiting: Awaitable[None] | None = None,
        failure: Exception | None = None,
        counts: bool = True,
    ) -> None:
        """Go on with a fact at a step that waits or failed.

        One that fails is asked again, with patience: its database may be away for a moment, and a fact is
        never skipped.
        """
        connection = self._connection
        attempt = 0
        steps = self.standing.steps
        while index < len(steps):
            try:
                if failure is not None:
                    raise failure
                if waiting is None:
                    result = steps[index](updates)
                    waiting = None if result is None else run_now(result)
                if waiting is not None:
                    await waiting
                index += 1
            except CancelledError:
                raise
            except Exception as error:
                self._host.trouble(error, self.name, self.standing.whose(index))
                failure = None
                await self._sleep(attempt)
                attempt += 1
            waiting = None
        # Without order a token says nothing of those before it, which may have been lost with the connection.
        if counts and (self._compares or connection == self._connection):
            self._advance(updates.writer, updates.token)

    def _repair(self, command: Position, *, after: int, leads_on: bool, is_reset: bool = False) -> None:
        """Facts are missing up to this position: fetch them."""
        if command.instance not in self._open_gaps:
            self._open_gaps.add(command.instance)
            self._host.gap_detected()
        self._wanted[command.instance] = command.token
        if is_reset:
            # The writer began anew: all that it has is news, and what came of its former life is void.
            self._repetitions.forget_beyond(0)
        self._hold(self._fetch(command, after, leads_on, RESET_ATTEMPTS if is_reset else None))

    async def _fetch(self, command: Position, after: int, leads_on: bool, attempts: int | None) -> None:
        writer, upto = command.instance, command.token
        connection = self._connection
        attempt = 0
        # What is asked for again, lest something came late, counts as it did; a new life begins lower.
        stands = after if attempts is not None else max(after, self.known.get(writer, after))
        if not leads_on and not await self._jump(writer, stands):
            return
        while after < upto:
            try:
                facts, reached = await self._page(writer, after, upto)
            except CancelledError:
                return
            except ReplicationError as error:
                gap = GapError(stream=self.name, writer=writer, have=after, want=upto, why=str(error))
                self._host.trouble(gap, self.name)
                self._gaps[writer] = gap
                attempt += 1
                if attempt == attempts or isinstance(error, NowhereToFetch):
                    self._host.gap_lost(gap)
                    await self._give_up(command)
                    return
                try:
                    await self._interruptible(self._sleep(attempt - 1))
                except CancelledError:
                    return
                continue
            attempt = 0
            for token, rows in facts:
                await self._apply_fetched(writer, token, rows)
            if connection != self._connection:
                return  # lost while a subscriber was busy: the next POSITION asks for the rest
            after = reached
        self._close_gap(writer)
        # Real masters answer with later facts than they were asked for.
        self.standing.reach(writer, max(upto, self.known.get(writer, upto)))
        self._reached(command)

    async def _page(
        self, writer: str, after: int, upto: int
    ) -> tuple[Sequence[tuple[int, list[bytes]]], int]:
        """The next facts after `after`, and up to where that is all of them.

        Raises `ReplicationError`, and CancelledError when the connection was lost meanwhile.
        """
        asked = min(upto, after + DESCENDING_TOKENS) if self._settings.descends else upto
        page = await self._interruptible(
            self._catch_up.fetch(stream=self.name, writer=writer, after=after, upto=asked)
        )
        if page.limited and page.upto <= after:
            raise ReplicationError(f"the answer makes no progress beyond {after}")
        facts = sorted(page.facts, key=_token) if self._settings.descends else page.facts
        return facts, page.upto if page.limited else asked

    async def _look_back(self, command: Position, after: int) -> None:
        """Facts that come after later ones may have been lost with the connection: ask for the last again.

        That is a precaution: where nobody can be asked, the stream goes on.
        """
        writer, upto = command.instance, command.token
        attempt = 0
        while after < upto:
            try:
                facts, after = await self._page(writer, after, upto)
            except CancelledError:
                return
            except NowhereToFetch:
                break
            except ReplicationError as error:
                self._host.trouble(error, self.name)
                attempt += 1
                if attempt == RESET_ATTEMPTS:
                    break
                try:
                    await self._interruptible(self._sleep(attempt - 1))
                except CancelledError:
                    return
                continue
            for token, rows in facts:
                await self._apply_fetched(writer, token, rows)
        await self._jump_and_stand(command)

    async def _give_up(self, command: Position) -> None:
        """What is missing cannot be had: go on without it."""
        self._wanted.pop(command.instance, None)
        self._gaps.pop(command.instance, None)
        self._open_gaps.discard(command.instance)
        await self._jump_and_stand(command)

    async def _apply_fetched(self, writer: str, token: int, rows: Sequence[bytes]) -> None:
        """Apply a fact that was missing.

        Where there is no order its token says nothing of the others, which count only when all are applied.
        """
        if self._compares:
            if token <= self.known.get(writer, -1):
                return
        elif not self._repetitions.is_news(writer, token, rows):
            await self._drop_again(writer, token, rows)
            return
        updates = self._updates(writer, token, rows)
        if updates is not None:
            await self._apply(updates, counts=self._compares)
        else:
            await self._pass_over(writer, token, counts=self._compares)

    async def _interruptible(self, work: Awaitable[Any]) -> Any:
        """Wait for something that losing the connection makes pointless. Raises CancelledError then."""
        self._fetching = defer.ensureDeferred(work)  # type: ignore[arg-type]  # Deferred or coroutine
        try:
            return await self._fetching
        finally:
            self._fetching = None

    def _close_gap(self, writer: str) -> None:
        self._wanted.pop(writer, None)
        self._gaps.pop(writer, None)
        if writer in self._open_gaps:
            self._open_gaps.discard(writer)
            self._host.gap_repaired()

    def _sleep(self, attempt: int) -> "Deferred[None]":
        seconds = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
        return deferLater(self._host.clock, seconds, lambda: None)  # type: ignore[arg-type]

    # -- what waits ----------------------------------------------------------------------------------------

    def _enqueue(self, command: Rdata | Position) -> None:
        """Keep for later, within bounds.

        Beyond them the server is slowed down where it pushes; where we can pull, what waits is let go, and a
        POSITION in its place makes us fetch it when we get there.
        """
        self._waiting.put(command)
        if self._waiting.is_too_much:
            if self._pushed:
                self._host.slow_down(self.name)
            else:
                self._waiting.let_go()
        if not self._busy:
            self._hold(_nothing())  # the rest of what was let go came late: look at what waits now

    def _empty_queue(self) -> None:
        self._waiting.clear()
        self._host.speed_up(self.name)


async def _done(waiting: Awaitable[None]) -> None:
    """Ends when this does."""
    await waiting


async def _nothing() -> None:
    """Takes no time: lets the queue be looked at."""


def _token(fact: tuple[int, list[bytes]]) -> int:
    return fact[0]
