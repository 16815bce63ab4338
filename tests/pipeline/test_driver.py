"""What a job needs of the driver of its tasks: both do the same."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from synrepl.pipeline.driver import TASK, spread
from synrepl.pipeline.exchange import pack
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.store import BadArchive
from tests.service.processes import ROOT

NUMBERS = pa.schema([pa.field("number", pa.int64(), nullable=False)])
TASKED = pa.schema([(TASK, pa.int32()), ("number", pa.int64()), ("text", pa.string())])
AT = pa.timestamp("us", tz="UTC")
MIDNIGHT = 1_795_305_600_000_000  # 2026-11-22T00:00:00Z
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
PACKED = pa.schema([("packed", pa.binary())])


def numbers(count: int) -> Any:
    """A table of so many numbers, from 0."""
    return pa.table({"number": pa.array(range(count), pa.int64())}, NUMBERS)


def doubled(batches: Iterable[Any]) -> Iterator[Any]:
    """Each number twice."""
    for batch in batches:
        found = [number for number in batch["number"].to_pylist() for _ in range(2)]
        yield pa.record_batch([pa.array(found, pa.int64())], NUMBERS)


def tasked(tasks: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Each number with a text, for the task of its remainder."""
    for batch in batches:
        found = batch["number"].to_pylist()
        columns = [
            pa.array([number % tasks for number in found], pa.int32()),
            pa.array(found, pa.int64()),
            pa.array([None if number % 5 == 0 else f"n{number}" for number in found], pa.string()),
        ]
        yield pa.record_batch(columns, TASKED)


def summed(batches: Iterable[Any]) -> Iterator[Any]:
    """One number for all that a task gets."""
    found = [number for batch in batches for number in batch["number"].to_pylist()]
    if found:
        yield pa.record_batch([pa.array([sum(found)], pa.int64())], NUMBERS)


def failing(batches: Iterable[Any]) -> Iterator[Any]:
    """Says what is wrong with its input, as a task does."""
    for batch in batches:
        raise BadArchive(f"there is no file {batch['number'][0].as_py()}: it is gone")
        yield batch


def listed(found: Any) -> list[int]:
    """The numbers of a table."""
    return sorted(found["number"].to_pylist())


def test_tasks_get_all_rows_once(runner: Runner) -> None:
    rows = spread(driver_of(runner), numbers(10), 3).map(doubled, NUMBERS)

    assert sorted([*range(10), *range(10)]) == listed(rows.collect())
    assert sorted([*range(10), *range(10)]) == sorted(
        number for batch in rows for number in batch["number"].to_pylist()
    )
    assert rows.collect().schema.equals(NUMBERS)


def test_a_task_gets_the_rows_of_its_number(runner: Runner) -> None:
    """From all partitions of both sides."""
    driver = driver_of(runner)
    rows = spread(driver, numbers(100), 4).map(partial(tasked, 5), TASKED)
    others = spread(driver, numbers(10), 2).map(partial(tasked, 5), TASKED)

    found = rows.union(others).repartition(5).map(summed, NUMBERS).collect()

    expected = [sum(range(rest, 100, 5)) + sum(range(rest, 10, 5)) for rest in range(5)]
    assert sorted(expected) == listed(found)


def test_what_is_kept_is_read_again(runner: Runner) -> None:
    with spread(driver_of(runner), numbers(20), 4).map(partial(tasked, 3), TASKED).kept() as kept:
        texts = kept.collect().sort_by("number")["text"].to_pylist()
        sums = kept.repartition(3).map(summed, NUMBERS).collect()

    assert [None if number % 5 == 0 else f"n{number}" for number in range(20)] == texts
    assert sorted(sum(range(rest, 20, 3)) for rest in range(3)) == listed(sums)


def test_nothing_is_given(runner: Runner) -> None:
    driver = driver_of(runner)

    rows = spread(driver, numbers(0), 1).map(partial(tasked, 2), TASKED).repartition(2)

    assert 0 == len(rows.map(summed, NUMBERS).collect())
    assert [] == [*rows]
    with rows.kept() as kept:
        assert TASKED.equals(kept.collect().schema)


def test_bytes_stay_what_they_are(runner: Runner) -> None:
    """Tables that were packed, as between the steps of a fold."""
    table = pa.table({"packed": pa.array([pack(numbers(3)), None, b"\0\xff"], pa.binary())}, PACKED)
    rows = spread(driver_of(runner), table, 2)

    found = rows.map(lambda batches: (batch.select(["packed"]) for batch in batches), PACKED).collect()

    assert sorted(table["packed"].drop_null().to_pylist()) == sorted(found["packed"].drop_null().to_pylist())
    assert 1 == found["packed"].null_count


def test_the_error_of_a_task_is_that_of_the_job(runner: Runner) -> None:
    rows = spread(driver_of(runner), numbers(8), 4).map(failing, NUMBERS)

    for read in (rows.collect, lambda: [*rows]):
        with pytest.raises(BadArchive, match=r"^there is no file \d: it is gone$"):
            read()


def test_no_task_goes_on_after_an_error() -> None:
    """The next attempt would meet what it writes."""
    begun: list[int] = []

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            begun.append(batch["number"][0].as_py())
            yield from failing([batch])

    with LocalDriver(threads=2) as driver, pytest.raises(BadArchive):
        spread(driver, numbers(1_000), 1_000).map(work, NUMBERS).collect()
    assert len(begun) < 20


