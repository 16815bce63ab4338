"""Reads of facts: pages in order of serial, facts in order of token, and their size.

One rule for all pages: one ends after so many facts, or after so many serials, but never inside an atomic
append.

What is damaged is not served. Each fact that is read is verified (`checked_rows.py`), and that none is
missing: beyond the floor of the log serials have no gaps, in its trimmed part each serial in the index of
keys is there, and by token each fact follows the one before it of its writer (`token_gaps.py`). A read with a
filter leaves out facts by their names, which have a checksum of their own.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from synrepl.base.history import LogRange
from synrepl.storage.append_errors import InvalidValue
from synrepl.storage.checked_rows import (
    CHECKED_FACT,
    OF_LINE,
    WRONG_TYPES,
    LogDamage,
    facts_of,
    names_crc,
    sum_of_fields,
    sum_of_lines,
)
from synrepl.storage.continuity import DiscardedRanges
from synrepl.storage.schema import LogBounds, end_of_log, read_bounds
from synrepl.storage.sql import LogDatabase, SQLConnection, TextForm, placeholders
from synrepl.storage.token_gaps import KnownGaps, TokenRange, check_gaps, find_gaps
from synrepl.storage.whole_appends import WholeAppends
from synrepl.streams.atomic_appends import MAX_ATOMIC_FACTS
from synrepl.streams.facts import Fact, encode_facts, take_rows, take_tokens
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


class Page(msgspec.Struct, Generic[T]):
    """The content of a page: of so many facts, whose `serials` are added up, and the last one of them.

    `is_full`: it ends because it has as much as was asked for.
    """

    content: T
    facts: int
    serials: int
    last: int
    is_full: bool


Read = Callable[[SQLConnection, Range, int], Page[T]]
"""Reads the first facts of a range, at most so many."""


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
        self._gaps = KnownGaps()

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
                f"SELECT {CHECKED_FACT} FROM facts WHERE {asked.where} ORDER BY serial", asked.values
            ) as found:
                page, is_full = take_rows(facts_of(found), limit)
            serials = sum(fact.serial for fact in page)
            return Page(page, len(page), serials, page[-1].serial if page else 0, is_full)

        scanned = upto if filter.is_open else scanned
        with self._database.reader_connection("read") as connection:
            pages, last = self._pages(connection, after, upto, filter, scanned, read, lambda _: limit)
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
        sum_of = sum_of_lines if form == "json" else sum_of_fields

        def read(connection: SQLConnection, asked: Range, limit: int) -> Page[bytes]:
            count, serials, last, total, found = connection.execute(
                f"SELECT count(*), sum(serial), max(serial), sum(crc), {syntax.joined}"
                f" FROM (SELECT serial, crc, {syntax.lines[form]} AS line FROM facts WHERE {asked.where}"
                " ORDER BY serial LIMIT ?) AS lines",
                (*asked.values, limit),
            ).fetchone()
            if not count:
                return Page(b"", 0, 0, 0, limit == 0)
            text = bytes(found)
            try:
                is_right = total is not None and int(total) & OF_LINE == sum_of(text) & OF_LINE
            except WRONG_TYPES:
                is_right = False
            if not is_right:
                # One by one: some have no checksum, or one of them is damaged and is named.
                facts = self._verified(connection, asked, limit)
                if sum_of(text) != sum_of_lines(encode_facts(facts)):
                    raise LogDamage(f"one of the serials {asked.after + 1} to {last} is damaged")
            return Page(text, count, int(serials), last, count >= limit)

        with self._database.reader_connection("read") as connection:
            texts, last = self._pages(
                connection,
                after,
                upto,
                filter,
                scanned,
                read,
                lambda asked: self._fitting(connection, asked, min(limit, TEXT_SERIALS), size),
            )
        return b"".join(texts), last

    def extent(self, *, after: int, upto: int, limit: int, filter: Filter = ALL) -> LogRange:
        """Measure the first `limit` facts that pass the filter, in at most `SCANNED_AT_ONCE` serials.

        The last atomic append is measured whole.
        """

        def read(connection: SQLConnection, asked: Range, limit: int) -> Page[LogRange]:
            tokens: dict[tuple[str, str], int] = {}
            facts = size = serials = last = at_ms = 0
            with connection.stream(
                f"SELECT {CHECKED_FACT} FROM facts WHERE {asked.where} ORDER BY serial LIMIT ?",
                (*asked.values, limit),
            ) as rows:
                for fact in facts_of(rows):
                    last, one, token = fact.serial, (fact.stream, fact.writer), fact.token
                    if token > tokens.get(one, -math.inf):
                        tokens[one] = token
                    facts += 1
                    size += len(fact.rows)
                    serials += last
                    at_ms = max(at_ms, fact.committed_at_ms)
            highest = {Writer(*one): token for one, token in tokens.items()}
            found = LogRange(serial=last, facts=facts, bytes=size, tokens=highest, at_ms=at_ms)
            return Page(found, facts, serials, last, facts >= limit)

        with self._database.reader_connection("read") as connection:
            pages, last = self._pages(connection, after, upto, filter, None, read, lambda _: limit)
        tokens: dict[Writer, int] = {}
        for page in pages:
            for one, token in page.tokens.items():
                tokens[one] = max(token, tokens.get(one, token))
        return LogRange(
            serial=last,
            facts=sum(page.facts for page in pages),
            bytes=sum(page.bytes for page in pages),
            tokens=tokens,
            at_ms=max(page.at_ms for page in pages),
        )

    def tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> tuple[list[Fact], bool]:
        """Facts of one stream with ``after < token <= upto`` and serials up to `serial`.

        In order of (token, serial), without discarded facts; of one writer, or of all if `writer` is None.
        Stops after `limit` rows, estimated as in `facts`, but never between facts that share a token. Returns
        the facts and whether there are more.
        """
        asked = TokenRange(stream, writer, after, upto, serial)
        where, values = asked.condition("stream", self._discarded)
        with self._database.reader_connection("read", stream) as connection:
            with connection.stream(
                f"SELECT {CHECKED_FACT} FROM facts WHERE {where} ORDER BY token, serial", values
            ) as found:
                facts, is_more = take_tokens(facts_of(found), limit)
            floor, column = read_bounds(connection).floor.serial, self._syntax.unindexed_stream
            gaps = find_gaps(connection, asked, facts, floor, column, is_whole=not is_more)
            if gaps := self._gaps.unknown(stream, gaps):
                check_gaps(connection, asked, gaps, floor, self._discarded, column)
                self._gaps.add(stream, gaps)
        return facts, is_more

    def size(self, after: int) -> int:
        """The approximate size in bytes of the facts beyond this serial.

        Estimated from runs of facts spread evenly over the serials; a short range is measured as a whole. In
        the writing thread: no commit and no trim comes between the statements.
        """
        with self._database.writer_connection("size") as connection:
            after = max(0, after)
            span = end_of_log(connection, read_bounds(connection)).serial - after
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

    def _pages(
        self,
        connection: SQLConnection,
        after: int,
        upto: int,
        filter: Filter,
        scanned: int | None,
        read: Read[T],
        limit: Callable[[Range], int],
    ) -> tuple[list[T], int]:
        """Read the first facts, as many as `limit` says, and the rest of the atomic append in which they end.

        Returns both, and the last serial examined. Raises `LogDamage` if a fact is missing.
        """
        while True:
            bounds = read_bounds(connection)
            asked = self._range(connection, bounds, after, upto, filter, scanned=scanned)
            pages, last = self._read_whole(connection, asked, limit(asked), read)
            missing = self._missing(connection, bounds, asked, last, filter, pages)
            if not missing:
                return [page.content for page in pages], last
            if read_bounds(connection) == bounds:
                raise LogDamage(missing)
            # Facts were trimmed meanwhile.

    def _read_whole(
        self, connection: SQLConnection, asked: Range, limit: int, read: Read[T]
    ) -> tuple[list[Page[T]], int]:
        page = read(connection, asked, limit)
        if not page.is_full:
            return [page], max(asked.after, asked.upto)
        end = self._whole(connection, page.last, asked.upto)
        if end == page.last:
            return [page], page.last
        rest = msgspec.structs.replace(asked, after=page.last, upto=end)
        return [page, read(connection, rest, MAX_ATOMIC_FACTS)], end

    def _range(
        self,
        connection: SQLConnection,
        bounds: LogBounds,
        after: int,
        upto: int,
        filter: Filter,
        *,
        scanned: int | None,
    ) -> Range:
        """Return which facts to read: of `scanned` serials (None: `SCANNED_AT_ONCE`), and of the rest of an
        atomic append.
        """
        committed, _ = self._database.ownership.committed
        last = connection.execute("SELECT max(serial) FROM facts").fetchone()[0]
        end = max(last or 0, bounds.floor.serial)
        if end < committed:
            raise LogDamage(f"the facts from serial {end + 1} to {committed} are missing")
        upto = min(upto, end)
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

    def _missing(
        self,
        connection: SQLConnection,
        bounds: LogBounds,
        asked: Range,
        last: int,
        filter: Filter,
        pages: Iterable[Page[T]],
    ) -> str:
        """Say which facts up to the serial `last` are missing in the log; "" if none is.

        Raises `LogDamage` if one that the filter left out is damaged.
        """
        after, floor = max(0, asked.after), bounds.floor.serial
        if not filter.is_open:
            self._check_left_out(connection, after, last)
        count, serials = sum(page.facts for page in pages), sum(page.serials for page in pages)
        if after < (indexed := min(last, bounds.indexed_upto)):
            # Each serial in the index is the newest with one of its keys.
            keyed = "FROM newest_by_key AS newest WHERE serial > ? AND serial <= ?"
            there = connection.execute(
                f"SELECT count(*), coalesce(sum(serial), 0) FROM (SELECT DISTINCT serial {keyed}) AS found",
                (after, indexed),
            ).fetchone()
            if not filter.is_open or indexed < last or there != (count, serials):
                (missing,) = connection.execute(
                    f"SELECT min(serial) {keyed}"
                    " AND NOT EXISTS (SELECT 1 FROM facts WHERE facts.serial = newest.serial)",
                    (after, indexed),
                ).fetchone()
                if missing is not None:
                    return f"serial {missing} is missing"
        first = max(after, floor)
        if last <= first:
            return ""
        if not filter.is_open or after < floor:
            count, serials = connection.execute(
                "SELECT count(*), coalesce(sum(serial), 0) FROM facts WHERE serial > ? AND serial <= ?",
                (first, last),
            ).fetchone()
        if (count, serials) == (last - first, (last - first) * (first + 1 + last) // 2):
            return ""
        return f"a fact from serial {first + 1} to {last} is missing"

    def _check_left_out(self, connection: SQLConnection, after: int, last: int) -> None:
        """Raise `LogDamage` if a fact of these serials has other names than were written."""
        groups = connection.execute(
            f"SELECT {self._syntax.unindexed_stream}, writer, min(crc >> 32), max(crc >> 32),"
            " count(*) - count(crc) FROM facts WHERE serial > ? AND serial <= ? GROUP BY 1, 2",
            (after, last),
        ).fetchall()
        for stream, writer, low, high, unchecked in groups:
            try:
                is_right = not unchecked and low == high == names_crc(stream, writer)
            except WRONG_TYPES:
                is_right = False
            if not is_right:
                # They have no checksum, or one of them is damaged and is named.
                self._verified(connection, Range(after, last, "serial > ? AND serial <= ?"), last)
                return

    def _verified(self, connection: SQLConnection, asked: Range, limit: int) -> list[Fact]:
        with connection.stream(
            f"SELECT {CHECKED_FACT} FROM facts WHERE {asked.where} ORDER BY serial LIMIT ?",
            (*asked.values, limit),
        ) as found:
            return list(facts_of(found))

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
