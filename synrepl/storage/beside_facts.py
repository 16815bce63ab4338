"""What a log keeps beside its facts: the receipts of appends, notes and leases."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, cast

import msgspec

from synrepl.base.history import AppendKey, AppendReceipt, Lease
from synrepl.base.notes import Notes
from synrepl.storage.checked_rows import LogDamage
from synrepl.storage.schema import LEASES, NOTES, RECEIPTS, receipt_of, row_of_key, row_of_receipt
from synrepl.storage.sql import LogDatabase, Row, SQLConnection

RECEIPTS_AT_ONCE: Final = 100
"""The most receipts that one statement inserts."""


class StoredReceipts:
    """The receipts of appends with an idempotency key."""

    def __init__(self, database: LogDatabase) -> None:
        self._database = database

    def get(self, key: AppendKey) -> AppendReceipt | None:
        """The receipt of the append with this idempotency key; None if there is none."""
        with self._database.writer_connection("receipt") as connection:
            of_key = "WHERE (stream, key, owner, part) = (?, ?, ?, ?)"
            for row in RECEIPTS.rows(connection.execute, of_key, row_of_key(key)):
                return receipt_of(row)
        return None

    def between(self, after: int, upto: int, streams: Collection[str] | None = None) -> list[AppendReceipt]:
        """The receipts with ``after < first serial <= upto`` of these streams, in order of first serial.

        In the reading thread.
        """
        with self._database.reader_connection("receipts_between") as connection:
            found = self._between(connection, after, upto)
            return [receipt_of(row) for row in found if streams is None or row[0] in streams]

    @staticmethod
    def _between(connection: SQLConnection, after: int, upto: int) -> list[Row]:
        """The same, as rows. Raises `LogDamage` if the index has more, or another last one from its end."""
        where, values = "WHERE first_serial > ? AND first_serial <= ?", (after, upto)
        last = f"SELECT first_serial FROM receipts {where} ORDER BY first_serial DESC LIMIT 1"
        before = None
        while True:
            found = list(RECEIPTS.rows(connection.execute, f"{where} ORDER BY first_serial", values))
            serials = [row[RECEIPTS.columns.index("first_serial")] for row in found]
            (count,) = connection.execute(f"SELECT count(*) FROM receipts {where}", values).fetchone()
            end = connection.execute(last, values).fetchone()
            if len(found) == count and (end[0] if end else None) == (serials[-1] if serials else None):
                return found
            if (len(found), count, end) == before:
                raise LogDamage("a row of receipts is missing")
            # Others may have been stored or forgotten meanwhile.
            before = len(found), count, end

    def forget(self, before_ms: int) -> None:
        """Delete the receipts from before this time, in ms since 1970."""
        with self._database.transaction("forget_receipts") as connection:
            connection.execute("DELETE FROM receipts WHERE at_ms < ?", (before_ms,))

    @staticmethod
    def all(connection: SQLConnection) -> list[AppendReceipt]:
        """All receipts, in order of time."""
        found = list(map(receipt_of, RECEIPTS.rows(connection.execute, "ORDER BY at_ms")))
        if len(found) < connection.execute("SELECT count(*) FROM receipts").fetchone()[0]:
            raise LogDamage("a row of receipts is missing")
        return found

    @staticmethod
    def add(connection: SQLConnection, receipts: Sequence[AppendReceipt]) -> None:
        """Store these receipts but those whose keys are known, within a transaction."""
        columns = len(RECEIPTS.columns) + 1
        for first in range(0, len(receipts), RECEIPTS_AT_ONCE):
            some = receipts[first : first + RECEIPTS_AT_ONCE]
            values = ", ".join([f"({', '.join('?' * columns)})"] * len(some))
            connection.execute(
                f"INSERT INTO receipts ({RECEIPTS.stored}) VALUES {values} "
                " ON CONFLICT (stream, key, owner, part) DO NOTHING",
                [value for row in RECEIPTS.checked(map(row_of_receipt, some)) for value in row],
            )


class StoredNotes:
    """Short texts by name."""

    def __init__(self, database: LogDatabase) -> None:
        self._database = database

    def all(self) -> Notes:
        """The stored notes."""
        with self._database.writer_connection("notes") as connection:
            return cast("Notes", dict(NOTES.rows(connection.execute)))

    def store(self, notes: Mapping[str, object]) -> None:
        """Store these notes in one transaction; None deletes a note."""
        with self._database.transaction("note") as connection:
            stored = [(name, text) for name, text in notes.items() if text is not None]
            NOTES.put(connection, stored)
            forgotten = [(name,) for name, text in notes.items() if text is None]
            connection.executemany("DELETE FROM notes WHERE name = ?", forgotten)


class StoredLeases:
    """The leases of readers."""

    def __init__(self, database: LogDatabase) -> None:
        self._database = database

    def all(self) -> list[Lease]:
        """All leases, ended ones included, in order of uuid."""
        with self._database.writer_connection("leases") as connection:
            rows = [dict(zip(LEASES.columns, row, strict=True)) for row in LEASES.rows(connection.execute)]
        return sorted(
            (msgspec.convert(row, Lease, strict=False) for row in rows), key=lambda lease: lease.uuid
        )

    def store(self, changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None:
        """Store these leases and delete the `dropped` uuids, in one transaction."""
        with self._database.transaction("keep_leases") as connection:
            rows = [
                tuple(int(value) if value is True or value is False else value for value in row)
                for row in map(msgspec.structs.astuple, changed)
            ]
            LEASES.put(connection, rows)
            connection.executemany("DELETE FROM leases WHERE uuid = ?", [(uuid,) for uuid in dropped])
