"""A daemon whose log has a flipped bit: Spark's tasks fail, and do not get it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from synrepl.pipeline.source.data_source import register
from tests.power.damaged_daemon import CLOSED, DAMAGED, FACTS, damaged_daemon
from tests.service.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The daemon."""
    with damaged_daemon(tmp_path_factory.mktemp("damaged")) as daemon:
        yield daemon


def read(spark: "SparkSession", daemon: Daemon, **options: str) -> "DataFrame":
    """``spark.read``, which does not wait until the log is restored."""
    register(spark)
    return spark.read.format("synrepl").options(url=daemon.url, retrySeconds="0", **options).load()


@pytest.mark.parametrize("options", [{}, {"minPartitions": "4"}, {"streams": "receipts"}])
def test_a_table_without_it_is_no_table(
    spark: "SparkSession", damaged: Daemon, options: dict[str, str]
) -> None:
    """The job fails, with what the daemon says."""
    with pytest.raises(Exception, match=f"{CLOSED}|serial {DAMAGED} is damaged"):
        read(spark, damaged, **options).collect()


def test_a_range_without_it_is_served(spark: "SparkSession", damaged: Daemon) -> None:
    """Its proof begins with the digest of the fact before it."""
    found = read(spark, damaged, startingOffsets=str(DAMAGED + 1)).collect()

    assert list(range(DAMAGED + 2, FACTS + 1)) == sorted({row.serial for row in found})
