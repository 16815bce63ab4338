"""The log in PostgreSQL, for sites that run one already, such as the homeserver's own.

The tables have their own schema, so that the log can share a database. ``synchronous_commit`` is never off,
except for a staged copy, whatever the server's default: acknowledged means durable.

One process at a time has the log: the write connection holds an advisory lock. After a connection loss the
next write reconnects. It continues only if it gets the lock again, no other process has opened the log
meanwhile, and the last commit is still there. The server releases the lock of a lost connection only when it
has ended that connection's work. So a process that has the lock again can read the outcome of an uncertain
commit.

Space freed by trimming is reused for new facts; the server's autovacuum sees to it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from synrepl.errors import StorageError
from synrepl.storage.postgres_check import hindrances
from synrepl.storage.postgres_connection import PostgresAddress, is_alive, is_read_only
from synrepl.storage.schema import TABLES, read_header
from synrepl.storage.sql import LogDatabase, Row, SQLConnection, SQLSyntax, for_postgres

if TYPE_CHECKING:
    import psycopg

SCHEMA: Final = "synrepl"
STAGED: Final = "synrepl_joining"
"""The schema in which a copy is staged."""

LOCKS: Final = {SCHEMA: 0x73796E7265706C31, STAGED: 0x73796E7265706C6A}
"""The advisory lock of each log; its scope is the database."""

FETCHED_AT_ONCE: Final = 200
"""The number of rows of a long result that are fetched from the server at once."""

MANY: Final = 8
"""From this number of rows on, `executemany` sends all rows as one batch."""

FIRST_PATIENCE: Final = 1.0
"""How long the first lock waits for the server to notice the end of the previous process, in seconds."""

HOLDER = """
    SELECT activity.pid, activity.application_name
    FROM pg_locks AS held JOIN pg_stat_activity AS activity USING (pid)
    WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 1
    AND held.classid::bigint = ? AND held.objid::bigint = ?
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


LOCKED_SECONDS: Final = 10
"""How long a table that another session keeps locked is waited for."""


