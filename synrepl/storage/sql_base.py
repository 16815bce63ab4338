"""What the parts of an SQL engine stand on: two connections, transactions and statements.

Statements are written once, as SQLite takes them. What a database does in a way of its own is abstract here.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.interfaces import Head
from synrepl.storage.append_errors import LogLost
from synrepl.storage.discarded import DiscardedRanges
from synrepl.storage.writer_positions import WriterPositions, load_places
from synrepl.streams.facts import Fact

__all__ = ["COLUMNS", "DAMAGED", "Row", "SQLBase", "facts_of", "in_runs", "marks", "row_of"]

COLUMNS: Final = "serial, epoch, stream, writer, prev_token, token, rows, committed_at_ms, digest"

DAMAGED: Final = "the {database} is damaged; restore it, or join again as a replica"

AT_ONCE: Final = 128
"""Values that one statement has in a list."""

Row = tuple[Any, ...]
V = TypeVar("V")


class SQLBase(ABC):
    """Two connections to one database: one for the thread that writes, one for the thread that reads.

    `name` says, without secrets, which database it is.
    """

    KIND = "database"
    """What a person calls it."""

    UNINDEXED_STREAM = "stream"
    """The column `stream`, written so that its index is not used: each page would sort all that follows."""

    ROWS_BYTES = "length(rows)"
    """How long the column `rows` is, asked without reading it."""

    FACT_BYTES = 120
    """What a fact takes, as measured, beside its rows and names: its digest, numbers, entries in indexes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_open = False
        # What this process knows, for when a connection is lost: which start it is, what is surely kept.
        self._boots: int | None = None
        # Where this process left the log (no digest: not known), and where it tried to bring it.
        self._kept = (0, "")
        self._tried: tuple[int, str] | None = None
        # Why this log is not ours any more.
        self._lost: StorageError | None = None
        self._voids = DiscardedRanges()
        # None while nobody knows: a transaction that changes them may have been kept, or not.
        self._places: WriterPositions | None = None

    # What a database does in its own way

    @abstractmethod
    def _acquire(self) -> None:
        """Take the lock and connect; `StorageError` that says who has it, if another process does."""

    @abstractmethod
    def _release(self) -> None:
        """End the connections and give the lock back. Harmless when repeated."""

    @abstractmethod
    def _migrate(self, database: Any) -> None:
        """Make or migrate the tables, within a transaction."""

    @abstractmethod
    def _writing(self, op: str) -> Any:
        """The connection that writes, which holds the lock."""

    @abstractmethod
    def _reading(self, op: str) -> Any:
        """The connection that reads."""

    @abstractmethod
    def _map_errors(self, op: str, stream: str = "") -> AbstractContextManager[None]:
        """Say `StorageError`, with a hint, where the database says something of its own."""

    @abstractmethod
    def _transaction(self, database: Any) -> AbstractContextManager[None]:
        """All of what is done inside, or nothing; synced at its end."""

    @abstractmethod
    def _execute(self, database: Any, statement: str, values: Sequence[object] = ()) -> Any:
        """A cursor over what it gives."""

    @abstractmethod
    def _insert(self, database: Any, table: str, columns: str, rows: Iterable[Row]) -> None:
        """Add these rows, all of them new."""

    @abstractmethod
    def _execute_many(self, database: Any, statement: str, rows: Sequence[Row]) -> None:
        """The same for each of these."""

    @abstractmethod
    def _streamed(
        self, database: Any, statement: str, values: Sequence[object]
    ) -> AbstractContextManager[Iterable[Row]]:
        """The rows of a long answer as they come; whoever leaves early leaves the rest in the database."""

    # What all parts use

    @abstractmethod
    def head(self) -> Head:
        """Where the log stands now."""

    def _writer(self, op: str) -> Any:
        self._check_open(op)
        if self._lost is not None:
            raise self._lost
        return self._writing(op)

    def _lose(self, op: str, why: str, hint: str) -> LogLost:
        """Write nothing any more; gives the reason, to be raised."""
        # Asking again helps once the daemon was restarted. Nobody need find out what became of an attempt: if
        # it was kept, it is in a log that is not ours.
        lost = LogLost(op=op, why=f"{self.name}: {why}", hint=hint, retryable=True, tried=False)
        self._lost = lost
        return lost

    def _check_alone(self, op: str, serial: int, digest: str) -> None:
        """Refuse, for good, to go on in a log that somebody else has written to."""
        found, (kept, known) = (serial, digest), self._kept
        if known and self._boots is not None and found not in (self._kept, self._tried):
            raise self._lose(
                op,
                f"another process writes to this log: it is at serial {serial},"
                f" this process left it at {kept}",
                "find out which other program uses the database and stop it, then restart this daemon",
            )
        self._kept, self._tried = found, None

    def _reader(self, op: str = "read") -> Any:
        self._check_open(op)
        return self._reading(op)

    def _check_open(self, op: str) -> None:
        if not self._is_open:
            raise StorageError(op=op, why="the log is not open")

    def _known_places(self, database: Any) -> WriterPositions:
        if self._places is None:
            self._places = load_places(
                self._execute(database, "SELECT name, epoch, serial, digest FROM places")
            )
        return self._places

    def _store_places(self, database: Any, places: WriterPositions) -> None:
        """Within a transaction. Whoever calls it says, when that has ended, what holds now."""
        self._places = None
        self._execute_many(
            database,
            "INSERT INTO places (name, epoch, serial, digest) VALUES (?, ?, ?, ?) ON CONFLICT (name)"
            " DO UPDATE SET epoch = excluded.epoch, serial = excluded.serial, digest = excluded.digest",
            places.rows(),
        )

    def _last(self, database: Any, places: WriterPositions | None = None) -> tuple[int, str, int]:
        """Serial, digest and epoch of where the log stands."""
        found = self._execute(
            database, "SELECT serial, digest, epoch FROM facts ORDER BY serial DESC LIMIT 1"
        ).fetchone()
        floor = (places or self._known_places(database)).floor
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
    """Rows of `COLUMNS` as facts."""
    return (Fact(*row) for row in rows)


def row_of(fact: Fact) -> Row:
    """A fact as a row of `COLUMNS`."""
    return msgspec.structs.astuple(fact)


def in_runs(values: Collection[V]) -> Iterator[list[V]]:
    """These values, some at a time. Their number is a power of two, the last one repeated where need be: so
    that there are few statements, however many values there are.
    """
    every = list(values)
    for first in range(0, len(every), AT_ONCE):
        run = every[first : first + AT_ONCE]
        size = 1 << (len(run) - 1).bit_length()
        yield run + run[-1:] * (size - len(run))


def marks(values: Collection[object]) -> str:
    """As many question marks, for a list in a statement."""
    return ", ".join("?" * len(values))
