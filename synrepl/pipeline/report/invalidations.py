"""Cache invalidations: as announced, and as expanded by workers."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from synrepl.caches.vintages import NEWEST
from synrepl.pipeline.report.counts import Bins, Row, collected, grouped, summed
from synrepl.pipeline.spark import read_rows
from synrepl.pipeline.store import Store
from synrepl.wire import jsontext

CACHES: Final = "caches"

READ: Final = ("key", "row", "committed_at")

UNREADABLE: Final = "(rows that cannot be read)"

REMEMBERED: Final = 10_000
"""Maximum number of remembered meanings, of about 1 kB each."""

_NAME: Final = msgspec.json.Decoder(tuple[str, str])
_KEYS: Final = msgspec.json.Decoder(list[str] | None)


class Meaning(msgspec.Struct, frozen=True):
    """The invalidations of one row: pairs of a cache and a key as JSON array (None: the whole cache).

    `name` is None if the row cannot be decoded. A `misshapen` row has keys that do not fit its alias, and
    invalidates all caches of the alias. `unreadable` counts keys that are skipped; it is 1 without a `name`.
    """

    name: str | None
    drops: tuple[tuple[str, str | None], ...] = ()
    whole: int = 0
    misshapen: int = 0
    unreadable: int = 0

    @property
    def keyed(self) -> int:
        """The number of invalidated entries."""
        return len(self.drops) - self.whole


@lru_cache(REMEMBERED)
def meaning(key: str | None) -> Meaning:
    """Return the invalidations of a row with this key (`synrepl.pipeline.keys`: name and keys as JSON)."""
    try:
        name, text = _NAME.decode(key or "")
        keys = _KEYS.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return Meaning(None, unreadable=1)
    unreadable: list[object] = []
    misshapen = 0
    try:
        meant = [(one.cache, one.key) for one in NEWEST.expand(name, keys, unreadable=unreadable.append)]
    except ValueError:
        # As in `CacheRegistry`: the intended entry is unknown, so all caches of the alias are invalidated.
        misshapen = 1
        meant = [(cache, None) for cache in sorted(NEWEST.reaches(name))]
    drops = tuple(
        (cache, None if key is None else jsontext.dumps(key).decode("ascii")) for cache, key in meant
    )
    whole = sum(key is None for _, key in drops)
    return Meaning(name, drops, whole, misshapen, len(unreadable))


SUMS: Final = ("keyed", "whole", "misshapen", "unreadable")

MEANT: Final = pa.schema(
    {
        "minute": pa.int64(),
        "rows": pa.int64(),
        "name": pa.string(),
        **dict.fromkeys(SUMS, pa.int64()),
        "drops": pa.list_(pa.struct({"cache": pa.string(), "key": pa.string()})),
    }
)

MEANT_DDL: Final = (
    "minute bigint, rows bigint, name string, keyed bigint, whole bigint, misshapen bigint,"
    " unreadable bigint, drops array<struct<cache: string, key: string>>"
)


def expand(rows: DataFrame) -> DataFrame:
    """Count rows of ``caches`` (`key`, `row`, `committed_at`) by minute and meaning, per record batch.

    `keyed`, `whole`, `misshapen` and `unreadable` are sums over the `rows`; `drops` are those of one row.
    Executors need synrepl to expand names.
    """
    minute = f.expr("unix_seconds(committed_at) div 60").alias("minute")
    return rows.where("row is not null").select("key", minute).mapInArrow(expand_batches, MEANT_DDL)


def expand_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Expand batches of `key` and `minute` to invalidations (`MEANT`)."""
    for batch in batches:
        counts = Counter(zip(batch["minute"].to_pylist(), batch["key"].to_pylist(), strict=True))
        meant = [(minute, rows, meaning(key)) for (minute, key), rows in counts.items()]
        sums = [[rows * getattr(one, name) for _, rows, one in meant] for name in SUMS]
        columns = [[getattr(one, name) for *_, one in meant] for name in ("name", "drops")]
        minutes = [minute for minute, *_ in meant]
        yield pa.record_batch([minutes, list(counts.values()), columns[0], *sums, columns[1]], schema=MEANT)


class Invalidations(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of invalidations (`meant`): of entries (`keyed`), and of `whole` caches.

    `names` are as announced, `caches` after expansion; `keys` (of one cache) and `subjects` (keys in any
    cache) are the hottest ones. `minutes` has the counts of each bin.
    """

    names: list[Row]
    caches: list[Row]
    keys: list[Row]
    subjects: list[Row]
    minutes: list[Row]

    def total(self, column: str) -> int:
        """Return the sum over all names of `rows`, `meant`, `keyed`, `whole`, `misshapen` or `unreadable`."""
        return sum(row[column] for row in self.names)


def invalidations(spark: SparkSession, archive: Store, parts: Any, bins: Bins, top: int) -> Invalidations:
    """Count the invalidations by the rows of ``caches`` in these files; `bins` are of whole minutes."""
    meant = expand(read_rows(spark, archive, parts, READ)).persist()
    drops = meant.select("rows", "name", f.inline("drops"))
    entries = grouped(drops.where("key is not null"), ["cache", "key"], "sum(rows) as keyed").persist()
    sums = [*map(summed, ("rows", *SUMS))]
    names = grouped(meant, ["name"], *sums).orderBy(f.desc("rows"), "name").fillna(UNREADABLE, "name")
    by_cache = grouped(
        grouped(drops, ["cache", "name"], summed("rows"), "sum(if(key is null, rows, 0)) as whole"),
        ["cache"],
        "sum(rows) as invalidations",
        summed("whole"),
        "array_join(sort_array(collect_set(name)), ', ') as told_as",
    )
    keys = grouped(entries, ["cache"], "count(*) as keys")
    subjects = grouped(
        entries,
        ["key"],
        "sum(keyed) as invalidations",
        "count(*) as caches",
        "max_by(cache, struct(keyed, cache)) as mostly",
    )
    minutes = grouped(
        grouped(meant, ["minute"], *sums),
        [f"(minute * 60 - {bins.first}) div {bins.width} as bin"],
        *sums[:3],
        "max(keyed + whole) as busiest_minute",
    )
    most = f.desc("invalidations")
    frames = {
        "names": names.selectExpr("*", "keyed + whole as meant", "(keyed + whole) / rows as meant_per_row"),
        "caches": by_cache.join(keys, "cache", "left").fillna(0, "keys").orderBy(most, "cache"),
        "keys": entries.withColumnRenamed("keyed", "invalidations").orderBy(most, "cache", "key").limit(top),
        "subjects": subjects.orderBy(most, "key").limit(top),
        "minutes": minutes.orderBy("bin"),
    }
    try:
        return Invalidations(**{name: collected(frame) for name, frame in frames.items()})
    finally:
        entries.unpersist()
        meant.unpersist()
