"""Which tests take long. By default one of each story runs; `scripts/test --all` runs every one.

A test is slow if it needs a Spark, or if its name begins with one of `SLOW`. Of these the ones marked `story`
run by default all the same.
"""

import gc
import importlib.metadata
import os
import re
import signal
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from synrepl.missing_rooms import missing_rooms

# No test may fail because the machine is busy: by default Hypothesis judges examples by the time they take.
# Nor by chance: each run has the same examples, and new ones are tried in the night.
_untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.register_profile("few", _untimed, derandomize=True, max_examples=30)
settings.register_profile("all", _untimed, derandomize=True, max_examples=100)
settings.register_profile("night", _untimed, max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))

# Before each test pytest asks which Twisted is installed, and reads its description anew: a millisecond.
importlib.metadata.version = cache(importlib.metadata.version)

# Thousands of tests stay in memory once they are collected. To look through them again and again for garbage
# was a quarter of the time of all tests.
gc.set_threshold(100_000, 50, 1_000)

# A shell that starts the tests in the background lets them ignore SIGINT, and what they start too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW: Final = (
    # Real processes.
    "processes/",
    "cli/test_targets.py::test_the_demo",
    "crash/",
    "test_howtos",
    "cli/test_processes",
    "replicas/commands/test_replicas",
    "cli/test_tail_failures",
    "replicas/http/test_status_page_chromium",
    "service/test_daemon",
    "service/test_limits",
    "service/test_serve.py::test_a_mistake",
    "service/test_signals",
    "replicas/service/test_serve.py::test_a_mistake",
    "storage/test_kill",
    "upgrades/",
    # A Java of their own, or pictures, or jobs that are killed again and again.
    "pipeline/test_archive.py::test_kills",
    "pipeline/test_archive.py::test_small_files_are_merged_while",
    "pipeline/test_clusters",
    "pipeline/test_damage",
    "pipeline/test_day",
    "pipeline/test_forged_writes",
    "pipeline/test_frames",
    "pipeline/test_installed",
    "pipeline/test_local_kills",
    "pipeline/test_local_memory",
    "pipeline/test_local_signals",
    "pipeline/test_object_store",
    "pipeline/test_output_folder",
    "pipeline/test_remote",
    "pipeline/test_report.py::test_a_damaged",
    "pipeline/test_report.py::test_a_report_has_totals",
    "pipeline/test_report_page",
    "pipeline/test_session.py::test_a_whole_life",
    "pipeline/test_session.py::test_a_spark_that_cannot_start",
    "pipeline/test_source.py::test_the_source_travels",
    "pipeline/test_table.py::test_a_job_that_is_killed",
    "pipeline/test_table.py::test_history_and_files",
    "pipeline/test_tables.py::test_kills",
    "pipeline/test_tables.py::test_tables_on_an_object_store",
    "pipeline/test_without_spark",
    # Models of random operations, where another one runs on the engine in memory.
    "storage/test_log_model.py::AdoptModelOnSQLiteTests",
    "ids/test_definitions",
    "ids/test_oracle",
    "homeserver/tables/test_source",
    # The tools of the house.
    "test_bench.py::test_an_interrupted",
    "test_mutants.py::test_tests_that_fail",
    "test_mutants.py::test_the_result",
    "test_site",
    # Thousands of generated files.
    "homeserver/test_configurations",
    "homeserver/test_hostile_files.py::test_many_values",
    # What a simulation needs to be believed.
    "simulation/test_seeds",
    "simulation/test_promises.py::test_bad_luck",
    "replicas/simulation/test_acks_promises.py::test_everything_happens",
    "channel/test_channel_promises.py::test_bad_luck",
    "channel/test_channel_promises.py::test_each_rule_is_needed",
    "simulation/test_broker_promises.py::test_bad_luck",
    "replicas/simulation/test_replica_promises.py::test_bad_luck",
)
_OF_ROOMS: Final = r"\w+/processes/|\w+/test_crash"
_SLOW: Final = re.compile(rf"tests/(?:{_OF_ROOMS}|{'|'.join(map(re.escape, SLOW))})|postgre", re.IGNORECASE)
"""Anything with PostgreSQL in its name starts a server."""

WHOLE: Final = (
    # The manual, its commands, what the project ships, benchmarks, the list of mutants: of all rooms.
    "contrib/",
    "service/test_config.py::test_the_example_file",
    "test_bench.py::test_every_benchmark_exists",
    "test_docs",
    "test_growth",
    "test_house.py::test_a_declaration",
    "test_howtos",
    "test_mutants.py::test_every_mutant_fits",
    "test_references.py::test_the_tree",
    "test_rooms_script",
    "test_simulate",
    "test_site",
    "test_test_extras",
    "upgrades/",
    "wire/test_error_codes.py::test_every_code_of_the_table",
)
_WHOLE: Final = re.compile(rf"tests/(?:{'|'.join(map(re.escape, WHOLE))})")


class _Module(pytest.Module):
    """A file of tests; one that imports a room that has been taken away has none."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return list(super().collect())
        except self.CollectError as error:
            why = error.__cause__
            missing = {f"{package}.{room}" for package in ("synrepl", "tests") for room in missing_rooms()}
            if isinstance(why, ModuleNotFoundError) and why.name in missing:
                return []
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Make the collector of a file of tests."""
    made: pytest.Module = _Module.from_parent(parent, path=module_path)
    return made


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the slow ones, so that ``-m "not slow"`` leaves them out.

    Where a room has been taken away (scripts/rooms), tests of the whole are left out.
    """
    if missing_rooms():
        config.hook.pytest_deselected(items=[item for item in items if _WHOLE.search(item.nodeid)])
        items[:] = [item for item in items if not _WHOLE.search(item.nodeid)]
    for item in items:
        if item.get_closest_marker("story"):
            continue
        if _SLOW.search(item.nodeid) or item.get_closest_marker("spark"):
            item.add_marker("slow")
