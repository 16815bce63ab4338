"""What the generators ask of a database, in SQL: one text for SQLite and PostgreSQL, but for the sequence."""

from typing import Any, Final

from synrepl.errors import StorageError
from synrepl.storage.ids.layout import IdStream
from synrepl.storage.ids.transactions import ICursor
from synrepl.storage.sql import Flavor, execute

__all__ = ["Flavor", "IdDatabase", "lock_making"]


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
"""How many ids are looked at in one go for a run without a hole."""

START_LOCK: Final = 0x5359_4E52
"""The class of the advisory locks under which one writer of a stream starts at a time."""

MAKE_LOCK: Final = 0x5359_4E4D
"""The advisory lock under which one process makes tables at a time: IF NOT EXISTS alone fails then."""


def lock_making(cursor: ICursor, flavor: Flavor) -> None:
    """Let nobody else make tables until the transaction ends."""
    if flavor == "postgresql":
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (MAKE_LOCK,))
        cursor.fetchone()


class IdDatabase:
    """The ids of one stream in a database of this flavor.

    Every method takes the cursor of a transaction and runs in it. All numbers go up, whatever the sign in
    the tables. Errors are the driver's own.
    """

    def __init__(self, stream: IdStream, flavor: Flavor) -> None:
        self.stream = stream
        self.flavor: Final = flavor

    # -- making --------------------------------------------------------------------------------------------

    def create(self, cursor: ICursor) -> None:
        """Make what is missing: the table of positions and the sequence. Its first value is 2: 1 was before
        everything, as in the schema that homeservers have.
        """
        lock_making(cursor, self.flavor)
        self._do(cursor, POSITIONS)
        if self.flavor == "postgresql":
            self._do(cursor, f"CREATE SEQUENCE IF NOT EXISTS {self.stream.sequence} START WITH 2")
        else:
            self._do(cursor, SEQUENCES)
            self._do(cursor, "INSERT OR IGNORE INTO synrepl_sequences VALUES (?, 1)", self.stream.sequence)

    # -- the sequence --------------------------------------------------------------------------------------

    def allocate(self, cursor: ICursor, count: int, above: int) -> tuple[list[int], int]:
        """The next `count` ids, in order, above `above`, and the number of this transaction.

        On SQLite a rollback takes back the count: see `is_over`. A PostgreSQL sequence gives no number twice
        after a rollback, but after a crash those again that no committed transaction had.
        """
        if self.flavor == "postgresql":
            while True:
                self._do(
                    cursor,
                    "SELECT nextval(?), txid_current() FROM generate_series(1, ?)",
                    self.stream.sequence,
                    count,
                )
                rows = cursor.fetchall()
                if rows[0][0] > above:
                    return [row[0] for row in rows], rows[0][1]
                self._pass_over(cursor, above - rows[-1][0])
        self._do(
            cursor,
            "UPDATE synrepl_sequences SET value = max(value, ?) + ? WHERE name = ? RETURNING value",
            above,
            count,
            self.stream.sequence,
        )
        found = cursor.fetchone()
        if found is None:
            raise self._no_sequence()
        last: int = found[0]
        return list(range(last - count + 1, last + 1)), 0

    def _pass_over(self, cursor: ICursor, count: int) -> None:
        """Let nobody have the next `count` ids. Others may reserve meanwhile."""
        if count > 0:
            self._do(cursor, "SELECT max(nextval(?)) FROM generate_series(1, ?)", self.stream.sequence, count)
            cursor.fetchone()

    def is_over(self, cursor: ICursor, mark: int, highest: int) -> bool:
        """Whether the transaction with this number, which was to be rolled back, is certain to have ended, so
        that nothing more comes of its ids, and they will not be given to this process again.
        """
        if self.flavor == "postgresql":
            # Not `txid_status`: after a crash the number may lie in the server's future.
            self._do(
                cursor,
                "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock'"
                " AND granted AND transactionid::text = ?",
                str(mark % 2**32),
            )
            return bool(cursor.fetchone()[0] == 0)
        self.raise_to(cursor, highest)
        return True

    def mark(self, cursor: ICursor) -> int:
        """The number of this transaction: all that have begun to write have lower ones."""
        if self.flavor != "postgresql":
            # Whoever gets the one lock for writing knows that all who wrote have ended.
            self.lock_start(cursor)
            return 0
        self._do(cursor, "SELECT txid_current()")
        return int(cursor.fetchone()[0])

    def have_ended(self, cursor: ICursor, since: int, before: int) -> bool:
        """Whether all transactions have ended with numbers from `since` on, and below `before`, which is that
        of one that has ended.
        """
        if self.flavor != "postgresql":
            return True
        self._do(
            cursor,
            "SELECT count(*) FROM txid_snapshot_xip(txid_current_snapshot()) AS running"
            " WHERE running >= ? AND running < ?",
            since,
            before,
        )
        return bool(cursor.fetchone()[0] == 0)

    def allocated(self, cursor: ICursor) -> int:
        """The last id that the sequence gave to anybody. 0 if it never gave one and begins with 1.

        Where no sequence is named, the last that left a row.
        """
        if not self.stream.sequence:
            return self.highest_row(cursor)
        if self.flavor == "postgresql":
            self._do(cursor, "SELECT to_regclass(?)", self.stream.sequence)
            if cursor.fetchone()[0] is None:
                raise self._no_sequence()
            self._do(cursor, f"SELECT last_value, is_called FROM {self.stream.sequence}")
            value, is_called = cursor.fetchone()
            return int(value if is_called else value - 1)
        self._do(cursor, "SELECT value FROM synrepl_sequences WHERE name = ?", self.stream.sequence)
        found = cursor.fetchone()
        if found is None:
            raise self._no_sequence()
        return int(found[0])

    def raise_to(self, cursor: ICursor, value: int) -> None:
        """Let the sequence go on beyond `value`. Never backwards, whoever else uses it meanwhile."""
        if self.flavor == "postgresql":
            # Changes nothing, but keeps everybody else from the sequence until this transaction ends.
            self._do(cursor, f"ALTER SEQUENCE {self.stream.sequence} INCREMENT BY 1")
            if self.allocated(cursor) < value:
                self._do(cursor, "SELECT setval(?, ?)", self.stream.sequence, value)
                cursor.fetchone()
        else:
            self._do(
                cursor,
                "UPDATE synrepl_sequences SET value = max(value, ?) WHERE name = ?",
                value,
                self.stream.sequence,
            )

    # -- the tables ----------------------------------------------------------------------------------------

    def highest_row(self, cursor: ICursor) -> int:
        """The highest id of any row in the tables, committed ones only; 0 when they are empty."""
        highest = 0
        for table in self.stream.tables:
            end = "min" if self.stream.negative else "max"
            self._do(cursor, f"SELECT {end}({table.id_column}) FROM {table.name}")
            found = cursor.fetchone()[0]
            if found is not None:
                highest = max(highest, found * self.stream.sign)
        return highest

    def end_of_run(self, cursor: ICursor, token: int) -> int:
        """The end of the ids with rows that follow `token` without a hole; `token` itself if the next has
        none.
        """
        while True:
            found: set[int] = set()
            for table in self.stream.tables:
                first, last = sorted(((token + 1) * self.stream.sign, (token + RUN) * self.stream.sign))
                self._do(
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
        """The highest id at or above `token` with a row of this writer; None if there is none."""
        sign = self.stream.sign
        end, beyond = ("min", "<=") if self.stream.negative else ("max", ">=")
        highest: int | None = None
        for table in self.stream.tables:
            if table.writer_column is None:
                continue
            self._do(
                cursor,
                f"SELECT {end}({table.id_column}) FROM {table.name}"
                f" WHERE {table.id_column} {beyond} ? AND {table.writer_column} = ?",
                token * sign,
                writer,
            )
            found = cursor.fetchone()[0]
            if found is not None:
                highest = max(highest or 0, found * sign)
        return highest

    # -- the positions -------------------------------------------------------------------------------------

    def positions(self, cursor: ICursor) -> dict[str, int]:
        """The stored position of every instance."""
        self._do(
            cursor,
            "SELECT instance_name, stream_id FROM stream_positions WHERE stream_name = ?",
            self.stream.name,
        )
        return {name: token * self.stream.sign for name, token in cursor.fetchall()}

    def save_position(self, cursor: ICursor, instance: str, token: int) -> None:
        """Store a position; one that is further already stays."""
        beyond = "<" if self.stream.negative else ">"
        self._do(
            cursor,
            "INSERT INTO stream_positions (stream_name, instance_name, stream_id) VALUES (?, ?, ?)"
            " ON CONFLICT (stream_name, instance_name) DO UPDATE SET stream_id = excluded.stream_id"
            f" WHERE excluded.stream_id {beyond} stream_positions.stream_id",
            self.stream.name,
            instance,
            token * self.stream.sign,
        )

    def forget_position(self, cursor: ICursor, instance: str) -> None:
        """Remove the position of an instance that is no writer."""
        self._do(
            cursor,
            "DELETE FROM stream_positions WHERE stream_name = ? AND instance_name = ?",
            self.stream.name,
            instance,
        )

    # -- one at a time -------------------------------------------------------------------------------------

    def lock_start(self, cursor: ICursor) -> None:
        """Let nobody else look at or mend this stream until the transaction ends."""
        if self.flavor == "postgresql":
            self._do(cursor, "SELECT pg_advisory_xact_lock(?, hashtext(?))", START_LOCK, self.stream.name)
            cursor.fetchone()
        else:
            # The first write takes the one lock that SQLite has.
            self._do(
                cursor,
                "UPDATE synrepl_sequences SET value = value WHERE name = ?",
                self.stream.sequence,
            )

    def notify(self, cursor: ICursor, channel: str) -> None:
        """Wake those who LISTEN, once this transaction is committed. SQLite has no such thing."""
        if self.flavor == "postgresql":
            self._do(cursor, "SELECT pg_notify(?, '')", channel)
            cursor.fetchone()

    def _do(self, cursor: ICursor, statement: str, *parameters: Any) -> None:
        execute(cursor, self.flavor, statement, parameters)

    def _no_sequence(self) -> StorageError:
        return StorageError(
            op="allocate",
            why=f"there is no sequence {self.stream.sequence}",
            hint="make it, or correct its name in the configuration",
            stream=self.stream.name,
        )
