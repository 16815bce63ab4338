"""Databases by their URLs: the engine of a log, and transactions in any database."""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from synrepl.errors import ConfigError, StorageError
from synrepl.storage.engine import SQLEngine
from synrepl.storage.settings import other_notation
from synrepl.storage.sql import Flavor
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.storage.sqlite_errors import map_sqlite_errors

if TYPE_CHECKING:
    from synrepl.storage.postgres_connection import PostgresAddress

T = TypeVar("T")

LOCK_SECONDS: Final = 10.0
"""The longest wait for a lock before something is read in a database of others."""


def engine_for(url: str) -> SQLEngine:
    """The engine of the log in ``sqlite:PATH`` or ``postgresql://...``, not opened yet."""
    kind, _, rest = url.partition(":")
    if kind == "sqlite":
        return SQLEngine(SQLiteDatabase(rest))
    if kind in ("postgresql", "postgres"):
        # Imported on use, as below: most logs are files.
        from synrepl.storage.postgres import PostgresDatabase

        return SQLEngine(PostgresDatabase(url))
    raise _unknown(kind, rest)


class Database:
    """A database by URL, or by parameters of libpq.

    `name` can be shown, `flavor` is its kind; `what` names PostgreSQL sessions. With `statement_seconds`
    it belongs to others: its session settings stay as they are, and no statement of a transaction takes
    longer; 0 is no limit. Reading waits half as long for a lock, and `LOCK_SECONDS` at most.
    """

    def __init__(
        self,
        url: str | Mapping[str, str],
        *,
        what: str = "synrepl",
        statement_seconds: float | None = None,
    ) -> None:
        kind, _, rest = url.partition(":") if isinstance(url, str) else ("postgresql", "", "")
        self.flavor: Flavor
        self._address: PostgresAddress | None = None
        self._statement_seconds = statement_seconds
        if kind == "sqlite" and rest:
            self.flavor = "sqlite"
            self.path = Path(rest)
            self.name = str(self.path)
        elif kind in ("postgresql", "postgres"):
            from synrepl.storage import postgres_connection

            self.flavor = "postgresql"
            self._address = postgres_connection.PostgresAddress(
                url, what=what, is_guest=statement_seconds is not None
            )
            self.name = self._address.name
        else:
            raise _unknown(kind, rest)

    def connect(self, *, read_only: bool = False) -> Any:
        """A DB-API connection with transactions, usable in any thread, one at a time.

        Raises `StorageError`. A missing file is not created.
        """
        if self._address is not None:
            connection: Any = self._address.connect("connect")
            connection.autocommit = False
            connection.read_only = read_only
            return connection
        try:
            is_there = self.path.is_file()
        except OSError as error:
            raise StorageError(op="connect", why=f"{self.path}: {error.strerror}", tried=False) from error
        if not is_there:
            raise StorageError(op="connect", why=f"there is no file {self.path}", tried=False)
        mode = "ro" if read_only else "rw"
        with self.map_errors("connect"):
            connection = sqlite3.connect(
                f"file:{quote(str(self.path.absolute()))}?mode={mode}",
                uri=True,
                timeout=5,
                check_same_thread=False,
            )
            # Commits survive a power cut.
            connection.execute("PRAGMA synchronous = FULL")
        return connection

    def map_errors(self, op: str) -> AbstractContextManager[None]:
        """Raise the driver's errors as `StorageError`."""
        if self._address is not None:
            return self._address.map_errors(op)
        return map_sqlite_errors(op, self.name, path=self.path)

    def read_transaction(self, op: str, work: Callable[[Any], T]) -> T:
        """Run `work` with a cursor, in one read-only transaction of its own connection.

        It sees the database as of one moment, whatever other connections write.
        """
        with closing(self.connect(read_only=True)) as connection:
            return self.read(connection, op, work)

    def read(self, connection: Any, op: str, work: Callable[[Any], T]) -> T:
        """The same in a transaction of this connection, which `connect` made read only."""
        with self.map_errors(op):
            cursor = self._begin(connection, postgres="REPEATABLE_READ", sqlite="BEGIN")
            try:
                return work(cursor)
            finally:
                connection.rollback()

    def write_transaction(self, op: str, work: Callable[[Any], T]) -> T:
        """Run `work` with a cursor, in one transaction of its own connection, and commit."""
        with closing(self.connect()) as connection, self.map_errors(op):
            cursor = self._begin(connection, postgres="READ_COMMITTED", sqlite="BEGIN IMMEDIATE")
            try:
                result = work(cursor)
                connection.commit()
            except BaseException:
                connection.rollback()
                raise
        return result

    def savepoint(self, cursor: Any, op: str, work: Callable[[Any], T]) -> T:
        """Run `work` in a savepoint. A `StorageError`, or a database error, undoes only `work`."""
        cursor.execute("SAVEPOINT attempt")
        try:
            with self.map_errors(op):
                return work(cursor)
        except StorageError:
            cursor.execute("ROLLBACK TO SAVEPOINT attempt")
            raise
        finally:
            cursor.execute("RELEASE SAVEPOINT attempt")

    def _begin(self, connection: Any, *, postgres: str, sqlite: str) -> Any:
        if self.flavor == "postgresql":
            from psycopg import IsolationLevel  # an extra

            connection.isolation_level = IsolationLevel[postgres]
            cursor = connection.cursor()
            if self._statement_seconds is not None:
                cursor.execute(f"SET LOCAL statement_timeout = {int(self._statement_seconds * 1000)}")
                if postgres == "REPEATABLE_READ":
                    # Shorter, so that a lock is never taken for a slow statement.
                    patience = min(self._statement_seconds / 2 or LOCK_SECONDS, LOCK_SECONDS)
                    cursor.execute(f"SET LOCAL lock_timeout = {int(patience * 1000)}")
            return cursor
        cursor = connection.cursor()
        # By itself, Python begins a transaction at the first write, and none for reads.
        cursor.execute(sqlite)
        return cursor


def _unknown(kind: str, rest: str) -> ConfigError:
    if why := other_notation(kind):
        return ConfigError(f"the database must be sqlite:PATH or postgresql://..., {why}")
    # Without the rest of a URL, which may contain a password.
    given = f"{kind}:..." if rest else kind
    hint = f"; did you mean sqlite:{kind}?" if kind and not rest else ""
    return ConfigError(f"the database must be sqlite:PATH or postgresql://..., not {given!r}{hint}")
