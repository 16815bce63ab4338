"""Checksums of the log's rows: a row that is not what was written is refused wherever it is read.

Each row has a CRC-32 in its column `crc`, which finds every single bit that has flipped. That of a fact is of
its line of JSON; above it, in the same number, is one of its names, for reads that leave facts out by them.
Rows of releases up to 26.11.1 have none: facts are then verified by the chain of digests, where the one
before them is there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import msgspec

from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact, encode_values

Row = tuple[Any, ...]

LINE: Final = 0xFFFFFFFF
"""The bits of a fact's `crc` that are of its line. Those of its names are 32 bits higher."""

NAMES: Final = 0x7FFFFFFF
"""A column has a sign."""

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

WRONG_TYPES: Final = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""What values of other types than those written lead to."""


class Damage(Exception):
    """A part of the log is not what was written; the text says which.

    `LogDatabase.map_errors` makes a `StorageError` of it.
    """


def crc_of(values: Iterable[object]) -> int:
    """Return the checksum of the values of a row."""
    return crc32(msgspec.json.encode(list(values)))


@lru_cache(maxsize=1024)
def names_crc(stream: str, writer: str) -> int:
    """Return the checksum of a fact's names."""
    return crc32(f"{stream} {writer}".encode()) & NAMES


def fact_crc(values: Row) -> int:
    """Return the checksum of a fact with these members."""
    return names_crc(*values[2:4]) << 32 | crc32(encode_values(*values))


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
    """Convert a row of `CHECKED_FACT` to the fact. Raises `Damage`."""
    values = row[:_WIDTH]
    if not fits(values, row[_WIDTH], row[_WIDTH + 1]):
        raise Damage(f"serial {values[0]} is damaged")
    return Fact(*values)


def facts_of(rows: Iterable[Row]) -> Iterator[Fact]:
    """Convert rows of `CHECKED_FACT` to facts. Raises `Damage`."""
    return map(fact_of, rows)


def sum_of_lines(text: bytes) -> int:
    """Return the sum of the checksums of lines of JSON."""
    # What is behind the last line end is empty, and counts as 0.
    return sum(map(crc32, text.split(b"\n")))


_LINE_OF_FIELDS: Final = (
    b'{"serial":%b,"epoch":%b,"stream":%b,"writer":%b,"prev_token":%b,"token":%b,"rows":%b,'
    b'"committed_at_ms":%b,"digest":"%b"}'
)


@lru_cache(maxsize=1024)
def _quoted(name: bytes) -> bytes:
    return msgspec.json.encode(name.decode())


def sum_of_fields(text: bytes) -> int:
    """Return the same of lines of their fields."""
    total = 0
    for line in text.split(b"\n")[:-1]:
        serial, epoch, stream, writer, *rest = line.split(b"\x1f")
        fields = (serial, epoch, _quoted(stream), _quoted(writer), *rest)
        total += crc32(_LINE_OF_FIELDS % fields)
    return total


class CheckedTable(msgspec.Struct, frozen=True):
    """A table beside the facts, whose rows are written and read here alone.

    The first columns, `keys` of them, are its primary key.
    """

    name: str
    columns: tuple[str, ...]
    keys: int

    @property
    def stored(self) -> str:
        """The columns, with the checksum behind them."""
        return f"{', '.join(self.columns)}, crc"

    def rows(
        self, execute: Callable[..., Any], rest: str = "", values: Sequence[object] = ()
    ) -> Iterator[Row]:
        """Read rows, all or those that the `rest` of the statement says, without their checksums.

        Raises `Damage`.
        """
        for row in execute(f"SELECT {self.stored} FROM {self.name} {rest}", values).fetchall():
            if not self.fits(row):
                raise Damage(f"a row of {self.name} is damaged")
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

    def upsert(self, *, where: str = "") -> str:
        """Return the statement that stores a row of `checked`, in place of one with the same key."""
        updates = ", ".join(f"{name} = excluded.{name}" for name in (*self.columns[self.keys :], "crc"))
        return (
            f"INSERT INTO {self.name} ({self.stored}) VALUES ({', '.join('?' * (len(self.columns) + 1))})"
            f" ON CONFLICT ({', '.join(self.columns[: self.keys])}) DO UPDATE SET {updates}"
            f"{where and f' WHERE {where}'}"
        )

    def put(self, connection: Any, rows: Iterable[Row], *, where: str = "") -> None:
        """Store rows, in place of those with the same keys, within a transaction."""
        connection.executemany(self.upsert(where=where), list(self.checked(rows)))

    def insert(self, connection: Any, rows: Iterable[Row]) -> None:
        """Store new rows, within a transaction."""
        connection.insert(self.name, self.stored, self.checked(rows))

    def seal(self, execute: Callable[..., Any]) -> None:
        """Add the checksums of rows that have none yet, within a transaction."""
        of_key = " AND ".join(f"{name} = ?" for name in self.columns[: self.keys])
        found = execute(f"SELECT {', '.join(self.columns)} FROM {self.name}").fetchall()
        for row in found:
            values = (crc_of(row), *row[: self.keys])
            execute(f"UPDATE {self.name} SET crc = ?{of_key and f' WHERE {of_key}'}", values)
