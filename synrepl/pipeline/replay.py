"""The job `replay`: appends the facts of an archive to a daemon, as new facts.

A repeat stores no fact twice, whatever its speed: requests and their idempotency keys depend on the archive
only (`_blocks`). A daemon keeps a receipt of each append of a request, by the key and the number of the
append. With a speed, the appends of a block are sent one after the other, each when it is due, under the same
key and number.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.errors import ConfigError
from synrepl.http_api.routes import APPEND_BATCH, DECLARE, DECLARED
from synrepl.pipeline.archive.row_files import map_files, read_files, read_listed, within
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.driver import TASK, Driver
from synrepl.pipeline.jobs import Progress, ignore_progress
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.options import SourceOptions, connection_options, read_options
from synrepl.pipeline.source.rows import row_schema
from synrepl.pipeline.source.staging import append_staged, request_body, stage_bodies
from synrepl.pipeline.store import Store
from synrepl.streams.catalog import DECLARATIONS, OWN_STREAMS
from synrepl.streams.declaration import Declaration
from synrepl.streams.declared import StreamBody, undeclared
from synrepl.wire.dialect import NEWEST

READ: Final = row_schema(("serial", "seq", "stream", "writer", "row", "committed_at"))
PART: Final = "part"
NUMBERED: Final = pa.schema([(TASK, pa.int32()), (PART, pa.int32()), *READ])
STAGED: Final = pa.schema(
    [
        (PART, pa.int32()),
        ("files", pa.list_(pa.string())),
        ("facts", pa.int64()),
        ("rows", pa.map_(pa.string(), pa.int64())),
    ]
)
"""What a task has staged of a part: the checksums of its files in order, its facts, its rows by stream."""

BATCH_FACTS: Final = 2_000
RUN_FACTS: Final = 500_000
"""About the facts of a job of Spark."""
TASK_FACTS: Final = 50_000
"""Maximum facts of a part."""
SLICE_SECONDS: Final = 0.25
"""With a `speed`, facts that are due within a slice of this length are appended together.

Facts of one append were committed within a slice of the original time.
"""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of replayed facts and rows, including those that a former run of the same name appended.

    `streams` has the rows by stream, `skipped` the facts of `OWN_STREAMS` that were not replayed; `declared`
    are the streams that the daemon had not.
    """

    facts: int
    rows: int
    streams: dict[str, int]
    skipped: dict[str, int]
    declared: list[str]
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
    insecure: bool = False,
    progress: Progress = ignore_progress,
    pause: Callable[[float], None] = time.sleep,
    seconds: Callable[[], float] = time.monotonic,
) -> ReplayResult:
    """Append the facts of `streams` (None: all) with ``after < serial <= upto``, in order, to the daemon.

    Facts without rows are skipped. Writers stay the same; tokens, serials and times are new. The streams that
    the archive declares are declared first; the other facts of `OWN_STREAMS` are skipped. `speed` is a
    multiple of the original speed; 0 is as fast as possible. The replay is idempotent for a day: a repeat
    of the same selection, at any speed, appends missing facts only, unless it has another `name` (default:
    made from the archive and the selection). Raises `ConfigError` if the archive has no serials in this
    range, or the daemon has another declaration of a stream, and `SourceError` (or an error of Spark that
    wraps it) if the daemon refuses facts. What it refuses for their stream, writer or rights is found before
    any are stored.
    """
    began = seconds()
    table = ArchiveTable(store, as_of)
    name = name or _default_name(table, streams, after, upto)
    upto = min(table.end.last_serial, table.end.last_serial if upto is None else upto)
    if after >= upto:
        raise ConfigError(f"{store}: nothing to replay after serial {after}: the last one would be {upto}")
    options = {"url": url, "query": name, "batchFacts": str(BATCH_FACTS)}
    parsed = read_options(options | connection_options(secret_file, ca_file, insecure))
    append = _make_paced_append(parsed, speed, pause, seconds) if speed else None
    driver, daemon = driver_of(runner), SourceClient(parsed)
    own = _OwnFacts.read(table, streams, after, upto)
    files = table.files
    is_its = pc.invert(pc.is_in(files["stream"], pa.array(OWN_STREAMS, pa.string())))
    if streams is not None:
        is_its = pc.and_(is_its, pc.is_in(files["stream"], pa.array(sorted(streams), pa.string())))
    files = within(files.filter(is_its), after + 1, upto)
    declared = _prepare(daemon, own, sorted(pc.unique(files["stream"]).to_pylist()), table, name)
    counts = _Counts()
    progress("replaying", 0, upto - after)
    for parts in _runs(table, after, upto):
        its_files = within(files, parts[0].first, parts[-1].last)
        if append is None:
            counts += _append_in_tasks(driver, store, its_files, parts, parsed)
        else:
            rows = map_files(driver, its_files, partial(_read, store, parts), NUMBERED)
            ordered = driver.query("SELECT * FROM {rows} ORDER BY serial, seq", rows)
            lines = (line for batch in ordered for line in batch.to_pylist())
            for number, of_part in groupby(lines, key=itemgetter(PART)):
                counts += append(of_part, parts[number].key)
        progress("replaying", parts[-1].last - after, upto - after)
    return ReplayResult(
        facts=counts.facts,
        rows=counts.rows.total(),
        streams=dict(sorted(counts.rows.items())),
        skipped=dict(sorted(own.skipped.items())),
        declared=declared,
        seconds=round(seconds() - began, 3),
    )


