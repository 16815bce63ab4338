"""What a job can be given to run on: a session of Spark, or a driver."""

from typing import TYPE_CHECKING, Union

from synrepl.pipeline.driver import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Runner = Union["SparkSession", Driver]


def driver_of(runner: Runner) -> Driver:
    """Return the driver of a session of Spark; a driver is returned as it is."""
    if isinstance(runner, Driver):
        return runner
    # An extra.
    from synrepl.pipeline.spark import SparkDriver

    return SparkDriver(runner)
