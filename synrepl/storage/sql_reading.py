"""The part of an engine that reads the log by serials: as facts, as text, or only how much there is."""

from typing import Any

from synrepl.ports.history import LogRange
from synrepl.storage.append_errors import InvalidValue
from synrepl.storage.paging import take_rows
from synrepl.storage.sql_base import COLUMNS, SQLBase, facts_of, marks
from synrepl.streams.facts import Fact
from synrepl.wire.filter import ALL, Filter

__all__ = ["SQLReading"]

LOOKED_AT_ONCE = 50_000
"""Serials one read looks through for facts of the streams or writers wanted, so that no read takes very long.
"""

NAMES_AT_ONCE = 10_000
"""Streams, or writers, that one read may name: every database takes twice as many values in a statement."""

TEXT_SERIALS = 5_000
"""Serials of a text: a megabyte or so, which a processor's caches hold; larger ones cost more a fact."""

LARGE_TEXT = 8 * 1024 * 1024
"""Bytes of rows from which on a text is cut in two, unless it is of a single fact."""

Range = tuple[int, str, list[object]]
"""The last serial to look at, and which facts are wanted: a condition and its values."""


class SQLReading(SQLBase):
    """Reads facts with ``after < serial <= upto``, in order."""

    LINE = "printf('%d\x1f%d\x1f%s\x1f%s\x1f%d\x1f%d\x1f%s\x1f%d\x1f%s', {columns})"
    """A fact as a line of text; the database writes it, in C, while other threads of ours go on."""

    TEXT_BYTES = "length(rows)"
    """How many bytes the text of the rows has, asked without reading it."""

    LINES = "CAST(group_concat(line, char(10)) AS BLOB)"
    """Lines, which come in order, as one text."""

    def read(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> tuple[list[Fact], int]:
        """Facts in order of serial, and how far it has looked."""
        with self._map_errors("read"):
            database = self._reader("read")
            upto, where, values = self._range(database, after, upto, filter)
            with self._streamed(
                database, f"SELECT {COLUMNS} FROM facts WHERE {where} ORDER BY serial", values
            ) as found:
                taken, is_full = take_rows(facts_of(found), limit)
        return taken, taken[-1].serial if is_full else max(after, upto)

    def read_text(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> tuple[bytes, int]:
        """Facts as lines, and how far it has looked."""
        with self._map_errors("read"):
            database = self._reader("read")
            # Of a few streams or writers there may be little to find.
            looked = TEXT_SERIALS if filter.is_open else LOOKED_AT_ONCE
            limit = min(limit, TEXT_SERIALS)
            upto = min(upto, after + looked)
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
        """How much there is, and how far it has looked."""
        with self._map_errors("read"):
            database = self._reader("read")
            upto = min(upto, after + LOOKED_AT_ONCE)
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
                upto = min(upto, after + LOOKED_AT_ONCE)
                where += f" AND {column} IN ({marks(names)})" if names else " AND false"
                values += names
        return upto, where, [after, upto, *values]
