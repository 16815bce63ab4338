"""State of the whole log: its epoch, its writers, and the invalidations of minutes not reported yet. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from synrepl.pipeline.watch.events import Count, Epoch, Hot, KeyCount, WatchEvent
from synrepl.pipeline.watch.observations import Drops, Observations
from synrepl.pipeline.watch.writer_chain import WatchRules, WriterChain

__all__ = ["MINUTE_MS", "LogState"]

MINUTE_MS: Final = 60_000
GRACE_MS: Final = 5_000
"""Delay of the report of a minute: the clock of a daemon may go back a little."""


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
        for first in seen.begun:
            before = first.epoch if self.epoch is None else self.epoch
            self.epoch = max(before, first.epoch)
            if first.epoch > before:
                events.append(
                    Epoch(at_ms=first.at_ms, epoch=first.epoch, before_epoch=before, serial=first.serial)
                )
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
    entries = [(*entry.partition(" "), count) for entry, count in _most(drops.keys.items(), top)]
    return Hot(
        at_ms=now_ms,
        minute=f"{began:%Y-%m-%dT%H:%MZ}",
        invalidations=drops.keyed,
        rows=drops.rows,
        whole=drops.whole,
        misshapen=drops.misshapen,
        unreadable=drops.unreadable,
        names=[Count(*one) for one in _most(drops.names.items(), top)],
        keys=[KeyCount(cache, msgspec.Raw(key.encode()), count) for cache, _, key, count in entries],
        whole_names=[Count(*one) for one in _most(drops.whole_names.items(), top)],
        short_by=drops.short_by,
    )


def _most(counts: Iterable[tuple[str, int]], top: int) -> list[tuple[str, int]]:
    return sorted(counts, key=lambda one: (-one[1], one[0]))[:top]
