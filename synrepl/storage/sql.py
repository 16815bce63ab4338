"""SQL for two databases: statements are written in SQLite's syntax and adapted to PostgreSQL.

A `LogDatabase` has all that differs between the databases of a log.
"""

# ruff: noqa: B027  # a database without such a need keeps the empty method

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, ClassVar, Final, Literal, Protocol

import msgspec

from synrepl.errors import StorageError
from synrepl.storage.append_errors import LogNotOurs
from synrepl.storage.checked_rows import LogDamage

Flavor = Literal["sqlite", "postgresql"]

TextForm = Literal["json", "fields"]
"""The form of facts as text: lines of JSON, as `encode_fact` writes them, or lines of their fields in order,
separated by character 31. Names are words and rows are canonical, so that neither contains the separator or a
line end.
"""

Row = tuple[Any, ...]

DAMAGED: Final = (
    "the {database} is damaged; restore it, or join again as a replica; synrepl doctor tells where"
)


@cache
def for_postgres(statement: str) -> str:
    """Replace the question marks of a statement by psycopg's placeholders.

    No statement for PostgreSQL has a question mark inside a literal.
    """
    return statement.replace("%", "%%").replace("?", "%s")


def execute(cursor: Any, flavor: Flavor, statement: str, values: Sequence[object] = ()) -> None:
    """Execute a statement with the cursor of a database of this flavor."""
    cursor.execute(for_postgres(statement) if flavor == "postgresql" else statement, values)


class SQLConnection(Protocol):
    """One connection to a log's database. Outside of `transaction` each statement is committed at once."""

    def execute(self, statement: str, values: Sequence[object] = ..., /) -> Any:
        """Execute a statement; gives a cursor over its result."""

    def executemany(self, statement: str, rows: Sequence[Row], /) -> Any:
        """Execute a statement once for each row."""

    def insert(self, table: str, columns: str, rows: Iterable[Row]) -> None:
        """Insert these rows, all of them new."""

    def stream(self, statement: str, values: Sequence[object]) -> AbstractContextManager[Iterable[Row]]:
        """Stream the rows of a long result; rows that are not consumed stay in the database."""

    def transaction(self) -> AbstractContextManager[object]:
        """A transaction around the block: commit at its end, roll back on an exception. A commit is synced,
        except in a staged copy.
        """

    def close(self) -> None: ...


class SQLSyntax(msgspec.Struct, frozen=True, kw_only=True):
    """The SQL that differs between databases."""

    flavor: Flavor
    kind: str
    """The kind of database, for messages."""
    unindexed_stream: str
    """The column `stream` without its index: through the index each page would sort all later facts."""
    rows_bytes: str
    """The stored size of the column `rows`, computed without reading it."""
    fact_bytes: int
    """The measured size of a fact besides its rows and names: digest, numbers, index entries; in bytes."""
    lines: dict[TextForm, str]
    """A fact as a line of text, with its end. The database builds it in C, while other threads run."""
    text_bytes: str
    """The number of bytes in the text of the rows, computed without reading it."""
    joined: str
    """Joins the ordered lines to one text."""


