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


LONG_LOCKS = """\
  pid |       age       |                   query                    |       mode      | granted
------+-----------------+--------------------------------------------+-----------------+---------
 1084 | 00:16:34.856888 | SELECT ... FROM state_groups_state WHERE x | AccessShareLock | t
"""
LONG_SESSIONS = """\
 pid  | state  |          query_start          |                 query
------+--------+-------------------------------+---------------------------------------
 1084 | active | 2020-07-09 10:00:00.123+00    | SELECT ... FROM state_groups_state
 1085 | active | 2020-07-09 10:20:01.123+00    | SELECT 1
 1086 | active | 2020-07-08 10:20:01.123+00    | autovacuum: VACUUM public.events
"""


@pytest.mark.parametrize(("text", "said"), [(LONG_LOCKS, "16 minutes"), (LONG_SESSIONS, "20 minutes")])
def test_a_session_that_works_for_long_is_told_with_its_tables(text: str, said: str) -> None:
    """matrix-org/synapse#7772."""
    [passage] = explain(text).passages

    assert "look" == passage.severity
    assert any(said in one and "pid 1084" in one for one in passage.words)
    assert any(step.startswith("state_groups_state: ") for step in passage.advice)
    assert "pg_cancel_backend" in passage.advice[-1]


def test_a_plan_that_was_not_run_is_told_by_what_is_guessed() -> None:
    """matrix-org/synapse#11184; the statement before it is of a table that is known by itself."""
    [passage] = explain(
        "synapse=# explain SELECT event_id FROM state_groups_state WHERE type = ?;\n"
        "                                QUERY PLAN\n"
        "---------------------------------------------------------------------------\n"
        " Unique  (cost=37421005.02..38175030.12 rows=40000 width=104)\n"
        "   ->  Seq Scan on state_groups_state  (cost=0.00..4231111.60 rows=201073360 width=104)\n"
        "   ->  Seq Scan on state_group_edges e  (cost=0.00..4756.80 rows=252480 width=16)\n"
    ).passages

    assert "look" == passage.severity
    assert passage.words[0].startswith("It reads the whole of state_groups_state (201,073,360 rows)")
    assert any("guesses" in one for one in passage.words)
    assert passage.advice[0].startswith("ANALYZE state_groups_state")


STATEMENTS = """\
                       query                       | calls | total_exec_time | mean_exec_time
---------------------------------------------------+-------+-----------------+----------------
 SELECT * FROM device_inbox WHERE x = $1           |     2 |          9000.5 |        4500.25
 SELECT $1                                         | 3,000 |            31.5 |          0.01
 ALTER ROLE synapse PASSWORD 'hunter2'             |     1 |             0.5 |            0.5
"""


def test_statements_are_told_by_the_time_they_took() -> None:
    [passage] = explain(STATEMENTS).passages

    assert "look" == passage.severity
    assert "1 statement here takes a second or more" in passage.words[0]
    assert "9.0 s in 2 calls" in passage.words[1]
    assert any(step.startswith("device_inbox: ") for step in passage.advice)
    assert "hunter2" not in str(passage)


def test_statements_that_are_quick_are_only_counted() -> None:
    [passage] = explain("".join(STATEMENTS.splitlines(True)[:2] + STATEMENTS.splitlines(True)[3:])).passages

    assert "" == passage.severity
    assert "None here takes a second on average." in passage.words
    assert "hunter2" not in str(passage)


def test_a_table_of_which_old_releases_remove_nothing_is_told_so() -> None:
    """matrix-org/synapse#3643."""
    [passage] = explain(
        " public.received_transactions             | 2302 MB\n"
        " public.cache_invalidation_stream         | 2270 MB\n"
        " public.event_json                        | 1608 MB\n"
    ).passages

    assert any("DELETE FROM cache_invalidation_stream WHERE" in step for step in passage.advice)
    assert any("30 days" in step for step in passage.advice)


def test_clients_that_wait_in_the_mode_transaction_are_told_what_keeps_the_others() -> None:
    """pgbouncer/pgbouncer#992."""
    [passage] = explain(
        " database | cl_active | cl_waiting | sv_active |  pool_mode\n"
        "----------+-----------+------------+-----------+-------------\n"
        " xxdb     |       357 |        419 |        80 | transaction\n"
    ).passages

    assert any("Synapse must not have that mode, but session" in one for one in passage.words)
    assert any("xact_start" in step for step in passage.advice)


def a_table(**row: str) -> str:
    """Return a table of one row as psql prints it."""
    widths = [max(len(name), len(value)) for name, value in row.items()]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        for cells in (row.keys(), row.values())
    ]
    rule = "-+-".join("-" * width for width in widths)
    return f" {lines[0]}\n-{rule}-\n {lines[1]}\n"


@pytest.mark.parametrize(
    ("text", "severity", "said", "do"),
    [
        (
            a_table(pid="12", phase="waiting for old snapshots", lockers_total="3", current_locker_pid="45"),
            "look",
            "until transactions that were open before it have ended",
            "pid = 45",
        ),
        (
            a_table(pid="12", index_relid="5", phase="building index", blocks_total="200", blocks_done="50"),
            "",
            "building index, 25 % of 200",
            "",
        ),
        (
            a_table(
                pid="12", relid="16500", phase="scanning heap", heap_blks_total="10", heap_blks_scanned="5"
            ),
            "",
            "VACUUM works on 16500 (pid 12): scanning heap, 50 % of 10.",
            "",
        ),
        (a_table(gid="abc", prepared="2024-01-01 00:00:00+00"), "look", "undone: abc", "ROLLBACK PREPARED"),
        (a_table(indexrelid="events_x", indisvalid="f"), "look", "not valid: events_x", "REINDEX INDEX"),
        (a_table(indexrelid="events_x", indisvalid="t"), "", "are valid", ""),
        (
            a_table(tablename="events", tbloat="3", wastedbytes="50000000000"),
            "",
            "events 46.6 GiB",
            "pg_repack",
        ),
        (a_table(checkpoints_timed="100", checkpoints_req="5000"), "look", "by amount", "max_wal_size"),
        (a_table(checkpoints_timed="5000", checkpoints_req="100"), "", "5,000 by time", ""),
        (a_table(datname="synapse", pg_size_pretty="120 GB"), "", "synapse 120.0 GiB", "pg_class"),
        (
            a_table(slot_name="barman", active="f", restart_lsn="0/B0000000", wal_status="unreserved"),
            "look",
            "barman is about to be lost",
            "max_slot_wal_keep_size",
        ),
        (a_table(name="fsync", setting="off"), "look", "a crash may damage the database", "turn it on"),
        (a_table(name="work_mem", setting="4096"), "", "Settings of PostgreSQL", ""),
    ],
)
def test_what_goes_on_and_what_is_left_is_told_by_its_columns(
    text: str, severity: str, said: str, do: str
) -> None:
    [passage] = explain(text).passages

    assert severity == passage.severity
    assert any(said in one for one in passage.words)
    assert do in " | ".join(passage.advice)
