"""State of the whole log: its epoch, its writers, and the invalidations of minutes not reported yet.

Events follow from the facts of writers, from their silence, and from the end of a minute. No I/O.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from synrepl.pipeline.watch.events import (
    Active,
    Again,
    Count,
    Gap,
    Hot,
    Lost,
    Repaired,
    Restart,
    Stall,
    WatchEvent,
)
from synrepl.pipeline.watch.observations import Drops, FactRun, Observations

MINUTE_MS: Final = 60_000
GRACE_MS: Final = 5_000
"""Delay of the report of a minute: the clock of a daemon may go back a little."""

MOST_HOLES: Final = 1_000
"""Maximum number of open gaps per writer. The repair of older ones is not reported."""

REMEMBERED: Final = 100
"""Approximate number of intervals in the moving average."""


class WatchRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of events.

    A writer with at least `least_facts` facts has stalled if it is silent for longer than both `stall_ms` and
    `times` its usual interval. Rankings have up to `top` entries.
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
        """Whether the run overlaps a missing part."""
        return any(after < run.token and run.prev_token <= upto for after, upto in self.parts)

    def without(self, run: FactRun) -> list[tuple[int, int]]:
        """Return the parts still missing. A late fact fills its own token, other runs their whole range."""
        if run.is_late:
            return [part for part in self.parts if part[1] != run.token]
        before = [(after, min(upto, run.prev_token)) for after, upto in self.parts]
        behind = [(max(after, run.token), upto) for after, upto in self.parts]
        return sorted((after, upto) for after, upto in before + behind if after < upto)


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
            silent = _seconds(run.first_ms - self.at_ms)
            yield self._event(Active, run.first_ms, run.serial, token=run.first_token, silent_seconds=silent)
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
        yield Stall(
            at_ms=now_ms,
            stream=self.stream,
            writer=self.writer,
            token=self.last,
            silent_seconds=_seconds(now_ms - min(self.seen_ms, self.at_ms)),
            usual_seconds=_seconds(self.usual_ms),
        )

    def _event(self, kind: Callable[..., WatchEvent], at_ms: int, serial: int, **fields: Any) -> WatchEvent:
        return kind(at_ms=at_ms, stream=self.stream, writer=self.writer, serial=serial, **fields)

    def _allowed_ms(self, rules: WatchRules) -> float | None:
        """Return the allowed silence; None if the usual interval is unknown."""
        if self.facts < rules.least_facts:
            return None
        return max(float(rules.stall_ms), rules.times * self.usual_ms)

    def _count_intervals(self, run: FactRun, rules: WatchRules) -> None:
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
        if run.is_lost and at is not None and run.prev_token > at:
            self.epoch, self.token = max(run.epoch, epoch), run.token
            tokens: dict[str, Any] = {"after_token": at, "upto_token": run.prev_token}
            yield self._event(Lost, run.first_ms, run.serial, epoch=run.epoch, **tokens)
            return
        is_back = at is not None and run.epoch <= epoch and run.prev_token < at
        if run.is_late or (is_back and any(hole.without(run) != hole.parts for hole in self.holes)):
            yield from self._fill(run)
            return
        self.epoch, self.token = max(run.epoch, epoch), run.token
        if at is None or run.prev_token == at:
            return
        tokens = {"after_token": at, "prev_token": run.prev_token, "token": run.first_token}
        if run.epoch > epoch:
            # Gaps beyond the new start are void: these facts will never come.
            self.holes = [hole for hole in self.holes if hole.upto <= run.prev_token]
            yield self._event(Restart, run.first_ms, run.serial, epoch=run.epoch, **tokens)
        elif run.prev_token > at:
            tokens = {"after_token": at, "upto_token": run.prev_token}
            yield self._event(Gap, run.first_ms, run.serial, epoch=run.epoch, **tokens)
            hole = Hole(after=at, upto=run.prev_token, at_ms=run.first_ms, parts=[(at, run.prev_token)])
            self.holes = [*self.holes, hole][-MOST_HOLES:]
        else:
            yield self._event(Again, run.first_ms, run.serial, epoch=run.epoch, **tokens)

    def _fill(self, run: FactRun) -> Iterator[WatchEvent]:
        """Yield the repairs of gaps filled by this run. The position stays the same."""
        for hole in filter(lambda hole: hole.is_in(run), self.holes):
            hole.parts, hole.facts = hole.without(run), hole.facts + run.facts
            if not hole.parts:
                yield self._event(
                    Repaired,
                    run.last_ms,
                    run.last_serial,
                    after_token=hole.after,
                    upto_token=hole.upto,
                    facts=hole.facts,
                    open_seconds=_seconds(run.last_ms - hole.at_ms),
                )
        self.holes = [hole for hole in self.holes if hole.parts]


def _seconds(ms: float) -> float:
    return round(max(0.0, ms) / 1000, 3)


class LogState(msgspec.Struct, kw_only=True):
    """The state after a fact committed at `at_ms` (daemon's clock) and seen at `seen_ms` (local clock).

    `epoch` is None before the first fact. Minutes are numbered; all up to `told` were reported, and `minutes`
    has the others. `writers` has the writers of each stream.
    """

    epoch: int | None = None
    at_ms: int = 0
    seen_ms: int = 0
    told: int = -1
    minutes: dict[int, Drops] = {}
    writers: dict[str, dict[str, WriterChain]] = {}

    def follow(self, seen: Observations, *, now_ms: int, rules: WatchRules) -> list[WatchEvent]:
        """Return the events of the next range of the log."""
        events: list[WatchEvent] = []
        for begun in seen.begun:
            before = begun.epoch if self.epoch is None else self.epoch
            self.epoch = max(before, begun.epoch)
            if begun.epoch > before:
                events.append(msgspec.structs.replace(begun, before_epoch=before))
        for stream, writer, runs in seen.runs:
            writers = self.writers.setdefault(stream, {})
            chain = writers.setdefault(writer, WriterChain(stream=stream, writer=writer))
            for run in runs:
                events += chain.advance(run, now_ms=now_ms, rules=rules)
        for minute, drops in seen.minutes.items():
            # Facts of a reported minute count in the next one, so that none is lost.
            self.minutes.setdefault(max(minute, self.told + 1), Drops()).add(drops)
        self.at_ms, self.seen_ms = max(seen.at_ms, self.at_ms), now_ms
        return events

    def pass_time(self, *, now_ms: int, rules: WatchRules) -> list[WatchEvent]:
        """Return the events of the time until now: stalled writers, and the invalidations of minutes.

        A minute is complete when the daemon's clock has passed it, or must have by now.
        """
        events: list[WatchEvent] = []
        for writers in self.writers.values():
            for chain in writers.values():
                events += chain.silence(now_ms=now_ms, rules=rules)
        over = (self.at_ms + max(0, now_ms - self.seen_ms) - GRACE_MS) // MINUTE_MS
        for minute in sorted(minute for minute in self.minutes if minute < over):
            events.append(_hot(minute, self.minutes.pop(minute), now_ms, rules.top))
            self.told = minute
        return events


def _hot(minute: int, drops: Drops, now_ms: int, top: int) -> WatchEvent:
    began = datetime.fromtimestamp(minute * MINUTE_MS // 1000, UTC)
    names, whole_names, keys = (
        sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:top]
        for counts in (drops.names, drops.whole_names, drops.keys)
    )
    entries = [(*entry.partition(" "), n) for entry, n in keys]
    return Hot(
        at_ms=now_ms,
        minute=f"{began:%Y-%m-%dT%H:%MZ}",
        invalidations=drops.keyed,
        rows=drops.rows,
        whole=drops.whole,
        misshapen=drops.misshapen,
        unreadable=drops.unreadable,
        names=[Count(name=name, count=n) for name, n in names],
        keys=[Count(name=name, key=msgspec.Raw(key.encode()), count=n) for name, _, key, n in entries],
        whole_names=[Count(name=name, count=n) for name, n in whole_names],
        short_by=drops.short_by,
    )
