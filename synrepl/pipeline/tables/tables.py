"""The job `tables`: advances the tables to the end of an archive, each fact exactly once.

The position of a table is in its log: the application transaction of a commit has the last serial, another
one its epoch. So rows and position change in one commit, and of two jobs that add the same facts one fails.
"""

import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession

from synrepl.pipeline.archive.reading import read_rows, within
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.jobs import Progress, ignore_progress, is_late_worker, retry_late_workers
from synrepl.pipeline.store import BadArchive, Store
from synrepl.pipeline.tables.batches import stream_batches
from synrepl.pipeline.tables.declarations import TABLES, TableDeclaration
from synrepl.pipeline.typed import typed
from synrepl.ports.history import EpochStart

__all__ = ["TableResult", "TablesResult", "child", "update_tables"]

MERGED_ROWS: Final = 2_000_000
"""Maximum new rows of a merge, whose join is in the memory of the driver. More rows are a new computation."""

SMALL_BYTES: Final = 16 * 1024 * 1024
SMALL_FILES: Final = 32
"""Number of small files that are merged into one."""

ATTEMPTS: Final = 8


class TableResult(msgspec.Struct, frozen=True, kw_only=True):
    """A table, which is now at `serial`. `is_new` is false if the archive had no new rows for it.

    With `full` it was computed from the whole archive, otherwise from the rows since its former position.
    """

    name: str
    rows: int
    version: int
    serial: int
    is_new: bool
    full: bool


class TablesResult(msgspec.Struct, frozen=True, kw_only=True):
    """The tables, and the time that they took."""

    tables: list[TableResult]
    seconds: float


@retry_late_workers
def update_tables(
    spark: SparkSession,
    archive: Store,
    out: str,
    *,
    only: Iterable[str] = (),
    progress: Progress = ignore_progress,
) -> TablesResult:
    """Advance the tables `only`, or all, to the end of the archive: Delta tables in the folder `out`.

    A table is computed from the whole archive if it is new, if facts were lost that it has counted, if its
    columns have changed, or if there are too many new rows for a merge. Raises `BadArchive` for tables of
    another archive.
    """
    began = time.monotonic()
    source = ArchiveTable(archive)
    files = source.files
    names = list(only) or list(TABLES)
    found = []
    for done, name in enumerate(names):
        progress("updating tables", done, len(names))
        found.append(_TableJob(spark, source, files, child(out, name), TABLES[name]).run())
    progress("updating tables", len(names), len(names))
    return TablesResult(tables=found, seconds=round(time.monotonic() - began, 3))


