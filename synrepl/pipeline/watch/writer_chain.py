"""What is known of one writer of one stream, and what follows from its facts and from its silence. Pure."""

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
"""More are told, but of the oldest it is not told when they are repaired."""

REMEMBERED: Final = 100
"""Intervals that make up the usual one, about."""


class WatchRules(msgspec.Struct, frozen=True, kw_only=True):
    """A writer of at least `least_facts` has stalled when it is silent for longer than `stall_ms`, and than
    `times` its usual interval. Lists have the `top` of what they list.
    """

    stall_ms: int = 60_000
    times: int = 10
    least_facts: int = 5
    top: int = 10


class FactRun(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a writer, each of which goes on where the one before ended; or one that came late.

    `prev_token` and `first_token` are those of the first, `token` is that of the last.
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
        """Whether it claims nothing of what is before it, and moves no position."""
        return self.prev_token == self.token


class Hole(msgspec.Struct, frozen=True, kw_only=True):
    """A gap that was told. What is still missing of it is in parts, each ``(after, upto]``; in each the fact
    of `upto` is certain.
    """

    after: int
    upto: int
    at_ms: int
    parts: tuple[tuple[int, int], ...]
    facts: int = 0


class WriterChain(msgspec.Struct, frozen=True, kw_only=True):
    """How far a writer is, since when, and what is missing.

    `token` is its position, None while all of its facts came late; `last` is the token of the last fact. That
    was committed at `at_ms`, by the daemon's clock, and seen at `seen_ms`, by ours. `timer_ms` is when we are
    to look whether it is silent.
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
    """Facts of one writer in order (serial, epoch, prev_token, token, committed_at_ms), as few runs."""
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
    """The facts of these runs, in order, were seen now."""
    told: list[WatchEvent] = []
    for run in runs:
        if chain is None:
            chain = WriterChain(
                epoch=run.epoch,
                token=None if run.is_late else run.token,
                last=run.token,
                at_ms=run.first_ms,
                seen_ms=now_ms,
            )
            # From nothing to its first fact is no interval.
            chain = _timed(chain, run, run.facts - 1, rules)
            continue
        if chain.is_stalled:
            told.append(
                Active(
                    at_ms=run.first_ms,
                    stream=stream,
                    writer=writer,
                    token=run.first_token,
                    silent_seconds=_seconds(run.first_ms - chain.at_ms),
                    serial=run.serial,
                )
            )
        chain, lines = _followed(chain, run, stream, writer)
        told += lines
        chain = _timed(chain, run, run.facts, rules)
        chain = msgspec.structs.replace(chain, seen_ms=now_ms, is_stalled=False)
    assert chain is not None, "there is a run"
    return chain, told


def silence(
    chain: WriterChain, *, stream: str, writer: str, now_ms: int, rules: WatchRules
) -> tuple[WriterChain, list[WatchEvent]]:
    """Nothing more was seen until now."""
    allowed = _allowed_ms(chain, rules)
    if chain.is_stalled or allowed is None or now_ms - chain.seen_ms <= allowed:
        return chain, []
    # By our clock alone it is decided: that of the daemon may be another.
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
    """When it will have stalled, if nothing comes; None if it has, or if it is not known what is usual."""
    allowed = _allowed_ms(chain, rules)
    return None if chain.is_stalled or allowed is None else chain.seen_ms + int(allowed) + 1


def _allowed_ms(chain: WriterChain, rules: WatchRules) -> float | None:
    """How long it may be silent."""
    if chain.facts < rules.least_facts:
        return None
    return max(float(rules.stall_ms), rules.times * chain.usual_ms)


def _timed(chain: WriterChain, run: FactRun, intervals: int, rules: WatchRules) -> WriterChain:
    """With the facts of this run counted, and so many intervals between them, and before."""
    before_ms = max(0, run.first_ms - chain.at_ms)
    allowed = _allowed_ms(chain, rules)
    # One night of silence must not make the next one usual; many nights may.
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


def _followed(
    chain: WriterChain, run: FactRun, stream: str, writer: str
) -> tuple[WriterChain, list[WatchEvent]]:
    """With its tokens; and what is wrong with them."""
    at = chain.token
    if run.is_late:
        return _filled(chain, run, stream, writer)
    moved = msgspec.structs.replace(chain, epoch=max(run.epoch, chain.epoch), token=run.token)
    if at is None or run.prev_token == at:
        return moved, []
    if run.epoch > chain.epoch:
        # What was beyond is void: nobody will send it.
        holes = tuple(hole for hole in chain.holes if hole.upto <= run.prev_token)
        return msgspec.structs.replace(moved, holes=holes), [_elsewhere(Restart, run, at, stream, writer)]
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
        return _filled(chain, run, stream, writer)
    return moved, [_elsewhere(Again, run, at, stream, writer)]


def _elsewhere(kind: type[Elsewhere], run: FactRun, at: int, stream: str, writer: str) -> Elsewhere:
    """The writer had come to `at`, and this run goes on from somewhere else."""
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


def _filled(
    chain: WriterChain, run: FactRun, stream: str, writer: str
) -> tuple[WriterChain, list[WatchEvent]]:
    """With what this run brings of what was missing. The position stays."""
    holes: list[Hole] = []
    told: list[WatchEvent] = []
    for hole in chain.holes:
        if not any(after < run.token and run.prev_token <= upto for after, upto in hole.parts):
            holes.append(hole)
            continue
        parts, facts = _without(hole.parts, run), hole.facts + run.facts
        if parts:
            holes.append(msgspec.structs.replace(hole, parts=parts, facts=facts))
            continue
        told.append(
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
    return msgspec.structs.replace(chain, holes=tuple(holes)), told


def _without(parts: tuple[tuple[int, int], ...], run: FactRun) -> tuple[tuple[int, int], ...]:
    """What is missing still. A late fact brings but itself; others all that they go over."""
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
