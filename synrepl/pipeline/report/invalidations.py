"""Cache invalidations: as announced, and as expanded by workers."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from synrepl.caches.vintages import NEWEST
from synrepl.pipeline.report.counts import Bins, Row, collected
from synrepl.pipeline.report.facts import Part, read, read_by_executors
from synrepl.pipeline.store import Store
from synrepl.wire import jsontext

__all__ = [
    "MEANT",
    "MEANT_DDL",
    "Meaning",
    "expand_batches",
    "meaning",
    "count_by_minute",
    "CACHES",
    "Invalidations",
    "invalidations",
]

MEANT: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("minute", pa.int64()),
        pa.field("cache", pa.string()),
        pa.field("key", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("keyed", pa.int64()),
        pa.field("whole", pa.int64()),
        pa.field("misshapen", pa.int64()),
        pa.field("unreadable", pa.int64()),
    ]
)
"""The result schema, with lines of two kinds.

A line with a `minute` counts the rows with this `name` in that minute, and their invalidations: entries
(`keyed`) and `whole` caches. `misshapen` rows have keys that do not fit their alias, and invalidate all
caches of the alias. `unreadable` counts keys that were skipped, and rows (without a name) that cannot be
decoded.

A line with a `cache` counts how often this name invalidated the entry `key` (a JSON array), or the whole
cache (null).
"""

MEANT_DDL: Final = ", ".join(
    f"`{field.name}` {'string' if field.type == pa.string() else 'bigint'}" for field in MEANT
)

REMEMBERED: Final = 50_000
BUFFERED: Final = 200_000
"""Maximum number of buffered entries."""

_NAME: Final = msgspec.json.Decoder(tuple[str, str])
_KEYS: Final = msgspec.json.Decoder(list[str] | None)


class Meaning(msgspec.Struct, frozen=True):
    """The invalidations of one row: pairs of a cache and a key (None: the whole cache)."""

    name: str | None
    drops: tuple[tuple[str, str | None], ...] = ()
    whole: int = 0
    misshapen: int = 0
    unreadable: int = 0


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


def count_by_minute(rows: Any) -> Any:
    """Count the keys of a record batch (`key`, `row`, `committed_at`) by minute: `key`, `minute`, `count`."""
    present = rows.filter(pc.is_valid(rows["row"]))
    minutes = pc.divide(present["committed_at"].cast(pa.int64()), 60_000_000)
    counted = pa.table({"key": present["key"], "minute": minutes}).group_by(
        ["key", "minute"], use_threads=False
    )
    return counted.aggregate([([], "count_all")]).rename_columns(["key", "minute", "count"])


def expand_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Expand batches of `key`, `minute` and `count` to invalidations (`MEANT`)."""
    known: dict[str | None, Meaning] = {}
    drops: Counter[tuple[str | None, str, str | None]] = Counter()
    for batch in batches:
        names: dict[tuple[str | None, int], list[int]] = defaultdict(lambda: [0] * 5)
        columns = (batch[name].to_pylist() for name in ("key", "minute", "count"))
        for key, minute, count in zip(*columns, strict=True):
            meant = known.get(key)
            if meant is None:
                if len(known) >= REMEMBERED:
                    known.clear()
                meant = known[key] = meaning(key)
            sums = names[meant.name, minute]
            sums[0] += count
            sums[1] += count * (len(meant.drops) - meant.whole)
            sums[2] += count * meant.whole
            sums[3] += count * meant.misshapen
            sums[4] += count * meant.unreadable
            for cache, dropped in meant.drops:
                drops[meant.name, cache, dropped] += count
        yield _names(names)
        if len(drops) >= BUFFERED:
            yield _drops(drops)
            drops.clear()
    yield _drops(drops)


def _names(found: dict[tuple[str | None, int], list[int]]) -> Any:
    sums = list(zip(*found.values(), strict=True)) or [()] * 5
    names = [name for name, _ in found]
    nothing = [None] * len(found)
    return _batch([names, [minute for _, minute in found], nothing, nothing, *sums])


