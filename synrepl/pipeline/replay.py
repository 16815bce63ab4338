"""The job `replay`: appends the facts of an archive to a daemon, as new facts."""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, groupby
from operator import itemgetter
from typing import Any, Final, Self
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.errors import ConfigError
from synrepl.http_api.routes import APPEND_BATCH
from synrepl.pipeline.archive.files import map_files, read_listed, within
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.driver import TASK, Driver
from synrepl.pipeline.jobs import Progress, ignore_progress
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.options import SourceOptions, file_options, read_options
from synrepl.pipeline.source.rows import row_schema
from synrepl.pipeline.source.staging import append_staged, build_facts, request_bodies, stage_facts
from synrepl.pipeline.store import Store

READ: Final = row_schema(("serial", "seq", "stream", "writer", "row", "committed_at"))
NUMBERED: Final = pa.schema([(TASK, pa.int32()), *READ])
STAGED: Final = pa.schema(
    [
        (TASK, pa.int32()),
        ("files", pa.list_(pa.string())),
        ("facts", pa.int64()),
        ("rows", pa.map_(pa.string(), pa.int64())),
    ]
)
"""What a task has staged: the checksums of its files in order, its facts, and its rows by stream."""

BATCH_FACTS: Final = 2_000
RUN_FACTS: Final = 500_000
TASK_FACTS: Final = 50_000
SLICE_SECONDS: Final = 0.25
"""With a `speed`, facts that are due within a slice of this length are appended together."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of replayed facts and rows, including those that a former run of the same name appended."""

    facts: int
    rows: int
    streams: dict[str, int]
    seconds: float


def replay(
    runner: Runner,
    store: Store,
    url: str,
    *,
    streams: Collection[str] | None = None,
    after: int = 0,
    upto: int | None = None,
    speed: float = 0.0,
    name: str | None = None,
    as_of: str | None = None,
    secret_file: str | None = None,
    ca_file: str | None = None,
    progress: Progress = ignore_progress,
    pause: Callable[[float], None] = time.sleep,
    seconds: Callable[[], float] = time.monotonic,
) -> ReplayResult:
    """Append the facts of `streams` (None: all) with ``after < serial <= upto``, in order, to the daemon.

    Facts without rows are skipped. Writers stay the same; tokens, serials and times are new. `speed` is a
    multiple of the original speed; 0 is as fast as possible. Under a `name` the replay is idempotent for a
    day: a repeat with equal arguments appends missing facts only. Raises `ConfigError` if the archive has no
    serials in this range, and `SourceError` (or an error of Spark that wraps it) if the daemon refuses facts.
    """
    began = seconds()
    table = ArchiveTable(store, as_of)
    upto = min(table.end.last_serial, table.end.last_serial if upto is None else upto)
    if after >= upto:
        raise ConfigError(f"{store}: nothing to replay after serial {after}: the last one would be {upto}")
    options = {"url": url, "query": name or f"replay-{uuid4().hex}", "batchFacts": str(BATCH_FACTS)}
    parsed = read_options(options | file_options(secret_file, ca_file))
    append = _make_paced_append(parsed, speed, pause, seconds) if speed else None
    files, driver = table.files, driver_of(runner)
    if streams is not None:
        files = files.filter(pc.is_in(files["stream"], pa.array(sorted(streams), pa.string())))
    counts = _Counts()
    progress("replaying", 0, upto - after)
    for first, last in _ranges(table, after, upto, is_named=name is not None):
        its_files = within(files, first, last)
        if append is None:
            counts += _append_in_tasks(driver, store, its_files, first, last, parsed)
        else:
            rows = map_files(driver, its_files, partial(_read, store, first, last, last), NUMBERED)
            ordered = driver.query("SELECT * FROM {rows} ORDER BY serial, seq", rows)
            counts += append(line for batch in ordered for line in batch.to_pylist())
        progress("replaying", last - after, upto - after)
    return ReplayResult(
        facts=counts.facts,
        rows=counts.rows.total(),
        streams=dict(sorted(counts.rows.items())),
        seconds=round(seconds() - began, 3),
    )


def _ranges(table: ArchiveTable, after: int, upto: int, *, is_named: bool) -> Iterator[tuple[int, int]]:
    """Yield the first and last serials of the parts, of which each costs a job of Spark.

    The parts of a named replay are batches of the archive, which stay the same when the archive grows.
    """
    if not is_named:
        for first in range(after + 1, upto + 1, RUN_FACTS):
            yield first, min(first + RUN_FACTS - 1, upto)
        return
    for batch in table.batches():
        if batch.last_serial > after and batch.first_serial <= upto:
            yield max(after + 1, batch.first_serial), min(upto, batch.last_serial)


