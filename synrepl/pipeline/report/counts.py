"""Counts of the facts of an archive: totals, by time bin, lag of writers, sizes.

Tasks count what has few keys, and their counts are merged in memory. SQL counts what may have as many keys as
there are facts: engines keep in files what memory cannot hold.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.base.history import EpochStart
from synrepl.pipeline.archive.row_files import are_lost
from synrepl.pipeline.driver import Driver, Partitions
from synrepl.pipeline.exchange import pack, unpack
from synrepl.pipeline.report.fact_scan import joined

MOST: Final = 200

DAY: Final = 86_400
WIDTHS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600),
    *(DAY, 2 * DAY, 4 * DAY, 7 * DAY, 14 * DAY, 28 * DAY),
)
"""Widths in seconds. Each is at most 2.5 times the previous one: a long period has 80 bins or more."""

NAMES: Final = (("day", DAY), ("hour", 3600), ("minute", 60), ("second", 1))


class Bins(msgspec.Struct, frozen=True):
    """`count` bins of `width` seconds. The first begins at `first`: Unix seconds, a multiple of `width`."""

    first: int
    width: int
    count: int

    @property
    def starts(self) -> list[int]:
        """The start of each bin, in Unix seconds."""
        return [self.first + index * self.width for index in range(self.count)]

    @property
    def name(self) -> str:
        """The width in words, such as ``hour`` or ``5 minutes``."""
        name, length = next(unit for unit in NAMES if self.width % unit[1] == 0)
        many = self.width // length
        return name if many == 1 else f"{many} {name}s"

    def index(self, second: int) -> int:
        """Return the index of the bin of this second."""
        return (second - self.first) // self.width


def bins_for(first_ms: int, last_ms: int, least_width: int = 1) -> Bins:
    """Return the narrowest bins, of at least this width, that cover the time with at most 200 bins."""
    first, last = first_ms // 1000, last_ms // 1000
    # The last width is for decades: the clocks were wrong, or the facts are of several servers.
    decades = -(-(last - first + 1) // (MOST - 1) // DAY + 1) * DAY
    for width in (*WIDTHS, decades):
        found = Bins(first // width * width, width, last // width - first // width + 1)
        if width >= least_width and found.count <= MOST:
            break
    return found


Row = dict[str, Any]

HOW: Final = {"busiest_minute": "max", "first_ms": "min", "last_ms": "max", "token": "max"}
"""How columns of rows with the same keys are combined. Others are summed."""

COUNTED: Final = pa.schema([("name", pa.string()), ("counts", pa.binary())])
"""What a task has counted: packed tables, by name."""


def grouped(rows: Any, keys: Sequence[str]) -> Any:
    """Return a table with a row for each value of these columns; the others are combined as `HOW` says."""
    how = {name: HOW.get(name, "sum") for name in rows.schema.names if name not in keys}
    found = rows.group_by([*keys]).aggregate([*how.items()])
    sums = {name: found[f"{name}_{function}"] for name, function in how.items()}
    return pa.table({**{name: found[name] for name in keys}, **sums})


def count_in_tasks(
    rows: Partitions, count: Callable[[Any], Mapping[str, Any]], merge: Callable[[str, Any], Any]
) -> dict[str, Any]:
    """Count in tasks, and return the merged counts of all tasks: tables by name.

    `count` returns tables for a table of some rows. `merge` merges those with a name, which are concatenated.
    They must be small: those of all tasks are in memory together.
    """
    found = rows.map(partial(_count_rows, count, merge), COUNTED).collect()
    tables = defaultdict(list)
    for name, counts in zip(found["name"].to_pylist(), found["counts"].to_pylist(), strict=True):
        tables[name].append(unpack(counts))
    return {name: merge(name, pa.concat_tables(some)) for name, some in tables.items()}


def _count_rows(
    count: Callable[[Any], Mapping[str, Any]], merge: Callable[[str, Any], Any], batches: Iterable[Any]
) -> Iterator[Any]:
    tables = defaultdict(list)
    for rows in joined(batches):
        for name, counts in count(rows).items():
            tables[name].append(merge(name, counts))
    packed = [pack(merge(name, pa.concat_tables(some))) for name, some in tables.items()]
    yield pa.record_batch([pa.array([*tables], pa.string()), pa.array(packed, pa.binary())], COUNTED)


KEYS: Final = {
    "totals": ("stream", "writer"),
    "over_time": ("bin", "stream", "writer"),
    "hours": ("at",),
    "spread": ("bytes", "rows"),
    "voided": ("epoch",),
}
"""The counts of facts that are small, and their keys."""

LARGEST: Final = ("stream", "writer", "token", "serial", "rows", "bytes", "committed_ms")

SECONDS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("stream", "writer")),
        *((name, pa.int64()) for name in ("second", "facts", "rows")),
    ]
)
"""Counts of facts by second."""

PEAKS: Final = """
SELECT stream, writer, CAST(max(facts) AS bigint) AS facts, CAST(max(rows) AS bigint) AS rows
FROM (
    SELECT stream, writer, second, sum(facts) AS facts, sum(rows) AS rows FROM {rows}
    GROUP BY GROUPING SETS ((stream, writer, second), (stream, second), (second))
) AS counts
GROUP BY stream, writer
"""
"""The maximum of a second (`SECONDS`), by stream and writer, by stream, and of all (both null)."""

VALUES: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("name", "stream", "writer")),
        *((name, pa.int64()) for name in ("value", "facts")),
    ]
)
"""Numbers of facts by the value of what has this `name`.

