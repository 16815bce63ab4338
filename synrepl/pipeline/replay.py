"""The job `replay`: what an archive holds is appended to a daemon, as new facts."""

import json
import time
from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from synrepl.errors import ConfigError
from synrepl.pipeline.archive.manifest import Manifest, manifests
from synrepl.pipeline.archive.reader import LAST, rows_of
from synrepl.pipeline.progress import Progress, ignore_progress
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.data_sink import bodies, facts_of
from synrepl.pipeline.source.data_source import register
from synrepl.pipeline.source.options import read_options
from synrepl.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ReplayResult", "replay"]

COLUMNS: Final = ("serial", "seq", "stream", "writer", "row", "committed_at")
BATCH_FACTS: Final = 2_000
TASK_FACTS: Final = 50_000
SLICE_SECONDS: Final = 0.25
"""With a speed, what came in so short a time goes together."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was appended: facts, and rows by stream. Facts without rows say nothing, and are left out."""

    facts: int
    rows: int
    streams: dict[str, int]
    seconds: float


def replay(
    spark: "SparkSession",
    store: Store,
    url: str,
    *,
    streams: Collection[str] | None = None,
    after: int = 0,
    upto: int | None = None,
    speed: float = 0.0,
    name: str | None = None,
    secret_file: str | None = None,
    progress: Progress = ignore_progress,
    pause: Callable[[float], None] = time.sleep,
    seconds: Callable[[], float] = time.monotonic,
) -> ReplayResult:
    """Append the facts of these streams with ``after < serial <= upto``, in order, to the daemon at `url`.

    Their writers stay; tokens, serials and times are new. With a `speed` they come as many times as fast as
    once they did, 0 is as fast as possible. Under a `name` the same replay can be done again, within a day,
    and stores only what is not stored yet. Raises `ConfigError` for an archive without any of that, and
    `SourceError` where the daemon refuses.
    """
    began = seconds()
    register(spark)
    upto = LAST if upto is None else upto
    found = [one for one in manifests(store) if one.last_serial > after and one.first_serial <= upto]
    if not found:
        raise ConfigError(f"{store} has no facts after serial {after}, up to {upto}")
    options = {"url": url, "query": name or f"replay-{uuid4().hex}"}
    if secret_file is not None:
        options["secretFile"] = secret_file
    pace = _Pace(options, speed, pause, seconds) if speed else None
    total, done, facts = sum(one.facts for one in found), 0, 0
    counts: dict[str, int] = {}
    progress("replaying", 0, total)
    for manifest in found:
        rows = rows_of(spark, store, [manifest], streams=streams, after=after, upto=upto)
        rows = rows.where("row IS NOT NULL").select(*COLUMNS)
        for stream, its_facts, its_rows in _counted(rows):
            counts[stream] = counts.get(stream, 0) + its_rows
            facts += its_facts
        if pace is None:
            _fast(rows, manifest, options)
        else:
            pace.play(rows)
        done += manifest.facts
        progress("replaying", done, total)
    return ReplayResult(
        facts=facts,
        rows=sum(counts.values()),
        streams=dict(sorted(counts.items())),
        seconds=round(seconds() - began, 3),
    )


def _counted(rows: "DataFrame") -> list[tuple[str, int, int]]:
    """For each stream, how many facts and rows it has."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    counted = rows.groupBy("stream").agg(F.count_if(F.col("seq") == 0), F.count("row"))
    return [(stream, facts, its_rows) for stream, facts, its_rows in counted.collect()]


def _fast(rows: "DataFrame", manifest: Manifest, options: dict[str, str]) -> None:
    """By the sink: tasks stage in parallel, and what they staged is committed in order."""
    tasks = max(1, manifest.facts // TASK_FACTS)
    # By serial alone, so that no fact is parted.
    ordered = rows.repartitionByRange(tasks, "serial").sortWithinPartitions("serial", "seq")
    name = f"{options['query']}/{manifest.batch}"
    told = {**options, "query": name, "batchFacts": str(BATCH_FACTS)}
    ordered.drop("committed_at").write.format("synrepl").options(**told).mode("append").save()


class _Pace:
    """From here, a slice of time after the other, each when it is due."""

    def __init__(
        self,
        options: dict[str, str],
        speed: float,
        pause: Callable[[float], None],
        seconds: Callable[[], float],
    ) -> None:
        self._options = read_options(options)
        self._daemon = SourceClient(self._options)
        self._speed = speed
        self._pause = pause
        self._seconds = seconds
        self._began = 0.0
        self._first: float | None = None

    def play(self, rows: "DataFrame") -> None:
        """These come next."""
        lines = (row.asDict() for row in rows.orderBy("serial", "seq").toLocalIterator(True))
        for at, some in groupby(_facts(lines), key=self._due):
            self._pause(max(0.0, self._began + at * SLICE_SECONDS - self._seconds()))
            parts = (line for fact in some for line in fact)
            for number, (body, _) in enumerate(bodies(facts_of(parts, self._options), BATCH_FACTS)):
                posted = json.loads(body) | {"idempotency_key": f"{self._options.query}/{at}/{number}"}
                self._daemon.post("/v1/facts", json.dumps(posted).encode())

    def _due(self, fact: list[dict[str, Any]]) -> int:
        """In which slice."""
        at = fact[0]["committed_at"].timestamp()
        if self._first is None:
            self._first, self._began = at, self._seconds()
        return int(max(0.0, at - self._first) / self._speed / SLICE_SECONDS)


def _facts(lines: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The lines of each fact together."""
    for _, fact in groupby(lines, key=lambda line: line["serial"]):
        yield list(fact)
