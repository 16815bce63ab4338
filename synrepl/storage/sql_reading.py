"""Reading the log by serial, in an SQL database: as facts, as text, or as a summary."""

from typing import Any

from synrepl.ports.history import LogRange
from synrepl.storage.append_errors import InvalidValue
from synrepl.storage.paging import take_rows
from synrepl.storage.sql_base import COLUMNS, SQLBase, facts_of, placeholders
from synrepl.streams.facts import Fact
from synrepl.wire.filter import ALL, Filter

__all__ = ["SQLReading"]

SCANNED_AT_ONCE = 50_000
"""The number of serials that one filtered read examines at most, so that no read takes very long."""

NAMES_AT_ONCE = 10_000
"""The number of streams, or writers, in one filter: every database allows twice as many values."""

TEXT_SERIALS = 5_000
"""The number of serials in a text: about a megabyte, which fits a CPU cache; more is slower per fact."""

LARGE_TEXT = 8 * 1024 * 1024
"""A text of more than one fact is halved until its rows have at most this many bytes."""

Range = tuple[int, str, list[object]]
"""The last serial to examine, and the condition of the filter with its values."""


class SQLReading(SQLBase):
    """The reading part of an engine: facts with ``after < serial <= upto``, in order."""

    LINE = "printf('%d\x1f%d\x1f%s\x1f%s\x1f%d\x1f%d\x1f%s\x1f%d\x1f%s', {columns})"
    """A fact as a line of text, built by the database in C, so that other threads keep running."""

    TEXT_BYTES = "length(rows)"
    """The number of bytes in the text of the rows, computed without reading it."""

    LINES = "CAST(group_concat(line, char(10)) AS BLOB)"
    """Joins the ordered lines to one text."""

    def read(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> tuple[list[Fact], int]:
        """Facts in order of serial, and the last serial examined."""
        with self._map_errors("read"):
            database = self._reader("read")
            upto, where, values = self._range(database, after, upto, filter)
            with self._stream_rows(
                database, f"SELECT {COLUMNS} FROM facts WHERE {where} ORDER BY serial", values
            ) as found:
                page, is_full = take_rows(facts_of(found), limit)
        return page, page[-1].serial if is_full else max(after, upto)

    def read_text(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> tuple[bytes, int]:
        """Facts as lines of text, and the last serial examined."""
        with self._map_errors("read"):
            database = self._reader("read")
            # A filter may match few of the serials examined.
            scanned = TEXT_SERIALS if filter.is_open else SCANNED_AT_ONCE
            limit = min(limit, TEXT_SERIALS)
            upto = min(upto, after + scanned)
            while True:
                upto, where, values = self._range(database, after, upto, filter)
                size = self._execute(
                    database, f"SELECT sum({self.TEXT_BYTES}) FROM facts WHERE {where}", values
                ).fetchone()[0]
                if (size or 0) <= LARGE_TEXT or upto - after <= 1:
                    break
                upto = after + (upto - after) // 2
            line = self.LINE.format(columns=COLUMNS)
            count, last, text = self._execute(
                database,
                f"SELECT count(*), max(serial), {self.LINES} FROM (SELECT serial, {line} AS line FROM facts"
                f" WHERE {where} ORDER BY serial LIMIT ?) AS lines",
                (*values, limit),
            ).fetchone()
        return bytes(text or b""), last if count >= limit else max(after, upto)

    def extent(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> LogRange:
        """Summarize facts without reading them."""
        with self._map_errors("read"):
            database = self._reader("read")
            upto = min(upto, after + SCANNED_AT_ONCE)
            upto, where, values = self._range(database, after, upto, filter)
            found = self._execute(
                database,
                f"SELECT stream, writer, count(*), sum(size), max(token), max(serial), max(committed_at_ms)"
                f" FROM (SELECT stream, writer, {self.TEXT_BYTES} AS size, token, serial, committed_at_ms"
                f" FROM facts WHERE {where} ORDER BY serial LIMIT ?) AS found GROUP BY stream, writer",
                (*values, limit),
            ).fetchall()
        facts = sum(row[2] for row in found)
        last = max((row[5] for row in found), default=after)
        return LogRange(
            serial=last if facts >= limit else max(after, upto),
            facts=facts,
            bytes=sum(int(row[3]) for row in found),
            tokens={(row[0], row[1]): row[4] for row in found},
            at_ms=max((row[6] for row in found), default=0),
        )

    def _range(self, database: Any, after: int, upto: int, filter: Filter) -> Range:
        last = self._execute(
            database, "SELECT (SELECT max(serial) FROM facts), (SELECT max(serial) FROM places)"
        ).fetchone()
        upto = min(upto, max(last[0] or 0, last[1] or 0))
        where, values = "serial > ? AND serial <= ?", list[object]()
        for column, names in ((self.UNINDEXED_STREAM, filter.streams), ("writer", filter.writers)):
            if names is not None:
                if len(names) > NAMES_AT_ONCE:
                    why = f"{len(names)} names are more than {NAMES_AT_ONCE} in one filter"
                    raise InvalidValue(op="read", why=why)
                upto = min(upto, after + SCANNED_AT_ONCE)
                where += f" AND {column} IN ({placeholders(names)})" if names else " AND false"
                values += names
        return upto, where, [after, upto, *values]
