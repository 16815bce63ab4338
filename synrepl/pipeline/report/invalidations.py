"""Cache invalidations: as announced, and as expanded by workers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synrepl.pipeline.report.bins import Bins
from synrepl.pipeline.report.counts import collected
from synrepl.pipeline.report.expansion import MEANT_DDL, count_by_minute, expand_batches
from synrepl.pipeline.report.files import Part, read, read_by_executors
from synrepl.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CACHES", "Invalidations", "invalidations"]

CACHES: Final = "caches"

READ: Final = ("key", "row", "committed_at")

Row = dict[str, Any]


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


def invalidations(
    spark: "SparkSession", archive: Store, parts: Sequence[Part], bins: Bins, top: int
) -> Invalidations:
    """Count the invalidations by the rows of ``caches`` in these files; `bins` are of whole minutes.

    Executors need synrepl to expand names. Rows are counted by minute first, and each distinct name with its
    keys is expanded once per task.
    """
    from pyspark.sql import functions as f

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