That is ``bytes`` or ``rows``, by stream, for facts with rows; or ``waited_ms``, by stream and writer.
"""

PERCENTILES: Final = """
SELECT name, stream, writer,
    min(value) FILTER (WHERE 2 * upto >= total) AS median,
    min(value) FILTER (WHERE 10 * upto >= 9 * total) AS p90,
    min(value) FILTER (WHERE 100 * upto >= 99 * total) AS p99,
    max(value) AS most,
    CAST(max(total) AS bigint) AS facts
FROM (
    SELECT name, stream, writer, value,
        sum(facts) OVER (PARTITION BY name, stream, writer ORDER BY value) AS upto,
        sum(facts) OVER (PARTITION BY name, stream, writer) AS total
    FROM (
        SELECT name, stream, writer, value, sum(facts) AS facts FROM {rows}
        GROUP BY name, stream, writer, value
    ) AS counts
) AS sums
GROUP BY name, stream, writer
"""
"""The least value (`VALUES`) that a half, 90 % and 99 % of the facts do not exceed.

All in integers, so that engines agree. An engine has one line per value, in files if memory is too small.
"""

TOKENS: Final = pa.schema([("stream", pa.string()), ("token", pa.int64()), ("writer", pa.int32())])
"""The tokens of facts, with the numbers of their writers."""

SHARED: Final = """
SELECT stream, count(*) AS tokens
FROM (
    SELECT stream, token FROM {rows} GROUP BY stream, token HAVING min(writer) != max(writer)
) AS shared
GROUP BY stream
"""
"""For each stream with tokens that several writers used: the number of these tokens (from `TOKENS`)."""


def count_facts(
    driver: Driver,
    facts: Partitions,
    *,
    bins: Bins,
    width: int,
    top: int,
    epoch_starts: Sequence[EpochStart],
) -> dict[str, Any]:
    """Count facts (`FACTS`). The names of the results are those of `Measurements`; without facts: none.

    `hours` are of `width` seconds. `voided` has the number of facts that each epoch start discarded.
    """
    losses = [one for one in epoch_starts if one.stream]
    count = partial(_count, bins=bins, width=width, losses=losses)
    tables = count_in_tasks(facts, count, partial(_merge, top))
    if not tables:
        return {}
    found = {name: table.to_pylist() for name, table in tables.items()}
    peaks = query(driver, PEAKS, facts.map(_count_seconds, SECONDS))
    values = query(driver, PERCENTILES, facts.map(_count_values, VALUES))
    known = {(row["name"], row["stream"], row["writer"]): row for row in values}
    totals = found["totals"]
    for row in totals:
        waited = known.get(("waited_ms", row["stream"], row["writer"]), {})
        for name in ("median", "p90", "p99", "most"):
            row[f"{name}_seconds"] = waited[name] / 1000 if waited else None
    sizes = [_size(known, stream) for name, stream, _ in known if name == "bytes"]
    return {
        **found,
        "voided": {row["epoch"]: row["facts"] for row in found["voided"]},
        "sizes": sorted(sizes, key=lambda row: (-row["bytes_most"], row["stream"])),
        "peaks": {(row["stream"], row["writer"]): (row["facts"], row["rows"]) for row in peaks},
        "doubles": _count_shared(driver, facts, totals),
    }


def query(driver: Driver, statement: str, rows: Partitions) -> list[Row]:
    """Return the small result of a SQL statement (`Driver.query`)."""
    found: list[Row] = driver.query(statement, rows).read_all().to_pylist()
    return found


def _merge(top: int, name: str, counts: Any) -> Any:
    """Merge counts of facts, in the order of their keys."""
    if name == "largest":
        return counts.sort_by([("bytes", "descending"), ("serial", "ascending")]).slice(0, top)
    return grouped(counts, KEYS[name]).sort_by([(key, "ascending") for key in KEYS[name]])


def _count(facts: Any, *, bins: Bins, width: int, losses: Sequence[EpochStart]) -> dict[str, Any]:
    """Count some facts: a table for each of `KEYS`, and ``largest`` with all of them."""
    prev_token, token, rows, ms = (
        facts[name].to_numpy() for name in ("prev_token", "token", "rows", "committed_ms")
    )
    # The log says that facts of the writer up to this token are lost (`Fact.is_lost`).
    is_lost = (rows == 0) & (token == prev_token) & (token > 0)
    seconds, ones = ms // 1000, np.ones(len(facts), np.int64)
    names = {name: facts[name] for name in ("stream", "writer")}
    sums = {"facts": ones, "rows": facts["rows"], "bytes": facts["bytes"]}
    conditions = {
        "empty": rows == 0,
        "late": (token == prev_token) & ~is_lost,
        "skipping": token > prev_token + 1,
        "copied": facts["copies"].to_numpy() > 1,
    }
    # Facts that were discarded have left no position.
    is_void = np.zeros(len(facts), bool)
    for loss in losses:
        is_void |= are_lost(facts, loss).to_numpy()
    totals = {
        **names,
        **sums,
        **{name: is_so.astype(np.int64) for name, is_so in conditions.items()},
        "skipped": np.maximum(token - prev_token - 1, 0),
        "first_ms": ms,
        "last_ms": ms,
        "token": pa.array(token, mask=is_void),
    }
    # Late facts do not move the position of their writer.
    moves = pa.array(token, mask=conditions["late"] | is_void)
    over_time = {"bin": (seconds - bins.first) // bins.width, **names, **sums, "last_ms": ms, "token": moves}
    with_rows = facts.filter(pa.array(rows > 0))
    # Histograms of bytes and rows, in powers of two.
    powers = {name: np.frexp(np.maximum(with_rows[name].to_numpy(), 1))[1] - 1 for name in ("bytes", "rows")}
    voided = {
        "epoch": pa.array([one.epoch for one in losses], pa.int64()),
        "facts": pa.array([_count_void(facts, one) for one in losses], pa.int64()),
    }
    return {
        "totals": pa.table(totals),
        "over_time": pa.table(over_time),
        "hours": pa.table({"at": seconds // width * width, **sums}),
        "spread": pa.table({**powers, "facts": ones[: len(with_rows)]}),
        "voided": pa.table(voided),
        "largest": facts.select(LARGEST),
    }


def _count_void(facts: Any, loss: EpochStart) -> int:
    return pc.sum(are_lost(facts, loss)).as_py() or 0


def _count_seconds(batches: Iterable[Any]) -> Iterator[Any]:
    """Count facts by second (`SECONDS`)."""
    for facts in joined(batches):
        seconds = facts["committed_ms"].to_numpy() // 1000
        columns = [facts["stream"], facts["writer"], seconds, np.ones(len(facts), np.int64), facts["rows"]]
        counts = grouped(pa.table(columns, SECONDS.names), SECONDS.names[:3])
        yield from counts.cast(SECONDS).combine_chunks().to_batches()


def _count_values(batches: Iterable[Any]) -> Iterator[Any]:
    """Count facts by value (`VALUES`)."""
    for facts in joined(batches):
        with_rows = facts.filter(pc.greater(facts["rows"], 0))
        waited = facts.filter(pc.is_valid(facts["waited_ms"]))
        for name, some in (("bytes", with_rows), ("rows", with_rows), ("waited_ms", waited)):
            size = len(some)
            writers = some["writer"] if name == "waited_ms" else pa.repeat("", size)
            columns = [pa.repeat(name, size), some["stream"], writers, some[name], np.ones(size, np.int64)]
            counts = grouped(pa.table(columns, VALUES.names), VALUES.names[:4])
            yield from counts.cast(VALUES).combine_chunks().to_batches()


def _size(known: Mapping[tuple[str, str, str], Row], stream: str) -> Row:
    """Return the percentiles of the sizes of a stream's facts."""
    size, rows = (known[name, stream, ""] for name in ("bytes", "rows"))
    return {
        "stream": stream,
        "facts": size["facts"],
        **{f"bytes_{name}": size[name] for name in ("median", "p90", "p99", "most")},
        **{f"rows_{name}": rows[name] for name in ("median", "p99", "most")},
    }


