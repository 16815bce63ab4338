"""The SQL of streams with ids, for SQLite and PostgreSQL."""

from collections.abc import Sequence
from typing import Any, Final

from synrepl.errors import StorageError
from synrepl.storage.id_tables.layout import IdStream
from synrepl.storage.sql import Flavor, execute
from synrepl.storage.worker_database import ICursor, lock_table_creation

POSITIONS: Final = """CREATE TABLE IF NOT EXISTS stream_positions (
    stream_name TEXT NOT NULL,
    instance_name TEXT NOT NULL,
    stream_id BIGINT NOT NULL,
    UNIQUE (stream_name, instance_name)
)"""

SEQUENCES: Final = """CREATE TABLE IF NOT EXISTS synrepl_sequences (
    name TEXT PRIMARY KEY,
    value BIGINT NOT NULL
)"""

RUN: Final = 1000
"""The number of ids examined at once in the search for a gap."""

CHANNEL: Final = "synrepl"
"""The default channel of the NOTIFY that PostgreSQL sends, without payload, when a position is stored."""

START_LOCK: Final = 0x5359_4E52
"""The class of the advisory locks that serialize the repairs of a stream's ids."""


class IdDatabase:
    """The ids of one stream in a database of this flavor.

    Every method runs in the transaction of the cursor it gets. All numbers ascend, whatever the sign in the
    tables. Errors are the driver's own; but without a sequence `allocated`, and on SQLite also `allocate`,
    raises `StorageError`.
    """

    def __init__(self, stream: IdStream, flavor: Flavor) -> None:
        self.stream = stream
        self.flavor: Final = flavor

    def create(self, cursor: ICursor) -> None:
        """Create the table of positions and the sequence, if missing.

        The first value is 2, since position 1 means "nothing yet", as in the homeserver's schema.
        """
        lock_table_creation(cursor, self.flavor)
        self._execute(cursor, POSITIONS)
        if self.flavor == "postgresql":
            self._execute(cursor, f"CREATE SEQUENCE IF NOT EXISTS {self.stream.sequence} START WITH 2")
        else:
            self._execute(cursor, SEQUENCES)
            self._execute(
                cursor, "INSERT OR IGNORE INTO synrepl_sequences VALUES (?, 1)", self.stream.sequence
            )

    def allocate(self, cursor: ICursor, count: int, above: int) -> tuple[list[int], int]:
        """Reserve the next `count` ids beyond `above`. Returns the ids, in order, and the id of the
        transaction (on SQLite 0).

        On SQLite a rollback undoes the allocation: see `has_ended`. A PostgreSQL sequence does not reuse ids
        after a rollback; after a crash it may reuse those of uncommitted transactions.
        """
        sequence = self.stream.sequence
        if self.flavor == "postgresql":
            while True:
                reserve = "SELECT nextval(?), txid_current() FROM generate_series(1, ?)"
                self._execute(cursor, reserve, sequence, count)
                rows = cursor.fetchall()
                if rows[0][0] > above:
                    return [row[0] for row in rows], rows[0][1]
                # Other processes may reserve meanwhile.
                if (count_below := above - rows[-1][0]) > 0:
                    skip = "SELECT max(nextval(?)) FROM generate_series(1, ?)"
                    self._value(cursor, skip, sequence, count_below)
        last: int = self._sequence_value(
            cursor,
            "UPDATE synrepl_sequences SET value = max(value, ?) + ? WHERE name = ? RETURNING value",
            above,
            count,
            sequence,
        )
        return list(range(last - count + 1, last + 1)), 0

    def has_ended(self, cursor: ICursor, mark: int, highest: int) -> bool:
        """Whether the transaction with id `mark`, which was to be rolled back, has certainly ended.

        On SQLite always True; the sequence is advanced to `highest`, the last id of the undone allocation.
        """
        if self.flavor == "postgresql":
            # Not `txid_status`: after a crash the id may be in the server's future.
            running = self._value(
                cursor,
                "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock'"
                " AND granted AND transactionid::text = ?",
                str(mark % 2**32),
            )
            return bool(running == 0)
        self.advance_sequence(cursor, highest)
        return True

    def given_anew(self, cursor: ICursor, ids: Sequence[int]) -> list[int]:
        """Those of these ids, whose allocation was rolled back, that the sequence has given again since.

        Until the transaction ends it gives no others. On PostgreSQL there are none: see `allocate`.
        """
        if self.flavor == "postgresql":
            return []
        self.lock_start(cursor)
        upto = self.allocated(cursor)
        return [id_ for id_ in ids if id_ <= upto]

    def mark(self, cursor: ICursor) -> int:
        """On PostgreSQL the id of this transaction: all that began to write before have lower ids.

        On SQLite 0: this call takes the only write lock, so all earlier writers have ended.
        """
        if self.flavor != "postgresql":
            self.lock_start(cursor)
            return 0
        return int(self._value(cursor, "SELECT txid_current()"))

    def have_ended(self, cursor: ICursor, since: int, before: int) -> bool:
        """Whether all transactions with ``since <= id < before`` have ended; on SQLite always True."""
        if self.flavor != "postgresql":
            return True
        running = self._value(
            cursor,
            "SELECT count(*) FROM txid_snapshot_xip(txid_current_snapshot()) AS running"
            " WHERE running >= ? AND running < ?",
            since,
            before,
        )
        return bool(running == 0)

    def allocated(self, cursor: ICursor) -> int:
        """The last id that the sequence allocated; 0 if it has allocated none and starts with 1.

        For a stream without a sequence it is the last id with a row.
        """
        if not self.stream.sequence:
            return self.highest_row(cursor)
        if self.flavor == "postgresql":
            self._sequence_value(cursor, "SELECT to_regclass(?)", self.stream.sequence)
            self._execute(cursor, f"SELECT last_value, is_called FROM {self.stream.sequence}")
            value, is_called = cursor.fetchone()
            return int(value if is_called else value - 1)
        statement = "SELECT value FROM synrepl_sequences WHERE name = ?"
        return int(self._sequence_value(cursor, statement, self.stream.sequence))

    def advance_sequence(self, cursor: ICursor, value: int) -> None:
        """Advance the sequence to at least `value`. Never backwards, even with concurrent users."""
        if self.flavor == "postgresql":
            # Changes nothing, but locks the sequence until this transaction ends.
            self._execute(cursor, f"ALTER SEQUENCE {self.stream.sequence} INCREMENT BY 1")
            if self.allocated(cursor) < value:
                self._value(cursor, "SELECT setval(?, ?)", self.stream.sequence, value)
        else:
            self._execute(
                cursor,
                "UPDATE synrepl_sequences SET value = max(value, ?) WHERE name = ?",
                value,
                self.stream.sequence,
            )

    def highest_row(self, cursor: ICursor) -> int:
        """The highest id of any visible row in the tables; 0 if they are empty."""
        highest = 0
        for table in self.stream.tables:
            end = "min" if self.stream.negative else "max"
            found = self._value(cursor, f"SELECT {end}({table.id_column}) FROM {table.name}")
            if found is not None:
                highest = max(highest, found * self.stream.sign)
        return highest

    def end_of_run(self, cursor: ICursor, token: int) -> int:
        """The last id of the gapless run of rows after `token`; `token` itself if the next id has no row."""
        while True:
            found: set[int] = set()
            for table in self.stream.tables:
                first, last = sorted(((token + 1) * self.stream.sign, (token + RUN) * self.stream.sign))
                self._execute(
                    cursor,
                    f"SELECT DISTINCT {table.id_column} FROM {table.name}"
                    f" WHERE {table.id_column} BETWEEN ? AND ?",
                    first,
                    last,
                )
                found.update(row[0] * self.stream.sign for row in cursor.fetchall())
            end = token
            while end + 1 in found:
                end += 1
            if end < token + RUN:
                return end
            token = end

    def last_row_of(self, cursor: ICursor, writer: str, token: int) -> int | None:
        """The highest id from `token` on with a row of this writer, or None. Skips tables without writers."""
        sign = self.stream.sign
        end, beyond = ("min", "<=") if self.stream.negative else ("max", ">=")
        highest: int | None = None
        for table in self.stream.tables:
            if table.writer_column is None:
                continue
            found = self._value(
                cursor,
                f"SELECT {end}({table.id_column}) FROM {table.name}"
                f" WHERE {table.id_column} {beyond} ? AND {table.writer_column} = ?",
                token * sign,
                writer,
            )
            if found is not None:
                highest = max(highest or 0, found * sign)
        return highest

    def positions(self, cursor: ICursor) -> dict[str, int]:
        """The stored position of every instance."""
        self._execute(
            cursor,
            "SELECT instance_name, stream_id FROM stream_positions WHERE stream_name = ?",
            self.stream.name,
        )
        return {name: token * self.stream.sign for name, token in cursor.fetchall()}

    def save_position(self, cursor: ICursor, instance: str, token: int) -> None:
        """Store a position, unless the stored one is higher."""
        beyond = "<" if self.stream.negative else ">"
        self._execute(
            cursor,
            "INSERT INTO stream_positions (stream_name, instance_name, stream_id) VALUES (?, ?, ?)"
            " ON CONFLICT (stream_name, instance_name) DO UPDATE SET stream_id = excluded.stream_id"
            f" WHERE excluded.stream_id {beyond} stream_positions.stream_id",
            self.stream.name,
            instance,
            token * self.stream.sign,
        )

    def delete_position(self, cursor: ICursor, instance: str) -> None:
        """Delete the position of an instance that is no writer."""
        self._execute(
            cursor,
            "DELETE FROM stream_positions WHERE stream_name = ? AND instance_name = ?",
            self.stream.name,
            instance,
        )

    def lock_start(self, cursor: ICursor) -> None:
        """Exclude other repairs of this stream (on SQLite all other writes) until the transaction ends."""
        if self.flavor == "postgresql":
            self._value(cursor, "SELECT pg_advisory_xact_lock(?, hashtext(?))", START_LOCK, self.stream.name)
        else:
            # The first write takes SQLite's only write lock.
            self._execute(
                cursor, "UPDATE synrepl_sequences SET value = value WHERE name = ?", self.stream.sequence
            )

    def notify(self, cursor: ICursor, channel: str) -> None:
        """Wake the waiting processes once this transaction is committed. Does nothing on SQLite."""
        if self.flavor == "postgresql":
            self._value(cursor, "SELECT pg_notify(?, '')", channel)

    def _execute(self, cursor: ICursor, statement: str, *parameters: Any) -> None:
        execute(cursor, self.flavor, statement, parameters)

    def _value(self, cursor: ICursor, statement: str, *parameters: Any) -> Any:
        self._execute(cursor, statement, *parameters)
        found = cursor.fetchone()
        return None if found is None else found[0]

    def _sequence_value(self, cursor: ICursor, statement: str, *parameters: Any) -> Any:
        value = self._value(cursor, statement, *parameters)
        if value is None:
            raise StorageError(
                op="allocate",
                why=f"there is no sequence {self.stream.sequence}",
                hint="make it, or correct its name in the configuration",
                stream=self.stream.name,
            )
        return value