class Ownership:
    """Whether a log still belongs to this process: what this process knows about the log since it opened it.

    `name` identifies the database in errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.begin()

    def begin(self) -> None:
        """Forget the previous use: the log is about to be opened."""
        self.boots: int | None = None
        """The number of this boot; None while the log is not open."""
        self.committed = (0, "")
        """Where this process left the log: serial and digest. No digest: unknown."""
        self.attempted: tuple[int, str] | None = None
        """The end of a commit whose outcome is not known; None if there is none."""
        self.not_ours: StorageError | None = None
        """Why the log no longer belongs to this process; None if it does."""

    def disown(self, op: str, why: str, hint: str) -> LogNotOurs:
        """Refuse all further writes. Returns the error to raise."""
        # Retryable, since a restart of the daemon helps. Not `tried`: an uncertain commit no longer matters
        # in a log that belongs to another process.
        error = LogNotOurs(op=op, why=f"{self._name}: {why}", hint=hint, retryable=True, tried=False)
        self.not_ours = error
        return error

    def is_end(self, serial: int, digest: str) -> bool:
        """Whether this process may have left the log at this serial and digest, as far as it knows."""
        is_known = bool(self.committed[1]) and self.boots is not None
        return not is_known or (serial, digest) in (self.committed, self.attempted)

    def check_sole_writer(self, op: str, serial: int, digest: str) -> None:
        """Raise `LogNotOurs`, and refuse further writes, if the log does not end where this process left it.

        `serial` and `digest` are the end as just read.
        """
        known_serial, known_digest = self.committed
        if not self.is_end(serial, digest):
            raise self.disown(
                op,
                f"another process writes to this log: it ends at serial {serial} (digest {digest:.8}),"
                f" this process left it at {known_serial} ({known_digest:.8})",
                "find out which other program uses the database and stop it, then restart this daemon",
            )
        self.committed, self.attempted = (serial, digest), None


class LogDatabase(ABC):
    """The database of one log: lock, two connections, errors, and the replacement of the log by a staged one.

    One connection is for the writing thread, one for the reading thread. `name` identifies the database,
    without secrets. Nothing is opened before `acquire`. `reader_connection`, `writer_connection` and
    `transaction` raise `StorageError` unless the log `is_open`.
    """

    syntax: ClassVar[SQLSyntax]

    def __init__(self, name: str) -> None:
        self.name = name
        self.ownership = Ownership(name)
        self.is_open = False
        self.is_put_back = False
        """Whether an operator says that this log was put here by other means: then it may be a copy of an
        open one, or older than what is recorded outside of it. False again once it has begun an epoch: closed
        before that, it is still such a copy."""

    # Connections

    @contextmanager
    def reader_connection(self, op: str, stream: str = "") -> Iterator[SQLConnection]:
        """The connection of the reading thread, whatever is done with it."""
        with self.map_errors(op, stream):
            self.check_open(op)
            yield self.reader(op)

    @contextmanager
    def writer_connection(self, op: str, stream: str = "") -> Iterator[SQLConnection]:
        """The connection of the writing thread, which also reads by it, unless the log is not ours."""
        with self.map_errors(op, stream):
            self.check_open(op)
            if self.ownership.not_ours is not None:
                raise self.ownership.not_ours
            yield self.writer(op)

    @contextmanager
    def transaction(self, op: str, stream: str = "") -> Iterator[SQLConnection]:
        """The connection of the writing thread, in a transaction."""
        with self.writer_connection(op, stream) as connection, connection.transaction():
            yield connection

    def check_open(self, op: str) -> None:
        """Raise `StorageError` unless the log is open."""
        if not self.is_open:
            raise StorageError(op=op, why="the log is not open")

    @abstractmethod
    def acquire(self) -> None:
        """Take the lock. Raises `StorageError` naming the holder, if known, when another process has it."""

    @abstractmethod
    def release(self) -> None:
        """Close the connections and release the lock. Idempotent."""

    @abstractmethod
    def writer(self, op: str) -> SQLConnection:
        """The connection for writing; made if there is none."""

    @abstractmethod
    def reader(self, op: str) -> SQLConnection:
        """The connection for reading; made if there is none."""

    @contextmanager
    def map_errors(self, op: str, stream: str = "") -> Iterator[None]:
        """Raise `LogDamage` and the database's own errors as `StorageError`, with a hint if one is known."""
        try:
            with self.map_own_errors(op, stream):
                yield
        except LogDamage as error:
            hint = DAMAGED.format(database=self.syntax.kind)
            raise StorageError(op=op, why=f"{self.name}: {error}", hint=hint, stream=stream) from error

    @abstractmethod
    def map_own_errors(self, op: str, stream: str) -> AbstractContextManager[None]:
        """Raise the database's own errors as `StorageError`."""

    @abstractmethod
    def tables(self, connection: Any) -> set[str]:
        """The names of the tables where those of the log are, or will be, within a transaction."""

    # What only some databases need; nothing by default

    def hindrances(self) -> list[str]:
        """Return the reasons a daemon could not keep its log here. Only reads from the server.

        Raises `StorageError` if the server cannot be asked.
        """
        return []

    def check_in_place(self, op: str) -> None:
        """Refuse all further writes if the database is no longer where it was opened."""

    def check_tables(self, connection: Any, tables: Collection[str]) -> None:
        """Raise `LogDamage` if these tables lack rows, if the database can tell."""

    def check_recorded(self, connection: Any) -> None:
        """Refuse another log, or an older copy of this one, if the database can tell; in a transaction."""

    def check_original(self, connection: Any) -> None:
        """Refuse a copy of a log that was open when it was copied, if the database can tell."""

    def mark_open(self, connection: Any, *, is_adopted: bool = False) -> None:
        """Mark in the log that it is open here, so that a copy of it can be told; in a transaction.

        `is_adopted`: this is a staged log that is about to replace another one.
        """

    def mark_closed(self) -> None:
        """Take back the mark: a copy of what is on the disk is whole from now on."""

    def record(self, op: str) -> None:
        """Record outside of the database how far the log has come."""

    def record_changes(self, connection: Any) -> None:
        """Record how far the log has come, if it has changed; failures are logged. Reading thread."""

    def return_space(self, connection: Any) -> None:
        """Return some free space to the disk after a slice of trimming."""

    def shorten_wal(self) -> frozenset[str] | None:
        """Shorten a long write-ahead log. Returns None if it is short, else the programs that may read it."""
        return None

    def disk_usage(self) -> dict[str, int] | None:
        """The ``log_bytes`` of its files, those of the write-ahead log among them (``wal_bytes``), the
        ``free_bytes`` of their disk and all its ``disk_bytes``; None if unknown.
        """
        return None

    # Staging a copy

    @abstractmethod
    def staging(self) -> "LogDatabase":
        """The database of a second log of the same kind, stored next to this one, for building a copy."""

    @abstractmethod
    def is_staged(self) -> bool:
        """Whether a staged log exists."""

    @abstractmethod
    def drop_staged(self) -> None:
        """Delete the closed staged log, if there is one."""

    @abstractmethod
    def replace(self, staged: Any, boots: int) -> None:
        """Put the complete, closed staged log, whose `boots` are given, in the place of this one.

        If it fails, this log stays in use. If its outcome is unknown, all writes fail until the next start.
        """

    def finish_replacing(self) -> None:
        """Complete the replacement: make it durable, or close connections that still use the old log."""


def placeholders(values: Collection[object]) -> str:
    """Return the text of as many parameters of a statement as there are values."""
    return ", ".join("?" * len(values))