def _count_shared(driver: Driver, facts: Partitions, totals: Iterable[Row]) -> dict[str, int]:
    """Return, for each stream with tokens that several writers used, the number of these tokens."""
    writers = defaultdict(list)
    for row in totals:
        if row["rows"]:
            writers[row["stream"]].append(row["writer"])
    shared = {stream: names for stream, names in writers.items() if len(names) > 1}
    if not shared:
        return {}
    numbers = pa.array(sorted({name for names in shared.values() for name in names}), pa.string())
    tokens = facts.map(partial(_number_tokens, pa.array([*shared], pa.string()), numbers), TOKENS)
    return {row["stream"]: row["tokens"] for row in query(driver, SHARED, tokens)}


def _number_tokens(streams: Any, writers: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the tokens of facts with rows of these streams (`TOKENS`)."""
    for batch in batches:
        is_its = pc.and_(pc.is_in(batch["stream"], streams), pc.greater(batch["rows"], 0))
        its = batch.filter(is_its)
        yield pa.record_batch([its["stream"], its["token"], pc.index_in(its["writer"], writers)], TOKENS)


class WriterLag(msgspec.Struct, frozen=True):
    """The lag of a writer at the end of each bin: seconds of silence, and tokens behind the stream's newest.

    None before the first fact of the writer; for tokens, before the first fact that is not late.
    """

    stream: str
    writer: str
    silent: list[float | None]
    behind: list[int | None]

    @property
    def silent_most(self) -> float:
        """The longest silence at the end of a bin, in seconds."""
        return max((one for one in self.silent if one is not None), default=0.0)


def writer_lags(over_time: Iterable[Row], bins: Bins, *, last_ms: int) -> list[WriterLag]:
    """Return the lags in streams with several writers, from the counts by bin (`count_facts`)."""
    counts: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in over_time:
        counts[row["stream"]][row["writer"]][row["bin"]] = row
    made = []
    for stream, writers in sorted(counts.items()):
        if len(writers) < 2:
            continue
        lags = [WriterLag(stream, writer, [], []) for writer in sorted(writers)]
        times, tokens = dict[str, int](), dict[str, int]()
        head = 0
        for index, start in enumerate(bins.starts):
            rows = {writer: by_bin[index] for writer, by_bin in writers.items() if index in by_bin}
            times |= {writer: row["last_ms"] for writer, row in rows.items()}
            tokens |= {writer: row["token"] for writer, row in rows.items() if row["token"] is not None}
            head = max((head, *tokens.values()))
            end = min((start + bins.width) * 1000, last_ms)
            for lag in lags:
                fact_ms, token = times.get(lag.writer), tokens.get(lag.writer)
                lag.silent.append(None if fact_ms is None else max(0, end - fact_ms) / 1000)
                lag.behind.append(None if token is None else max(0, head - token))
        made += lags
    return made
