"""Modes: what a POSITION means on one connection, and when received rows can be applied.

A follower holds one position for each writer of a stream, and must never advance it over a fact that it has
not applied. Rows alone do not tell it whether any are missing, as tokens may leave gaps: other writers, other
streams and aborted transactions use them up. Only a POSITION does: it says that the writer's facts up to a
token follow, without a gap, from the token before. So everything turns on one comparison: our position
against the two tokens of a POSITION. If ours lies between them, nothing is missing; if it is lower, the facts
between are fetched before anything newer is applied; if it is higher, the writer has lost facts, or has begun
again, or the POSITION is an old one.

Which of these it is depends on who sends and how, and this is why there are modes rather than one rule.
Masters before Synapse 1.13 know no writers and push what is missed (`Push`). Later ones announce, and let the
worker fetch (`Pull`). On Redis every process announces its own facts, there is no first greeting, a writer
may come and go unseen, and a late fact may be sent beyond a POSITION (`Shared`). A mode knows the
differences; it judges, and changes nothing but what it must remember of the connection. The verdict
(`Verdict`) is carried out by the stream's machine.

A second question is asked beside it: is the answer certain? After a restart of a writer whose tokens may go
back, the same numbers can stand for other facts. The position then advances, because there is nothing to
fetch, but what was derived from older facts, a cache above all, is dropped.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from synrepl.replication.follower.history import (
    ORDERED,
    OVERTAKING,
    RESTARTING,
    UNORDERED,
    Order,
    ReorderBuffer,
    StreamHistory,
)
from synrepl.replication.follower.updates import RawFact
from synrepl.replication.strategies import FollowStrategy
from synrepl.wire.commands import Position

RECHECK_TOKENS: Final = 1_000
"""The most tokens that are fetched again because late facts may have been missed. Only for streams of a
shared channel whose rows arrive ahead of POSITION.
"""


class Verdict(enum.Enum):
    """What a POSITION shows; the value says it in words."""

    CERTAIN = "nothing is missing: the position advances"
    UNCERTAIN = "nothing is known to be missing, but facts may be lost: the position advances over them"
    GAP = "facts are missing: they are fetched"
    RECHECK = "late facts may have been missed: the last facts are fetched again"
    REWOUND = "the writer has lost facts, and the log discards them: the position falls"
    RESTARTED = "the writer begins again: all its facts are fetched"
    STALE = "facts beyond the POSITION were applied already: nothing changes"


class Judgement(msgspec.Struct, frozen=True):
    """A `verdict` on a POSITION, and the `token` to reach.

    `after`: the token after which to fetch. `is_certain`: no fact at or below `after` is missing.
    `is_rewound`: the writer's position fell. `is_behind`: it is below what was applied, in the same log.
    `void_after`: facts after this token are void, so that equal ones are new.
    """

    verdict: Verdict
    token: int
    after: int = 0
    is_certain: bool = False
    is_rewound: bool = False
    is_behind: bool = False
    void_after: int | None = None


class Mode:
    """How one stream is followed on one connection.

    `order`: the order of its facts. `pushes`: the server pushes missed facts; otherwise they are fetched.
    `collects_rows`: rows are given to `collect`; otherwise each complete fact can be applied at once.
    `in_backlog`: the server still pushes facts from before this connection. `ready`: the writers whose rows
    can be applied.
    """

    pushes = False
    in_backlog = False

    def __init__(self, history: StreamHistory, order: Order, *, collects_rows: bool = False) -> None:
        self.order = order
        self.collects_rows = collects_rows
        self.ready: set[str] = set()
        self._history = history
        self._policy = history.policy
        self._positions = history.positions

    @property
    def collects(self) -> bool:
        """Whether a burst of facts is buffered, as only `Shared` does."""
        return False

    def collect(self, writer: str, token: int, rows: list[bytes]) -> Sequence[RawFact]:
        """Take the rows of a token. Returns the facts that can be applied now."""
        raise NotImplementedError

    def flush(self, writer: str) -> Sequence[RawFact]:
        """Remove and return the collected facts that a POSITION of this writer completes."""
        return ()

    def quiet_facts(self) -> Sequence[RawFact]:
        """Remove and return the collected facts of writers that have sent nothing for a while."""
        return ()

    def accepts_writer(self, writer: str) -> bool:
        """Whether rows of this writer, which is not `ready`, can be applied. If so, it becomes `ready`."""
        raise NotImplementedError

    def lacks_start(self, writer: str) -> bool:
        """Whether rows that are not accepted are fetched, with what their writer may have written before."""
        return False

    def announce(self, writer: str) -> bool:
        """A POSITION of this writer arrived. Returns whether to judge it as the first on this connection."""
        raise NotImplementedError

    def judge(self, command: Position, *, is_first: bool) -> Judgement:
        """Judge a POSITION, once the facts that arrived before it are applied."""
        raise NotImplementedError

    def judge_dropped(self, command: Position, lowest: int, *, is_first: bool) -> Judgement:
        """Judge facts that were dropped from the full queue, from the token `lowest` to that of `command`."""
        raise NotImplementedError

    def _is_certain(self, command: Position, *, is_first: bool) -> bool:
        """Whether all earlier facts of the writer were applied, so that this POSITION can be trusted.

        False for an unknown writer: the facts it wrote since our caches were filled are unknown. False on the
        first POSITION of a connection if tokens can go back: between two connections they may have gone back
        and grown again. False there, too, if the master sends facts out of order (such as 211 before 206):
        the disconnect may have come between two of them.
        """
        if command.instance not in self._positions.tokens:
            return False
        return not is_first or (self._policy.monotonic and not self._history.is_out_of_order)


class Pull(Mode):
    """A server of 1.13 or later: it announces the position of each writer, and missed facts are fetched."""

    def __init__(self, history: StreamHistory, order: Order, *, collects_rows: bool = False) -> None:
        super().__init__(history, order, collects_rows=collects_rows)
        # A stream without positions when this connection is opened starts at its first POSITION.
        self._is_new_stream = not history.has_started

    def accepts_writer(self, writer: str) -> bool:
        """Whether the writer had no position when positions were announced: then these are its first rows.

        Otherwise there may be a gap before the rows: they are accepted once its POSITION was received. A
        writer that is known from another copy of the log has no position at a copy that lags that far. Its
        rows then come from the first one on, those that are known included.
        """
        if not self.ready or (writer in self._positions.tokens and not self._history.is_compared):
            return False
        self.ready.add(writer)
        return True

    def announce(self, writer: str) -> bool:
        """Accept the writer's rows from now on. Returns whether none were accepted until now."""
        is_first = writer not in self.ready
        self.ready.add(writer)
        return is_first

    def judge(self, command: Position, *, is_first: bool) -> Judgement:
        """Compare a POSITION with the applied position, or, in an exact order, with a higher external one."""
        writer, token = command.instance, command.token
        known = self._known(command)
        if self.order.is_exact and known <= token and (external := self._external(writer)) > known:
            self._positions.advance(writer, external)
            if token < external:
                return Judgement(Verdict.STALE, token)
            known = external
        prev = token if command.prev_token is None else command.prev_token
        is_certain = self._is_certain(command, is_first=is_first)
        recheck_after = self._recheck_after(command, known, is_first=is_first)
        if token <= known and self._announces_late:
            # A lower POSITION has no meaning.
            prev = token = known
        if prev <= known <= token:
            if recheck_after is not None:
                return Judgement(Verdict.RECHECK, token, recheck_after)
            return Judgement(Verdict.CERTAIN if is_certain else Verdict.UNCERTAIN, token)
        if known < prev:
            after = known if recheck_after is None else min(recheck_after, known)
            return Judgement(Verdict.GAP, token, after, is_certain)
        if self._history.is_compared:
            # A copy that lags, as REWIND says what is lost; or a log that was put back, which knows no loss.
            return Judgement(Verdict.STALE, token, is_behind=is_first and self._policy.monotonic)
        is_rewound = is_first or self._rewinds_any_time
        if not is_rewound and self._policy.monotonic:
            return Judgement(Verdict.STALE, token)
        if self._policy.is_kept:
            return Judgement(Verdict.REWOUND, token, is_rewound=is_rewound)
        # All facts of a restarted writer are new, and its earlier ones are void.
        return Judgement(Verdict.RESTARTED, token, is_rewound=is_rewound, void_after=0)

    def judge_dropped(self, command: Position, lowest: int, *, is_first: bool) -> Judgement:
        """Judge dropped facts: all that may be new is fetched, late facts below the position included.

        Rows show no loss of the writer: in an exact order those up to the position are repetitions.
        """
        token, known = command.token, self._positions.tokens.get(command.instance)
        if known is None:
            after = lowest - 1 if self._starts_anywhere else self._known(command)
            # Tokens that do not follow those of the other writers are the writer's own.
            return Judgement(Verdict.GAP, token, after if after < lowest else 0)
        if known < lowest or (self.order.is_exact and known < token):
            return self.judge(command, is_first=is_first)
        if self.order.restarts:
            return Judgement(Verdict.RESTARTED, token, void_after=0)
        if self.order.is_exact:
            return Judgement(Verdict.STALE, token)
        recheck_after = self._recheck_after(command, known, is_first=is_first)
        after = lowest - 1 if recheck_after is None else min(lowest - 1, recheck_after)
        return Judgement(Verdict.GAP, token, after, self._is_certain(command, is_first=is_first))

    @property
    def _starts_anywhere(self) -> bool:
        """Whether a writer that has no position starts where it is now."""
        policy = self._policy
        return self._is_new_stream and not policy.earliest and not (policy.is_kept and policy.resumes)

    _announces_late = False
    _rewinds_any_time = False

    def _known(self, command: Position) -> int:
        """The applied position of this writer, or the position to start a new writer from."""
        tokens = self._positions.tokens
        if command.instance in tokens:
            return tokens[command.instance]
        if self._starts_anywhere:
            # Every writer of a new stream starts at its POSITION, not only the one announced first.
            return command.token
        if self._policy.earliest or self._is_new_stream:
            return 0
        # The writer appeared while we were disconnected, so its facts are after our positions of all others.
        return min(tokens.values(), default=command.token)

    def _external(self, writer: str) -> int:
        external_position = self._policy.external_position
        return -1 if external_position is None else external_position(writer)

    def _recheck_after(self, command: Position, known: int, *, is_first: bool) -> int | None:
        """The token after which late facts may be missing; None if none can be.

        Where rows arrive ahead of POSITION, earlier facts may have been sent while this follower was
        disconnected. Facts that a writer committed while it was itself disconnected are never sent: it only
        announces its position afterwards.
        """
        if not self._announces_late:
            return None
        writer, token = command.instance, command.token
        self._history.announcing[writer] = token
        if not is_first and command.prev_token != token:
            return None  # sent between its facts
        announced = self._history.announced.get(writer)
        if announced is None:
            # Without a log, a restarted process cannot know which facts were applied before.
            is_known = writer in self._positions.tokens
            may_lack = is_known and (self._history.was_disconnected or self._policy.is_kept)
            return max(0, known - RECHECK_TOKENS) if may_lack else None
        return max(announced, token - RECHECK_TOKENS) if announced < token else None


