"""What all tests of the pipeline have: one Spark for all of them, as it takes seconds to start."""

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from synrepl.pipeline.jobs import is_late_worker, retry_late_workers
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.runner import Runner
from synrepl.pipeline.session import session
from tests.pipeline.clusters import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what shares that Spark: it runs in one process, and everything else in several."""
    for item in items:
        runs_on = item.callspec.params.get("runner") if hasattr(item, "callspec") else None
        if "spark" in getattr(item, "fixturenames", ()) or runs_on == "spark":
            item.add_marker("spark")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Run a test again if a Python worker of Spark did not start within 10 seconds, which nothing sets.

    A busy machine is the reason; jobs retry, too (`retry_late_workers`).
    """
    try:
        return (yield)
    except Exception as error:
        if not is_late_worker(error):
            raise
    retry_late_workers(_run_again)(pyfuncitem)
    return True


def _run_again(item: pytest.Function) -> None:
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    if isinstance(folder := arguments.get("tmp_path"), Path):
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    item.obj(**arguments)


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
