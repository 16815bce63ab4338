"""Facts written to a daemon: staged by the tasks, made facts at a word of the driver, once.

A task brings what it was given to the daemon as files by checksum, which nobody sees as facts. When all
tasks of a batch are done the driver has each of these files appended, in the order of partitions, under a key
of the query, the batch and the file's place: a batch that Spark does again is the same facts, stored once.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from synrepl.errors import ConfigError
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.options import SourceOptions

__all__ = ["SinkBatchWriter", "SinkStreamWriter", "check_writable", "facts_of"]


@dataclass
class StagedFacts(WriterCommitMessage):
    """What one task has brought: the checksums of its files, in order."""

    partition: int
    files: tuple[str, ...]
    facts: int


def check_writable(options: SourceOptions, schema: StructType, *, overwrite: bool) -> None:
    """Raises `ConfigError` unless rows with these columns can be facts."""
    names = set(schema.names)
    if overwrite:
        raise ConfigError("facts are only ever appended: use mode append")
    if not names & {"row", "rows"}:
        raise ConfigError("what is written needs a column row, or rows (the JSON array of a whole fact)")
    if "stream" not in names and options.stream is None:
        raise ConfigError("what is written needs a column stream, or the option stream")


def facts_of(
    lines: Iterable[dict[str, Any]], options: SourceOptions
) -> Iterator[tuple[str, str | None, str]]:
    """The facts that these lines are: stream, writer, and their rows as a JSON array.

    A line with `rows` is a fact; lines with a `row` are one fact as long as their `serial` is the same, or,
    without that column, their stream, writer and `token`; without either, each is a fact. Facts without rows
    are left out: they say nothing but where their writer was.
    """
    rows: list[str] = []
    before: tuple[Any, ...] | None = None
    stream, writer = "", None
    for number, line in enumerate(lines):
        of = str(line.get("stream") or options.stream), line.get("writer") or options.writer
        if line.get("rows") is not None:
            if rows:
                yield stream, writer, f"[{','.join(rows)}]"
                rows, before = [], None
            yield *of, line["rows"]
            continue
        if line.get("row") is None:
            continue
        if "serial" in line:
            this: tuple[Any, ...] = (line["serial"],)
        else:
            this = (*of, line["token"]) if "token" in line else (number,)
        if rows and this != before:
            yield stream, writer, f"[{','.join(rows)}]"
            rows = []
        rows.append(line["row"])
        (stream, writer), before = of, this
    if rows:
        yield stream, writer, f"[{','.join(rows)}]"


def bodies(facts: Iterable[tuple[str, str | None, str]], most: int) -> Iterator[tuple[bytes, int]]:
    """What ``POST /v1/facts`` takes, of at most so many facts each, and how many there are: neighbors of one
    stream and writer go together, and the order stays."""
    appends: list[str] = []
    run: list[str] = []
    source: tuple[str, str | None] | None = None
    count = 0

    def end_run() -> None:
        if run and source is not None:
            head: dict[str, Any] = {"stream": source[0]}
            if source[1] is not None:
                head["writer"] = source[1]
            appends.append(f'{json.dumps(head)[:-1]}, "facts": [{",".join(run)}]}}')
            run.clear()

    for stream, writer, rows in facts:
        if source != (stream, writer):
            end_run()
            source = stream, writer
        run.append(rows)
        count += 1
        if count == most:
            end_run()
            yield f'{{"appends": [{",".join(appends)}]}}'.encode(), count
            appends.clear()
            count = 0
    end_run()
    if count:
        yield f'{{"appends": [{",".join(appends)}]}}'.encode(), count


def stage(options: SourceOptions, batches: Iterable[Any]) -> StagedFacts:
    """In a task: bring these rows to the daemon."""
    from pyspark import TaskContext

    context = TaskContext.get()
    daemon = SourceClient(options)
    lines = (line for batch in batches for line in batch.to_pylist())
    files, facts = [], 0
    for body, count in bodies(facts_of(lines, options), options.batch_facts):
        sha256 = hashlib.sha256(body).hexdigest()
        daemon.put(f"/v1/files/sha256/{sha256}", body)
        files.append(sha256)
        facts += count
    return StagedFacts(0 if context is None else context.partitionId(), tuple(files), facts)


def commit(
    options: SourceOptions, query: str, batch: int, messages: Iterable[WriterCommitMessage | None]
) -> None:
    """In the driver: what all tasks of a batch have brought becomes facts."""
    daemon = SourceClient(options)
    staged = sorted((one for one in messages if isinstance(one, StagedFacts)), key=lambda one: one.partition)
    for one in staged:
        for number, sha256 in enumerate(one.files):
            key = f"{query}/{batch}/{one.partition}/{number}"
            daemon.post("/v1/facts", json.dumps({"staged": sha256, "idempotency_key": key}).encode())


class SinkBatchWriter(DataSourceArrowWriter):
    """``df.write.format("synrepl")``. Under a name (option `query`) writing the same again stores nothing."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._query = options.query or f"write-{uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> StagedFacts:
        """In a task."""
        return stage(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        commit(self._options, self._query, 0, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was staged is no fact, and is cleared away by the daemon."""


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("synrepl")``. Raises `ConfigError` without the option `query`: the name under
    which a batch that is done again, after a restart, is known."""

    def __init__(self, options: SourceOptions) -> None:
        if options.query is None:
            raise ConfigError("a stream that is written needs the option query: a name that restarts keep")
        self._options = options
        self._query = options.query

    def write(self, iterator: Iterator[Any]) -> StagedFacts:
        """In a task."""
        return stage(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of this batch are done."""
        commit(self._options, self._query, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was staged is no fact, and is cleared away by the daemon."""