class Shared(Pull):
    """A shared channel: every writer publishes its own facts, and its tokens may go back at any time."""

    _rewinds_any_time = True

    def __init__(self, history: StreamHistory, order: Order, seconds: Callable[[], float]) -> None:
        policy = history.policy
        super().__init__(history, order, collects_rows=policy.descends)
        # Whether rows arrive ahead of the POSITION that covers them.
        self._announces_late = policy.monotonic and not policy.ordered
        self._burst = ReorderBuffer(seconds)

    def accepts_writer(self, writer: str) -> bool:
        """As for a server, but not without a position: each process announces its own, when it comes to it.

        What a new writer wrote before these rows, while this follower was away, nobody has said yet.
        """
        return not self.lacks_start(writer) and super().accepts_writer(writer)

    def lacks_start(self, writer: str) -> bool:
        """Whether the writer has no position here, and does not start anywhere."""
        return writer not in self._positions.tokens and not self._starts_anywhere

    @property
    def collects(self) -> bool:
        """Whether a burst is buffered."""
        return bool(self._burst)

    def collect(self, writer: str, token: int, rows: list[bytes]) -> Sequence[RawFact]:
        """Add a fact to the burst of its writer. Returns the burst if the buffer is full."""
        return self._burst.add(writer, token, rows)

    def flush(self, writer: str) -> Sequence[RawFact]:
        """Remove and return the writer's burst: POSITION ends it."""
        return self._burst.pop(writer)

    def quiet_facts(self) -> Sequence[RawFact]:
        """Remove and return the buffered facts of writers that have sent nothing for `QUIET_SECONDS`."""
        return self._burst.pop_quiet()


