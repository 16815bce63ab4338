"""Checksums of the log's rows: a row that is not what was written is refused wherever it is read.

Each row has a CRC-32 in its column `crc`, which finds every single bit that has flipped. That of a fact is of
its line of JSON; above it, in the same number, is a CRC-16 of its names, for reads that leave facts out by
them. So those of a page can be added up: a sum of 48 bits each does not overflow.
Rows of releases up to 26.11.1 have none: facts are then verified by the chain of digests, where the one
before them is there.
"""

from binascii import crc_hqx
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Final
from zlib import crc32

import msgspec

from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import LINE, Fact, encode_names

Row = tuple[Any, ...]

OF_LINE: Final = 0xFFFFFFFF
"""The bits of a fact's `crc` that are of its line. Those of its names are 32 bits higher."""

FACT_COLUMNS: Final = "serial, epoch, stream, writer, prev_token, token, rows, committed_at_ms, digest"

STORED_FACT: Final = f"{FACT_COLUMNS}, crc"
"""What is stored of a fact, as `row_of_fact` gives it."""

CHECKED_FACT: Final = f"""{FACT_COLUMNS}, crc, CASE WHEN crc IS NULL THEN coalesce(
    (SELECT digest FROM facts AS before WHERE before.serial = facts.serial - 1),
    (SELECT max(digest) FROM log_bounds AS bound WHERE bound.serial = facts.serial - 1 AND digest <> ''),
    CASE serial WHEN 1 THEN '{EMPTY}' END,
    (SELECT digest FROM log_bounds AS bound WHERE name = 'unchecked_upto' AND bound.serial >= facts.serial)
    ) END"""
"""What is read of a fact, for `fact_of`. Behind the checksum is what proves a fact that has none: the digest
before it, or "" if that is unknown; NULL if it must have a checksum.
"""

_WIDTH: Final = FACT_COLUMNS.count(",") + 1

SEALED_AT_ONCE: Final = 1_000

WRONG_TYPES: Final = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""What values of other types than those written lead to."""


class LogDamage(Exception):
    """A part of the log is not what was written; the text says which.

    `LogDatabase.map_errors` makes a `StorageError` of it.
    """


def crc_of(values: Iterable[object]) -> int:
    """Return the checksum of the values of a row."""
    return crc32(msgspec.json.encode(list(values)))


def names_crc(stream: str, writer: str) -> int:
    """Return the checksum of a fact's names."""
    return crc_hqx(f"{stream} {writer}".encode(), 0xFFFF)


def fact_crc(values: Row) -> int:
    """Return the checksum of a fact with these members."""
    # `encode_fact`, inlined: this runs for every fact that is read or written, and calls cost as much again.
    serial, epoch, stream, writer, prev_token, token, rows, at_ms, digest = values
    high, names = _names(stream, writer)
    line = LINE % (serial, epoch, names, prev_token, token, rows, at_ms, digest.encode())
    return high | crc32(line)


@lru_cache(maxsize=1024)
def _names(stream: str, writer: str) -> tuple[int, bytes]:
    return names_crc(stream, writer) << 32, encode_names(stream, writer)


def row_of_fact(fact: Fact) -> Row:
    """Convert a fact to a row of `STORED_FACT`."""
    values = msgspec.structs.astuple(fact)
    return (*values, fact_crc(values))


def fits(values: Row, crc: object, before: str | None = None) -> bool:
    """Whether a fact with these members fits its checksum. One without is proved by the digest `before` it,
    if that is known; by None it is not.
    """
    try:
        if crc is not None:
            return bool(crc == fact_crc(values))
        return before == "" or (before is not None and verify([Fact(*values)], before) is None)
    except WRONG_TYPES:
        return False


def fact_of(row: Row) -> Fact:
    """Convert a row of `CHECKED_FACT` to the fact. Raises `LogDamage`."""
    values = row[:_WIDTH]
    if not fits(values, row[_WIDTH], row[_WIDTH + 1]):
        raise LogDamage(f"serial {values[0]} is damaged")
    return Fact(*values)


def facts_of(rows: Iterable[Row]) -> Iterator[Fact]:
    """Convert rows of `CHECKED_FACT` to facts. Raises `LogDamage`."""
    return map(fact_of, rows)