def _default_name(table: ArchiveTable, streams: Collection[str] | None, after: int, upto: int | None) -> str:
    """Return the name of a replay without one: equal for equal facts, also when the archive has grown."""
    of = (table.end.history, table.end.server_name, None if streams is None else sorted(streams), after, upto)
    return f"replay-{sha256(json.dumps(of).encode()).hexdigest()[:32]}"


@dataclass
class _OwnFacts:
    """The facts of `OWN_STREAMS` in an archive: its declarations, and the numbers of the others by stream."""

    declarations: dict[str, Declaration] = field(default_factory=dict)
    selected: set[str] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, table: ArchiveTable, streams: Collection[str] | None, after: int, upto: int) -> Self:
        """Read all declarations up to `upto`, as those before `after` describe later facts too.

        Only those after `after` are `selected`, if `streams` has the stream of declarations. The newest of a
        name counts.
        """
        found, files = cls(), within(table.files, 1, upto)
        files = files.filter(pc.is_in(files["stream"], pa.array(OWN_STREAMS, pa.string())))
        for batch in read_files(table.store, files["path"].to_pylist(), READ):
            rows = batch.filter(pc.less_equal(batch["serial"], upto))
            if not len(rows):
                continue
            stream = rows["stream"][0].as_py()
            is_selected = streams is None or stream in streams
            if stream != DECLARATIONS.name:
                is_fact = pc.and_(pc.greater(rows["serial"], after), pc.equal(rows["seq"], 0))
                found.skipped[stream] += is_selected and pc.sum(is_fact).as_py()
                continue
            for line in rows.filter(pc.is_valid(rows["row"])).to_pylist():
                declared = DECLARATIONS.decode(line["row"].encode(), NEWEST)
                found.declarations[declared.name] = declared
                if is_selected and line["serial"] > after:
                    found.selected.add(declared.name)
        found.skipped = +found.skipped
        return found


def _prepare(
    daemon: SourceClient, own: _OwnFacts, streams: Collection[str], table: ArchiveTable, name: str
) -> list[str]:
    """Declare the streams that the daemon lacks, and return their names. Let it check the others.

    Raises `ConfigError` before the first request that changes something, and `SourceError`.
    """
    wanted = [one for one in own.declarations.values() if one.name in {*own.selected, *streams}]
    answer = daemon.send(DECLARED.request()) if wanted else {"streams": []}
    known = [one.declaration() for one in msgspec.convert(answer["streams"], list[StreamBody])]
    new = undeclared(known, wanted)
    for one in new:
        daemon.send(DECLARE.request(), msgspec.json.encode(StreamBody.of(one)))
    # Without facts, the daemon checks the rest of the request.
    writers = {stream: next(iter(table.end.end.get(stream) or [""])) for stream in streams}
    appends = [
        {"stream": stream, "facts": []} | ({"writer": writer} if writer else {})
        for stream, writer in writers.items()
    ]
    body = {"appends": appends, "idempotency_key": f"{name}/0"}
    daemon.send(APPEND_BATCH.request(), json.dumps(body).encode())
    return [one.name for one in new]


@dataclass(frozen=True)
class _Part:
    """The serials that are appended under one `key`, and the number of their task within the run."""

    first: int
    last: int
    key: str
    task: int = 0


