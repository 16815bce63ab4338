"""State of the whole log: its epoch, and the invalidations of minutes not reported yet. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from synrepl.pipeline.watch.events import Count, Epoch, Hot, KeyCount, WatchEvent
from synrepl.pipeline.watch.writer_chain import WatchRules

__all__ = [
    "MINUTE_MS",
    "THE_LOG",
    "FirstFact",
    "Drops",
    "LogState",
    "TaskObservations",
    "look",
    "look_ms",
    "pass_time",
]

THE_LOG: Final = ("", "")
"""The key of the log, in place of a stream and a writer."""

MINUTE_MS: Final = 60_000
GRACE_MS: Final = 5_000
"""Delay of the report of a minute: the clock of a daemon may go back a little."""

MOST_KEYS: Final = 20_000
"""Maximum number of distinct entries per minute; beyond it, the rarest half is dropped."""


class FirstFact(msgspec.Struct, frozen=True, kw_only=True):
    """The first fact of an epoch in a range."""

    epoch: int
    serial: int
    at_ms: int


class Drops(msgspec.Struct, kw_only=True):
    """Counts of invalidations, as in `events.Hot`; `keys` are the entries of each cache, as JSON arrays."""

    rows: int = 0
    keyed: int = 0
    whole: int = 0
    misshapen: int = 0
    unreadable: int = 0
    names: dict[str, int] = {}
    whole_names: dict[str, int] = {}
    keys: dict[str, dict[str, int]] = {}
    distinct: int = 0
    short_by: int = 0

    def add(self, other: "Drops") -> None:
        """Add other counts."""
        self.rows += other.rows
        self.keyed += other.keyed
        self.whole += other.whole
        self.misshapen += other.misshapen
        self.unreadable += other.unreadable
        self.short_by += other.short_by
        for mine, others in ((self.names, other.names), (self.whole_names, other.whole_names)):
            for name, count in others.items():
                mine[name] = mine.get(name, 0) + count
        for name, keys in other.keys.items():
            for key, count in keys.items():
                self.add_key(name, key, count)

    def add_key(self, name: str, key: str, count: int) -> None:
        """Add invalidations of an entry, which `names` already counts."""
        known = self.keys.setdefault(name, {})
        before = known.get(key)
        known[key] = count + (before or 0)
        if before is None:
            self.distinct += 1
            if self.distinct > MOST_KEYS:
                self._forget()

    def _forget(self) -> None:
        counts = sorted((count for keys in self.keys.values() for count in keys.values()), reverse=True)
        least = counts[MOST_KEYS // 2]
        self.keys = {
            name: kept
            for name, keys in self.keys.items()
            if (kept := {key: count for key, count in keys.items() if count > least})
        }
        self.distinct = sum(map(len, self.keys.values()))
        # A dropped entry that occurs again is counted from zero.
        self.short_by += least


class TaskObservations(msgspec.Struct, frozen=True, kw_only=True):
    """The observations of one task: first facts of epochs, the last commit time, and invalidations."""

    serial: int
    at_ms: int
    begun: Sequence[FirstFact]
    minutes: Mapping[int, Drops]


class LogState(msgspec.Struct, frozen=True, kw_only=True):
    """The state after a fact committed at `at_ms` (daemon's clock) and seen at `seen_ms` (local clock).

    Minutes are numbered; all up to `told` were reported.
    """

    epoch: int
    at_ms: int
    seen_ms: int
    told: int = -1
    open: Mapping[int, Drops] = {}
    timer_ms: int | None = None


def look(
    log: LogState | None, seen: Sequence[TaskObservations], *, now_ms: int, rules: WatchRules
) -> tuple[LogState, list[WatchEvent]]:
    """Return the state after these observations, in order, and the events."""
    events: list[WatchEvent] = []
    for one in seen:
        if log is None:
            log = LogState(epoch=one.begun[0].epoch, at_ms=one.at_ms, seen_ms=now_ms)
        epoch = log.epoch
        for first_fact in one.begun:
            if first_fact.epoch > epoch:
                events.append(
                    Epoch(
                        at_ms=first_fact.at_ms,
                        epoch=first_fact.epoch,
                        before_epoch=epoch,
                        serial=first_fact.serial,
                    )
                )
                epoch = first_fact.epoch
        opened = dict(log.open)
        for number, drops in one.minutes.items():
            # Facts of a reported minute count in the next one, so that none is lost.
            minute = max(number, log.told + 1)
            both = Drops()
            for some in filter(None, (opened.get(minute), drops)):
                both.add(some)
            opened[minute] = both
        log = msgspec.structs.replace(
            log, epoch=epoch, at_ms=max(one.at_ms, log.at_ms), seen_ms=now_ms, open=opened
        )
    assert log is not None, "something was seen"
    log, hot = pass_time(log, now_ms=now_ms, rules=rules)
    return log, events + hot


def pass_time(log: LogState, *, now_ms: int, rules: WatchRules) -> tuple[LogState, list[WatchEvent]]:
    """Report the complete minutes, which the daemon's clock has passed, or must have by now."""
    over = (log.at_ms + max(0, now_ms - log.seen_ms) - GRACE_MS) // MINUTE_MS
    complete = sorted(minute for minute in log.open if minute < over)
    if not complete:
        return log, []
    events = [_hot(minute, log.open[minute], now_ms, rules.top) for minute in complete]
    left = {minute: drops for minute, drops in log.open.items() if minute >= over}
    return msgspec.structs.replace(log, told=complete[-1], open=left), events


def look_ms(log: LogState) -> int | None:
    """Return when the next minute is complete without further facts; None if no minute is open."""
    if not log.open:
        return None
    return log.seen_ms + max(0, (min(log.open) + 1) * MINUTE_MS + GRACE_MS - log.at_ms)


def _hot(minute: int, drops: Drops, now_ms: int, top: int) -> WatchEvent:
    began = datetime.fromtimestamp(minute * MINUTE_MS // 1000, UTC)
    keys = ((f"{name} {key}", name, key, n) for name, its in drops.keys.items() for key, n in its.items())
    most = sorted(keys, key=lambda one: (-one[3], one[0]))[:top]
    return Hot(
        at_ms=now_ms,
        minute=f"{began:%Y-%m-%dT%H:%MZ}",
        invalidations=drops.keyed,
        rows=drops.rows,
        whole=drops.whole,
        misshapen=drops.misshapen,
        unreadable=drops.unreadable,
        names=_most(drops.names.items(), top),
        keys=[KeyCount(name=name, key=msgspec.Raw(key.encode()), count=n) for _, name, key, n in most],
        whole_names=_most(drops.whole_names.items(), top),
        short_by=drops.short_by,
    )


def _most(counts: Iterable[tuple[str, int]], top: int) -> list[Count]:
    most = sorted(counts, key=lambda one: (-one[1], one[0]))[:top]
    return [Count(name=name, count=count) for name, count in most]
