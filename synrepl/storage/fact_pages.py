"""Reads of facts: pages in order of serial, facts in order of token, and their size.

One rule for all pages: one ends after so many facts, or after so many serials, but never inside an atomic
append.
"""

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any, Final, TypeVar

import msgspec

from synrepl.base.history import LogRange
from synrepl.storage.append_errors import InvalidValue
from synrepl.storage.continuity import DiscardedRanges
from synrepl.storage.schema import COLUMNS, end_of_log, read_bounds
from synrepl.storage.sql import LogDatabase, SQLConnection, TextForm, placeholders
from synrepl.storage.whole_appends import WholeAppends
from synrepl.streams.atomic_appends import MAX_ATOMIC_FACTS
from synrepl.streams.facts import Fact, take_rows, take_tokens
from synrepl.streams.writer import Writer
from synrepl.wire.filter import ALL, Filter

T = TypeVar("T")

SCANNED_AT_ONCE = 50_000
"""The most serials that a filtered read, or an `extent`, examines, so that it does not take very long."""

NAMES_AT_ONCE = 10_000
"""The number of streams, or writers, in one filter: every database allows twice as many values."""

TEXT_SERIALS = 5_000
"""The most facts in one text: about a megabyte, which fits a CPU cache; more is slower per fact."""

MEASURED_FIRST: Final = 50
"""Of so many facts the sizes are added first, before those of a whole text."""

