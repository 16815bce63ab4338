"""What runs the tasks of a job: Spark (`SparkDriver`), or this process alone (`LocalDriver`).

A job is functions on Arrow record batches, and an order in which they run. A driver gives the batches to
tasks, and the results of tasks to other tasks, which may be in other processes or on other machines::

    rows = spread(driver, files, 4).map(scan, SCANNED)  # nothing is read yet
    with rows.kept() as rows:
        for batch in rows.repartition(8, "task").map(merge, MERGED).collect(): ...

Of two drivers with the same input, a job makes the same output. So functions must not depend on the order in
which a task gets its batches.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, runtime_checkable

import pyarrow as pa

Work = Callable[[Iterator[Any]], Iterator[Any]]
"""What a task does: it gets the record batches of a partition, and yields those of the result."""

TASK: Final = "task"
"""The column that has the number of a row's task, from 0."""


class Partitions(Protocol):
    """Record batches in partitions, each of which one task reads: they are computed when they are read.

    Those of `repartition` may be computed at once.
    """

    def map(self, work: Work, schema: Any) -> "Partitions":
        """Return the results of `work`, called in a task for each partition. `schema` is theirs, in Arrow."""

    def repartition(self, count: int, column: str = TASK) -> "Partitions":
        """Return `count` partitions: that with the number N has the rows that have N in `column`.

        The order of the rows is lost.
        """

    def union(self, other: "Partitions") -> "Partitions":
        """Return the partitions of both, which have the same schema."""

    def kept(self) -> "AbstractContextManager[Partitions]":
        """Compute the partitions once, for all who read them within this context."""

    def collect(self) -> Any:
        """Compute all partitions at once, and return them as a table."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the record batches, those of one partition after those of the other."""


@runtime_checkable
class Driver(Protocol):
    """Runs tasks. All errors of a task end the job; `BadArchive` arrives as it is."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that keep the cores busy."""

    def spread(self, rows: Any, count: int) -> Partitions:
        """Return the rows of a small table in `count` partitions, by their column `TASK`."""

    def query(self, statement: str, rows: Partitions) -> Any:
        """Return the result of a SQL statement, in its order, as a reader of record batches.

        In the statement ``{rows}`` stands for the rows. The functions are those of Spark that `local` has
        for DuckDB too. Times are in UTC.
        """


def spread(driver: Driver, rows: Any, count: int) -> Partitions:
    """Return the rows of a small table in turn in `count` partitions."""
    numbers = pa.array((number % count for number in range(len(rows))), pa.int32())
    return driver.spread(rows.append_column(TASK, numbers), count)
