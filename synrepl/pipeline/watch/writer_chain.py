"""State of one writer of a stream, and the events that follow from its facts and its silence. Pure."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from synrepl.pipeline.watch.events import (
    Active,
    Again,
    Gap,
    PositionEvent,
    Repaired,
    Restart,
    Stall,
    WatchEvent,
    WriterEvent,
)
from synrepl.pipeline.watch.observations import FactRun

__all__ = ["Hole", "WatchRules", "WriterChain"]

MOST_HOLES: Final = 1_000
"""Maximum number of open gaps per writer. The repair of older ones is not reported."""

REMEMBERED: Final = 100
"""Number of intervals in the moving average, about."""


class WatchRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of events.

    A writer with at least `least_facts` facts has stalled if it is silent for longer than both `stall_ms` and
    `times` its usual interval. Rankings have `top` entries.
    """

    stall_ms: int = 60_000
    times: int = 10
    least_facts: int = 5
    top: int = 10


class Hole(msgspec.Struct, kw_only=True):
    """A reported gap. Its missing `parts` are ranges ``(after, upto]``, each up to a fact that must exist."""

    after: int
    upto: int
    at_ms: int
    parts: list[tuple[int, int]]
    facts: int = 0

    def is_in(self, run: FactRun) -> bool:
        """Whether the run lies in a missing part, in whole or in part."""
        return any(after < run.token and run.prev_token <= upto for after, upto in self.parts)

    def without(self, run: FactRun) -> list[tuple[int, int]]:
        """Return the parts still missing. A late fact fills its own token, other runs their whole range."""
        if run.is_late:
            return [part for part in self.parts if part[1] != run.token]
        left: list[tuple[int, int]] = []
        for after, upto in self.parts:
            if run.token <= after or run.prev_token >= upto:
                left.append((after, upto))
                continue
            if after < run.prev_token:
                left.append((after, run.prev_token))
            if run.token < upto:
                left.append((run.token, upto))
        return left


class WriterChain(msgspec.Struct, kw_only=True):
    """The position of a writer, its intervals and its open gaps.

    `token` is the position, None if all facts were late; `last` is the token of the last fact, committed at
    `at_ms` (the daemon's clock) and seen at `seen_ms` (the local clock).
    """

    stream: str
    writer: str
    epoch: int = 0
    token: int | None = None
    last: int = 0
    at_ms: int = 0
    seen_ms: int = 0
    facts: int = 0
    intervals: int = 0
    usual_ms: float = 0.0
    holes: list[Hole] = []
    is_stalled: bool = False

    def advance(self, run: FactRun, *, now_ms: int, rules: WatchRules) -> Iterator[WatchEvent]:
        """Yield the events of the next run, and change the state."""
        if not self.facts:
            self.epoch, self.at_ms = run.epoch, run.first_ms
        if self.is_stalled:
            silent_seconds = _seconds(run.first_ms - self.at_ms)
            yield self._event(
                Active, run.first_ms, token=run.first_token, silent_seconds=silent_seconds, serial=run.serial
            )
        yield from self._follow(run)
        self._count_intervals(run, rules)
        self.seen_ms, self.is_stalled = now_ms, False

    def silence(self, *, now_ms: int, rules: WatchRules) -> Iterator[WatchEvent]:
        """Yield a `Stall` if the writer has stalled by now."""
        allowed = self._allowed_ms(rules)
        # Decided by the local clock alone: the clock of the daemon may differ.
        if self.is_stalled or allowed is None or now_ms - self.seen_ms <= allowed:
            return
        self.is_stalled = True
        silent_seconds = _seconds(now_ms - min(self.seen_ms, self.at_ms))
        usual_seconds = _seconds(self.usual_ms)
        yield self._event(
            Stall, now_ms, token=self.last, silent_seconds=silent_seconds, usual_seconds=usual_seconds
        )

    def _event(self, kind: type[WriterEvent], at_ms: int, **fields: Any) -> WatchEvent:
        return kind(at_ms=at_ms, stream=self.stream, writer=self.writer, **fields)

    def _allowed_ms(self, rules: WatchRules) -> float | None:
        """Return the allowed silence; None if the usual interval is unknown."""
        if self.facts < rules.least_facts:
            return None
        return max(float(rules.stall_ms), rules.times * self.usual_ms)

    def _count_intervals(self, run: FactRun, rules: WatchRules) -> None:
        """Count the facts and intervals of this run."""
        before_ms = float(max(0, run.first_ms - self.at_ms))
        # There is no interval before the first fact.
        count = self.intervals + run.facts - (not self.facts)
        allowed = self._allowed_ms(rules)
        # Capped, so that one night of silence does not make the next one usual; many nights may.
        known = min(before_ms, allowed) if allowed is not None else before_ms
        total = self.usual_ms * self.intervals + known + max(0, run.last_ms - run.first_ms)
        self.usual_ms = total / count if count else 0.0
        self.intervals = min(count, REMEMBERED)
        self.facts += run.facts
        self.last = run.token
        self.at_ms = max(self.at_ms, run.last_ms)

    def _follow(self, run: FactRun) -> Iterator[WatchEvent]:
        """Yield the events of the tokens of this run, and move the position."""
        at, epoch = self.token, self.epoch
        is_back = at is not None and run.epoch <= epoch and run.prev_token < at
        if run.is_late or (is_back and any(hole.without(run) != hole.parts for hole in self.holes)):
            yield from self._fill(run)
            return
        self.epoch, self.token = max(run.epoch, epoch), run.token
        if at is None or run.prev_token == at:
            return
        if run.epoch > epoch:
            # Gaps beyond the new start are void: these facts will never come.
            self.holes = [hole for hole in self.holes if hole.upto <= run.prev_token]
            yield self._position_event(Restart, run, at)
        elif run.prev_token > at:
            gap = {"after_token": at, "upto_token": run.prev_token}
            yield self._event(Gap, run.first_ms, **gap, epoch=run.epoch, serial=run.serial)
            hole = Hole(after=at, upto=run.prev_token, at_ms=run.first_ms, parts=[(at, run.prev_token)])
            self.holes = [*self.holes, hole][-MOST_HOLES:]
        else:
            yield self._position_event(Again, run, at)

    def _position_event(self, kind: type[PositionEvent], run: FactRun, at: int) -> WatchEvent:
        """Return the event that a writer at position `at` continues from another position."""
        tokens = {"after_token": at, "prev_token": run.prev_token, "token": run.first_token}
        return self._event(kind, run.first_ms, epoch=run.epoch, **tokens, serial=run.serial)

    def _fill(self, run: FactRun) -> Iterator[WatchEvent]:
        """Yield the repairs of gaps filled by this run. The position stays the same."""
        for hole in filter(lambda hole: hole.is_in(run), self.holes):
            hole.parts, hole.facts = hole.without(run), hole.facts + run.facts
            if not hole.parts:
                gap = {"after_token": hole.after, "upto_token": hole.upto}
                open_seconds = _seconds(run.last_ms - hole.at_ms)
                yield self._event(
                    Repaired,
                    run.last_ms,
                    **gap,
                    facts=hole.facts,
                    open_seconds=open_seconds,
                    serial=run.last_serial,
                )
        self.holes = [hole for hole in self.holes if hole.parts]


def _seconds(ms: float) -> float:
    return round(max(0.0, ms) / 1000, 3)
