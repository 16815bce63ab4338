"""What all tests of the pipeline share: a Spark, and a server of Spark Connect, which take long to start."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.runner import Runner
from synrepl.pipeline.session import session
from tests.pipeline.clusters import QUICK, QUICK_JAVA, connect_server
from tests.pipeline.object_stores import CREDENTIALS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What each Spark of a program takes that a test starts, and the Java that starts it.
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark_conf"))
os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JAVA)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what shares these: it runs in one process, and everything else in several."""
    for item in items:
        runs_on = item.callspec.params.get("runner") if hasattr(item, "callspec") else None
        if {"spark", "remote"} & {*getattr(item, "fixturenames", ())} or runs_on == "spark":
            item.add_marker("spark")


@pytest.fixture(scope="module", params=["local", "spark"])
def runner(request: pytest.FixtureRequest) -> "Iterator[Runner]":
    """What a job runs on: this process alone, and Spark. A job does the same on both."""
    if request.param == "spark":
        yield request.getfixturevalue("spark")
        return
    with LocalDriver(threads=2) as driver:
        yield driver


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A local session with two cores. A test leaves its settings as they were, and stops its queries."""
    found = session(
        app="tests",
        master="local[2]",
        memory="1g",
        conf=QUICK,
    )
    yield found
    found.stop()


@pytest.fixture(scope="session")
def remote() -> Iterator[str]:
    """The URL of a Spark Connect server, which has a Spark of its own, and the credentials of buckets."""
    with connect_server(env=CREDENTIALS) as url:
        yield url
