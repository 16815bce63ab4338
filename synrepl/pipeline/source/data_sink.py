"""Spark sink that appends facts to a daemon: tasks stage the facts, the driver commits each batch once.

The idempotency key is made of the query, the batch and the number of the file in the batch, so that a
repeated batch with the same files is stored once. It does not depend on which partition has a file.

A repeat that cuts its facts into other files is mostly refused, and may store facts twice: the daemon knows
each append of a file (its adjacent facts of one stream and writer), not the batch as a whole. A first file
that has become shorter by whole appends is taken for the same, and the rest for new facts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from synrepl.errors import ConfigError
from synrepl.pipeline.source.daemon_client import SourceClient, SourceError
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.staging import append_staged, build_facts, stage_facts


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


class FactSink(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Writer of ``df.write.format("synrepl")``, which is one batch, and of ``df.writeStream``.

    It is idempotent under the name of the query (option `query`), which identifies a batch that is repeated
    after a restart, in the same files. Raises `ConfigError` for a streaming query without a name.
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
        lines = (line for batch in iterator for line in batch.to_pylist())
        files = stage_facts(build_facts(lines, self._options), self._options)
        return StagedFacts(0 if context is None else context.partitionId(), tuple(files))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Append the staged facts of all tasks of this batch, in the driver."""
        daemon = SourceClient(self._options)
        staged = [one for one in messages if isinstance(one, StagedFacts)]
        staged.sort(key=lambda one: one.partition)
        try:
            append_staged(daemon, [file for one in staged for file in one.files], f"{self._query}/{batchId}")
        except SourceError as error:
            if error.code != "idempotency_key_reused":
                raise
            raise SourceError(
                f"batch {batchId} of the query {self._query} was appended before, in part or as a whole, with"
                f" its facts in other files: {error}. Repeat it with the settings of then (the number of"
                " partitions, factsPerPartition, minPartitions, batchFacts). Under another name of the query"
                " all its facts are stored again"
            ) from error

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Do nothing: the daemon removes staged facts that are never committed."""