class PostgresConnection:
    """An `SQLConnection` over `raw`, a connection of psycopg in autocommit mode."""

    def __init__(self, raw: "psycopg.Connection[Row]") -> None:
        self.raw = raw
        self._types: dict[bytes, list[int]] = {}
        """The types of the columns of each insertion."""

    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Execute a statement; gives a cursor over its result."""
        return self.raw.execute(for_postgres(statement).encode(), values)

    def executemany(self, statement: str, rows: Sequence[Row]) -> None:
        """Execute a statement once for each row."""
        text = for_postgres(statement).encode()
        if len(rows) >= MANY:
            with self.raw.cursor() as cursor:
                cursor.executemany(text, rows)
            return
        # One by one: executemany has a fixed cost.
        for row in rows:
            self.raw.execute(text, row)

    def insert(self, table: str, columns: str, rows: Iterable[Row]) -> None:
        """Insert these rows, all of them new."""
        # Measured against executemany: as fast for groups of 1 and 20 facts, twice as fast for 1000. In
        # binary, as what the text of a value means depends on settings of the server.
        statement = f"COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)".encode()
        types = self._types.get(statement)
        if types is None:
            found = self.raw.execute(f"SELECT {columns} FROM {table} LIMIT 0".encode())
            types = self._types[statement] = [column.type_code for column in found.description or ()]
        with self.raw.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    @contextmanager
    def stream(self, statement: str, values: Sequence[object]) -> Iterator[Iterable[Row]]:
        """Stream the rows of a long result."""
        with self.raw.transaction(), self.raw.cursor("page", binary=True) as found:
            found.itersize = FETCHED_AT_ONCE
            found.execute(for_postgres(statement).encode(), values)
            yield found

    def transaction(self) -> AbstractContextManager[object]:
        """A transaction around the block."""
        return self.raw.transaction()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.raw.close()


class PostgresDatabase(LogDatabase):
    """The log in the database at `url`, in this `schema`, which is created if it is missing.

    After a reconnect it waits up to `lock_seconds` for the lock: the lost connection may hold it until the
    server notices the loss.

    There is no state file: the server stores the log and its identity together, so that neither is lost
    alone. A new connection for writing compares the number of boots and the last commit with those known.
    """

    syntax = SQLSyntax(
        flavor="postgresql",
        kind="database",
        unindexed_stream="(stream || '')",
        rows_bytes="pg_column_size(rows)",
        fact_bytes=230,
        lines={
            "json": "concat('{\"serial\":', serial, ',\"epoch\":', epoch, ',\"stream\":', to_json(stream),"
            " ',\"writer\":', to_json(writer), ',\"prev_token\":', prev_token, ',\"token\":', token,"
            " ',\"rows\":', convert_from(rows, 'UTF8'), ',\"committed_at_ms\":', committed_at_ms,"
            " ',\"digest\":\"', digest, E'\"}\\n')",
            "fields": "concat(concat_ws(chr(31), serial, epoch, stream, writer, prev_token, token,"
            " convert_from(rows, 'UTF8'), committed_at_ms, digest), chr(10))",
        },
        text_bytes="octet_length(rows)",
        joined="convert_to(string_agg(line, '' ORDER BY serial), 'UTF8')",
    )
    PATIENCE = 5.0
    """How long to wait for other users of tables that are to be dropped, in seconds."""

    def __init__(self, url: str, *, schema: str = SCHEMA, lock_seconds: float = 5.0) -> None:
        self._url = url
        self._address = PostgresAddress(url)
        super().__init__(self._address.name)
        self._schema = schema
        self._lock_number = LOCKS[schema]
        self._lock_seconds = lock_seconds
        self._writes: PostgresConnection | None = None
        self._reads: PostgresConnection | None = None
        # Whether to read at the server that the address leads to now.
        self._has_left = False
        # The server process of the connection that has, or had, the lock.
        self._backend: int | None = None

    # Connections

    def acquire(self) -> None:
        """Connect and take the lock. Raises `StorageError` naming the holder if another process has it."""
        self._writes = self._connect("open")
        try:
            self._lock(self._writes, "open", FIRST_PATIENCE)
            if why := "; ".join(hindrances(self._writes.raw, self._schema)):
                raise StorageError(op="open", why=f"{self.name}: {why}", tried=False)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        for connection in (self._reads, self._writes):
            if connection is not None:
                connection.close()
        self._reads = self._writes = None

    @contextmanager
    def writer_connection(self, op: str, stream: str = "") -> Iterator[SQLConnection]:
        """The connection of the writing thread. A server that became read only is left.

        After a failover the address may lead to another one, while this one keeps its connections.
        """
        try:
            with super().writer_connection(op, stream) as connection:
                yield connection
        except StorageError as error:
            if self._writes is not None and is_read_only(error):
                self._writes.close()
                self._has_left = True
            raise

    def writer(self, op: str) -> PostgresConnection:
        """The connection for writing. A new one checks that the log is as this process left it."""
        if self._writes is None or not is_alive(self._writes.raw):
            if self._writes is not None:
                self._writes.close()
            self._writes = None
            fresh = self._connect(op)
            try:
                with self._address.map_errors(op, tried=False):
                    self._lock(fresh, op, self._lock_seconds)
                    self._check_unchanged(fresh, op)
            except BaseException:
                fresh.close()
                raise
            self._writes = fresh
        return self._writes

    def reader(self, op: str) -> PostgresConnection:
        if self._reads is None or self._has_left or not is_alive(self._reads.raw):
            self._has_left = False
            if self._reads is not None:
                self._reads.close()
            self._reads = None
            self._reads = self._connect(op)
        return self._reads

    def _connect(self, op: str) -> PostgresConnection:
        connection = PostgresConnection(self._address.connect(op))
        try:
            with self._address.map_errors(op, tried=False):
                connection.execute(f"SET search_path = {self._schema}")
                # What waits for longer fails, is told, and is tried again.
                connection.execute(f"SET lock_timeout = {LOCKED_SECONDS * 1000}")
                if self._schema == STAGED:
                    # The transaction that adopts the copy makes all earlier ones durable.
                    connection.execute("SET synchronous_commit = off")
                connection.execute(
                    "SELECT set_config('synchronous_commit', 'on', false)"
                    " WHERE current_setting('synchronous_commit') = 'off' AND ?",
                    (self._schema == SCHEMA,),
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _lock(self, connection: PostgresConnection, op: str, seconds: float) -> None:
        import psycopg  # an extra

        connection.execute(f"SET lock_timeout = {max(1, int(seconds * 1000))}")
        try:
            connection.execute("SELECT pg_advisory_lock(?)", (self._lock_number,))
        except psycopg.errors.LockNotAvailable as error:
            number = (self._lock_number >> 32, self._lock_number & 0xFFFFFFFF)
            found = connection.execute(HOLDER, number).fetchone()
            backend, holder = found or (None, None)
            is_own = op != "open" and backend in (None, self._backend)
            owner = "the lost connection" if is_own else _holder_name(holder)
            raise StorageError(
                op=op,
                why=f"{owner} uses the log in {self.name} (server process {backend or 'unknown'})",
                hint="retry: the server will end it" if is_own else "stop it, or choose another database",
                retryable=is_own,
                tried=False,
            ) from error
        connection.execute(f"SET lock_timeout = {LOCKED_SECONDS * 1000}")
        self._backend = connection.raw.info.backend_pid

    def _check_unchanged(self, connection: PostgresConnection, op: str) -> None:
        """Refuse all further writes if the log changed while this process was disconnected."""
        ownership = self.ownership
        if ownership.boots is None:
            return
        boots = _boots(connection)
        serial, digest = ownership.committed
        found = connection.execute(
            "SELECT digest FROM facts WHERE serial = ? UNION SELECT digest FROM log_bounds WHERE serial = ?",
            (serial, serial),
        ).fetchall()
        why = ""
        if boots != ownership.boots:
            why = "another process has opened the log since the connection was lost"
        elif serial and (digest,) not in found:
            why = f"serial {serial} is missing, or has another digest than this process committed"
        if why:
            ownership.not_ours = self._restart_needed(op, why)
            raise ownership.not_ours

    def _restart_needed(self, op: str, why: str) -> StorageError:
        return StorageError(
            op=op, why=f"{self.name}: {why}", hint="restart the daemon, which reads the log anew", tried=False
        )

    def map_own_errors(self, op: str, stream: str) -> AbstractContextManager[None]:
        return self._address.map_errors(op, stream)

    def hindrances(self) -> list[str]:
        with closing(self._connect("look")) as connection, self.map_errors("look"):
            return list(hindrances(connection.raw, self._schema))

    def tables(self, connection: PostgresConnection) -> set[str]:
        """The names of the tables in the schema, which is created if it is missing."""
        # Checked first: IF NOT EXISTS needs the right to create schemas even if the schema exists.
        if connection.execute("SELECT to_regnamespace(?)", (self._schema,)).fetchone() == (None,):
            connection.execute(f"CREATE SCHEMA {self._schema}")
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = ?", (self._schema,))
        return {name for (name,) in found}

    # Staging a copy

    def staging(self) -> "PostgresDatabase":
        """The schema `synrepl_joining`."""
        return PostgresDatabase(self._url, schema=STAGED, lock_seconds=self._lock_seconds)

    def is_staged(self) -> bool:
        """Whether the schema `synrepl_joining` has a log."""
        return _has_log(self.writer("adopt_staged"), STAGED)

    def drop_staged(self) -> None:
        """Drop the tables of the staged log. The schema stays, since not every user may create one."""
        connection = self.writer("drop_staged")
        with connection.transaction():
            self._exclude_others(connection)
            for table in TABLES:
                connection.execute(f"DROP TABLE IF EXISTS {STAGED}.{table}")

    def replace(self, staged: LogDatabase, boots: int) -> None:
        """Move the staged tables into this schema, in one transaction. Other tables in the schema stay."""
        ownership, connection = self.ownership, self.writer("adopt_staged")
        before, committed = ownership.boots, ownership.committed
        try:
            with connection.transaction():
                self._exclude_others(connection)
                for table in TABLES:
                    connection.execute(f"DROP TABLE {SCHEMA}.{table}")
                    connection.execute(f"ALTER TABLE {STAGED}.{table} SET SCHEMA {SCHEMA}")
        except BaseException:
            if not self._was_replaced(boots, before):
                ownership.boots, ownership.committed = before, committed
                raise
        ownership.boots, ownership.committed = boots, (0, "")

    def finish_replacing(self) -> None:
        """Close the reader: its prepared statements refer to dropped tables."""
        if self._reads is not None:
            self._reads.close()

    def _was_replaced(self, boots: int, before: int | None) -> bool:
        """Whether the staged log is in place although its transaction failed. If not, the log is unchanged.

        If that cannot be determined, every write fails until the next start, which finds one of the two logs.
        """
        # Neither count of boots is right until this is known.
        self.ownership.boots = None
        try:
            with self.map_errors("adopt_staged"):
                found = _boots(self.writer("adopt_staged"))
            why = "" if found in (boots, before) else "another process has opened the log"
        except StorageError as error:
            found, why = None, str(error)
        if why:
            why = f"it is unknown whether the copy has replaced the log: {why}"
            self.ownership.not_ours = self._restart_needed("adopt_staged", why)
        return found == boots

    def _exclude_others(self, connection: PostgresConnection) -> None:
        """Exclude other users of the staged log for the rest of the transaction; waits a moment for them."""
        connection.execute(f"SET LOCAL lock_timeout = {int(self.PATIENCE * 1000)}")
        # The server may still be ending the connection of the previous user.
        connection.execute("SELECT pg_advisory_xact_lock(?)", (LOCKS[STAGED],))


def _boots(connection: PostgresConnection) -> int | None:
    header = read_header(connection)
    return None if header is None else header.boots


def _has_log(connection: PostgresConnection, schema: str) -> bool:
    return bool(connection.execute("SELECT to_regclass(?)", (f"{schema}.log_header",)).fetchone() != (None,))


def _holder_name(holder: str | None) -> str:
    """The process that holds the lock, from its connection's name, which not every user may see."""
    words = (holder or "").split()
    if len(words) == 3 and words[1].isdigit():
        return f"process {words[1]} on {words[2]}"
    return f"another program ({holder or 'of another user'})"
