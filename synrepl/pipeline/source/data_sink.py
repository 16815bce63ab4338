"""Spark sink that appends facts to a daemon: tasks stage the facts, the driver commits each batch once.

A task uploads its facts to the daemon as files by checksum, which are not facts yet. When all tasks of a
batch have finished, the driver appends the files in the order of partitions. The idempotency key is made of
the query, the batch, the partition and the number of the file, so that a repeated batch is stored once.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, groupby, islice
from operator import itemgetter
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from synrepl.errors import ConfigError
from synrepl.http_api.routes import APPEND_BATCH, PUT_FILE
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.source.options import SourceOptions

Fact = tuple[str, str | None, str]
"""The stream and the writer of a fact, and its rows as a JSON array."""


@dataclass
class StagedFacts(WriterCommitMessage):
    """The checksums of the files that a task has staged, in order."""

    partition: int
    files: tuple[str, ...]


def check_writable(options: SourceOptions, schema: StructType, *, overwrite: bool) -> None:
    """Raise `ConfigError` unless rows with these columns can be appended as facts."""
    names = set(schema.names)
    if overwrite:
        raise ConfigError("facts can only be appended: use mode append")
    if len(options.url) > 1:
        raise ConfigError("facts are appended at one daemon: name only the primary in the option url")
    if not names & {"row", "rows"}:
        raise ConfigError("the frame needs a column row, or rows (the JSON array of a whole fact)")
    if "stream" not in names and options.stream is None:
        raise ConfigError("the frame needs a column stream, or the query the option stream")


def build_facts(lines: Iterable[dict[str, Any]], options: SourceOptions) -> Iterator[Fact]:
    """Yield the facts of these lines.

    A line with `rows` is a fact. Consecutive lines with a `row` are one fact if they have the same `serial`,
    or, without that column, the same stream, writer and `token`; without either column, each line is a fact.
    Facts without rows are skipped: they only certify the position of their writer.
    """
    numbers = count()

    def source(line: dict[str, Any]) -> tuple[str, str | None]:
        return str(line.get("stream") or options.stream), line.get("writer") or options.writer

    def identity(line: dict[str, Any]) -> tuple[Any, ...]:
        if line.get("rows") is None:
            if "serial" in line:
                return ("serial", line["serial"])
            if "token" in line:
                return ("token", *source(line), line["token"])
        return ("line", next(numbers))

    with_rows = (line for line in lines if line.get("rows") is not None or line.get("row") is not None)
    for _, some in groupby(with_rows, identity):
        fact = list(some)
        rows = fact[0].get("rows")
        yield *source(fact[0]), f"[{','.join(line['row'] for line in fact)}]" if rows is None else rows


def request_bodies(facts: Iterable[Fact], most: int) -> Iterator[tuple[bytes, int]]:
    """Yield bodies of requests for ``POST /v1/facts``, and their numbers of facts, at most `most`.

    Adjacent facts of one stream and writer are grouped; the order is kept.
    """
    left = iter(facts)
    while some := list(islice(left, most)):
        appends = []
        for (stream, writer), run in groupby(some, itemgetter(0, 1)):
            head = json.dumps({"stream": stream} if writer is None else {"stream": stream, "writer": writer})
            appends.append(f'{head[:-1]}, "facts": [{",".join(rows for *_, rows in run)}]}}')
        yield f'{{"appends": [{",".join(appends)}]}}'.encode(), len(some)


class FactSink(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Writer of ``df.write.format("synrepl")``, which is one batch, and of ``df.writeStream``.

    It is idempotent under the name of the query (option `query`), which identifies a batch that is repeated
    after a restart. Raises `ConfigError` for a streaming query without a name.
    """

    def __init__(self, options: SourceOptions, *, is_streaming: bool = False) -> None:
        if is_streaming and options.query is None:
            raise ConfigError(
                "a streaming write needs the option `query`, a name that stays the same across restarts"
            )
        self._options = options
        self._query = options.query or f"write-{uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> StagedFacts:
        """Upload the rows of a task to the daemon."""
        context = TaskContext.get()
        daemon = SourceClient(self._options)
        lines = (line for batch in iterator for line in batch.to_pylist())
        files = []
        for body, _ in request_bodies(build_facts(lines, self._options), self._options.batch_facts):
            files.append(hashlib.sha256(body).hexdigest())
            daemon.send(PUT_FILE.request(files[-1]), body)
        return StagedFacts(0 if context is None else context.partitionId(), tuple(files))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Append the staged facts of all tasks of this batch, in the driver."""
        daemon = SourceClient(self._options)
        staged = (one for one in messages if isinstance(one, StagedFacts))
        for one in sorted(staged, key=lambda one: one.partition):
            for number, sha256 in enumerate(one.files):
                key = f"{self._query}/{batchId}/{one.partition}/{number}"
                body = json.dumps({"staged": sha256, "idempotency_key": key}).encode()
                daemon.send(APPEND_BATCH.request(), body)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Do nothing: the daemon removes staged facts that are never committed."""
