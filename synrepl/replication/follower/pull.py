"""Pull and Shared: the modes in which positions are announced and missed facts are fetched."""

from collections.abc import Callable, Sequence
from typing import Final

from synrepl.replication.follower.mode import Judgement, Mode, StreamHistory, Verdict
from synrepl.replication.follower.order import Order, ReorderBuffer
from synrepl.replication.follower.updates import RawFact
from synrepl.wire.commands import Position

__all__ = ["Pull", "Shared"]

RECHECK_TOKENS: Final = 1_000
"""Tokens before the last one that are fetched again after a disconnect, where later facts arrive before
earlier ones.
"""


class Pull(Mode):
    """A server since 1.13: it announces the position of each writer, and missed facts are fetched."""

    def __init__(self, history: StreamHistory, order: Order, *, collects_rows: bool = False) -> None:
        super().__init__(history, order, collects_rows=collects_rows)
        # A stream that had no positions when this connection was opened starts here.
        self._is_new_stream = not history.has_started

    def accepts_writer(self, writer: str) -> bool:
        """Whether the writer had no position when positions were announced: then these are its first rows.

        Otherwise there may be a gap before the rows: they are accepted once its POSITION was received.
        """
        if not self.ready or writer in self._positions.tokens:
            return False
        self.ready.add(writer)
        return True

    def announce(self, writer: str) -> bool:
        """Accept the writer's rows from now on."""
        is_first = writer not in self.ready
        self.ready.add(writer)
        return is_first

    def judge(self, command: Position, *, is_first: bool) -> Judgement:
        """Compare a writer's POSITION with the applied one, or with that of another source if it is ahead."""
        writer, token = command.instance, command.token
        known = self._known(command)
        if self.order.is_exact and known <= token and (external := self._external(writer)) > known:
            self._positions.advance_external(writer, external)
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
        is_rewound = is_first or self._rewinds_any_time
        if not is_rewound and self._policy.monotonic:
            return Judgement(Verdict.STALE, token)
        if self._policy.is_kept:
            return Judgement(Verdict.REWOUND, token, is_rewound=is_rewound)
        # All facts of a restarted writer are new, and its earlier ones are void.
        return Judgement(Verdict.RESTARTED, token, is_rewound=is_rewound, void_after=0)

    _announces_late = False
    _rewinds_any_time = False

    def _known(self, command: Position) -> int:
        """The applied position of this writer, or the position to start a new writer from."""
        tokens = self._positions.tokens
        if command.instance in tokens:
            return tokens[command.instance]
        if self._policy.earliest:
            return 0
        if self._is_new_stream:
            # Every writer starts here, not only the one announced first.
            return 0 if self._policy.is_kept and self._policy.resumes else command.token
        # The writer appeared while we were disconnected, so its facts are after our positions of all others.
        return min(tokens.values(), default=command.token)

    def _external(self, writer: str) -> int:
        external_position = self._policy.external_position
        return -1 if external_position is None else external_position(writer)

    def _recheck_after(self, command: Position, known: int, *, is_first: bool) -> int | None:
        """The token after which late facts may be missing; None if none can be."""
        return None


class Shared(Pull):
    """A shared channel: every writer publishes its own facts, and may fall back at any time."""

    _rewinds_any_time = True

    def __init__(self, history: StreamHistory, order: Order, seconds: Callable[[], float]) -> None:
        policy = history.policy
        super().__init__(history, order, collects_rows=policy.descends)
        # Whether rows arrive ahead of the POSITION that covers them.
        self._announces_late = policy.monotonic and not policy.ordered
        self._burst = ReorderBuffer(seconds)

    @property
    def collects(self) -> bool:
        """Whether a burst has begun."""
        return bool(self._burst)

    def collect(self, writer: str, token: int, rows: list[bytes]) -> Sequence[RawFact]:
        """Collect a burst, as facts descend."""
        return self._burst.add(writer, token, rows)

    def flush(self, writer: str) -> Sequence[RawFact]:
        """End the writer's burst."""
        return self._burst.pop(writer)

    def quiet_facts(self) -> Sequence[RawFact]:
        """The bursts of the writers that are quiet."""
        return self._burst.pop_quiet()

    def _recheck_after(self, command: Position, known: int, *, is_first: bool) -> int | None:
        """The token after which late facts may be missing; None if none can be.

        Where rows arrive ahead of POSITION, earlier facts may have been sent while this follower was
        disconnected, or never: a writer that was disconnected itself moves on, and then only announces its
        position.
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
