"""Observations: a compact summary of the facts of one range of the log, made by a task."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.audit.file_scan import lost_facts
from synrepl.pipeline.keys import KeyExtractor
from synrepl.pipeline.report.invalidations import CACHES, SUMS, Meaning, meaning
from synrepl.pipeline.watch.events import Epoch

OF_FACTS: Final = ("serial", "epoch", "stream", "writer", "prev_token", "token")

COLUMNS: Final = (*OF_FACTS, "seq", "row", "committed_at")
"""The columns to read."""

OBSERVED_DDL: Final = "observations binary"

MINUTE_US: Final = 60_000_000

MOST_KEYS: Final = 20_000
"""Maximum number of distinct entries per minute; beyond it, the rarest half is dropped."""


class FactRun(msgspec.Struct):
    """Consecutive facts of a writer, each of which continues the previous one; or one late fact.

    `prev_token` and `first_token` are those of the first fact, `token` is that of the last. If `is_lost`, the
    first fact says that facts before it are lost (`Fact.is_lost`).
    """

    serial: int
    last_serial: int
    epoch: int
    prev_token: int
    first_token: int
    token: int
    first_ms: int
    last_ms: int
    facts: int = 1
    is_lost: bool = False

    @property
    def is_late(self) -> bool:
        """Whether the run is a late fact, which does not move the position."""
        return self.prev_token == self.token and not self.is_lost


class Drops(msgspec.Struct, kw_only=True):
    """Counts of invalidations, as in `events.Hot`. In `keys`, an entry is its cache, a space and its key."""

    rows: int = 0
    keyed: int = 0
    whole: int = 0
    misshapen: int = 0
    unreadable: int = 0
    names: dict[str, int] = {}
    whole_names: dict[str, int] = {}
    keys: dict[str, int] = {}
    short_by: int = 0

    def count(self, meant: Meaning, rows: int) -> None:
        """Count rows with this meaning."""
        self.rows += rows
        for name in SUMS:
            setattr(self, name, getattr(self, name) + rows * getattr(meant, name))
        for cache, key in meant.drops:
            names = self.whole_names if key is None else self.names
            names[cache] = names.get(cache, 0) + rows
            if key is not None:
                entry = f"{cache} {key}"
                self.keys[entry] = self.keys.get(entry, 0) + rows
        self._forget()

    def add(self, other: "Drops") -> None:
        """Add other counts."""
        for field in self.__struct_fields__:
            mine, more = getattr(self, field), getattr(other, field)
            if isinstance(mine, int):
                setattr(self, field, mine + more)
            else:
                mine.update({name: mine.get(name, 0) + count for name, count in more.items()})
        self._forget()

    def _forget(self) -> None:
        """Drop the rarest entries of too many. A dropped entry that occurs again is counted from zero."""
        if len(self.keys) > MOST_KEYS:
            least = sorted(self.keys.values(), reverse=True)[MOST_KEYS // 2]
            self.keys = {entry: count for entry, count in self.keys.items() if count > least}
            self.short_by += least


class Observations(msgspec.Struct, kw_only=True):
    """The facts of a range: new epochs, last commit time, runs of writers, and invalidations.

    The first of `begun` is the epoch of the first fact. `runs` has stream, writer and runs; `minutes` are
    numbered from the Unix epoch.
    """

    begun: list[Epoch]
    at_ms: int
    runs: list[tuple[str, str, list[FactRun]]]
    minutes: dict[int, Drops]


def observe(batches: Iterable[Any], *, streams: frozenset[str] | None = None) -> Iterator[Any]:
    """Summarize the rows of one range of the log, in order, as one line of `Observations` in JSON.

    Of streams not in `streams` (None: all) only epoch and time are used. All streams are read: with a filter,
    the source itself would detect a gap and fail.
    """
    begun: list[Epoch] = []
    runs: dict[tuple[str, str], list[FactRun]] = defaultdict(list)
    minutes: dict[int, Drops] = defaultdict(Drops)
    keys = KeyExtractor()
    last_ms = 0
    for batch in batches:
        for serial, epoch, stream, writer, prev_token, token, at_ms, is_lost in _facts(batch):
            if streams is None or stream in streams:
                add_fact(runs[stream, writer], serial, epoch, prev_token, token, at_ms, is_lost=is_lost)
            if not begun or epoch > begun[-1].epoch:
                before = begun[-1].epoch if begun else epoch
                begun.append(Epoch(at_ms=at_ms, epoch=epoch, before_epoch=before, serial=serial))
            last_ms = max(last_ms, at_ms)
        if streams is None or CACHES in streams:
            for (minute, key), rows in _invalidations(batch, keys).items():
                minutes[minute].count(meaning(key), rows)
    if begun:
        of_writers = [(*source, some) for source, some in runs.items()]
        seen = Observations(begun=begun, at_ms=last_ms, runs=of_writers, minutes=minutes)
        yield pa.record_batch([pa.array([msgspec.json.encode(seen)])], names=["observations"])


def add_fact(
    runs: list[FactRun],
    serial: int,
    epoch: int,
    prev_token: int,
    token: int,
    at_ms: int,
    *,
    is_lost: bool = False,
) -> None:
    """Add the next fact of a writer to the last of its runs, or as a new run."""
    last = runs[-1] if runs else None
    is_next = last is not None and not last.is_late and (last.epoch, last.token) == (epoch, prev_token)
    if last is not None and is_next and token > prev_token:
        last.last_serial, last.token, last.last_ms = serial, token, at_ms
        last.facts += 1
    else:
        run = FactRun(serial, serial, epoch, prev_token, token, token, at_ms, at_ms, is_lost=is_lost)
        runs.append(run)


def _facts(batch: Any) -> Iterator[tuple[int, int, str, str, int, int, int, bool]]:
    facts = batch.filter(pc.equal(batch["seq"], 0))
    at_ms = pc.divide(facts["committed_at"].cast(pa.int64()), 1000)
    columns = [facts[name].to_pylist() for name in OF_FACTS]
    return zip(*columns, at_ms.to_pylist(), lost_facts(facts).tolist(), strict=True)


def _invalidations(batch: Any, keys: KeyExtractor) -> Counter[tuple[int, str | None]]:
    rows = batch.filter(pc.and_(pc.equal(batch["stream"], CACHES), pc.is_valid(batch["row"])))
    minutes = pc.divide(rows["committed_at"].cast(pa.int64()), MINUTE_US).to_pylist()
    return Counter(zip(minutes, keys.extract(CACHES, rows["row"].to_pylist()), strict=True))