TEXT_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of rows in a text of several facts, unless the reader wants fewer."""

SAMPLES: Final = 16
SAMPLED: Final = 16
"""The size of a log is estimated from this many samples of this many serials."""


class Range(msgspec.Struct, frozen=True):
    """Facts to read: those with ``after < serial <= upto`` that pass a condition, `where` with `names`."""

    after: int
    upto: int
    where: str
    names: Sequence[object] = ()

    @property
    def values(self) -> tuple[object, ...]:
        """The values of `where`."""
        return self.after, self.upto, *self.names


Page = tuple[T, int, int]
"""The content of a page, the number of its facts, and the last serial among them."""


class FactPages:
    """Reads facts of an open log, in the reading thread; only `size` runs in the writing one (`engine.py`).

    `appends` tells where atomic appends end, and `discarded` which facts their source lost. Every method may
    raise `StorageError`.
    """

    def __init__(self, database: LogDatabase, appends: WholeAppends, discarded: DiscardedRanges) -> None:
        self._database = database
        self._syntax = database.syntax
        self._appends = appends
        self._discarded = discarded

    def facts(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
        scanned: int | None = None,
    ) -> tuple[list[Fact], int]:
        """Facts with ``after < serial <= upto`` that pass the filter, without those that were trimmed.

        Stops after the fact that reaches `limit` rows, or at the end of its atomic append. Rows are
        estimated, not parsed: one per 200 bytes of JSON, at least one per fact. With a filter about `scanned`
        serials are examined (None: `SCANNED_AT_ONCE`). Returns the facts and the last serial examined.
        """

        def read(connection: SQLConnection, asked: Range, limit: int) -> Page[list[Fact]]:
            with connection.stream(
                f"SELECT {COLUMNS} FROM facts WHERE {asked.where} ORDER BY serial", asked.values
            ) as found:
                page, is_full = take_rows(starmap(Fact, found), limit)
            return page, limit if is_full else 0, page[-1].serial if page else 0

        with self._database.reader_connection("read") as connection:
            asked = self._range(connection, after, upto, filter, scanned=upto if filter.is_open else scanned)
            pages, last = self._read_whole(connection, asked, limit, read)
        return [fact for page in pages for fact in page], last

    def text(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
        form: TextForm = "json",
        size: int = TEXT_BYTES,
        scanned: int | None = None,
    ) -> tuple[bytes, int]:
        """Read in bulk: at most `limit` facts, and at most `TEXT_SERIALS`, as one text of this form, a line
        each, or more, up to the end of an atomic append. About `scanned` serials are examined (None:
        `SCANNED_AT_ONCE`). The rows of several facts have at most `size` bytes. Returns the text and the last
        serial examined.
        """
        syntax = self._syntax

        def read(connection: SQLConnection, asked: Range, limit: int) -> Page[bytes]:
            count, last, text = connection.execute(
                f"SELECT count(*), max(serial), {syntax.joined} FROM"
                f" (SELECT serial, {syntax.lines[form]} AS line FROM facts WHERE {asked.where}"
                " ORDER BY serial LIMIT ?) AS lines",
                (*asked.values, limit),
            ).fetchone()
            return bytes(text) if count else b"", count, last or 0

        with self._database.reader_connection("read") as connection:
            asked = self._range(connection, after, upto, filter, scanned=scanned)
            limit = self._fitting(connection, asked, min(limit, TEXT_SERIALS), size)
            texts, last = self._read_whole(connection, asked, limit, read)
        return b"".join(texts), last

    def extent(self, *, after: int, upto: int, limit: int, filter: Filter = ALL) -> LogRange:
        """Measure the first `limit` facts that pass the filter, in at most `SCANNED_AT_ONCE` serials.

        The last atomic append is measured whole.
        """

        def read(connection: SQLConnection, asked: Range, limit: int) -> Page[list[Any]]:
            found = connection.execute(
                f"SELECT stream, writer, count(*), sum(size), max(token), max(serial), max(committed_at_ms)"
                f" FROM (SELECT stream, writer, {self._syntax.text_bytes} AS size, token, serial,"
                f" committed_at_ms FROM facts WHERE {asked.where} ORDER BY serial LIMIT ?) AS found"
                " GROUP BY stream, writer",
                (*asked.values, limit),
            ).fetchall()
            return found, sum(row[2] for row in found), max((row[5] for row in found), default=0)

        with self._database.reader_connection("read") as connection:
            asked = self._range(connection, after, upto, filter)
            pages, last = self._read_whole(connection, asked, limit, read)
        found = [row for page in pages for row in page]
        tokens: dict[Writer, int] = {}
        for stream, writer, _, _, token, *_ in found:
            one = Writer(stream, writer)
            tokens[one] = max(token, tokens.get(one, token))
        return LogRange(
            serial=last,
            facts=sum(row[2] for row in found),
            bytes=sum(int(row[3]) for row in found),
            tokens=tokens,
            at_ms=max((row[6] for row in found), default=0),
        )

    def tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> tuple[list[Fact], bool]:
        """Facts of one stream with ``after < token <= upto`` and serials up to `serial`.

        In order of (token, serial), without discarded facts; of one writer, or of all if `writer` is None.
        Stops after `limit` rows, estimated as in `facts`, but never between facts that share a token. Returns
        the facts and whether there are more.
        """
        not_discarded, values = self._discarded.condition(stream)
        with (
            self._database.reader_connection("read", stream) as connection,
            connection.stream(
                f"SELECT {COLUMNS} FROM facts WHERE stream = ? AND token > ? AND token <= ? AND serial <= ?"
                + not_discarded
                + ("" if writer is None else " AND writer = ?")
                + " ORDER BY token, serial",
                (stream, after, upto, serial, *values, *(() if writer is None else (writer,))),
            ) as found,
        ):
            return take_tokens(starmap(Fact, found), limit)

    def size(self, after: int) -> int:
        """The approximate size in bytes of the facts beyond this serial.

        Estimated from runs of facts spread evenly over the serials; a short range is measured as a whole. In
        the writing thread: no commit and no trim comes between the statements.
        """
        with self._database.writer_connection("size") as connection:
            after = max(0, after)
            span = end_of_log(connection, read_bounds(connection))[0] - after
            if span <= 0:
                return 0
            runs = SAMPLES if span > SAMPLES * SAMPLED else 1
            seen = SAMPLED if runs > 1 else span
            found = 0
            for run in range(runs):
                first = after + run * (span - seen) // max(1, runs - 1)
                found += connection.execute(
                    f"SELECT coalesce(sum({self._syntax.rows_bytes} + 2 * length(stream) + length(writer)"
                    f" + {self._syntax.fact_bytes}), 0) FROM facts WHERE serial > ? AND serial <= ?",
                    (first, first + seen),
                ).fetchone()[0]
        return int(found) * span // (runs * seen)

    def _read_whole(
        self,
        connection: SQLConnection,
        asked: Range,
        limit: int,
        read: Callable[[SQLConnection, Range, int], Page[T]],
    ) -> tuple[list[T], int]:
        """Read the first `limit` facts, and the rest of the atomic append in which they end.

        Returns both, and the last serial examined.
        """
        page, count, last = read(connection, asked, limit)
        if count < limit:
            return [page], max(asked.after, asked.upto)
        end = self._whole(connection, last, asked.upto)
        if end == last:
            return [page], last
        rest = msgspec.structs.replace(asked, after=last, upto=end)
        return [page, read(connection, rest, MAX_ATOMIC_FACTS)[0]], end

    def _range(
        self, connection: SQLConnection, after: int, upto: int, filter: Filter, *, scanned: int | None = None
    ) -> Range:
        """Return which facts to read: of `scanned` serials (None: `SCANNED_AT_ONCE`), and of the rest of an
        atomic append.
        """
        last = connection.execute(
            "SELECT (SELECT max(serial) FROM facts), (SELECT max(serial) FROM log_bounds)"
        ).fetchone()
        upto = min(upto, max(last[0] or 0, last[1] or 0))
        upto = self._whole(connection, after + (SCANNED_AT_ONCE if scanned is None else scanned), upto)
        where, found = "serial > ? AND serial <= ?", list[object]()
        for column, names in ((self._syntax.unindexed_stream, filter.streams), ("writer", filter.writers)):
            if names is not None:
                if len(names) > NAMES_AT_ONCE:
                    why = f"a filter may name at most {NAMES_AT_ONCE} streams or writers, not {len(names)}"
                    raise InvalidValue(op="read", why=why)
                where += f" AND {column} IN ({placeholders(names)})" if names else " AND false"
                found += names
        return Range(after, upto, where, found)

    def _whole(self, connection: SQLConnection, serial: int, upto: int) -> int:
        """Return `serial`, or the end of the atomic append in which it is; `upto` if that is before it."""
        return upto if serial >= upto else min(upto, self._appends.end(connection, serial))

    def _fitting(self, connection: SQLConnection, asked: Range, limit: int, size: int) -> int:
        """Return how many of these facts to read, at most `limit`: one, or so many that their rows have at
        most `size` bytes.

        The first facts tell how many that may be.
        """
        measure = (
            f"SELECT count(*), sum(size) FROM (SELECT {self._syntax.text_bytes} AS size FROM facts"
            f" WHERE {asked.where} ORDER BY serial LIMIT ?) AS sizes"
        )
        count = min(limit, MEASURED_FIRST)
        while True:
            there, found = connection.execute(measure, (*asked.values, count)).fetchone()
            is_all = there < count or count == limit
            if there <= 1 or (is_all and found <= size):
                return limit
            count = limit = min(limit, max(1, there * size // found))
