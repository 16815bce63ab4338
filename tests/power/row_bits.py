"""Flipped bits of rows: one bit of what one row of a log has, whichever tables the log has.

`bits.py` flips bits of files, at rest and in use; this is for logs in memory.
"""

import random
import sqlite3
from typing import Any, Final

from synrepl.storage.checked_rows import CHECKED_FACT, facts_of
from synrepl.storage.schema import BESIDE_FACTS
from tests.memory_engine import UNREADABLE

__all__ = ["damage_in", "flip_row_bit"]

WIDTHS: Final = (1, 2, 3, 4, 6, 8)
"""The bytes that SQLite stores integers in."""


def flip_row_bit(connection: sqlite3.Connection, chance: random.Random) -> str | None:
    """Flip one drawn bit of one drawn row, and say where. None if no table has a row, or another row has
    the key that it would become.

    Each row is as likely as the others, or, as often, each table.
    """
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    ).fetchall()
    rows = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for (name,) in names}
    rows = {name: count for name, count in rows.items() if count}
    if not rows:
        return None
    weights = list(rows.values()) if chance.random() < 0.5 else None
    (table,) = chance.choices(list(rows), weights)
    count = rows[table]
    described = connection.execute(f"PRAGMA table_info({table})").fetchall()
    columns = [column for _, column, *_ in described]
    key = ", ".join([column for _, column, *_, part in described if part] or ["rowid"])
    read = [
        f"typeof({one}), CASE typeof({one}) WHEN 'text' THEN CAST({one} AS BLOB) ELSE {one} END"
        for one in columns
    ]
    at = chance.randrange(count)
    found = connection.execute(
        f"SELECT {', '.join(read)} FROM {table} ORDER BY {key} LIMIT 1 OFFSET ?", (at,)
    )
    row = found.fetchone()
    values = list(zip(columns, row[::2], row[1::2], strict=True))
    bits = [(column, bit) for column, kind, value in values for bit in range(8 * _width(kind, value))]
    column, bit = chance.choice(bits)
    kind, value = next((kind, value) for name, kind, value in values if name == column)
    marks = "CAST(? AS TEXT)" if kind == "text" else "?"
    where = f"({key}) = (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1 OFFSET ?)"
    try:
        connection.execute(f"UPDATE {table} SET {column} = {marks} WHERE {where}", (_flipped(value, bit), at))
    except sqlite3.IntegrityError:
        return None
    return f"bit {bit} of {column} in row {at + 1} of {table}"


def _width(kind: str, value: Any) -> int:
    if kind == "integer":
        return next(width for width in WIDTHS if -(1 << 8 * width - 1) <= value < 1 << 8 * width - 1)
    return 0 if value is None else len(value)


def _flipped(value: Any, bit: int) -> Any:
    if isinstance(value, int):
        width = _width("integer", value)
        data = bytearray(value.to_bytes(width, signed=True))
        data[bit // 8] ^= 1 << bit % 8
        return int.from_bytes(data, signed=True)
    data = bytearray(value)
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


def damage_in(connection: Any) -> str:
    """Return what a reader of the whole log is told of its first damaged row; "" if it has none."""
    try:
        for _ in facts_of(connection.execute(f"SELECT {CHECKED_FACT} FROM facts ORDER BY serial")):
            pass
        for table in BESIDE_FACTS:
            for _ in table.rows(connection.execute):
                pass
    except UNREADABLE as error:
        return str(error)
    return ""