def sum_of_lines(text: bytes) -> int:
    """Return the sum of the checksums of lines of JSON."""
    # What is behind the last line end is empty, and counts as 0.
    return sum(map(crc32, text.split(b"\n")))


_LINE_OF_TEXTS: Final = LINE.replace(b"%d", b"%b")


@lru_cache(maxsize=1024)
def _names_of_texts(stream: bytes, writer: bytes) -> bytes:
    return encode_names(stream.decode(), writer.decode())


def sum_of_fields(text: bytes) -> int:
    """Return the same of lines of their fields."""
    total = 0
    for line in text.split(b"\n")[:-1]:
        serial, epoch, stream, writer, prev_token, token, rows, at_ms, digest = line.split(b"\x1f")
        names = _names_of_texts(stream, writer)
        total += crc32(_LINE_OF_TEXTS % (serial, epoch, names, prev_token, token, rows, at_ms, digest))
    return total


class CheckedRows(msgspec.Struct, frozen=True):
    """A table beside the facts, whose rows are written and read here alone.

    The first columns, `keys` of them, are its primary key.
    """

    name: str
    columns: tuple[str, ...]
    keys: int

    @property
    def stored(self) -> str:
        """The columns, with the checksum behind them."""
        return _stored(self.columns)

    def rows(
        self, execute: Callable[..., Any], rest: str = "", values: Sequence[object] = ()
    ) -> Iterator[Row]:
        """Read rows, all or those that the `rest` of the statement says, without their checksums.

        Raises `LogDamage`.
        """
        return self.verified(execute(f"SELECT {self.stored} FROM {self.name} {rest}", values).fetchall())

    def verified(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Take the checksums from rows of the columns `stored`. Raises `LogDamage`."""
        for row in rows:
            if not self.fits(row):
                raise LogDamage(f"a row of {self.name} is damaged")
            yield row[:-1]

    @staticmethod
    def fits(row: Row) -> bool:
        """Whether a row of the columns `stored` fits its checksum."""
        try:
            return bool(row[-1] == crc_of(row[:-1]))
        except WRONG_TYPES:
            return False

    def checked(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Add the checksum to each row, for columns `stored`."""
        return ((*row, crc_of(row)) for row in rows)

    def put(self, connection: Any, rows: Iterable[Row], *, where: str = "") -> None:
        """Store rows, in place of those with the same keys, within a transaction."""
        connection.executemany(_upsert(self, where), list(self.checked(rows)))

    def insert(self, connection: Any, rows: Iterable[Row]) -> None:
        """Store new rows, within a transaction."""
        connection.insert(self.name, self.stored, self.checked(rows))

    def seal(self, execute: Callable[..., Any]) -> None:
        """Add the checksums of rows that have none yet, within a transaction."""
        keys = self.columns[: self.keys]
        key, marks = ", ".join(keys), ", ".join("?" * self.keys)
        of_key = f" WHERE ({key}) = ({marks})" if keys else ""
        beyond, last = "", tuple[Any, ...]()
        while True:
            # There may be many receipts.
            found = execute(
                f"SELECT {', '.join(self.columns)} FROM {self.name}{beyond}"
                f"{f' ORDER BY {key}' if keys else ''} LIMIT {SEALED_AT_ONCE}",
                last,
            ).fetchall()
            for row in found:
                execute(f"UPDATE {self.name} SET crc = ?{of_key}", (crc_of(row), *row[: self.keys]))
            if len(found) < SEALED_AT_ONCE:
                return
            beyond, last = f" WHERE ({key}) > ({marks})", found[-1][: self.keys]


@cache
def _stored(columns: tuple[str, ...]) -> str:
    return f"{', '.join(columns)}, crc"


@cache
def _upsert(table: CheckedRows, where: str) -> str:
    updates = ", ".join(f"{name} = excluded.{name}" for name in (*table.columns[table.keys :], "crc"))
    return (
        f"INSERT INTO {table.name} ({table.stored}) VALUES ({', '.join('?' * (len(table.columns) + 1))})"
        f" ON CONFLICT ({', '.join(table.columns[: table.keys])}) DO UPDATE SET {updates}"
        f"{where and f' WHERE {where}'}"
    )
