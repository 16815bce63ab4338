"""What psql shows of the PostgreSQL server itself and of PgBouncer, as people paste it."""

import pytest

from synrepl.homeserver.explanation import Passage, explain

ACTIVITY = """\
  pid  | usename  |      xact_start     | wait_event_type | wait_event |        state        |  query
-------+----------+---------------------+-----------------+------------+---------------------+---------
 14210 | synapse  | 2018-08-22 17:27:44 | Lock            | virtualxid | active              | CREATE ...
 14211 | postgres | 2018-08-22 10:27:44 | Client          | ClientRead | idle in transaction | 'hunter2'
(2 rows)
"""
EXPANDED = """\
-[ RECORD 1 ]----+------------------------------
pid              | 14211
state            | idle in transaction
xact_start       | 2018-08-22 10:27:44.379472+02
query            | SELECT 1                     +
                 |   FROM events
-[ RECORD 2 ]----+------------------------------
pid              | 14212
state            | idle
xact_start       |
query            | COMMIT
"""
COUNTS = """\
 count | state
-------+--------
    95 | idle
     2 | active
(2 rows)
"""
LOCKS = """\
 locktype | relation |  pid  |        mode         | granted
----------+----------+-------+---------------------+---------
 relation |    16500 | 12345 | AccessExclusiveLock | f
 relation |    16500 | 12346 | RowExclusiveLock    | t
"""
BLOCKED = """\
 blocked_pid | blocking_pid | blocked_statement
-------------+--------------+--------------------
         123 |          125 | UPDATE receipts_linearized SET ...
"""
SLOTS = """\
 slot_name | slot_type | active | restart_lsn | wal_status
-----------+-----------+--------+-------------+------------
 pgnode1   | physical  | f      | 0/3000028   | extended
 dbz       | logical   | f      |             | lost
"""
STANDBYS = """\
 pid | application_name |   state   | sent_lsn | replay_lsn | sync_state
-----+------------------+-----------+----------+------------+------------
 123 | node2            | streaming | 0/3000   | 0/2000     | sync
"""
AGES = """\
 datname |    age
---------+------------
 synapse | 1999000000
"""
DEAD = """\
   relname    | n_live_tup | n_dead_tup | last_autovacuum
--------------+------------+------------+-----------------
 device_inbox |        100 |   99999999 |
 events       |   90000000 |      20000 |
"""
SIZES = """\
| Relation                  | Total Size |
|---------------------------|------------|
| public.state_groups_state | 76 GB      |
| public.event_json         | 10 GB      |
"""
POOLS = """\
 database | user    | cl_active | cl_waiting | sv_active | sv_idle | maxwait | pool_mode
----------+---------+-----------+------------+-----------+---------+---------+-----------
 synapse  | synapse |        20 |         37 |        20 |       0 |      14 | session
"""
PLAN = """\
                                   QUERY PLAN
-----------------------------------------------------------------------------------
 Delete on device_inbox  (cost=0.0..1.0 rows=1 width=6) (actual time=6.1..6.1 rows=0 loops=1)
   ->  Seq Scan on device_inbox  (cost=0.0..1.0 rows=1 width=6) (actual time=0.1..6.0 rows=40 loops=1)
         Rows Removed by Filter: 8500000
 Planning Time: 0.1 ms
 Execution Time: 60001.2 ms
(5 rows)
"""
SHOW_CONFIG = """\
        key        |    value    | default | changeable
-------------------+-------------+---------+------------
 default_pool_size | 20          | 20      | yes
 pool_mode         | transaction | session | yes
"""
POOLED = """\
   name    |   host    | port | database | pool_size | pool_mode | current_connections
-----------+-----------+------+----------+-----------+-----------+---------------------
 synapse   | localhost | 5432 | synapse  |        20 |           |                  20
"""


def only(text: str) -> Passage:
    found = explain(text)
    assert found.unrecognized == 0
    [passage] = [one for one in found.passages if one.kind == "sql_table"]
    return passage


