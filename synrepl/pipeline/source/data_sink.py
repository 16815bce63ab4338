"""Spark sink that appends facts to a daemon: tasks stage the facts, the driver commits each batch once.

A task uploads its facts to the daemon as files by checksum, which are not facts yet. When all tasks of a
batch have finished, the driver appends the files in the order of partitions. The idempotency key is made of
the query, the batch, the partition and the number of the file, so that a repeated batch is stored once.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from synrepl.errors import ConfigError
from synrepl.http_api.routes import APPEND_BATCH, PUT_FILE
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.options import SourceOptions

__all__ = ["SinkBatchWriter", "SinkStreamWriter", "check_writable", "build_facts"]


@dataclass
class StagedFacts(WriterCommitMessage):
    """The checksums of the files that a task has staged, in order."""

    partition: int
    files: tuple[str, ...]
    facts: int


def check_writable(options: SourceOptions, schema: StructType, *, overwrite: bool) -> None:
    """Raise `ConfigError` unless rows with these columns can be appended as facts."""
    names = set(schema.names)
    if overwrite:
        raise ConfigError("facts can only be appended: use mode append")
    if len(options.url) > 1:
        raise ConfigError("facts are appended at one daemon: name the primary as the option url")
    if not names & {"row", "rows"}:
        raise ConfigError("the frame needs a column row, or rows (the JSON array of a whole fact)")
    if "stream" not in names and options.stream is None:
        raise ConfigError("the frame needs a column stream, or the query the option stream")


def build_facts(
    lines: Iterable[dict[str, Any]], options: SourceOptions
) -> Iterator[tuple[str, str | None, str]]:
    """Yield the facts of these lines: stream, writer, and the rows as a JSON array.

    A line with `rows` is a fact. Consecutive lines with a `row` are one fact if they have the same `serial`,
    or, without that column, the same stream, writer and `token`; without either column, each line is a fact.
    Facts without rows are skipped: they only certify the position of their writer.
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


def request_bodies(facts: Iterable[tuple[str, str | None, str]], most: int) -> Iterator[tuple[bytes, int]]:
    """Yield bodies of requests for ``POST /v1/facts``, and their numbers of facts, at most `most`.

    Adjacent facts of one stream and writer are grouped; the order is kept.
    """
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
    """Upload these rows to the daemon (runs in a task)."""
    context = TaskContext.get()
    daemon = SourceClient(options)
    lines = (line for batch in batches for line in batch.to_pylist())
    files, facts = [], 0
    for body, count in request_bodies(build_facts(lines, options), options.batch_facts):
        sha256 = hashlib.sha256(body).hexdigest()
        daemon.send(PUT_FILE.request(sha256), body)
        files.append(sha256)
        facts += count
    return StagedFacts(0 if context is None else context.partitionId(), tuple(files), facts)


def commit(
    options: SourceOptions, query: str, batch: int, messages: Iterable[WriterCommitMessage | None]
) -> None:
    """Append the staged facts of all tasks of a batch (runs in the driver)."""
    daemon = SourceClient(options)
    staged = sorted((one for one in messages if isinstance(one, StagedFacts)), key=lambda one: one.partition)
    for one in staged:
        for number, sha256 in enumerate(one.files):
            key = f"{query}/{batch}/{one.partition}/{number}"
            body = json.dumps({"staged": sha256, "idempotency_key": key}).encode()
            daemon.send(APPEND_BATCH.request(), body)


class _Sink:
    """The methods of both writers; a batch query is one batch."""

    def __init__(self, options: SourceOptions, query: str) -> None:
        self._options = options
        self._query = query

    def write(self, iterator: Iterator[Any]) -> StagedFacts:
        """Stage the rows of a task."""
        return stage(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Append the facts of all tasks of this batch."""
        commit(self._options, self._query, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Do nothing: the daemon removes staged facts that are never committed."""


class SinkBatchWriter(_Sink, DataSourceArrowWriter):
    """Writer of ``df.write.format("synrepl")``, idempotent under a name (option `query`)."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options, options.query or f"write-{uuid4().hex}")


class SinkStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writer of ``df.writeStream.format("synrepl")``. Raises `ConfigError` without the option `query`.

    The name of the query identifies a batch that is repeated after a restart.
    """

    def __init__(self, options: SourceOptions) -> None:
        if options.query is None:
            raise ConfigError(
                "a streaming write needs the option `query`, a name that stays the same across restarts"
            )
        super().__init__(options, options.query)