class _TableJob:
    """The update of one table."""

    def __init__(
        self,
        spark: SparkSession,
        source: ArchiveTable,
        files: Any,
        store: Store,
        declaration: TableDeclaration,
    ) -> None:
        self._spark = spark
        self._source = source
        self._store = store
        self._declaration = declaration
        self._files = files.filter(pc.equal(files["stream"], declaration.stream))
        # A log has its own name of the position: so tables of another archive are recognized.
        self._app = f"synrepl-tables-{source.end.history}"
        self._delta: DeltaTable | None
        self._position: int
        self._load()

    def run(self) -> TableResult:
        """Advance the table. If another job commits first, begin again after its commit."""
        for _ in range(ATTEMPTS):
            before = self._position
            news = within(self._files, before + 1, self._source.end.last_serial)
            rows = pc.sum(news["rows"]).as_py() or 0
            full = self._is_stale() or rows > MERGED_ROWS
            if not full and not rows:
                return self._result(is_new=False, full=False)
            try:
                if full:
                    self._replace()
                else:
                    self._merge(news)
            except DeltaError as error:
                self._load()
                if self._position == before:
                    if is_late_worker(error):
                        raise
                    raise BadArchive(f"{self._store} cannot be updated: {error}") from error
            else:
                self._load()
                _compact(self._delta)
                return self._result(is_new=True, full=full)
        raise BadArchive(f"{self._store} cannot be updated: other jobs update it at the same time")

    def _load(self) -> None:
        """Read the table and its position. Raises `BadArchive` if it is not of this archive."""
        try:
            self._delta = DeltaTable(self._store.table_uri, storage_options=self._store.options)
        except TableNotFoundError:
            self._delta, self._position = None, 0
            return
        position = self._delta.transaction_version(self._app)
        if position is None:
            raise BadArchive(f"{self._store} is not a table of {self._source.store}: use another directory")
        if position > self._source.end.last_serial:
            # Another job may have read a newer version of the archive.
            end = ArchiveTable(self._source.store).end.last_serial
            if position > end:
                raise BadArchive(f"{self._store} is at serial {position}, {self._source.store} ends at {end}")
        self._position = position

    def _is_stale(self) -> bool:
        """Whether the table must be computed again: its facts, or its columns, are not those of today."""
        if self._delta is None:
            return True
        epoch = self._delta.transaction_version(f"{self._app}-epoch") or 0
        if any(start.epoch > epoch for start in self._losses()):
            return True
        nothing = self._files.slice(0, 0)
        return _types(self._delta.schema()) != _types(
            Schema.from_arrow(stream_batches(self._rows(nothing)).schema)
        )

    def _losses(self) -> list[EpochStart]:
        """Return the epoch starts at which facts of the stream were lost."""
        return [start for start in self._source.end.epoch_starts if start.stream == self._declaration.stream]

    def _rows(self, files: Any, *, after: int = 0) -> DataFrame:
        """Return the rows of the table over the facts of these files after a serial."""
        conditions = [f"serial > {after}"]
        conditions += [f"NOT (epoch < {start.epoch} AND token > {start.token})" for start in self._losses()]
        rows = read_rows(self._spark, self._source.store, files).where(" AND ".join(conditions))
        rows = typed(rows, self._declaration.stream)
        return self._spark.sql(self._declaration.select("{rows}"), rows=rows)

    def _replace(self) -> None:
        """Compute the table from the whole archive."""
        how: dict[str, Any] = {"mode": "error"}
        if self._delta is not None:
            how = {"mode": "overwrite", "schema_mode": "overwrite"}
        write_deltalake(
            self._store.table_uri if self._delta is None else self._delta,
            stream_batches(self._rows(self._files).orderBy(*self._declaration.order)),
            name=self._declaration.name,
            description=self._declaration.about,
            storage_options=self._store.options,
            # A retry would replace what another job has added.
            commit_properties=self._properties(retries=0),
            **how,
        )

    def _merge(self, files: Any) -> None:
        """Merge the rows of new facts into the table."""
        assert self._delta is not None
        columns = self._declaration.columns
        (
            self._delta.merge(
                stream_batches(self._rows(files, after=self._position)),
                " AND ".join(column.match for column in columns if column.is_key),
                source_alias="s",
                target_alias="t",
                commit_properties=self._properties(),
            )
            .when_matched_update({column.name: column.update for column in columns if not column.is_key})
            .when_not_matched_insert_all()
            .execute()
        )

    def _properties(self, *, retries: int | None = None) -> CommitProperties:
        end = self._source.end
        return CommitProperties(
            max_commit_retries=retries,
            app_transactions=[
                Transaction(self._app, end.last_serial),
                Transaction(f"{self._app}-epoch", end.epoch),
            ],
        )

    def _result(self, *, is_new: bool, full: bool) -> TableResult:
        assert self._delta is not None
        return TableResult(
            name=self._declaration.name,
            rows=self._delta.count(),
            version=self._delta.version(),
            serial=self._position,
            is_new=is_new,
            full=full,
        )


def _compact(delta: DeltaTable | None) -> None:
    """Merge the small files of a table, if there are many. Each run adds one for its new keys."""
    assert delta is not None
    sizes = pa.table(delta.get_add_actions())["size_bytes"]
    if (pc.sum(pc.less(sizes, SMALL_BYTES)).as_py() or 0) >= SMALL_FILES:
        try:
            delta.optimize.compact()
        except DeltaError:
            # Another job has changed the same files: a later run merges them.
            pass


def _types(schema: Schema) -> list[tuple[str, str]]:
    return [(field.name, str(field.type)) for field in schema.fields]


def child(folder: str, name: str) -> Store:
    """Return the store of a folder in a folder, which may be a URI with parameters."""
    location, mark, parameters = folder.partition("?")
    return Store(f"{location.rstrip('/')}/{name}{mark}{parameters}")
