"""State of one writer of a stream, and the events that follow from its facts and its silence. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from synrepl.pipeline.watch.events import (
    Active,
    Again,
    Elsewhere,
    Gap,
    Repaired,
    Restart,
    Stall,
    WatchEvent,
)

__all__ = ["WriterChain", "Hole", "WatchRules", "FactRun", "advance", "deadline_ms", "runs_of", "silence"]

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


class FactRun(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive facts of a writer, each of which continues the previous one; or one late fact.

    `prev_token` and `first_token` are those of the first fact, `token` is that of the last.
    """

    serial: int
    last_serial: int
    epoch: int
    prev_token: int
    first_token: int
    token: int
    facts: int
    first_ms: int
    last_ms: int

    @property
    def is_late(self) -> bool:
        """Whether the run is a late fact, which does not move the position."""
        return self.prev_token == self.token


class Hole(msgspec.Struct, frozen=True, kw_only=True):
    """A reported gap. Its missing `parts` are ranges ``(after, upto]``, each up to a fact that must exist."""

    after: int
    upto: int
    at_ms: int
    parts: tuple[tuple[int, int], ...]
    facts: int = 0


class WriterChain(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a writer, its intervals and its open gaps.

    `token` is the position, None if all facts were late; `last` is the token of the last fact, committed at
    `at_ms` (the daemon's clock) and seen at `seen_ms` (the local clock). `timer_ms` is the time of the stall
    check.
    """

    epoch: int
    token: int | None
    last: int
    at_ms: int
    seen_ms: int
    facts: int = 0
    intervals: int = 0
    usual_ms: float = 0.0
    holes: tuple[Hole, ...] = ()
    is_stalled: bool = False
    timer_ms: int | None = None


def runs_of(facts: Iterable[tuple[int, int, int, int, int]]) -> list[FactRun]:
    """Combine ordered facts of one writer (serial, epoch, prev_token, token, committed_at_ms) into runs."""
    found: list[FactRun] = []
    for serial, epoch, prev_token, token, at_ms in facts:
        last = found[-1] if found else None
        goes_on = last is not None and not last.is_late and (last.epoch, last.token) == (epoch, prev_token)
        if last is not None and goes_on and token > prev_token:
            found[-1] = msgspec.structs.replace(
                last, last_serial=serial, token=token, facts=last.facts + 1, last_ms=at_ms
            )
            continue
        found.append(
            FactRun(
                serial=serial,
                last_serial=serial,
                epoch=epoch,
                prev_token=prev_token,
                first_token=token,
                token=token,
                facts=1,
                first_ms=at_ms,
                last_ms=at_ms,
            )
        )
    return found


def advance(
    chain: WriterChain | None,
    runs: Sequence[FactRun],
    *,
    stream: str,
    writer: str,
    now_ms: int,
    rules: WatchRules,
) -> tuple[WriterChain, list[WatchEvent]]:
    """Return the state after these runs, in order, and the events."""
    events: list[WatchEvent] = []
    for run in runs:
        if chain is None:
            chain = WriterChain(
                epoch=run.epoch,
                token=None if run.is_late else run.token,
                last=run.token,
                at_ms=run.first_ms,
                seen_ms=now_ms,
            )
            # There is no interval before the first fact.
            chain = _count_intervals(chain, run, run.facts - 1, rules)
            continue
        if chain.is_stalled:
            events.append(
                Active(
                    at_ms=run.first_ms,
                    stream=stream,
                    writer=writer,
                    token=run.first_token,
                    silent_seconds=_seconds(run.first_ms - chain.at_ms),
                    serial=run.serial,
                )
            )
        chain, lines = _follow(chain, run, stream, writer)
        events += lines
        chain = _count_intervals(chain, run, run.facts, rules)
        chain = msgspec.structs.replace(chain, seen_ms=now_ms, is_stalled=False)
    assert chain is not None, "there is a run"
    return chain, events


def silence(
    chain: WriterChain, *, stream: str, writer: str, now_ms: int, rules: WatchRules
) -> tuple[WriterChain, list[WatchEvent]]:
    """Return the state after a silence until now, and a `Stall` if the writer has stalled."""
    allowed = _allowed_ms(chain, rules)
    if chain.is_stalled or allowed is None or now_ms - chain.seen_ms <= allowed:
        return chain, []
    # Decided by the local clock alone: the clock of the daemon may differ.
    silent_ms = max(now_ms - chain.seen_ms, now_ms - chain.at_ms)
    stall = Stall(
        at_ms=now_ms,
        stream=stream,
        writer=writer,
        token=chain.last,
        silent_seconds=_seconds(silent_ms),
        usual_seconds=_seconds(chain.usual_ms),
    )
    return msgspec.structs.replace(chain, is_stalled=True), [stall]


def deadline_ms(chain: WriterChain, rules: WatchRules) -> int | None:
    """Return when the writer will have stalled; None if it has, or if its usual interval is unknown."""
    allowed = _allowed_ms(chain, rules)
    return None if chain.is_stalled or allowed is None else chain.seen_ms + int(allowed) + 1


def _allowed_ms(chain: WriterChain, rules: WatchRules) -> float | None:
    """Return the allowed silence; None if the usual interval is unknown."""
    if chain.facts < rules.least_facts:
        return None
    return max(float(rules.stall_ms), rules.times * chain.usual_ms)


def _count_intervals(chain: WriterChain, run: FactRun, intervals: int, rules: WatchRules) -> WriterChain:
    """Return the state with the facts and intervals of this run counted."""
    before_ms = max(0, run.first_ms - chain.at_ms)
    allowed = _allowed_ms(chain, rules)
    # Capped, so that one night of silence does not make the next one usual; many nights may.
    known = min(float(before_ms), allowed) if allowed is not None else float(before_ms)
    total = known + max(0, run.last_ms - run.first_ms)
    count = chain.intervals + intervals
    usual_ms = (chain.usual_ms * chain.intervals + total) / count if count else 0.0
    return msgspec.structs.replace(
        chain,
        facts=chain.facts + run.facts,
        intervals=min(count, REMEMBERED),
        usual_ms=usual_ms,
        last=run.token,
        at_ms=max(chain.at_ms, run.last_ms),
    )


def _follow(
    chain: WriterChain, run: FactRun, stream: str, writer: str
) -> tuple[WriterChain, list[WatchEvent]]:
    """Return the state with the tokens of this run, and the events."""
    at = chain.token
    if run.is_late:
        return _fill_gaps(chain, run, stream, writer)
    moved = msgspec.structs.replace(chain, epoch=max(run.epoch, chain.epoch), token=run.token)
    if at is None or run.prev_token == at:
        return moved, []
    if run.epoch > chain.epoch:
        # Gaps beyond the new start are void: these facts will never come.
        holes = tuple(hole for hole in chain.holes if hole.upto <= run.prev_token)
        return msgspec.structs.replace(moved, holes=holes), [
            _position_event(Restart, run, at, stream, writer)
        ]
    if run.prev_token > at:
        gap = Gap(
            at_ms=run.first_ms,
            stream=stream,
            writer=writer,
            after_token=at,
            upto_token=run.prev_token,
            epoch=run.epoch,
            serial=run.serial,
        )
        hole = Hole(after=at, upto=run.prev_token, at_ms=run.first_ms, parts=((at, run.prev_token),))
        return msgspec.structs.replace(moved, holes=(*chain.holes, hole)[-MOST_HOLES:]), [gap]
    if any(_without(hole.parts, run) != hole.parts for hole in chain.holes):
        return _fill_gaps(chain, run, stream, writer)
    return moved, [_position_event(Again, run, at, stream, writer)]


def _position_event(kind: type[Elsewhere], run: FactRun, at: int, stream: str, writer: str) -> Elsewhere:
    """Return the event that a writer at position `at` continues from another position."""
    return kind(
        at_ms=run.first_ms,
        stream=stream,
        writer=writer,
        epoch=run.epoch,
        after_token=at,
        prev_token=run.prev_token,
        token=run.first_token,
        serial=run.serial,
    )


def _fill_gaps(
    chain: WriterChain, run: FactRun, stream: str, writer: str
) -> tuple[WriterChain, list[WatchEvent]]:
    """Return the state with gaps filled by this run, at the same position, and the events."""
    holes: list[Hole] = []
    events: list[WatchEvent] = []
    for hole in chain.holes:
        if not any(after < run.token and run.prev_token <= upto for after, upto in hole.parts):
            holes.append(hole)
            continue
        parts, facts = _without(hole.parts, run), hole.facts + run.facts
        if parts:
            holes.append(msgspec.structs.replace(hole, parts=parts, facts=facts))
            continue
        events.append(
            Repaired(
                at_ms=run.last_ms,
                stream=stream,
                writer=writer,
                after_token=hole.after,
                upto_token=hole.upto,
                facts=facts,
                open_seconds=_seconds(run.last_ms - hole.at_ms),
                serial=run.last_serial,
            )
        )
    return msgspec.structs.replace(chain, holes=tuple(holes)), events


def _without(parts: tuple[tuple[int, int], ...], run: FactRun) -> tuple[tuple[int, int], ...]:
    """Return the parts still missing. A late fact fills its own token, other runs their whole range."""
    if run.is_late:
        return tuple(part for part in parts if part[1] != run.token)
    left: list[tuple[int, int]] = []
    for after, upto in parts:
        if run.token <= after or run.prev_token >= upto:
            left.append((after, upto))
            continue
        if after < run.prev_token:
            left.append((after, run.prev_token))
        if run.token < upto:
            left.append((run.token, upto))
    return tuple(left)


def _seconds(ms: float) -> float:
    return round(max(0.0, ms) / 1000, 3)