def test_other_tasks_run_beside_a_long_one() -> None:
    """No thread waits for it: here it ends only after the fourth task."""
    is_done = threading.Event()

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in tasked(1, batches):
            number = batch["number"][0].as_py()
            if number == 3:
                is_done.set()
            assert number or is_done.wait(60)
            yield batch

    with LocalDriver(threads=2) as driver:
        rows = spread(driver, numbers(5), 5).map(work, TASKED)
        for read in (rows.collect, lambda: rows.repartition(1).collect()):
            is_done.clear()
            assert [*range(5)] == listed(read())


def test_nothing_is_left_of_the_files() -> None:
    with LocalDriver(threads=2) as driver:
        rows = spread(driver, numbers(8), 4).map(partial(tasked, 2), TASKED).repartition(2)
        (folder,) = driver.new_folder().parent.glob("1")
        assert 2 == len([*folder.iterdir()])
        assert 8 == len(rows.collect())
    assert not folder.parent.exists()


def test_no_task_starts_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool would not wait for one of which a signal interrupts the start, nor for its task."""
    with LocalDriver(threads=2) as driver:
        rows = spread(driver, numbers(8), 4)
        monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
        assert 16 == len(rows.map(doubled, NUMBERS).collect())


KILLED = """
import os, signal, sys
from pathlib import Path
from synrepl.pipeline.local import LocalDriver

driver = LocalDriver(threads=1, folder=Path(sys.argv[1]))
(driver.new_folder() / "0").write_bytes(b"some rows")
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Leaves the files between its tasks."""


def test_the_files_of_a_killed_process_are_removed_by_the_next(tmp_path: Path) -> None:
    """They may be as large as an archive. Those of a process that lives stay, and all that is not ours."""
    (tmp_path / "synrepl-local-other").mkdir()
    with LocalDriver(threads=1, folder=tmp_path) as alive:
        mine = alive.new_folder()
        killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=ENVIRONMENT, check=False)
        before = {*tmp_path.iterdir()}

        with LocalDriver(threads=1, folder=tmp_path) as following:
            left = {*tmp_path.iterdir()} - {following.new_folder().parent}

        assert -signal.SIGKILL == killed.returncode
        assert 3 == len(before)
        assert {tmp_path / "synrepl-local-other", mine.parent} == left
        assert mine.exists()
    assert [tmp_path / "synrepl-local-other"] == [*tmp_path.iterdir()]


def test_statements_have_the_functions_of_both(runner: Runner) -> None:
    """Those of Spark, with nulls where Spark has them, in UTC and in the order of the statement."""
    driver = driver_of(runner)
    schema = pa.schema(
        [("serial", pa.int64()), ("seq", pa.int32()), ("data", pa.string()), ("time", AT), (TASK, pa.int32())]
    )
    table = pa.Table.from_pylist(
        [
            {"serial": 2, "seq": 1, "data": None, "time": MIDNIGHT, TASK: 0},
            {"serial": 2, "seq": 0, "data": '{"ts":"late"}', "time": MIDNIGHT, TASK: 0},
            {"serial": 1, "seq": 0, "data": '{"ts":1795000000123}', "time": MIDNIGHT - 1, TASK: 1},
            {"serial": 0, "seq": 0, "data": None, "time": MIDNIGHT - 1, TASK: 0},
        ],
        schema,
    )
    rows = driver.spread(table, 2)

    found = driver.query(
        "SELECT max_by(data, struct(serial, seq)) AS last, min_by(data, struct(serial, seq)) AS first,"
        " CAST(sum(serial) AS bigint) AS total, CAST(time AS date) AS day, date_trunc('HOUR', time) AS hour,"
        " max(timestamp_millis(CASE WHEN regexp_like(get_json_object(data, '$.ts'), '^[0-9]+$')"
        " THEN try_cast(get_json_object(data, '$.ts') AS bigint) END)) AS sent"
        " FROM {rows} GROUP BY time ORDER BY total DESC",
        rows,
    ).read_all()

    assert [None, '{"ts":1795000000123}'] == found["last"].to_pylist()
    assert ['{"ts":"late"}', None] == found["first"].to_pylist()
    assert [4, 1] == found["total"].to_pylist()
    assert [date(2026, 11, 22), date(2026, 11, 21)] == found["day"].to_pylist()
    assert [22, 21] == [hour.day for hour in found["hour"].to_pylist()]
    assert [0, 23] == [hour.hour for hour in found["hour"].to_pylist()]
    assert [None, 1_795_000_000_123] == [
        None if sent is None else round(sent.timestamp() * 1000) for sent in found["sent"].to_pylist()
    ]
    assert [AT, AT] == [found.schema.field(name).type for name in ("hour", "sent")]


ASKING: Final = """
import pyarrow as pa
from synrepl.pipeline.driver import spread
from synrepl.pipeline.local import LocalDriver

with LocalDriver(threads=1) as driver:
    rows = spread(driver, pa.table({"value": [1]}), 1)
    found = driver.query("SELECT current_setting('enable_progress_bar') AS bar FROM {rows}", rows)
    print(found.read_all().to_pylist())
"""


def test_a_long_query_shows_no_bar() -> None:
    """DuckDB would print it to standard output in a notebook, or where Python runs no file as here."""
    done = subprocess.run(
        [sys.executable, "-c", ASKING],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "[{'bar': False}]\n" == done.stdout


def test_rows_of_a_table_stay_where_their_number_says(runner: Runner) -> None:
    table = pa.table({TASK: pa.array([1, 0, 1], pa.int32()), "number": pa.array([5, 6, 7], pa.int64())})

    found = driver_of(runner).spread(table, 2).map(summed, NUMBERS).collect()

    assert [6, 12] == listed(found)
    assert pc.sum(found["number"]).as_py() == 18
