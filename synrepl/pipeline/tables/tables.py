"""The job `tables`: advances the tables to the end of an archive, each fact exactly once.

The position of a table is in the table's own log, as application transactions: the last serial, its epoch,
and a part of its digest. So rows and position change in one commit, and of two jobs that add the same facts
one fails.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from synrepl.base.history import EpochStart
from synrepl.pipeline.archive.row_files import are_lost, map_files, read_listed, within
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.driver import Driver
from synrepl.pipeline.jobs import Progress, ignore_progress, is_late_worker, retry_late_workers
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.source.rows import ROWS, Layout, decode_rows, row_schema
from synrepl.pipeline.store import MISTAKEN, BadArchive, Store
from synrepl.pipeline.tables.declarations import TABLES, TableDeclaration
from synrepl.pipeline.typed import layout_of

MERGED_ROWS: Final = 2_000_000
"""Maximum number of new rows to merge, in the memory of the driver. With more, a table is computed again."""

GIVEN: Final = ("serial", "seq", "writer", "row", "committed_at")
"""The columns of an archive that the SQL of a declaration may use, beside those of the stream."""

READ: Final = row_schema((*GIVEN, "stream", "epoch", "token"))

SMALL_BYTES: Final = 16 * 1024 * 1024
SMALL_FILES: Final = 32
"""From this number on, small files of a table are merged."""

ATTEMPTS: Final = 8

UNWRITABLE: Final = re.compile(rf"{MISTAKEN.pattern}|[\[\]|^]")
"""Of a folder with such a name delta-rs cannot write the rows of a table."""


class TableResult(msgspec.Struct, frozen=True, kw_only=True):
    """A table, which is now at `serial`. `is_new` is false if it was up to date already.

    With `full` it was computed from the whole archive; otherwise new rows, if any, were merged.
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
    runner: Runner,
    archive: Store,
    out: str,
    *,
    only: Iterable[str] = (),
    progress: Progress = ignore_progress,
) -> TablesResult:
    """Advance the tables `only`, or all, to the end of the archive: Delta tables in the folder `out`.

    A table is computed from the whole archive if it is new, if facts of its stream were lost since, if it has
    facts of a log that was restored or replaced since, if its columns have changed, or if there are too many
    new rows for a merge. Raises `BadArchive` for tables that
    are of another log, are beyond the end of the archive, or cannot be updated, and `ConfigError` if `out`
    cannot have tables.
    """
    began = time.monotonic()
    child(out, "").check_table_path(UNWRITABLE)
    source = ArchiveTable(archive)
    files = source.files
    names, driver = list(only) or list(TABLES), driver_of(runner)
    found = []
    for done, name in enumerate(names):
        progress("updating tables", done, len(names))
        its_files = files.filter(pc.equal(files["stream"], TABLES[name].stream))
        found.append(_TableJob(driver, source, its_files, child(out, name), TABLES[name]).run())
    progress("updating tables", len(names), len(names))
    return TablesResult(tables=found, seconds=round(time.monotonic() - began, 3))


