"""Receipts of appends with idempotency keys, in an SQL database."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from synrepl.ports.history import Appended, AppendReceipt
from synrepl.storage.sql_base import Row, SQLBase

__all__ = ["RECEIPT_COLUMNS", "SQLReceipts", "row_of_receipt"]

RECEIPT_COLUMNS: Final = "key, request, epoch, first_serial, tokens, at_ms"

INSERTED_AT_ONCE: Final = 100


class SQLReceipts(SQLBase):
    """The part of an engine for receipts."""

    def receipt(self, key: str) -> AppendReceipt | None:
        """The receipt of the append with this key."""
        with self._map_errors("receipt"):
            found = self._execute(
                self._writer("receipt"), f"SELECT {RECEIPT_COLUMNS} FROM receipts WHERE key = ?", (key,)
            ).fetchone()
        return None if found is None else _receipt(found)

    def receipts_between(self, after: int, upto: int) -> list[AppendReceipt]:
        """The receipts of appends with ``after < first serial <= upto``, in order of first serial."""
        with self._map_errors("receipts_between"):
            return [
                _receipt(row)
                for row in self._execute(
                    self._reader("receipts_between"),
                    f"SELECT {RECEIPT_COLUMNS} FROM receipts WHERE first_serial > ? AND first_serial <= ?"
                    " ORDER BY first_serial",
                    (after, upto),
                )
            ]

    def forget_receipts(self, before_ms: int) -> None:
        """Delete the receipts from before this time."""
        with self._map_errors("forget_receipts"):
            database = self._writer("forget_receipts")
            with self._transaction(database):
                self._execute(database, "DELETE FROM receipts WHERE at_ms < ?", (before_ms,))

    def _receipts(self, database: Any) -> list[AppendReceipt]:
        found = self._execute(database, f"SELECT {RECEIPT_COLUMNS} FROM receipts ORDER BY at_ms")
        return [_receipt(row) for row in found]

    def _add_receipts(self, database: Any, receipts: Sequence[AppendReceipt]) -> None:
        """Insert the receipts whose keys are new; within a transaction."""
        columns = RECEIPT_COLUMNS.count(",") + 1
        for first in range(0, len(receipts), INSERTED_AT_ONCE):
            some = receipts[first : first + INSERTED_AT_ONCE]
            values = ", ".join([f"({', '.join('?' * columns)})"] * len(some))
            self._execute(
                database,
                f"INSERT INTO receipts ({RECEIPT_COLUMNS}) VALUES {values} ON CONFLICT (key) DO NOTHING",
                [value for receipt in some for value in row_of_receipt(receipt)],
            )


def row_of_receipt(receipt: AppendReceipt) -> Row:
    """Convert a receipt to a row of `RECEIPT_COLUMNS`."""
    appended = receipt.appended
    tokens = msgspec.json.encode(appended.tokens).decode()
    return (receipt.key, receipt.request, appended.epoch, appended.first_serial, tokens, receipt.at_ms)


def _receipt(row: Row) -> AppendReceipt:
    key, request, epoch, first_serial, tokens, at_ms = row
    appended = Appended(epoch, first_serial, msgspec.json.decode(tokens, type=list[int]))
    return AppendReceipt(key, request, appended, at_ms)
