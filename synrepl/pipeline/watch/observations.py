"""Observations of a task: a compact summary of its facts, for the state of writers and log."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.keys import KeyExtractor
from synrepl.pipeline.report.invalidations import count_by_minute, expand_batches
from synrepl.pipeline.watch.log_state import THE_LOG, Drops, FirstFact, TaskObservations
from synrepl.pipeline.watch.writer_chain import FactRun, runs_of

__all__ = ["COLUMNS", "OBSERVED", "OBSERVED_DDL", "observe"]

COLUMNS: Final = (
    "serial",
    "epoch",
    "stream",
    "writer",
    "prev_token",
    "token",
    "seq",
    "row",
    "committed_at",
)
"""The columns to read."""

OBSERVED: Final = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("stream", "writer", "observation")]
)
"""A line per run of a writer (`FactRun`), and one for the log (`TaskObservations`), as JSON."""

OBSERVED_DDL: Final = ", ".join(f"`{name}` string" for name in OBSERVED.names)

CACHES: Final = "caches"

_encode: Final = msgspec.json.Encoder().encode


def observe(batches: Iterable[Any], *, streams: frozenset[str] | None = None) -> Iterator[Any]:
    """Summarize the rows of one range of the log, in order, as `OBSERVED`.

    Of streams not in `streams` (None: all) only epoch and time are used. All streams are read: with a filter,
    the source itself would detect a gap and fail.
    """
    runs: dict[tuple[str, str], list[FactRun]] = {}
    first_facts: list[FirstFact] = []
    minutes: dict[int, Drops] = defaultdict(Drops)
    keys = KeyExtractor()
    last_ms = 0
    for batch in batches:
        facts: dict[tuple[str, str], list[tuple[int, int, int, int, int]]] = defaultdict(list)
        for serial, epoch, stream, writer, prev_token, token, at_ms in _facts(batch):
            if streams is None or stream in streams:
                facts[stream, writer].append((serial, epoch, prev_token, token, at_ms))
            if not first_facts or epoch > first_facts[-1].epoch:
                first_facts.append(FirstFact(epoch=epoch, serial=serial, at_ms=at_ms))
            last_ms = max(last_ms, at_ms)
        for writer_of, some in facts.items():
            runs.setdefault(writer_of, []).extend(runs_of(some))
        if streams is None or CACHES in streams:
            _count(batch, keys, minutes)
    lines = [(*writer_of, _encode(run).decode()) for writer_of, its in runs.items() for run in its]
    if first_facts:
        seen = TaskObservations(
            serial=first_facts[0].serial, at_ms=last_ms, begun=first_facts, minutes=minutes
        )
        lines.append((*THE_LOG, _encode(seen).decode()))
        columns = [pa.array(column, pa.string()) for column in zip(*lines, strict=True)]
        yield pa.record_batch(columns, schema=OBSERVED)


def _facts(batch: Any) -> Iterator[tuple[int, int, str, str, int, int, int]]:
    facts = batch.filter(pc.equal(batch["seq"], 0))
    names = ("serial", "epoch", "stream", "writer", "prev_token", "token")
    at_ms = pc.divide(facts["committed_at"].cast(pa.int64()), 1000)
    return zip(*(facts[name].to_pylist() for name in names), at_ms.to_pylist(), strict=True)


def _count(batch: Any, keys: KeyExtractor, minutes: dict[int, Drops]) -> None:
    rows = batch.filter(pc.and_(pc.equal(batch["stream"], CACHES), pc.is_valid(batch["row"])))
    if not len(rows):
        return
    found = pa.array(keys.extract(CACHES, rows["row"].to_pylist()), pa.string())
    names = ["key", "row", "committed_at"]
    counted = count_by_minute(pa.record_batch([found, rows["row"], rows["committed_at"]], names=names))
    for minute in pc.unique(counted["minute"]).to_pylist():
        drops = minutes[minute]
        of_minute = counted.filter(pc.equal(counted["minute"], minute))
        drops.rows += pc.sum(of_minute["count"]).as_py()
        for meant in expand_batches([of_minute]):
            for line in meant.to_pylist():
                _add(drops, line)


def _add(drops: Drops, line: dict[str, Any]) -> None:
    """Add a line of `invalidations.MEANT`."""
    cache, keyed, whole = line["cache"], line["keyed"], line["whole"]
    if cache is None:
        drops.keyed += keyed
        drops.whole += whole
        drops.misshapen += line["misshapen"]
        drops.unreadable += line["unreadable"]
    elif line["key"] is None:
        drops.whole_names[cache] = drops.whole_names.get(cache, 0) + whole
    else:
        drops.names[cache] = drops.names.get(cache, 0) + keyed
        drops.add_key(cache, line["key"], keyed)
