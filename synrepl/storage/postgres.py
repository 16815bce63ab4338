"""The log in PostgreSQL: for who has one already, such as the homeserver's own.

The tables are in a schema of their own, so that the log can share a database. ``synchronous_commit`` is on,
whatever the server's default: acknowledged means durable here.

One process at a time has the log: the connection that writes holds an advisory lock. A connection that is
lost is made again by the next operation, which goes on only when it holds the lock again, nobody else has
opened the log meanwhile, and what was committed is still there. The lock of a lost connection is free only
when the server has ended what that connection was doing: so whoever holds it again knows that a commit of
unknown outcome is decided, and can look.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from synrepl.errors import StorageError
from synrepl.storage.engine import Row, SQLEngine
from synrepl.storage.postgres_connection import PostgresAddress, is_alive
from synrepl.storage.schema import MIGRATIONS, migrate
from synrepl.storage.sql import for_postgres

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

__all__ = ["PostgresEngine"]

LOCK: Final = 0x73796E7265706C31
"""The advisory lock; it counts within its database only."""

FETCHED_AT_ONCE: Final = 200
"""Facts that a page has in memory beyond those it gives."""

FIRST_PATIENCE: Final = 1.0
"""Seconds for the server to notice that the process before this one has gone."""

HOLDER = """
    SELECT activity.pid, activity.application_name
    FROM pg_locks AS held JOIN pg_stat_activity AS activity USING (pid)
    WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 1
    AND held.classid::bigint = %s AND held.objid::bigint = %s
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class PostgresEngine(SQLEngine):
    """An `IEngine` over the database at `url`, in the schema `synrepl`, which is made when it is missing.

    `lock_seconds` is how long a connection made again waits for the lock, which the one that was lost may
    hold until the server notices.
    """

    UNINDEXED_STREAM = "(stream || '')"

    def __init__(self, url: str, *, lock_seconds: float = 5.0) -> None:
        self._address = PostgresAddress(url)
        super().__init__(self._address.name)
        self._lock_seconds = lock_seconds
        self._writes: Connection | None = None
        self._reads: Connection | None = None
        # The server's number for the connection that has, or had, the lock.
        self._backend: int | None = None
        # Why this log is not ours any more.
        self._lost: StorageError | None = None

    def __repr__(self) -> str:
        return f"<PostgresEngine {self.name}>"

    # Connections

    def _take(self) -> None:
        self._lost = None
        self._writes = self._connect("open")
        try:
            self._lock(self._writes, "open", FIRST_PATIENCE)
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        for database in (self._reads, self._writes):
            if database is not None:
                database.close()
        self._reads = self._writes = None

    def _writing(self, op: str) -> "Connection":
        if self._lost is not None:
            raise self._lost
        if self._writes is None or not is_alive(self._writes):
            if self._writes is not None:
                self._writes.close()
            self._writes = None
            fresh = self._connect(op)
            try:
                with self._address.telling(op, tried=False):
                    self._lock(fresh, op, self._lock_seconds)
                    self._check_ours(fresh, op)
            except BaseException:
                fresh.close()
                raise
            self._writes = fresh
        return self._writes

    def _reading(self, op: str) -> "Connection":
        if self._reads is None or not is_alive(self._reads):
            if self._reads is not None:
                self._reads.close()
            self._reads = None
            self._reads = self._connect(op)
        return self._reads

    def _connect(self, op: str) -> "Connection":
        database = self._address.connect(op)
        try:
            with self._address.telling(op, tried=False):
                database.execute("SET search_path = synrepl")
                database.execute(
                    "SELECT set_config('synchronous_commit', 'on', false)"
                    " WHERE current_setting('synchronous_commit') = 'off'"
                )
        except BaseException:
            database.close()
            raise
        return database

    def _lock(self, database: "Connection", op: str, seconds: float) -> None:
        """Take the lock, or say who has it."""
        import psycopg

        database.execute(f"SET lock_timeout = {max(1, int(seconds * 1000))}".encode())
        try:
            database.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        except psycopg.errors.LockNotAvailable as error:
            found = database.execute(HOLDER, (LOCK >> 32, LOCK & 0xFFFFFFFF)).fetchone()
            backend, holder = found or (None, None)
            is_ours = op != "open" and backend in (None, self._backend)
            who = "the lost connection" if is_ours else _who(holder)
            raise StorageError(
                op=op,
                why=f"{who} has the log in {self.name} (server process {backend or 'unknown'})",
                hint="the server will notice its end" if is_ours else "end it, or name another database",
                retryable=is_ours,
                tried=False,
            ) from error
        database.execute("SET lock_timeout = 0")
        self._backend = database.info.backend_pid

    def _check_ours(self, database: "Connection", op: str) -> None:
        """Refuse, for good, to go on in a log that went on without us: its history is not ours any more."""
        if self._boots is None:
            return
        boots = database.execute("SELECT value FROM meta WHERE key = 'boots'").fetchone()
        serial, digest = self._kept
        kept = database.execute("SELECT digest FROM facts WHERE serial = %s", (serial,)).fetchone()
        why = ""
        if boots != (self._boots,):
            why = "another process has opened the log since the connection was lost"
        elif serial and kept != (digest,):
            why = f"serial {serial} is not there as it was committed"
        if why:
            self._lost = StorageError(
                op=op, why=f"{self.name}: {why}", hint="start again, to go on from what is there", tried=False
            )
            raise self._lost

    # What PostgreSQL does in its own way

    def _migrate(self, database: "Connection") -> None:
        # Asked first: whoever may not make schemas may not say IF NOT EXISTS either.
        if database.execute("SELECT to_regnamespace('synrepl')").fetchone() == (None,):
            database.execute("CREATE SCHEMA synrepl")
        if database.execute("SELECT to_regclass('synrepl.meta')").fetchone() == (None,):
            database.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value BIGINT NOT NULL)")
        migrate(
            lambda statement: self._execute(database, statement),
            [migration.postgres for migration in MIGRATIONS],
            self.name,
        )

    def _telling(self, op: str, stream: str = "") -> Any:
        return self._address.telling(op, stream)

    def _transaction(self, database: "Connection") -> Any:
        return database.transaction()

    def _execute(self, database: "Connection", statement: str, values: Sequence[object] = ()) -> Any:
        return database.execute(for_postgres(statement).encode(), values)

    def _insert(self, database: "Connection", table: str, columns: str, rows: Iterable[Row]) -> None:
        # Measured against executemany: as fast for groups of 1 and 20 facts, twice as fast for 1000.
        with (
            database.cursor() as cursor,
            cursor.copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as copy,
        ):
            for row in rows:
                copy.write_row(row)

    def _execute_many(self, database: "Connection", statement: str, rows: Iterable[Row]) -> None:
        # One after the other: few rows come here, and executemany has its price before the first.
        for row in rows:
            database.execute(for_postgres(statement).encode(), row)

    @contextmanager
    def _streamed(
        self, database: "Connection", statement: str, values: Sequence[object]
    ) -> Iterator[Iterable[Row]]:
        with database.transaction(), database.cursor("page", binary=True) as found:
            found.itersize = FETCHED_AT_ONCE
            found.execute(for_postgres(statement).encode(), values)
            yield found


def _who(holder: str | None) -> str:
    """The process, from the name its connection has at the server, which not everyone may see."""
    words = (holder or "").split()
    if len(words) == 3 and words[1].isdigit():
        return f"process {words[1]} on {words[2]}"
    return f"another program ({holder or 'of another user'})"