class Push(Mode):
    """A server before 1.13: it pushes the missed facts, and ends them with a POSITION.

    Old masters mark the rows of one pushed fact only by their equal token.
    """

    pushes = True

    def __init__(self, history: StreamHistory, order: Order) -> None:
        super().__init__(history, order, collects_rows=True)
        self.in_backlog = True
        # The last fact of the backlog, whose rows may not all have come.
        self._last: RawFact | None = None
        self._start = dict(history.positions.tokens)
        if not order.is_exact:
            # A token says nothing about earlier facts until POSITION ends the push.
            history.positions.hold_back()

    def collect(self, writer: str, token: int, rows: list[bytes]) -> Sequence[RawFact]:
        """Join pushed rows to facts. Returns the facts that these rows show to be complete."""
        last = self._last
        if last is not None and last[:2] == (writer, token):
            last[2].extend(rows)
            return ()
        self._last = (writer, token, rows)
        return () if last is None else (last,)

    def flush(self, writer: str) -> Sequence[RawFact]:
        """End the backlog, and return its last fact, if any. From now on the rows of one fact are marked."""
        self.collects_rows = self.in_backlog = False
        last, self._last = self._last, None
        return () if last is None else (last,)

    def accepts_writer(self, writer: str) -> bool:
        """Always True: a push has no POSITION before its rows."""
        self.ready.add(writer)
        return True

    def announce(self, writer: str) -> bool:
        """Returns whether the POSITION ends the backlog."""
        return self.in_backlog

    def judge(self, command: Position, *, is_first: bool) -> Judgement:
        """Judge the POSITION that ends the push (`is_first`), or a later one."""
        writer, token = command.instance, command.token
        known = self._positions.tokens.get(writer, token)
        # Only the POSITION that ends a push is certain. A later one may be ahead of its rows.
        is_certain = self._is_certain(command, is_first=is_first) and (
            token == known or (is_first and known < token)
        )
        return Judgement(
            Verdict.CERTAIN if is_certain else Verdict.UNCERTAIN,
            token,
            is_rewound=is_first and token < self._start.get(writer, token),
            void_after=token if token < known else None,
        )


def mode_for(
    name: str, strategy: FollowStrategy, history: StreamHistory, *, seconds: Callable[[], float]
) -> Mode:
    """How the stream `name` is followed on a connection with this strategy. `seconds` returns the time."""
    policy = history.policy
    order = UNORDERED
    if not policy.monotonic:
        order = RESTARTING
    elif strategy.keeps_order(name, policy.ordered):
        order = OVERTAKING if strategy.pushed else ORDERED
    if strategy.pushed:
        return Push(history, order)
    return Shared(history, order, seconds) if strategy.shared else Pull(history, order)
