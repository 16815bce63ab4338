"""Rows that a test has changed get the checksums that they would have had."""

from collections.abc import Callable
from typing import Any

from synrepl.storage.checked_rows import FACT_COLUMNS, fact_crc
from synrepl.storage.schema import BESIDE_FACTS

__all__ = ["reseal"]


def reseal(execute: Callable[..., Any]) -> None:
    """Compute the checksums of all rows of a log anew."""
    for table in BESIDE_FACTS:
        table.seal(execute)
    for row in execute(f"SELECT {FACT_COLUMNS} FROM facts").fetchall():
        execute("UPDATE facts SET crc = ? WHERE serial = ?", (fact_crc(tuple(row)), row[0]))
