"""Sessions of a PostgreSQL server, as psql shows them: at work, open, waiting for each other."""

import re
from collections import Counter
from datetime import datetime
from typing import Final

from synrepl.homeserver.explanation.relations import known_relations
from synrepl.homeserver.explanation.server_rows import (
    Rows,
    Said,
    is_count,
    seconds_of,
    steps_of,
)
from synrepl.html.humanize import counted, listed, several
from synrepl.wire.text import printable

_OPEN: Final = "idle in transaction"
BLOCKERS: Final = (
    "SELECT pid, pg_blocking_pids(pid), state, wait_event, now() - xact_start, query FROM pg_stat_activity"
    " WHERE cardinality(pg_blocking_pids(pid)) > 0 OR state LIKE 'idle in%'"
)
"""Who waits for whom."""
LONG: Final = 60
"""From how many seconds on a statement takes long."""
_STARTS: Final = ("query_start", "xact_start", "state_change", "backend_start")
_CHORES: Final = re.compile(r"autovacuum: |START_REPLICATION")


_AGES: Final = ("age", "duration", "runtime", "xact_age", "xact_start", "query_start", "state_change")
"""Columns that tell how long something has lasted, or since when."""


def _which_of(rows: Rows) -> str:
    """The processes of rows, and the age of the first, to be put behind a word."""
    pids = _pids_of(rows)
    ages = [f"{name} {printable(row[name])}" for row in rows[:1] for name in _AGES if row.get(name)]
    return "".join(f", {one}" for one in [f"pid {pids}" if pids else "", *ages[:1]] if one)


def _pids_of(rows: Rows) -> str:
    """The numbers of the processes of rows; "" if there are none."""
    found = list(
        dict.fromkeys(printable(row[key]) for row in rows for key in ("pid", "procpid") if row.get(key))
    )
    return several(found) if found else ""


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _told_of_longest(rows: Rows) -> Said:
    """What is said of the session that has been at one statement for longest."""
    at_work = [
        row
        for row in rows
        if row.get("state", "active") == "active" and not _CHORES.match(row.get("query", ""))
    ]
    # The newest time in the view is no later than that at which it was asked for.
    now = max((_moment(row.get(name, "")) for row in rows for name in _STARTS), default=0.0)
    ages = [
        (max([*(seconds_of(row.get(name, "")) for name in _AGES), int(now - start) if start else -1]), row)
        for row in at_work
        for start in (_moment(row.get("query_start", "")),)
    ]
    most, row = max(ages, key=lambda one: one[0], default=(-1, {}))
    if most < LONG:
        return Said([], [])
    words = (
        f"The session that has been at work for longest{_which_of([row])} has been so for"
        f" {most // 60} minutes or more: meanwhile its locks stay, and VACUUM removes no row that was deleted"
        " since it began."
    )
    tables = [name for name in known_relations() if re.search(rf"\b{name}\b", row.get("query", ""))]
    return Said(
        [words],
        [
            (
                "if it waits for no lock: ANALYZE its tables, as statistics are old after a restore or an"
                " upgrade; EXPLAIN (ANALYZE, BUFFERS) of a SELECT, which runs it, tells what takes long"
            ),
            *steps_of(tables),
            (
                "SELECT pg_cancel_backend(PID) ends the statement alone: its transaction is undone, and a"
                " process of Synapse repeats it or fails that request; what was committed stays"
            ),
        ],
        "look",
    )


_END_ONE: Final = (
    "SELECT pg_terminate_backend(PID) ends one for good: its transaction is undone as a whole, and a process"
    " of Synapse repeats it or fails that request; what was committed stays"
)