def _drops(found: Counter[tuple[str | None, str, str | None]]) -> Any:
    names, caches, keys = list(zip(*found, strict=True)) or [()] * 3
    nothing = [None] * len(found)
    keyed = [count if key is not None else 0 for (_, _, key), count in found.items()]
    whole = [count if key is None else 0 for (_, _, key), count in found.items()]
    return _batch([names, nothing, caches, keys, nothing, keyed, whole, nothing, nothing])


def _batch(columns: list[Any]) -> Any:
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, MEANT, strict=True)]
    return pa.record_batch(arrays, schema=MEANT)


CACHES: Final = "caches"

READ: Final = ("key", "row", "committed_at")


class Invalidations(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of invalidations.

    `names` are as announced, `caches` after expansion; `keys` (of one cache) and `subjects` (keys in any
    cache) are the hottest ones. `minutes` is by bin.
    """

    names: list[Row]
    caches: list[Row]
    keys: list[Row]
    subjects: list[Row]
    minutes: list[Row]
    distinct: int

    def total(self, column: str) -> int:
        """Return the sum over all names of `rows`, `keyed`, `whole`, `misshapen` or `unreadable`."""
        return sum(row[column] for row in self.names)

    @property
    def meant(self) -> int:
        """The number of invalidations, of entries and of whole caches."""
        return self.total("keyed") + self.total("whole")


def invalidations(spark: SparkSession, archive: Store, parts: Any, bins: Bins, top: int) -> Invalidations:
    """Count the invalidations by the rows of ``caches`` in these files; `bins` are of whole minutes.

    Executors need synrepl to expand names. Rows are counted by minute first, and each distinct name with its
    keys is expanded once per task.
    """

    def work(given: Iterable[Part]) -> Iterator[Any]:
        return expand_batches(count_by_minute(batch) for part in given for batch in read(archive, part, READ))

    meant = read_by_executors(spark, parts, MEANT_DDL, work).persist()
    try:
        sums = [f.sum(name).alias(name) for name in ("rows", "keyed", "whole", "misshapen", "unreadable")]
        of_names = meant.where("minute is not null")
        names = collected(of_names.groupBy("name").agg(*sums).orderBy(f.desc("rows"), "name"))
        position = f.expr(f"(minute * 60 - {bins.first}) div {bins.width}")
        minutes = collected(
            of_names.groupBy("minute")
            .agg(*sums[:3])
            .groupBy(position.alias("bin"))
            .agg(
                f.sum("rows").alias("rows"),
                f.sum("keyed").alias("keyed"),
                f.sum("whole").alias("whole"),
                f.max(f.col("keyed") + f.col("whole")).alias("busiest_minute"),
            )
            .orderBy("bin")
        )
        caches = collected(
            meant.where("cache is not null")
            .groupBy("cache")
            .agg(
                f.sum(f.col("keyed") + f.col("whole")).alias("invalidations"),
                f.sum("whole").alias("whole"),
                f.countDistinct("key").alias("keys"),
                f.array_join(f.sort_array(f.collect_set("name")), ", ").alias("told_as"),
            )
            .orderBy(f.desc("invalidations"), "cache")
        )
        keyed = (
            meant.where("key is not null").groupBy("cache", "key").agg(f.sum("keyed").alias("keyed"))
        ).persist()
        keys = collected(
            keyed.select("cache", "key", f.col("keyed").alias("invalidations"))
            .orderBy(f.desc("invalidations"), "cache", "key")
            .limit(top)
        )
        subjects = collected(
            keyed.groupBy("key")
            .agg(
                f.sum("keyed").alias("invalidations"),
                f.count("*").alias("caches"),
                f.max_by("cache", f.struct("keyed", "cache")).alias("mostly"),
            )
            .orderBy(f.desc("invalidations"), "key")
            .limit(top)
        )
        keyed.unpersist()
    finally:
        meant.unpersist()
    return Invalidations(
        names=names,
        caches=caches,
        keys=keys,
        subjects=subjects,
        minutes=minutes,
        distinct=sum(row["keys"] for row in caches),
    )
