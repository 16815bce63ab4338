"""The base of the parts of an SQL engine: two connections, transactions, statements, bounds of the log.

Statements are written once, in SQLite's dialect. What differs between databases is abstract.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.history import BEGINNING, LogPosition
from synrepl.ports.interfaces import Head
from synrepl.storage.append_errors import LogLost
from synrepl.storage.discarded import DiscardedRanges
from synrepl.streams.facts import Fact

__all__ = [
    "COLUMNS",
    "DAMAGED",
    "LogBounds",
    "Row",
    "SQLBase",
    "facts_of",
    "in_batches",
    "load_bounds",
    "placeholders",
    "row_of",
]


class LogBounds(msgspec.Struct, frozen=True):
    """The bounds of a log: stored positions that cannot be derived from its facts.

    `trimmed_upto` is the end of the trimmed part, `filled` the end of the part with gaps. Facts up to serial
    `indexed` are in the index of keys or deleted; trimming continues there. That is before `trimmed_upto`
    while a base copied from another log is being indexed.
    """

    trimmed_upto: LogPosition = BEGINNING
    filled: LogPosition = BEGINNING
    indexed: int = 0

    @property
    def floor(self) -> LogPosition:
        """The later of the two positions: beyond it no fact is missing."""
        return self.trimmed_upto if self.trimmed_upto.serial > self.filled.serial else self.filled

    def rows(self) -> list[tuple[str, int, int, str]]:
        """The rows of the table `places`: name, epoch, serial and digest of each."""
        return [
            ("begin", self.trimmed_upto.epoch, self.trimmed_upto.serial, self.trimmed_upto.digest),
            ("filled", self.filled.epoch, self.filled.serial, self.filled.digest),
            ("indexed", 0, self.indexed, ""),
        ]


def load_bounds(rows: Iterable[tuple[str, int, int, str]]) -> LogBounds:
    """Read the rows that `LogBounds.rows` gave."""
    by_name = {name: LogPosition(epoch, serial, digest) for name, epoch, serial, digest in rows}
    return LogBounds(
        trimmed_upto=by_name.get("begin", BEGINNING),
        filled=by_name.get("filled", BEGINNING),
        indexed=by_name["indexed"].serial if "indexed" in by_name else 0,
    )


COLUMNS: Final = "serial, epoch, stream, writer, prev_token, token, rows, committed_at_ms, digest"

DAMAGED: Final = "the {database} is damaged; restore it, or join again as a replica"

AT_ONCE: Final = 128
"""The number of values in one list of a statement."""

Row = tuple[Any, ...]
V = TypeVar("V")


class SQLBase(ABC):
    """Two connections to one database: one for the writing thread, one for the reading thread.

    `name` identifies the database, without secrets.
    """

    KIND = "database"
    """The kind of database, for messages."""

    UNINDEXED_STREAM = "stream"
    """The column `stream` in a form that avoids its index: with it each page would sort all that follows."""

    ROWS_BYTES = "length(rows)"
    """The length of the column `rows`, computed without reading it."""

    FACT_BYTES = 120
    """The measured size of a fact besides its rows and names: digest, numbers, index entries; in bytes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_open = False
        # For reconnects: the number of this boot.
        self._boots: int | None = None
        # Where this process left the log (no digest: unknown), and the end of its last attempted commit.
        self._committed = (0, "")
        self._attempted: tuple[int, str] | None = None
        # Why this log no longer belongs to this process.
        self._lost: StorageError | None = None
        self._discarded = DiscardedRanges()
        # None while unknown: the outcome of a transaction that changed them is uncertain.
        self._bounds: LogBounds | None = None

    # Provided by each database

    @abstractmethod
    def _acquire(self) -> None:
        """Take the lock and connect. Raises `StorageError` naming the holder if another process has it."""

    @abstractmethod
    def _release(self) -> None:
        """Close the connections and release the lock. Idempotent."""

    @abstractmethod
    def _migrate(self, database: Any) -> None:
        """Create or migrate the tables, within a transaction."""

    @abstractmethod
    def _write_connection(self, op: str) -> Any:
        """The connection for writing, which holds the lock."""

    @abstractmethod
    def _read_connection(self, op: str) -> Any:
        """The connection for reading."""

    @abstractmethod
    def _map_errors(self, op: str, stream: str = "") -> AbstractContextManager[None]:
        """Raise the database's own errors as `StorageError`, with a hint."""

    @abstractmethod
    def _transaction(self, database: Any) -> AbstractContextManager[None]:
        """A transaction around the block: commit and sync at its end, roll back on an exception."""

    @abstractmethod
    def _execute(self, database: Any, statement: str, values: Sequence[object] = ()) -> Any:
        """Execute a statement; gives a cursor over its result."""

    @abstractmethod
    def _insert(self, database: Any, table: str, columns: str, rows: Iterable[Row]) -> None:
        """Insert these rows, all of them new."""

    @abstractmethod
    def _execute_many(self, database: Any, statement: str, rows: Sequence[Row]) -> None:
        """Execute a statement once for each row."""

    @abstractmethod
    def _stream_rows(
        self, database: Any, statement: str, values: Sequence[object]
    ) -> AbstractContextManager[Iterable[Row]]:
        """Stream the rows of a long result; rows that are not consumed stay in the database."""

    # Shared by all parts

    @abstractmethod
    def head(self) -> Head:
        """The end of the log now."""

    def _writer(self, op: str) -> Any:
        self._check_open(op)
        if self._lost is not None:
            raise self._lost
        return self._write_connection(op)

    def _set_lost(self, op: str, why: str, hint: str) -> LogLost:
        """Refuse all further writes. Returns the error to raise."""
        # Retryable, since a restart of the daemon helps. Not `tried`: an uncertain commit no longer matters
        # in a log that belongs to another process.
        lost = LogLost(op=op, why=f"{self.name}: {why}", hint=hint, retryable=True, tried=False)
        self._lost = lost
        return lost

    def _check_sole_writer(self, op: str, serial: int, digest: str) -> None:
        """Refuse all further writes if another process has written to the log."""
        found, (known_serial, known_digest) = (serial, digest), self._committed
        if known_digest and self._boots is not None and found not in (self._committed, self._attempted):
            raise self._set_lost(
                op,
                f"another process writes to this log: it is at serial {serial},"
                f" this process wrote up to {known_serial}",
                "find out which other program uses the database and stop it, then restart this daemon",
            )
        self._committed, self._attempted = found, None

    def _reader(self, op: str = "read") -> Any:
        self._check_open(op)
        return self._read_connection(op)

    def _check_open(self, op: str) -> None:
        if not self._is_open:
            raise StorageError(op=op, why="the log is not open")

    def _current_bounds(self, database: Any) -> LogBounds:
        if self._bounds is None:
            self._bounds = load_bounds(
                self._execute(database, "SELECT name, epoch, serial, digest FROM places")
            )
        return self._bounds

    def _store_bounds(self, database: Any, bounds: LogBounds) -> None:
        """Store the bounds, within a transaction. The caller sets `_bounds` once it has committed."""
        self._bounds = None
        self._execute_many(
            database,
            "INSERT INTO places (name, epoch, serial, digest) VALUES (?, ?, ?, ?) ON CONFLICT (name)"
            " DO UPDATE SET epoch = excluded.epoch, serial = excluded.serial, digest = excluded.digest",
            bounds.rows(),
        )

    def _last(self, database: Any, bounds: LogBounds | None = None) -> tuple[int, str, int]:
        """The serial, digest and epoch of the end of the log."""
        found = self._execute(
            database, "SELECT serial, digest, epoch FROM facts ORDER BY serial DESC LIMIT 1"
        ).fetchone()
        floor = (bounds or self._current_bounds(database)).floor
        if found is not None and found[0] >= floor.serial:
            last: tuple[int, str, int] = found
            return last
        return (floor.serial, floor.digest, floor.epoch)

    def _positions(self, database: Any) -> dict[tuple[str, str], int]:
        return {
            (stream, writer): token
            for stream, writer, token in self._execute(
                database, "SELECT stream, writer, token FROM positions"
            )
        }


def facts_of(rows: Iterable[Row]) -> Iterator[Fact]:
    """Convert rows of `COLUMNS` to facts."""
    return (Fact(*row) for row in rows)


def row_of(fact: Fact) -> Row:
    """Convert a fact to a row of `COLUMNS`."""
    return msgspec.structs.astuple(fact)


def in_batches(values: Collection[V]) -> Iterator[list[V]]:
    """Split values into batches whose sizes are powers of two; the last value is repeated to fill up.

    So few distinct statements are prepared, whatever the number of values.
    """
    every = list(values)
    for first in range(0, len(every), AT_ONCE):
        run = every[first : first + AT_ONCE]
        size = 1 << (len(run) - 1).bit_length()
        yield run + run[-1:] * (size - len(run))


def placeholders(values: Collection[object]) -> str:
    """The question marks for a list of these values in a statement."""
    return ", ".join("?" * len(values))