@pytest.mark.parametrize(
    ("text", "severity", "said", "do"),
    [
        (
            ACTIVITY,
            "look",
            "1 session (idle in transaction, pid 14211, xact_start 2018",
            "pg_terminate_backend",
        ),
        (ACTIVITY, "look", "1 session (14210) waits for a lock", "pg_blocking_pids"),
        (ACTIVITY, "look", "a CREATE INDEX CONCURRENTLY, which waits until every transaction", ""),
        (
            EXPANDED,
            "look",
            "1 session (idle in transaction, pid 14211, xact_start",
            "look again after a minute",
        ),
        (COUNTS, "", "95 idle and 2 active", ""),
        (COUNTS, "", "An idle one is normal", ""),
        (LOCKS, "look", "Sessions wait for locks: pid 12345, for AccessExclusiveLock", "pg_blocking_pids"),
        (LOCKS.replace(" f\n", " t\n"), "", "Nobody waits here", ""),
        (BLOCKED, "look", "123 waits for 125", "pg_terminate_backend"),
        (SLOTS, "error", "dbz is lost", "Debezium by a new snapshot"),
        (SLOTS, "error", "Nobody reads pgnode1 and dbz (active f)", "pg_drop_replication_slot"),
        (STANDBYS, "", "node2 has not applied all that it was sent", ""),
        (STANDBYS, "", "each commit waits for a standby", ""),
        (AGES, "error", "synapse has transactions of age 1,999,000,000", "pg_prepared_xacts"),
        (AGES.replace("1999", " 199"), "", "That is normal", ""),
        (DEAD, "look", "More dead rows than live ones: device_inbox (99,999,999)", "VACUUM (VERBOSE"),
        (SIZES, "", "the largest: state_groups_state 76.0 GiB and event_json 10.0 GiB", "pg_repack"),
        (SIZES, "", "state_groups_state: The state of each group", "synapse_auto_compressor"),
        (POOLS, "error", "synapse: 37 clients, with 20 connections in use", "default_pool_size"),
        (POOLS.replace("37", " 0"), "", "no client waits", ""),
        (PLAN, "look", "It reads the whole of device_inbox (8,500,040 rows)", "ANALYZE device_inbox"),
        (PLAN, "look", "it took 60 s", "background_updates"),
        (PLAN.replace("8500000", "85"), "", "It reads no large table as a whole", ""),
        (PLAN.replace("60001.2", "1.2"), "", "is quick all the same", ""),
        (SHOW_CONFIG, "error", "The pool_mode is transaction, and Synapse needs session", "RELOAD"),
        (
            SHOW_CONFIG.replace("transaction", "session    "),
            "",
            "default_pool_size 20",
            "raise default_pool_size",
        ),
        (POOLED, "", "synapse up to 20 connections (now 20)", "raise default_pool_size"),
        (POOLED.replace("20 |      ", "20 | transaction"), "error", "synapse is in a mode that Synapse", ""),
    ],
)
def test_a_view_of_the_server_is_told_by_its_columns(text: str, severity: str, said: str, do: str) -> None:
    passage = only(text)

    assert severity == passage.severity
    assert any(said in one for one in passage.words)
    assert do in " | ".join(passage.advice)


@pytest.mark.parametrize(
    ("setting", "value", "severity", "said"),
    [
        ("server_encoding", "SQL_ASCII", "error", "Synapse needs UTF8"),
        ("server_encoding", "UTF8", "", "as Synapse needs it"),
        ("datcollate", "C", "", "is C, as Synapse needs it"),
        ("lc_collate", "en_US.UTF-8", "error", "Synapse needs C"),
        ("pg_is_in_recovery", "t", "error", "is a standby"),
        ("pg_is_in_recovery", "f", "", "is no standby"),
        ("transaction_read_only", "on", "error", "may only read"),
        ("max_connections", "100", "", "takes 100 connections"),
        ("default_transaction_isolation", "read committed", "", "Synapse sets repeatable read"),
        ("statement_timeout", "30s", "", "The limit is 30s"),
        ("lock_timeout", "0", "", "No limit"),
        ("synchronous_commit", "off", "look", "loses the last commits"),
    ],
)
def test_a_setting_is_told_by_its_name(setting: str, value: str, severity: str, said: str) -> None:
    passage = only(f" {setting} \n{'-' * (len(setting) + 2)}\n {value}\n(1 row)\n")

    assert (severity, True) == (passage.severity, said in passage.words[0])


def test_databases_are_judged_by_the_names_of_the_catalog_as_well() -> None:
    passage = only(
        " datname  |  datcollate | datctype\n"
        "----------+-------------+-------------\n"
        " synapse  | en_US.UTF-8 | en_US.UTF-8\n"
    )

    assert (
        "synapse has collate en_US.UTF-8, ctype en_US.UTF-8: Synapse refuses to start on it."
        == passage.words[1]
    )


def test_statements_in_a_view_are_not_repeated() -> None:
    assert "hunter2" not in str(only(ACTIVITY))
    assert "hunter2" not in str(explain(BLOCKED.replace("...", "x = 'hunter2'")))


def test_a_table_of_synapse_is_none_of_the_server() -> None:
    """It has a column with the name state, and a count."""
    [passage] = [
        one
        for one in explain(
            "select count(*), state from application_services_state group by 2;\n"
            " count | state\n-------+-------\n     1 | down\n"
        ).passages
        if one.kind == "sql_table"
    ]

    assert "application_services_state" == passage.text


@pytest.mark.parametrize(
    "rows",
    [
        (
            " public | state_groups_state | table | synapse | permanent | heap | 77 GB |\n"
            " public | events | table | synapse | permanent | heap | 9123 MB |\n"
        ),
        " public | events | table | a | 9123 MB | \n public | state_groups_state | table | a | 77 GB | \n",
        "state_groups_state | 77 GB\nevents | 9123 MB\n",
        "public.state_groups_state | 70 GB | 77 GB\npublic.events | 9000 MB | 9123 MB\n",
    ],
)
def test_rows_of_sizes_are_read_without_their_head(rows: str) -> None:
    """matrix-org/synapse#7156."""
    found = explain(rows)
    [passage] = found.passages

    assert passage.words[0].startswith("Sizes of tables; the largest: state_groups_state")
    assert found.unrecognized == 0


@pytest.mark.parametrize(
    "text",
    ["a line | 12 | of something\nanother line | 13 | of something\n", "cpu | 5 GB\n", "x | y\nz | 5 GB\n"],
)
def test_other_rows_without_a_head_are_no_sizes(text: str) -> None:
    assert explain(text).passages == []
