"""Table scans: read whole facts from tables, in order of their ids, up to the last complete one."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from synrepl.errors import StorageError
from synrepl.homeserver.tables.layout import SourceTable, TableStream, Template, columns_of
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.id_problems import IdProblems, examine
from synrepl.storage.id_tables.id_start import id_start
from synrepl.storage.sql import Flavor, execute
from synrepl.storage.worker_database import ICursor


class TablePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of facts, ``(writer, token, rows)``, in order of their ids: all requested ones up to id `upto`.

    If `limit` is above `upto`, more pages follow, up to id `limit`. All numbers ascend, even if ids descend.
    `complete` has the known writers among those that were requested: up to this id all facts of the writer
    itself are complete, whatever others still have to finish.
    """

    facts: list[tuple[str, int, list[bytes | list[object]]]]
    upto: int
    limit: int
    complete: Mapping[str, int]


class TableScan:
    """Reads the tables of one stream, in the caller's transactions."""

    def __init__(self, stream: TableStream, flavor: Flavor) -> None:
        self.stream = stream
        self.ids = IdDatabase(stream.ids, flavor)
        self._flavor = flavor

    def examine(self, cursor: ICursor, seen: int) -> IdProblems:
        """Find problems with the stream's ids. The log has all facts up to id `seen`."""
        return examine(cursor, self.ids, seen=seen)

    def page(self, cursor: ICursor, *, after: int, rows: int) -> TablePage:
        """Return the complete facts after id `after`, whole, from about `rows` rows of each table.

        Positions are read before rows. A position is stored after the rows up to it are committed, so all of
        these rows are visible. Raises `StorageError` if there are rows, but no position is stored.
        """
        if not self.ids.positions(cursor) and self.ids.highest_row(cursor) > 1:
            raise StorageError(
                op="read",
                why=f"no position of {self.stream.ids.name} is stored in stream_positions, so it is unknown"
                " how far its rows are complete",
                hint="reading starts when a writer stores one; if it has another name in stream_positions,"
                " set `position` of this stream in table_streams to that",
                stream=self.stream.stream,
                retryable=True,
            )
        start = id_start(cursor, self.ids, instance=None)
        only = self.stream.only
        # If `only` some writers are read, the positions of the others do not matter.
        complete = min(start.positions.get(writer, 0) for writer in only) if only else start.persisted_upto
        limit = max(after, complete)
        upto = self._end(cursor, after, limit, rows)
        found: dict[int, tuple[str, list[bytes | list[object]]]] = {}
        for token, writer, row in self._rows(cursor, after, upto, only):
            found.setdefault(token, (writer, []))[1].append(row)
        writers = only or [*start.positions, *(writer for writer, _ in found.values())]
        return TablePage(
            facts=[(writer, token, rows) for token, (writer, rows) in sorted(found.items())],
            upto=upto,
            limit=limit,
            complete={
                writer: max(start.positions.get(writer, limit), limit)
                for writer in writers or [self.stream.default_writer]
            },
        )

    def missed(self, cursor: ICursor, *, writer: str, after: int, upto: int, rows: int) -> TablePage:
        """Return facts of one writer with ``after < id <= upto``, from about `rows` rows of each table.

        The caller knows that the writer has completed all facts up to `upto`; no position is checked.
        """
        end = self._end(cursor, after, upto, rows)
        found: dict[int, list[bytes | list[object]]] = {}
        for token, _, row in self._rows(cursor, after, end, (writer,)):
            found.setdefault(token, []).append(row)
        facts = [(writer, token, rows) for token, rows in sorted(found.items())]
        return TablePage(facts=facts, upto=end, limit=upto, complete={writer: upto})

    def _end(self, cursor: ICursor, after: int, limit: int, rows: int) -> int:
        """Return the last id of the page: at most `rows` rows of each table, but at least one fact."""
        ends = [limit]
        for table in self.stream.tables:
            column = table.ids.id_column
            nth = f" ORDER BY {column} {'DESC' if self.stream.ids.negative else 'ASC'} LIMIT 1 OFFSET ?"
            if beyond := self._select(cursor, table, column, after, limit, nth, rows):
                first = self._select(cursor, table, column, after, limit, nth, 0)
                ends.append(max(abs(first[0][0]), abs(beyond[0][0]) - 1))
        return min(ends)

    def _rows(
        self, cursor: ICursor, after: int, upto: int, only: Collection[str]
    ) -> Iterator[tuple[int, str, list[Any]]]:
        """The id, writer and items of rows with ``after < id <= upto``, of the writers `only` or of all."""
        for table in self.stream.tables:
            writer_column = table.ids.writer_column or "NULL"
            template = list(table.row)
            columns = ", ".join([table.ids.id_column, writer_column, *columns_of(template)])
            for token, wrote, *values in self._select(cursor, table, columns, after, upto):
                writer = wrote or self.stream.default_writer
                if not only or writer in only:
                    yield abs(token), writer, _fill(template, iter(values))

    def _select(
        self, cursor: ICursor, table: SourceTable, what: str, after: int, upto: int, end: str = "", *more: int
    ) -> list[Any]:
        column, sign = table.ids.id_column, self.stream.ids.sign
        above, most = ("<", ">=") if self.stream.ids.negative else (">", "<=")
        execute(
            cursor,
            self._flavor,
            f"SELECT {what} FROM {table.ids.name} WHERE {column} {above} ? AND {column} {most} ?{end}",
            (after * sign, upto * sign, *more),
        )
        return cursor.fetchall()


def _fill(template: Template, values: Iterator[Any]) -> Any:
    match template:
        case str():
            return next(values)
        case None:
            return None
        case {"value": value}:
            return value
        case {"json": _}:
            value = next(values)
            return msgspec.json.decode(value) if isinstance(value, (str, bytes)) else value
        case _:
            return [_fill(part, values) for part in template]
