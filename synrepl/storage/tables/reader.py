"""Table readers: read whole facts from tables, in order of their ids, up to the last complete one."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from synrepl.errors import StorageError
from synrepl.storage.ids.database import Flavor, IdDatabase
from synrepl.storage.ids.startup import IdProblems, examine, initial_position
from synrepl.storage.ids.transactions import ICursor
from synrepl.storage.sql import execute
from synrepl.storage.tables.layout import SourceTable, TableStream, Template, columns_of

__all__ = ["TablePage", "TableReader"]


class TablePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of facts, ``(writer, token, rows)``, in order of their ids and complete up to `upto`.

    `limit` is the linear position; more pages follow if it is beyond `upto`. `writers` are all known writers.
    """

    facts: list[tuple[str, int, list[bytes | list[object]]]]
    upto: int
    limit: int
    writers: Sequence[str]


class TableReader:
    """Reads the tables of one stream, in the caller's transactions."""

    def __init__(self, stream: TableStream, flavor: Flavor) -> None:
        self.stream = stream
        self.ids = IdDatabase(stream.ids, flavor)
        self._flavor = flavor
        self._tables = [(table, _maker(table)) for table in stream.tables]

    def examine(self, cursor: ICursor, seen: int) -> IdProblems:
        """Find problems with the stream's ids. The log has all facts up to id `seen`."""
        return examine(cursor, self.ids, seen=seen)

    def page(self, cursor: ICursor, *, after: int, rows: int) -> TablePage:
        """Return the complete facts after id `after`: about `rows` rows, and no part of a fact.

        Positions are read before rows. A position is stored after the rows up to it are committed, so all of
        these rows are visible.
        """
        if not self.ids.positions(cursor) and self.ids.highest_row(cursor) > 1:
            raise StorageError(
                op="read",
                why=f"no position of {self.stream.ids.name} is stored in stream_positions, so it is unknown"
                " how far its rows are complete",
                hint="reading starts when a writer stores one; set `position` if it has another name there",
                stream=self.stream.stream,
                retryable=True,
            )
        start = initial_position(cursor, self.ids, instance=None)
        only = self.stream.only
        # If `only` some writers are read, the positions of the others do not matter.
        complete = min(start.positions.get(writer, 0) for writer in only) if only else start.persisted_upto
        limit = max(after, complete)
        upto = self._end(cursor, after, limit, rows)
        found: dict[int, tuple[str, list[bytes | list[object]]]] = {}
        for table, make in self._tables:
            for token, writer, values in self._values(cursor, table, after, upto):
                if not only or writer in only:
                    found.setdefault(token, (writer, []))[1].append(make(values))
        writers = dict.fromkeys(only or [*start.positions, *(writer for writer, _ in found.values())])
        return TablePage(
            facts=[(writer, token, rows) for token, (writer, rows) in sorted(found.items())],
            upto=upto,
            limit=limit,
            writers=list(writers) or [self.stream.default_writer],
        )

    def missed(self, cursor: ICursor, *, writer: str, after: int, upto: int, rows: int) -> TablePage:
        """Return facts of one writer with ``after < id <= upto``: about `rows` rows.

        The caller knows that the writer has completed all facts up to `upto`; no position is checked.
        """
        end = self._end(cursor, after, upto, rows)
        found: dict[int, list[bytes | list[object]]] = {}
        for table, make in self._tables:
            for token, wrote, values in self._values(cursor, table, after, end):
                if wrote == writer:
                    found.setdefault(token, []).append(make(values))
        facts = [(writer, token, rows) for token, rows in sorted(found.items())]
        return TablePage(facts=facts, upto=end, limit=upto, writers=[writer])

    def _end(self, cursor: ICursor, after: int, limit: int, rows: int) -> int:
        """Return the last id of the page: at most `rows` rows of each table, but at least one fact."""
        ends = [limit]
        for table in self.stream.tables:
            order = "DESC" if self.stream.ids.negative else "ASC"
            self._execute(
                cursor,
                f"SELECT {table.ids.id_column} FROM {table.ids.name} WHERE {self._between(table)}"
                f" ORDER BY {table.ids.id_column} {order} LIMIT 1 OFFSET ?",
                *self._bounds(after, limit),
                rows,
            )
            first_beyond = cursor.fetchone()
            if first_beyond is not None:
                self._execute(
                    cursor,
                    f"SELECT {table.ids.id_column} FROM {table.ids.name} WHERE {self._between(table)}"
                    f" ORDER BY {table.ids.id_column} {order} LIMIT 1",
                    *self._bounds(after, limit),
                )
                first = abs(cursor.fetchone()[0])
                ends.append(max(first, abs(first_beyond[0]) - 1))
        return min(ends)

    def _values(
        self, cursor: ICursor, table: SourceTable, after: int, upto: int
    ) -> Iterator[tuple[int, str, Iterator[Any]]]:
        writer_column = table.ids.writer_column or "NULL"
        columns = ", ".join([table.ids.id_column, writer_column, *columns_of(list(table.row))])
        self._execute(
            cursor,
            f"SELECT {columns} FROM {table.ids.name} WHERE {self._between(table)}",
            *self._bounds(after, upto),
        )
        for token, writer, *values in cursor.fetchall():
            yield abs(token), writer or self.stream.default_writer, iter(values)

    def _between(self, table: SourceTable) -> str:
        column = table.ids.id_column
        return (
            f"{column} < ? AND {column} >= ?"
            if self.stream.ids.negative
            else f"{column} > ? AND {column} <= ?"
        )

    def _bounds(self, after: int, upto: int) -> tuple[int, int]:
        sign = self.stream.ids.sign
        return after * sign, upto * sign

    def _execute(self, cursor: ICursor, statement: str, *values: object) -> None:
        execute(cursor, self._flavor, statement, values)


def _maker(table: SourceTable) -> Callable[[Iterator[Any]], list[Any]]:
    """Return a function that makes a row's JSON items from the values of its columns, in order."""

    def fill(template: Template, values: Iterator[Any]) -> Any:
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
                return [fill(part, values) for part in template]

    def make(values: Iterator[Any]) -> list[Any]:
        return [fill(part, values) for part in table.row]

    return make