@dataclass
class _Counts:
    """Counts of facts, and of rows by stream."""

    facts: int = 0
    rows: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: "_Counts") -> Self:
        self.facts += other.facts
        self.rows += other.rows
        return self

    def counted(self, lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Count these rows while they pass."""
        for line in lines:
            self.facts += line["seq"] == 0
            self.rows[line["stream"]] += 1
            yield line


def _append_in_tasks(
    driver: Driver, store: Store, files: Any, first: int, last: int, options: SourceOptions
) -> _Counts:
    """Append the facts from `first` to `last`: tasks stage them in parallel, and the driver commits in order.

    The tasks, and so the idempotency keys, depend on the serials only.
    """
    if not len(files):
        return _Counts()
    tasks = -(-(last - first + 1) // TASK_FACTS)
    rows = map_files(driver, files, partial(_read, store, first, last, TASK_FACTS), NUMBERED)
    staged = rows.repartition(tasks).map(partial(_stage, options), STAGED).collect()
    counts, daemon = _Counts(), SourceClient(options)
    for one in staged.sort_by(TASK).to_pylist():
        append_staged(daemon, one["files"], f"{options.query}/{last}/{one[TASK]}")
        counts += _Counts(one["facts"], Counter(dict(one["rows"])))
    return counts


def _read(store: Store, first: int, last: int, size: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows of files with the numbers of their tasks, of so many serials each (`NUMBERED`).

    A fact without rows is left out: it certifies a position, which another log does not have.
    """
    for rows in read_listed(store, batches, READ):
        serials = rows["serial"]
        is_its = pc.and_(pc.greater_equal(serials, first), pc.less_equal(serials, last))
        its = rows.filter(pc.and_(is_its, pc.is_valid(rows["row"])))
        numbers = pa.array((its["serial"].to_numpy() - first) // size, pa.int32())
        yield pa.record_batch([numbers, *its.columns], NUMBERED)


def _stage(options: SourceOptions, batches: Iterable[Any]) -> Iterator[Any]:
    """Upload the facts of tasks (`NUMBERED`), and yield what is to be appended (`STAGED`)."""
    rows = pa.Table.from_batches(batches, NUMBERED).sort_by([("serial", "ascending"), ("seq", "ascending")])
    for number in pc.unique(rows[TASK]).to_pylist():
        its, counts = rows.filter(pc.equal(rows[TASK], number)), _Counts()
        lines = (line for batch in its.to_batches() for line in batch.to_pylist())
        files = stage_facts(build_facts(counts.counted(lines), options), options)
        values = {TASK: number, "files": files, "facts": counts.facts, "rows": list(counts.rows.items())}
        yield pa.RecordBatch.from_pylist([values], STAGED)


def _make_paced_append(
    options: SourceOptions, speed: float, pause: Callable[[float], None], seconds: Callable[[], float]
) -> Callable[[Iterable[dict[str, Any]]], _Counts]:
    """Return a function that appends ordered rows from the driver, each slice of time when it is due."""
    daemon = SourceClient(options)
    began: list[float] = []
    numbers = count()

    def due(fact: list[dict[str, Any]]) -> int:
        """Return the slice of a fact. The first fact of all begins the replay."""
        at = fact[0]["committed_at"].timestamp()
        if not began:
            began.extend((at, seconds()))
        return int(max(0.0, at - began[0]) / speed / SLICE_SECONDS)

    def append(lines: Iterable[dict[str, Any]]) -> _Counts:
        counts = _Counts()
        facts = (list(fact) for _, fact in groupby(counts.counted(lines), key=itemgetter("serial")))
        for at, some in groupby(facts, key=due):
            pause(max(0.0, began[1] + at * SLICE_SECONDS - seconds()))
            for body, _ in request_bodies(build_facts(chain.from_iterable(some), options), BATCH_FACTS):
                # Not by slice: the clock of the log may go back, and a part may end within a slice.
                posted = json.loads(body) | {"idempotency_key": f"{options.query}/{next(numbers)}"}
                daemon.send(APPEND_BATCH.request(), json.dumps(posted).encode())
        return counts

    return append