def _runs(table: ArchiveTable, after: int, upto: int) -> Iterator[list[_Part]]:
    """Yield the parts that one job of Spark appends, in order.

    Their keys depend on the batches of the archive only, which stay the same when the archive grows.
    """
    run: list[_Part] = []
    count = 0
    for part in _parts(table, after, upto):
        run.append(replace(part, task=count // TASK_FACTS))
        count += part.last - part.first + 1
        if count >= RUN_FACTS:
            yield run
            run, count = [], 0
    if run:
        yield run


def _parts(table: ArchiveTable, after: int, upto: int) -> Iterator[_Part]:
    for batch in table.batches():
        begin, end = max(after + 1, batch.first_serial), min(upto, batch.last_serial)
        for number, first in enumerate(range(begin, end + 1, TASK_FACTS)):
            yield _Part(first, min(first + TASK_FACTS - 1, end), f"{end}/{number}")


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
    driver: Driver, store: Store, files: Any, parts: Sequence[_Part], options: SourceOptions
) -> _Counts:
    """Append the facts of these parts: tasks stage them in parallel, and the driver commits in order."""
    if not len(files):
        return _Counts()
    rows = map_files(driver, files, partial(_read, store, parts), NUMBERED)
    staged = rows.repartition(parts[-1].task + 1).map(partial(_stage, options), STAGED).collect()
    counts, daemon = _Counts(), SourceClient(options)
    for one in staged.sort_by(PART).to_pylist():
        append_staged(daemon, one["files"], f"{options.query}/{parts[one[PART]].key}")
        counts += _Counts(one["facts"], Counter(dict(one["rows"])))
    return counts


def _read(store: Store, parts: Sequence[_Part], batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows of files that are in these parts, with the numbers of task and part (`NUMBERED`).

    A fact without rows is left out: it certifies a position, which another log does not have.
    """
    firsts = np.array([part.first for part in parts])
    tasks = np.array([part.task for part in parts], np.int32)
    for rows in read_listed(store, batches, READ):
        serials = rows["serial"]
        is_its = pc.and_(pc.greater_equal(serials, parts[0].first), pc.less_equal(serials, parts[-1].last))
        its = rows.filter(pc.and_(is_its, pc.is_valid(rows["row"])))
        found = np.searchsorted(firsts, its["serial"].to_numpy(), "right") - 1
        numbers = pa.array(tasks[found]), pa.array(found, pa.int32())
        yield pa.record_batch([*numbers, *its.columns], NUMBERED)


def _stage(options: SourceOptions, batches: Iterable[Any]) -> Iterator[Any]:
    """Upload the facts of parts (`NUMBERED`), and yield what is to be appended (`STAGED`)."""
    rows = pa.Table.from_batches(batches, NUMBERED).sort_by([("serial", "ascending"), ("seq", "ascending")])
    for number in pc.unique(rows[PART]).to_pylist():
        its, counts = rows.filter(pc.equal(rows[PART], number)), _Counts()
        lines = (line for batch in its.to_batches() for line in batch.to_pylist())
        bodies = (request_body(map(_Append.posted, block)) for block in _blocks(counts.counted(lines)))
        files = stage_bodies(bodies, options)
        values = {PART: number, "files": files, "facts": counts.facts, "rows": list(counts.rows.items())}
        yield pa.RecordBatch.from_pylist([values], STAGED)


@dataclass(frozen=True)
class _Append:
    """Adjacent facts of a writer, committed from this time on, in seconds: a part of a request."""

    stream: str
    writer: str
    at: float
    facts: Sequence[str]

    def posted(self) -> tuple[str, str, Sequence[str]]:
        """Return what `request_body` takes."""
        return self.stream, self.writer, self.facts

    def skipped(self) -> tuple[str, str, Sequence[str]]:
        """Return the same without facts, of which a daemon stores nothing: the next keep their numbers."""
        return self.stream, self.writer, ()


def _blocks(lines: Iterable[dict[str, Any]]) -> Iterator[list[_Append]]:
    """Yield the appends of at most `BATCH_FACTS` facts each, from the ordered rows of a part."""
    facts = (list(fact) for _, fact in groupby(lines, key=itemgetter("serial")))

    def source(fact: list[dict[str, Any]]) -> tuple[str, str, int]:
        slot = int(fact[0]["committed_at"].timestamp() / SLICE_SECONDS)
        return fact[0]["stream"], fact[0]["writer"], slot

    while some := list(islice(facts, BATCH_FACTS)):
        block = []
        for (stream, writer, _), run in groupby(some, key=source):
            of = list(run)
            texts = [f"[{','.join(line['row'] for line in fact)}]" for fact in of]
            block.append(_Append(stream, writer, of[0][0]["committed_at"].timestamp(), texts))
        yield block


def _make_paced_append(
    options: SourceOptions, speed: float, pause: Callable[[float], None], seconds: Callable[[], float]
) -> Callable[[Iterable[dict[str, Any]], str], _Counts]:
    """Return a function that appends the ordered rows of a part, under its key, each when it is due."""
    daemon = SourceClient(options)
    began: list[float] = []

    def due(numbered: tuple[int, _Append]) -> int:
        """Return the slice of an append. The first of all begins the replay."""
        at = numbered[1].at
        if not began:
            began.extend((at, seconds()))
        return int(max(0.0, at - began[0]) / speed / SLICE_SECONDS)

    def append(lines: Iterable[dict[str, Any]], key: str) -> _Counts:
        counts = _Counts()
        for number, block in enumerate(_blocks(counts.counted(lines))):
            for at, some in groupby(enumerate(block), key=due):
                pause(max(0.0, began[1] + at * SLICE_SECONDS - seconds()))
                numbered = list(some)
                before, appends = block[: numbered[0][0]], (one for _, one in numbered)
                body = request_body([*map(_Append.skipped, before), *map(_Append.posted, appends)])
                posted = json.loads(body) | {"idempotency_key": f"{options.query}/{key}/{number}"}
                daemon.send(APPEND_BATCH.request(), json.dumps(posted).encode())
        return counts

    return append
