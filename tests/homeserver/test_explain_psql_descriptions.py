"""Tables as psql describes them: which unique indexes they lack."""

import pytest

from synrepl.homeserver.explanation import explain
from synrepl.homeserver.explanation.psql_descriptions import KIND

COLUMNS = """\
             Unlogged table "public.{}"
     Column      |  Type   | Collation | Nullable | Default
-----------------+---------+-----------+----------+---------
 lock_name       | text    |           | not null |
 lock_key        | text    |           | not null |
"""
KEY = '    "worker_read_write_locks_key" UNIQUE, btree (lock_name, lock_key, token)\n'
WRITE = '    "worker_read_write_locks_write" UNIQUE, btree (lock_name, lock_key) WHERE write_lock\n'
OTHER_KEY = '    "locks_pkey" PRIMARY KEY, btree (lock_name, lock_key, instance_name)\n'
TRIGGERS = """\
Foreign-key constraints:
    "locks_fkey" FOREIGN KEY (lock_name, lock_key, write_lock) REFERENCES others(lock_name, lock_key)
Triggers:
    a_trigger AFTER DELETE ON worker_read_write_locks FOR EACH ROW EXECUTE FUNCTION it()
"""


def described(table: str = "worker_read_write_locks", *indexes: str) -> str:
    head = "Indexes:\n" if indexes else ""
    return COLUMNS.format(table) + head + "".join(indexes)


def test_a_table_of_locks_without_its_indexes_is_told_with_the_cure() -> None:
    """Another program made its primary key (element-hq/synapse#19601)."""
    text = "hs=# \\d worker_read_write_locks\n" + described("worker_read_write_locks", OTHER_KEY) + TRIGGERS
    found = explain(text)
    [passage] = found.passages
    words, advice = " ".join(passage.words), " ".join(passage.advice)

    assert (passage.kind, passage.severity, found.unrecognized) == (KIND, "error", 0)
    assert "lacks 2 unique indexes" in words
    assert "(lock_key, lock_name) WHERE write_lock" in words
    assert "locks_pkey" in words
    assert "nothing is lost" in words
    assert "stop all processes" in advice
    assert "DROP CONSTRAINT locks_pkey" in advice
    assert "synrepl doctor" in advice


def test_a_table_with_its_indexes_is_normal() -> None:
    [passage] = explain(described("worker_read_write_locks", KEY, WRITE) + TRIGGERS).passages

    assert passage.severity == "normal"


@pytest.mark.parametrize(
    "index",
    [
        '    "x" btree (lock_name, lock_key) WHERE write_lock\n',
        '    "x" UNIQUE, btree (lock_name, lock_key) WHERE write_lock INVALID\n',
        '    "x" UNIQUE, btree (lock_name) WHERE write_lock\n',
    ],
)
def test_another_index_does_not_do(index: str) -> None:
    [passage] = explain(described("worker_read_write_locks", KEY, index)).passages

    assert "lacks 1 unique index " in passage.words[0]


@pytest.mark.parametrize(
    ("table", "index", "severity"),
    [
        ("devices", '    "u" UNIQUE CONSTRAINT, btree (user_id, device_id)\n', "normal"),
        ("devices", '    "u" UNIQUE CONSTRAINT, btree (user_id)\n', "error"),
        ("of_another_program", '    "u" UNIQUE CONSTRAINT, btree (user_id)\n', ""),
    ],
)
def test_tables_of_data_and_of_others(table: str, index: str, severity: str) -> None:
    [passage] = explain(described(table, index)).passages

    assert passage.severity == severity
    assert "locks of the moment" not in " ".join(passage.words)


def test_what_follows_a_description_is_read_by_itself() -> None:
    line = "Lock timeout is getting excessive: 640s. There may be a deadlock."
    found = explain(f"{described('devices')}\nsynapse.handlers.worker_lock - WARNING - {line}")

    assert {one.kind for one in found.passages} == {KIND, "lock_slow"}
    assert "lists no index" in " ".join(word for one in found.passages for word in one.words)


def test_a_line_of_lock_that_is_slow_leads_to_the_indexes() -> None:
    [passage] = explain("Lock timeout is getting excessive: 640s. There may be a deadlock.").passages

    assert "synrepl doctor" in passage.advice[0]
    assert "nothing that was acknowledged is lost" in " ".join(passage.words)