@dataclass
class _TableJob:
    """The update of one table, which is at the serial `position`. `files` are those of its stream."""

    driver: Driver
    source: ArchiveTable
    files: Any
    store: Store
    declaration: TableDeclaration
    delta: DeltaTable | None = None
    position: int = 0

    def run(self) -> TableResult:
        """Advance the table. If another job commits first, begin again after its commit."""
        self._load()
        for _ in range(ATTEMPTS):
            before = self.position
            news = within(self.files, before + 1, self.source.end.last_serial)
            rows = pc.sum(news["rows"]).as_py() or 0
            full = self._is_stale() or rows > MERGED_ROWS
            if full or rows:
                try:
                    if full:
                        self._replace()
                    else:
                        self._merge(news)
                except DeltaError as error:
                    self._load()
                    if self.position != before:
                        continue
                    if is_late_worker(error):
                        raise
                    raise BadArchive(f"{self.store} cannot be updated: {error}") from error
                self._load()
                _compact(self.delta)
            assert self.delta is not None
            return TableResult(
                name=self.declaration.name,
                rows=self.delta.count(),
                version=self.delta.version(),
                serial=self.position,
                is_new=bool(full or rows),
                full=full,
            )
        raise BadArchive(f"{self.store} cannot be updated: other jobs update it now; run the job again")

    @property
    def app(self) -> str:
        """The name of the transaction with the position. It includes the history, which must be the same."""
        return f"synrepl-tables-{self.source.end.history}"

    @property
    def losses(self) -> list[EpochStart]:
        return [start for start in self.source.end.epoch_starts if start.stream == self.declaration.stream]

    def _load(self) -> None:
        """Read the table and its position. Raises `BadArchive` if it is not of this archive."""
        try:
            self.delta = DeltaTable(self.store.table_uri, storage_options=self.store.options)
        except TableNotFoundError:
            self.delta, self.position = None, 0
            return
        position = self.delta.transaction_version(self.app)
        if position is None:
            raise BadArchive(f"{self.store} is not a table of {self.source.store}: use another directory")
        if position > self.source.end.last_serial:
            # Another job may have read a newer version of the archive.
            end = ArchiveTable(self.source.store).end.last_serial
            if position > end:
                raise BadArchive(
                    f"the archive {self.source.store} ends at serial {end}, before serial {position} of the"
                    f" table {self.store}: use the archive that it was made from, or another directory"
                )
        self.position = position

    def _is_stale(self) -> bool:
        """Whether the table must be computed again: it has other facts than the archive, or other columns."""
        if self.delta is None:
            return True
        epoch = self.delta.transaction_version(f"{self.app}-epoch") or 0
        if any(start.epoch > epoch for start in self.losses):
            return True
        if not self.source.end.continues(epoch, self.position):
            return True
        known = self.delta.transaction_version(f"{self.app}-digest")
        # Another job may have seen a newer version of the archive.
        is_here = self.position <= self.source.end.last_serial
        if is_here and known is None and self._may_have_forked():
            return True
        if is_here and known not in (None, _number_of(self.source.digest_at(self.position))):
            return True
        nothing = self._rows(self.files.slice(0, 0))
        was, now = (
            [(field.name, str(field.type)) for field in schema.fields]
            for schema in (self.delta.schema(), Schema.from_arrow(nothing.schema))
        )
        return was != now

    def _may_have_forked(self) -> bool:
        """Whether an epoch of the log began before the position.

        Releases up to 26.11.1, which kept no digest, advanced tables over a fork.
        """
        starts = self.source.end.epoch_starts
        return any(not start.stream and start.serial < self.position for start in starts)

    def _rows(self, files: Any, *, after: int = 0) -> Any:
        """Return a reader of the rows of the table from the facts of these files after a serial."""
        layout, statement = layout_of(self.declaration.stream), self.declaration.select("{rows}")
        used = set(re.findall(r"\w+", statement))
        own = [field for field in layout.fields if field.name in used]
        schema = pa.schema([*(ROWS.field(name) for name in GIVEN if name in used), *own])
        work = partial(_read_typed, self.source.store, layout, schema, after, self.losses)
        return self.driver.query(statement, map_files(self.driver, files, work, schema))

    def _replace(self) -> None:
        how: dict[str, Any] = {"mode": "error"}
        if self.delta is not None:
            how = {"mode": "overwrite", "schema_mode": "overwrite"}
        write_deltalake(
            self.store.table_uri if self.delta is None else self.delta,
            self._rows(self.files),
            name=self.declaration.name,
            description=self.declaration.about,
            storage_options=self.store.options,
            # A retry would replace what another job has added.
            commit_properties=self._properties(retries=0),
            **how,
        )

    def _merge(self, files: Any) -> None:
        assert self.delta is not None
        columns = self.declaration.columns
        (
            self.delta.merge(
                self._rows(files, after=self.position),
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
        end = self.source.end
        return CommitProperties(
            max_commit_retries=retries,
            app_transactions=[
                Transaction(self.app, end.last_serial),
                Transaction(f"{self.app}-epoch", end.epoch),
                Transaction(f"{self.app}-digest", _number_of(end.digest)),
            ],
        )


def _number_of(digest: str | None) -> int:
    """Return the first 60 bits of a digest, as many as a transaction has room for; -1 if it is unknown."""
    return int(digest[:15], 16) if digest else -1


def _compact(delta: DeltaTable | None) -> None:
    """Merge the small files of a table, if there are many: each update adds one."""
    assert delta is not None
    sizes = pa.table(delta.get_add_actions())["size_bytes"]
    if (pc.sum(pc.less(sizes, SMALL_BYTES)).as_py() or 0) >= SMALL_FILES:
        try:
            delta.optimize.compact()
        except DeltaError:
            # Another job has changed the same files: a later run merges them.
            pass


def child(folder: str, name: str) -> Store:
    """Return the store of the subfolder `name`. `folder` may be a URI with parameters."""
    location, mark, parameters = folder.partition("?") if "://" in folder else (folder, "", "")
    return Store(f"{location.rstrip('/')}/{name}{mark}{parameters}")


def _read_typed(
    store: Store,
    layout: Layout,
    schema: Any,
    after: int,
    losses: Sequence[EpochStart],
    batches: Iterable[Any],
) -> Iterator[Any]:
    """Yield the rows of files with the columns of their stream, without those that were lost."""
    for rows in read_listed(store, batches, READ):
        is_kept = pc.greater(rows["serial"], after)
        for start in losses:
            is_kept = pc.and_(is_kept, pc.invert(are_lost(rows, start)))
        rows = rows.filter(is_kept)  # noqa: PLW2901
        typed = decode_rows(layout, rows["row"], schema.names)
        columns = [typed[name] if name in typed else rows[name] for name in schema.names]
        yield pa.record_batch(columns, schema)
