"""What a log keeps beside its facts: the receipts of appends, notes and leases."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, cast

import msgspec

from synrepl.base.history import AppendKey, AppendReceipt, Lease
from synrepl.base.notes import Notes
from synrepl.storage.schema import LEASE_COLUMNS, RECEIPT_COLUMNS, receipt_of, row_of_key, row_of_receipt
from synrepl.storage.sql import LogDatabase, SQLConnection

UPSERT_NOTE: Final = (
    "INSERT INTO notes (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
UPSERT_LEASE: Final = (
    f"INSERT INTO leases ({', '.join(LEASE_COLUMNS)}) VALUES ({', '.join('?' * len(LEASE_COLUMNS))})"
    f" ON CONFLICT (uuid) DO UPDATE SET"
    f" {', '.join(f'{name} = excluded.{name}' for name in LEASE_COLUMNS[1:])}"
)

RECEIPTS_AT_ONCE: Final = 100
"""The most receipts that one statement inserts."""


class StoredReceipts:
    """The receipts of appends with an idempotency key."""

    def __init__(self, database: LogDatabase) -> None:
        self._database = database

    def get(self, key: AppendKey) -> AppendReceipt | None:
        """The receipt of the append with this idempotency key; None if there is none."""
        with self._database.writer_connection("receipt") as connection:
            found = connection.execute(
                f"SELECT {RECEIPT_COLUMNS} FROM receipts WHERE (stream, key, owner, part) = (?, ?, ?, ?)",
                row_of_key(key),
            ).fetchone()
        return None if found is None else receipt_of(found)

    def between(self, after: int, upto: int, streams: Collection[str] | None = None) -> list[AppendReceipt]:
        """The receipts with ``after < first serial <= upto`` of these streams, in order of first serial.

        In the reading thread.
        """
        with self._database.reader_connection("receipts_between") as connection:
            found = connection.execute(
                f"SELECT {RECEIPT_COLUMNS} FROM receipts WHERE first_serial > ? AND first_serial <= ?"
                " ORDER BY first_serial",
                (after, upto),
            )
            return [receipt_of(row) for row in found if streams is None or row[0] in streams]

    def forget(self, before_ms: int) -> None:
        """Delete the receipts from before this time, in ms since 1970."""
        with self._database.transaction("forget_receipts") as connection:
            connection.execute("DELETE FROM receipts WHERE at_ms < ?", (before_ms,))

    @staticmethod
    def all(connection: SQLConnection) -> list[AppendReceipt]:
        """All receipts, in order of time."""
        found = connection.execute(f"SELECT {RECEIPT_COLUMNS} FROM receipts ORDER BY at_ms")
        return [receipt_of(row) for row in found]

    @staticmethod
    def add(connection: SQLConnection, receipts: Sequence[AppendReceipt]) -> None:
        """Store these receipts but those whose keys are known, within a transaction."""
        columns = RECEIPT_COLUMNS.count(",") + 1
        for first in range(0, len(receipts), RECEIPTS_AT_ONCE):
            some = receipts[first : first + RECEIPTS_AT_ONCE]
            values = ", ".join([f"({', '.join('?' * columns)})"] * len(some))
            connection.execute(
                f"INSERT INTO receipts ({RECEIPT_COLUMNS}) VALUES {values} "
                " ON CONFLICT (stream, key, owner, part) DO NOTHING",
                [value for receipt in some for value in row_of_receipt(receipt)],
            )


class StoredNotes:
    """Short texts by name."""

    def __init__(self, database: LogDatabase) -> None:
        self._database = database

    def all(self) -> Notes:
        """The stored notes."""
        with self._database.writer_connection("notes") as connection:
            return cast("Notes", dict(connection.execute("SELECT name, value FROM notes").fetchall()))

    def store(self, notes: Mapping[str, object]) -> None:
        """Store these notes in one transaction; None deletes a note."""
        with self._database.transaction("note") as connection:
            stored = [(name, text) for name, text in notes.items() if text is not None]
            connection.executemany(UPSERT_NOTE, stored)
            forgotten = [(name,) for name, text in notes.items() if text is None]
            connection.executemany("DELETE FROM notes WHERE name = ?", forgotten)


class StoredLeases:
    """The leases of readers."""

    def __init__(self, database: LogDatabase) -> None:
        self._database = database

    def all(self) -> list[Lease]:
        """All leases, ended ones included, in order of uuid."""
        with self._database.writer_connection("leases") as connection:
            found = connection.execute(f"SELECT {', '.join(LEASE_COLUMNS)} FROM leases").fetchall()
        rows = (dict(zip(LEASE_COLUMNS, row, strict=True)) for row in found)
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
            connection.executemany(UPSERT_LEASE, rows)
            connection.executemany("DELETE FROM leases WHERE uuid = ?", [(uuid,) for uuid in dropped])
