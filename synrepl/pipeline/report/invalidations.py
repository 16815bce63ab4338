"""Cache invalidations: as they were told, and as what they mean to workers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synrepl.pipeline.report.bins import Bins
from synrepl.pipeline.report.counts import collected
from synrepl.pipeline.report.expansion import MEANT_DDL, expand_batches, told_in
from synrepl.pipeline.report.files import Part, read, read_by_executors
from synrepl.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CACHES", "Invalidations", "invalidations"]

CACHES: Final = "caches"

READ: Final = ("key", "row", "committed_at")

Row = dict[str, Any]


class Invalidations(msgspec.Struct, frozen=True, kw_only=True):
    """`names` as they were told, `caches` after expansion; of `keys` (of one cache) and `subjects` (keys in
    whatever cache) the hottest. `minutes` is by bin.
    """

    names: list[Row]
    caches: list[Row]
    keys: list[Row]
    subjects: list[Row]
    minutes: list[Row]
    distinct: int

    def total(self, column: str) -> int:
        """Of all names: `rows`, `keyed`, `whole`, `misshapen` or `unreadable`."""
        return sum(row[column] for row in self.names)

    @property
    def meant(self) -> int:
        """All invalidations, of an entry or of a whole cache."""
        return self.total("keyed") + self.total("whole")


def invalidations(
    spark: "SparkSession", archive: Store, parts: Sequence[Part], bins: Bins, top: int
) -> Invalidations:
    """What the rows in these files of ``caches`` invalidate; `bins` are of whole minutes.

    Executors need synrepl: what names mean is said by its code. It sees each distinct name and keys once a
    minute, however often they were told, and works out once a task what they mean.
    """
    from pyspark.sql import functions as f

    def work(given: Iterable[Part]) -> Iterator[Any]:
        return expand_batches(told_in(batch) for part in given for batch in read(archive, part, READ))

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
