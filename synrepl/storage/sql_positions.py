"""A follower's positions in a table of the worker's own database, beside the effects of the facts."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from synrepl.base.interfaces import SaveablePosition
from synrepl.errors import ConfigError
from synrepl.storage.sql import Flavor, execute
from synrepl.storage.worker_database import ICursor, identifier, lock_table_creation
from synrepl.streams.writer import Writer

SAVEPOINT: Final = "synrepl_effects"


class SQLPositions:
    """An `IPositionStore` in a table, saved in the subscribers' transaction: exactly once in ordered streams.

    `connection` is the DB-API connection with which the subscribers write, such as that of `sqlite3` or
    psycopg, and `flavor` the kind of its database, ``"sqlite"`` or ``"postgresql"``. `save` writes the
    positions with it and commits, so a kill undoes effects and positions together. The rules:

    * Subscribers write with `connection` and never commit. `atomic` undoes what a failed one wrote.
    * One subscriber writes for each stream: a second one that fails would leave the first one's effects.
    * Subscribers are plain functions. `Follower.on` refuses coroutine functions, since `save` would commit
      a half of their effects; a function that returns a Deferred is not noticed.
    * Facts of streams without order may be delivered again: their positions advance only once nothing before
      can be missing (docs/reference/peers.md#tokens).
    * After the connection to the database is lost, the process must be restarted: uncommitted effects of
      facts that were applied are lost, and nothing is saved with another connection.

    With ``is_shared=False`` only positions are written with `connection`, and coroutine functions are
    accepted: facts are delivered at least once, as with `FilePositions`. Several followers can share a
    `table` under different names. `read` and `write` take the cursor of any transaction, such as one of an
    adbapi pool, and do not commit.

    Raises `ConfigError` for a name that is no SQL identifier, and for a shared connection that commits each
    statement. Errors of the database driver pass through.

    >>> import sqlite3
    >>> connection = sqlite3.connect(":memory:")
    >>> positions = SQLPositions(connection, name="counter1")
    >>> positions.load()  # the follower does so first
    {}
    >>> positions.save({"receipts": {"master": 5}})
    >>> positions.load()
    {'receipts': {'master': 5}}
    """

    def __init__(
        self,
        connection: Any,
        *,
        flavor: Flavor = "sqlite",
        name: str = "",
        table: str = "synrepl_positions",
        is_shared: bool = True,
    ) -> None:
        if is_shared and _commits_each_statement(connection, flavor):
            raise ConfigError(
                "this connection commits each statement, so effects and positions would not be one"
                " transaction: turn autocommit off, or pass is_shared=False"
            )
        self.is_shared = is_shared
        self._connection = connection
        self._flavor: Flavor = flavor
        self._name = name
        self._table = identifier(table)
        self._saved: dict[Writer, int] = {}

    def check_subscriber(self, subscriber: Any) -> None:
        """Raise `ConfigError` for a coroutine function, if effects and positions share a transaction."""
        call = getattr(subscriber, "__call__", None)  # noqa: B004  # an object may have one that is async
        if self.is_shared and (inspect.iscoroutinefunction(subscriber) or inspect.iscoroutinefunction(call)):
            raise ConfigError(
                f"{subscriber!r} is a coroutine function: a commit of SQLPositions while it waits would store"
                " a part of its effects; use a plain function, or is_shared=False and a connection for the"
                " positions alone"
            )

    def load(self) -> SaveablePosition:
        """The positions last saved; empty if there are none. Creates a missing table, and commits."""
        cursor = self._connection.cursor()
        self.create(cursor)
        positions = self.read(cursor)
        self._connection.commit()
        self._saved = _flat(positions)
        return positions

    def save(self, positions: SaveablePosition) -> None:
        """Replace the saved positions, and commit them with everything written with the connection so far."""
        cursor = self._connection.cursor()
        saved = _flat(positions)
        for stream, writer in self._saved.keys() - saved.keys():
            values = (self._name, stream, writer)
            self._execute(
                cursor, f"DELETE FROM {self._table} WHERE follower = ? AND stream = ? AND writer = ?", values
            )
        self._upsert(cursor, dict(saved.items() - self._saved.items()))
        self._connection.commit()
        self._saved = saved

    @contextmanager
    def atomic(self) -> Iterator[Any]:
        """Yield a cursor for the effects of one fact: if an exception leaves the block they are undone.

        ::

            @follower.on(RECEIPTS)
            def count(updates: synrepl.Updates[Receipt]) -> None:
                with positions.atomic() as cursor:
                    cursor.executemany(INSERT, [(row.user_id,) for row in updates.rows])
        """
        cursor = self._connection.cursor()
        if self._flavor == "sqlite" and not self._connection.in_transaction:
            # SQLite would commit at the end of an outermost savepoint.
            cursor.execute("BEGIN")
        cursor.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            yield cursor
        except BaseException:
            cursor.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
            raise
        finally:
            cursor.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")

    def create(self, cursor: ICursor) -> None:
        """Create the table if it is missing."""
        lock_table_creation(cursor, self._flavor)
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (follower TEXT NOT NULL, stream TEXT NOT NULL,"
            " writer TEXT NOT NULL, token BIGINT NOT NULL, PRIMARY KEY (follower, stream, writer))"
        )

    def read(self, cursor: ICursor) -> SaveablePosition:
        """The positions of this follower (`name`) in the table; empty if there are none."""
        self._execute(
            cursor, f"SELECT stream, writer, token FROM {self._table} WHERE follower = ?", (self._name,)
        )
        positions: dict[str, dict[str, int]] = {}
        for stream, writer, token in cursor.fetchall():
            positions.setdefault(stream, {})[writer] = token
        return positions

    def write(self, cursor: ICursor, positions: SaveablePosition) -> None:
        """Write these positions; those of other streams and writers are kept."""
        self._upsert(cursor, _flat(positions))

    def _upsert(self, cursor: ICursor, tokens: dict[Writer, int]) -> None:
        for (stream, writer), token in sorted(tokens.items()):
            self._execute(
                cursor,
                f"INSERT INTO {self._table} VALUES (?, ?, ?, ?) ON CONFLICT (follower, stream, writer)"
                " DO UPDATE SET token = excluded.token",
                (self._name, stream, writer, token),
            )

    def _execute(self, cursor: ICursor, statement: str, values: tuple[object, ...]) -> None:
        execute(cursor, self._flavor, statement, values)


def _flat(positions: SaveablePosition) -> dict[Writer, int]:
    return {
        Writer(stream, writer): token
        for stream, writers in positions.items()
        for writer, token in writers.items()
    }


def _commits_each_statement(connection: Any, flavor: Flavor) -> bool:
    if getattr(connection, "autocommit", False) is True:
        return True
    # Without an isolation level, sqlite3 leaves transactions to the caller, unless `autocommit` is False.
    is_manual = flavor == "sqlite" and getattr(connection, "isolation_level", "") is None
    return is_manual and getattr(connection, "autocommit", None) is not False
