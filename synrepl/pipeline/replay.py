"""The job `replay`: appends the facts of an archive to a daemon, as new facts."""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import chain, count, groupby
from operator import itemgetter
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from synrepl.errors import ConfigError
from synrepl.http_api.routes import APPEND_BATCH
from synrepl.pipeline.archive.files import within
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.jobs import Progress, ignore_progress
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.data_sink import build_facts, request_bodies
from synrepl.pipeline.source.data_source import register
from synrepl.pipeline.source.options import file_options, read_options
from synrepl.pipeline.spark import read_rows
from synrepl.pipeline.store import Store

COLUMNS: Final = ("serial", "seq", "stream", "writer", "row", "committed_at")
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
    spark: SparkSession,
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
    register(spark)
    table = ArchiveTable(store, as_of)
    upto = min(table.end.last_serial, table.end.last_serial if upto is None else upto)
    if after >= upto:
        raise ConfigError(f"{store}: nothing to replay after serial {after}: the last one would be {upto}")
    options = {"url": url, "query": name or f"replay-{uuid4().hex}"}
    options |= file_options(secret_file, ca_file)
    append = _make_paced_append(options, speed, pause, seconds) if speed else None
    files = table.files
    if streams is not None:
        files = files.filter(pc.is_in(files["stream"], pa.array(sorted(streams), pa.string())))
    facts, counts = 0, Counter[str]()
    progress("replaying", 0, upto - after)
    for first, last in _ranges(table, after, upto, is_named=name is not None):
        rows = read_rows(spark, store, within(files, first, last), COLUMNS)
        # A fact without rows certifies a position, which another log does not have.
        rows = rows.where(f"row IS NOT NULL AND serial BETWEEN {first:d} AND {last:d}")
        counted = rows.groupBy("stream").agg(F.count_if(F.col("seq") == 0), F.count("row"))
        for stream, its_facts, its_rows in counted.collect():
            counts[stream] += its_rows
            facts += its_facts
        if append is None:
            _append_with_sink(rows, first, last, options)
        else:
            append(rows)
        progress("replaying", last - after, upto - after)
    return ReplayResult(
        facts=facts,
        rows=counts.total(),
        streams=dict(sorted(counts.items())),
        seconds=round(seconds() - began, 3),
    )


def _ranges(table: ArchiveTable, after: int, upto: int, *, is_named: bool) -> Iterator[tuple[int, int]]:
    """Yield the first and last serials of the parts, of which each costs a Spark job.

    The parts of a named replay are batches of the archive, which stay the same when the archive grows.
    """
    if not is_named:
        for first in range(after + 1, upto + 1, RUN_FACTS):
            yield first, min(first + RUN_FACTS - 1, upto)
        return
    for batch in table.batches():
        if batch.last_serial > after and batch.first_serial <= upto:
            yield max(after + 1, batch.first_serial), min(upto, batch.last_serial)


def _append_with_sink(rows: DataFrame, first: int, last: int, options: dict[str, str]) -> None:
    """Append with the sink: tasks stage in parallel, and the driver commits in order."""
    tasks = max(1, (last - first + 1) // TASK_FACTS)
    # Partitioned by serial only, so that no fact is split.
    ordered = rows.repartitionByRange(tasks, "serial").sortWithinPartitions("serial", "seq")
    name = f"{options['query']}/{last}"
    sink_options = {**options, "query": name, "batchFacts": str(BATCH_FACTS)}
    ordered.drop("committed_at").write.format("synrepl").options(**sink_options).mode("append").save()


def _make_paced_append(
    options: dict[str, str], speed: float, pause: Callable[[float], None], seconds: Callable[[], float]
) -> Callable[[DataFrame], None]:
    """Return a function that appends rows from the driver, each slice of time when it is due."""
    parsed = read_options(options)
    daemon = SourceClient(parsed)
    began: list[float] = []
    numbers = count()

    def due(fact: list[dict[str, Any]]) -> int:
        """Return the slice of a fact. The first fact of all begins the replay."""
        at = fact[0]["committed_at"].timestamp()
        if not began:
            began.extend((at, seconds()))
        return int(max(0.0, at - began[0]) / speed / SLICE_SECONDS)

    def append(rows: DataFrame) -> None:
        lines = (row.asDict() for row in rows.orderBy("serial", "seq").toLocalIterator(True))
        facts = (list(fact) for _, fact in groupby(lines, key=itemgetter("serial")))
        for at, some in groupby(facts, key=due):
            pause(max(0.0, began[1] + at * SLICE_SECONDS - seconds()))
            for body, _ in request_bodies(build_facts(chain.from_iterable(some), parsed), BATCH_FACTS):
                # Not by slice: the clock of the log may go back, and a part may end within a slice.
                posted = json.loads(body) | {"idempotency_key": f"{parsed.query}/{next(numbers)}"}
                daemon.send(APPEND_BATCH.request(), json.dumps(posted).encode())

    return append
