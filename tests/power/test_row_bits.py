"""One bit of one row of a log."""

import random
from typing import Any

from synrepl.base.history import Appended, AppendKey, AppendReceipt, Lease
from synrepl.storage.schema import TABLES
from tests.memory_engine import FaultyEngine
from tests.power.row_bits import damage_in, flip_row_bit
from tests.storage.builders import NOW, facts_after

FACTS = facts_after(None, ("events", "w1", 0, 1), ("tags", "wé", 0, 1))


def made() -> FaultyEngine:
    engine = FaultyEngine()
    engine.open()
    receipt = AppendReceipt(AppendKey("events", "k"), "r", Appended(1, 1, [1]), NOW * 1000)
    engine.commit(FACTS, [receipt])
    engine.leases.store([Lease(uuid="u", name="n", registered=True, serial=1, made_ms=1)])
    engine.trim(1, lambda stream, rows: [b"key"], 10)
    return engine


def content(engine: FaultyEngine) -> dict[str, list[tuple[Any, ...]]]:
    """All cells, texts as bytes."""
    execute = engine.database.connection.execute
    found = {}
    for table in TABLES:
        columns = [column for _, column, *_ in execute(f"PRAGMA table_info({table})").fetchall()]
        cells = [f"CASE typeof({one}) WHEN 'text' THEN CAST({one} AS BLOB) ELSE {one} END" for one in columns]
        found[table] = sorted(execute(f"SELECT {', '.join(cells)} FROM {table}").fetchall(), key=repr)
    return found


def bits_between(one: int | bytes, other: int | bytes) -> int:
    """How many bits differ between two cells."""
    if isinstance(one, int) and isinstance(other, int):
        return ((one ^ other) & (1 << 64) - 1).bit_count()
    assert isinstance(one, bytes)
    assert isinstance(other, bytes)
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


def test_one_bit_of_one_row_flips_and_is_found() -> None:
    """In each table that has rows. The index of keys has no checksums: what it says is not believed."""
    tables = set[str]()
    for seed in range(200):
        engine = made()
        before = content(engine)
        where = flip_row_bit(engine.database.connection, random.Random(seed))
        if where is None:
            continue
        table = where.rpartition(" ")[2]
        tables.add(table)
        after = content(engine)

        assert [table] == [name for name in TABLES if before[name] != after[name]]
        (old,) = [row for row in before[table] if row not in after[table]]
        (new,) = [row for row in after[table] if row not in before[table]]
        ((one, other),) = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        # A number's sign is in all bits above those that it is stored in.
        assert bits_between(one, other) == 1 or isinstance(one, int), where
        assert damage_in(engine.database.connection) or table == "newest_by_key", where

    assert {table for table, rows in content(made()).items() if rows} == tables


def test_a_whole_log_has_no_damage() -> None:
    assert "" == damage_in(made().database.connection)


def test_an_empty_database_has_no_bit_to_flip() -> None:
    engine = FaultyEngine()
    for table in TABLES:
        engine.database.connection.execute(f"DELETE FROM {table}")

    assert flip_row_bit(engine.database.connection, random.Random(1)) is None