def told_of_sessions(rows: Rows) -> Said:
    """Sessions: those that have a transaction open, wait, or work for long."""
    states: Counter[str] = Counter()
    for row in rows:
        number = row.get("count", "")
        states[row.get("state", "") or "without a state"] += int(number) if is_count(number) else 1
    counts = listed([f"{count} {printable(state)}" for state, count in states.most_common(8)])
    words = [f"Sessions of PostgreSQL (pg_stat_activity): {counts}."]
    if states["idle"]:
        words.append(
            "An idle one is normal: each process of Synapse keeps its connections (cp_min to cp_max of each"
            " database), and the query shown is the last that it has run, such as COMMIT."
        )
    still = [row for row in rows if row.get("state", "").startswith(_OPEN)]
    waiting = [row for row in rows if row.get("wait_event_type") == "Lock"]
    advice = []
    if still:
        words.insert(
            0,
            f"{counted(states[_OPEN] + states[_OPEN + ' (aborted)'], 'session')} ({_OPEN}{_which_of(still)})"
            " has a transaction open and asks nothing: its locks stay, and VACUUM removes no row that was"
            " deleted since it began, in any table.",
        )
        words.append(
            "A process of Synapse is so for moments only. One that stays so for minutes hangs, was cut off"
            " from PostgreSQL, is a pooler's, or is of somebody who left psql or another program open."
        )
        advice += [
            (
                "look again after a minute. If it has the same pid and xact_start: application_name, usename"
                " and client_addr of it in pg_stat_activity tell whose it is"
            ),
            _END_ONE,
            (
                "for later: ALTER ROLE ... SET idle_in_transaction_session_timeout = '10min' has PostgreSQL"
                " end such ones; Synapse 1.163 sets it to 30 minutes (idle_in_transaction_session_timeout in"
                " database:)"
            ),
        ]
    if waiting:
        words.append(
            f"{counted(len(waiting), 'session')} ({_pids_of(waiting)}) waits for a lock that another"
            " transaction has (wait_event_type Lock)."
        )
        if any(row.get("wait_event") == "virtualxid" for row in waiting):
            words.append(
                "With the wait_event virtualxid it is a CREATE INDEX CONCURRENTLY, which waits until every"
                " transaction that was open before it has ended."
            )
        advice.insert(0, f"see who holds it: {BLOCKERS}")
    long = _told_of_longest(rows)
    return Said(
        [*words, *long.words], [*advice, *long.advice], "look" if still or waiting or long.words else ""
    )


def told_of_locks(rows: Rows) -> Said:
    """Locks that are waited for."""
    waiting = [row for row in rows if row.get("granted") in ("f", "false")]
    words = [
        (
            f"Locks of PostgreSQL (pg_locks): {len(rows)}, of which {len(waiting)} are waited for (granted"
            " f). AccessShareLock and RowExclusiveLock are those of reads and writes, and hinder each other"
            " in no way."
        )
    ]
    if not waiting:
        long = _told_of_longest(rows)
        return Said([*words, "Nobody waits here.", *long.words], long.advice, long.severity)
    modes = listed(sorted({printable(row.get("mode", "a lock")) for row in waiting}))
    words.insert(0, f"Sessions wait for locks: pid {_pids_of(waiting) or 'not told'}, for {modes}.")
    if any(row.get("mode") == "AccessExclusiveLock" for row in [*waiting, *rows]):
        words.append(
            "AccessExclusiveLock (VACUUM FULL, ALTER TABLE, TRUNCATE, REINDEX) shuts the table for everybody,"
            " and those who come after one that waits for it wait as well."
        )
    return Said(words, [f"see who holds it: {BLOCKERS}", _END_ONE], "look")


def told_of_blocking(rows: Rows) -> Said:
    """Who waits for whom."""
    pairs = []
    for row in rows:
        by = next(
            (row[key] for key in ("blocking_pid", "blocked_by", "pg_blocking_pids") if row.get(key)), ""
        )
        one = row.get("blocked_pid") or row.get("pid", "")
        if by.strip("{}"):
            pairs.append(f"{printable(one) or 'one'} waits for {printable(by)}")
    if not pairs:
        return Said(["Of these sessions of PostgreSQL none waits for another."], [])
    return Said(
        [
            (
                f"Sessions of PostgreSQL wait for others: {several(pairs)}. The one for which others wait,"
                " and which waits for none itself, is the cause."
            )
        ],
        [
            (
                "see what that one does (its state and query in pg_stat_activity): idle in transaction: its"
                " program hangs or was left open; active: let it end, as a background update or a VACUUM FULL"
            ),
            _END_ONE,
        ],
        "look",
    )


def told_of_prepared(rows: Rows) -> Said:
    """Transactions that were prepared, and not ended."""
    names = several([printable(row.get("gid", "")) for row in rows])
    return Said(
        [
            (
                f"Transactions that were prepared and neither committed nor undone: {names}. Each keeps its"
                " locks, over restarts too, and VACUUM removes no row that was deleted since. Synapse makes"
                " none."
            )
        ],
        [
            (
                "ask the program that made it (owner, database); if that is gone: ROLLBACK PREPARED 'GID'"
                " (what it did is undone), or COMMIT PREPARED 'GID', in that database. For later:"
                " max_prepared_transactions = 0 (a restart)"
            )
        ],
        "look",
    )
