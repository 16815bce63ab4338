"""What psql shows of a PostgreSQL server itself, or of a PgBouncer before it: sessions, locks, slots, sizes.

A view is told by its columns, as people select some of them alone. Docs: docs/howto/explain.md.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from synrepl.homeserver.explanation.excerpts import excerpt, without_secrets
from synrepl.homeserver.explanation.relations import known_relations
from synrepl.homeserver.explanation.results import Passage
from synrepl.html.humanize import counted, listed, several, size
from synrepl.wire.text import printable

MAX_SHOWN: Final = 20
"""The most rows that are shown."""
MAX_CELL: Final = 100

_Rows: TypeAlias = Sequence[Mapping[str, str]]


class _Said(NamedTuple):
    words: list[str]
    advice: list[str]
    severity: str = ""


class _View(NamedTuple):
    """A view: sets of columns of which it has one, its name, and what is said of its rows."""

    columns: tuple[frozenset[str], ...]
    name: str
    told: Callable[[_Rows], _Said]


# -- sessions and locks --------------------------------------------------------------------------------------

_OPEN: Final = "idle in transaction"
_AGES: Final = ("age", "duration", "runtime", "xact_age", "xact_start", "query_start", "state_change")
BLOCKERS: Final = (
    "SELECT pid, pg_blocking_pids(pid), state, wait_event, now() - xact_start, query FROM pg_stat_activity"
    " WHERE cardinality(pg_blocking_pids(pid)) > 0 OR state LIKE 'idle in%'"
)
"""Who waits for whom."""
LONG: Final = 60
"""From how many seconds on a statement takes long."""
_LASTED: Final = re.compile(
    r"(?:(?P<days>\d{1,5}) days? ?)?(?P<hours>\d{1,4}):(?P<minutes>\d\d):(?P<seconds>\d\d)(?:\.\d{1,9})?",
    re.ASCII,
)
_STARTS: Final = ("query_start", "xact_start", "state_change", "backend_start")
_CHORES: Final = re.compile(r"autovacuum: |START_REPLICATION")


def _lasted(text: str) -> int:
    """How many seconds an interval has, as PostgreSQL prints it; -1: it is none."""
    if (found := _LASTED.fullmatch(text)) is None:
        return -1
    days, hours, minutes, seconds = (int(one or 0) for one in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _told_of_longest(rows: _Rows) -> _Said:
    """What is said of the session that has been at one statement for longest."""
    at_work = [
        row
        for row in rows
        if row.get("state", "active") == "active" and not _CHORES.match(row.get("query", ""))
    ]
    # The newest time in the view is no later than that at which it was asked for.
    now = max((_moment(row.get(name, "")) for row in rows for name in _STARTS), default=0.0)
    ages = [
        (max([*(_lasted(row.get(name, "")) for name in _AGES), int(now - start) if start else -1]), row)
        for row in at_work
        for start in (_moment(row.get("query_start", "")),)
    ]
    most, row = max(ages, key=lambda one: one[0], default=(-1, {}))
    if most < LONG:
        return _Said([], [])
    words = (
        f"The session that has been at work for longest{_which([row])} has been so for"
        f" {most // 60} minutes or more: meanwhile its locks stay, and VACUUM removes no row that was deleted"
        " since it began."
    )
    tables = [name for name in known_relations() if re.search(rf"\b{name}\b", row.get("query", ""))]
    return _Said(
        [words],
        [
            (
                "if it waits for no lock: ANALYZE its tables, as statistics are old after a restore or an"
                " upgrade; EXPLAIN (ANALYZE, BUFFERS) of a SELECT, which runs it, tells what takes long"
            ),
            *_steps_of(tables),
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


def _told_of_sessions(rows: _Rows) -> _Said:
    states: Counter[str] = Counter()
    for row in rows:
        number = row.get("count", "")
        states[row.get("state", "") or "without a state"] += int(number) if _is_count(number) else 1
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
            f"{counted(states[_OPEN] + states[_OPEN + ' (aborted)'], 'session')} ({_OPEN}{_which(still)}) has"
            " a transaction open and asks nothing: its locks stay, and VACUUM removes no row that was deleted"
            " since it began, in any table.",
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
            f"{counted(len(waiting), 'session')} ({_pids(waiting)}) waits for a lock that another transaction"
            " has (wait_event_type Lock)."
        )
        if any(row.get("wait_event") == "virtualxid" for row in waiting):
            words.append(
                "With the wait_event virtualxid it is a CREATE INDEX CONCURRENTLY, which waits until every"
                " transaction that was open before it has ended."
            )
        advice.insert(0, f"see who holds it: {BLOCKERS}")
    long = _told_of_longest(rows)
    return _Said(
        [*words, *long.words], [*advice, *long.advice], "look" if still or waiting or long.words else ""
    )


def _which(rows: _Rows) -> str:
    pids = _pids(rows)
    ages = [f"{name} {printable(row[name])}" for row in rows[:1] for name in _AGES if row.get(name)]
    return "".join(f", {one}" for one in [f"pid {pids}" if pids else "", *ages[:1]] if one)


def _pids(rows: _Rows) -> str:
    found = list(
        dict.fromkeys(printable(row[key]) for row in rows for key in ("pid", "procpid") if row.get(key))
    )
    return several(found) if found else ""


def _told_of_locks(rows: _Rows) -> _Said:
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
        return _Said([*words, "Nobody waits here.", *long.words], long.advice, long.severity)
    modes = listed(sorted({printable(row.get("mode", "a lock")) for row in waiting}))
    words.insert(0, f"Sessions wait for locks: pid {_pids(waiting) or 'not told'}, for {modes}.")
    if any(row.get("mode") == "AccessExclusiveLock" for row in [*waiting, *rows]):
        words.append(
            "AccessExclusiveLock (VACUUM FULL, ALTER TABLE, TRUNCATE, REINDEX) shuts the table for everybody,"
            " and those who come after one that waits for it wait as well."
        )
    return _Said(words, [f"see who holds it: {BLOCKERS}", _END_ONE], "look")


def _told_of_blocking(rows: _Rows) -> _Said:
    pairs = []
    for row in rows:
        by = next(
            (row[key] for key in ("blocking_pid", "blocked_by", "pg_blocking_pids") if row.get(key)), ""
        )
        one = row.get("blocked_pid") or row.get("pid", "")
        if by.strip("{}"):
            pairs.append(f"{printable(one) or 'one'} waits for {printable(by)}")
    if not pairs:
        return _Said(["Of these sessions of PostgreSQL none waits for another."], [])
    return _Said(
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


# -- copies --------------------------------------------------------------------------------------------------


def _told_of_slots(rows: _Rows) -> _Said:
    kept = [row for row in rows if row.get("wal_status") != "unreserved"]
    idle = [row for row in kept if row.get("active") in ("f", "false")]
    lost = [row for row in rows if row.get("wal_status") == "lost" or row.get("invalidation_reason")]
    words = [
        (
            f"Replication slots of PostgreSQL: {len(rows)}. Each keeps what its reader (a standby, Debezium)"
            " has not read yet. Neither Synapse nor synrepl has any."
        )
    ]
    advice = []
    if idle:
        names = several([printable(row.get("slot_name", "")) for row in idle])
        words.insert(
            0,
            f"Nobody reads {names} (active f): PostgreSQL keeps everything written since in pg_wal, until the"
            " disk is full, and then stops.",
        )
        advice = [
            (
                "see how much: SELECT slot_name, active, pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(),"
                " restart_lsn)) FROM pg_replication_slots"
            ),
            (
                "if its reader comes back, start it; if it is gone for good: SELECT"
                " pg_drop_replication_slot('NAME'), and the next checkpoint frees the space"
            ),
            "max_slot_wal_keep_size (13 and newer) bounds what a slot may keep; the reader then starts anew",
        ]
    near = [row for row in rows if row.get("wal_status") == "unreserved"]
    if near:
        names = several([printable(row.get("slot_name", "")) for row in near])
        words.insert(
            0,
            f"{names} is about to be lost (wal_status unreserved): it is over max_slot_wal_keep_size: the"
            " next checkpoint may remove what its reader has not read; the disk does not fill up by it.",
        )
        advice.insert(0, "let its reader run now, or raise max_slot_wal_keep_size; once lost, it starts anew")
    if lost:
        names = several([printable(row.get("slot_name", "")) for row in lost])
        words.insert(
            0,
            f"{names} is lost: PostgreSQL removed what its reader had not read yet (max_slot_wal_keep_size)."
            " The reader cannot go on with it; the database itself lacks nothing.",
        )
        advice.append(
            "drop a lost slot, and set its reader up anew: a standby by pg_basebackup, Debezium by a new"
            " snapshot"
        )
    return _Said(words, advice, "error" if lost else "look" if idle or near else "")


def _told_of_standbys(rows: _Rows) -> _Said:
    words = [
        (
            f"Servers that copy this PostgreSQL (pg_stat_replication): {len(rows)}. This one is the primary,"
            " to which Synapse must write."
        )
    ]
    behind = [row for row in rows if row.get("sent_lsn") and row.get("sent_lsn") != row.get("replay_lsn")]
    if behind:
        words.append(
            f"{several([_name_of(row) for row in behind])} has not applied all that it was sent: who reads"
            " there sees older rows."
        )
    if any(row.get("sync_state") in ("sync", "quorum") for row in rows):
        words.append(
            "With sync_state sync or quorum each commit waits for a standby: if none is left, all writes wait"
            " without end, and Synapse with them (synchronous_standby_names)."
        )
    return _Said(words, ["no process of Synapse may read at a copy: it expects to see what it has written"])


def _name_of(row: Mapping[str, str]) -> str:
    return printable(row.get("application_name") or row.get("client_addr") or row.get("pid", "one"))


# -- rows and disks ------------------------------------------------------------------------------------------

FREEZE_AGE: Final = 200_000_000
"""At which age autovacuum begins to freeze a table, if autovacuum_freeze_max_age is not set."""
FAILSAFE_AGE: Final = 1_600_000_000
"""At which age it leaves everything else, if vacuum_failsafe_age is not set."""


def _told_of_ages(rows: _Rows) -> _Said:
    ages = {
        printable(row.get("datname") or row.get("relname") or row.get("oid::regclass") or "it"): int(age)
        for row in rows
        if _is_count(age := row.get("age", ""))
    }
    if not ages:
        return _Said(["Ages of transactions in PostgreSQL."], [])
    name, most = max(ages.items(), key=lambda one: one[1])
    words = [
        (
            f"{name} has transactions of age {most:,}. Autovacuum freezes them from {FREEZE_AGE:,} on"
            " (autovacuum_freeze_max_age, if not set), and at 2,000,000,000 and some PostgreSQL takes no"
            " writes."
        )
    ]
    if most < 2 * FREEZE_AGE:
        return _Said([*words, "That is normal."], [])
    words.append(
        "So something holds it back: an old transaction, a replication slot, a prepared transaction, or a"
        " table on which VACUUM fails."
    )
    return _Said(
        words,
        [
            (
                "SELECT pid, xact_start, state FROM pg_stat_activity ORDER BY xact_start; SELECT * FROM"
                " pg_replication_slots; SELECT * FROM pg_prepared_xacts: end what is old, then VACUUM"
                " (FREEZE, VERBOSE) that database as its owner"
            )
        ],
        "error" if most >= FAILSAFE_AGE else "look",
    )


MANY_DEAD: Final = 10_000


def _told_of_dead_rows(rows: _Rows) -> _Said:
    bloated = {
        printable(row.get("relname") or row.get("table_name") or "a table"): int(dead)
        for row in rows
        if _is_count(dead := row.get("n_dead_tup", ""))
        and int(dead) > max(MANY_DEAD, int(row["n_live_tup"]) if _is_count(row.get("n_live_tup", "")) else 0)
    }
    words = [
        (
            "Rows of tables, and those that were deleted or changed and not cleared yet (n_dead_tup):"
            " autovacuum clears them, and their room is used again."
        )
    ]
    if not bloated:
        return _Said([*words, "No table here has more dead rows than others."], [])
    told = several([f"{name} ({count:,})" for name, count in bloated.items()])
    return _Said(
        [f"More dead rows than live ones: {told}: the table is read slower.", *words],
        [
            (
                "see what holds VACUUM back (a transaction idle for hours, a replication slot), then VACUUM"
                " (VERBOSE, ANALYZE) TABLE: it says how many rows it could not remove yet, and why"
            ),
            _BACK,
        ],
        "look",
    )


_BACK: Final = (
    "the disk gets room back by VACUUM FULL alone, which shuts the table and needs room for a copy of it"
    " (stop Synapse), or by pg_repack"
)
_NAMES: Final = ("relation", "table_name", "tablename", "relname", "table", "name")
_UNITS: Final = {"bytes": 1, "": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4}
_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s?(bytes|[kMGT]B|)", re.ASCII)
_SIZED: Final = re.compile(
    r"(?:pg_)?(?:(?:total|table|data|index|relation)[ _])*size(?:[ _]pretty)?|size_bytes|total"
)


def _bytes_of(text: str) -> float:
    found = _SIZE.fullmatch(text)
    return float(found[1]) * _UNITS[found[2].lower()] if found else -1.0


def _sizes(rows: _Rows) -> dict[str, float]:
    """The sizes of tables in rows: of the last column of sizes, which is mostly that of all together."""
    if not rows:
        return {}
    names = next((one for one in _NAMES if one in rows[0]), "")
    sized = next((one for one in reversed([*rows[0]]) if _SIZED.fullmatch(one)), "")
    if not names or not sized:
        return {}
    found: dict[str, float] = {}
    for row in rows:
        name = row[names].strip('"').rpartition(".")[2]
        if (many := _bytes_of(row[sized])) >= 0:
            found[name] = max(many, found.get(name, 0.0))
    return found


def _told_of_sizes(rows: _Rows) -> _Said:
    sizes = sorted(_sizes(rows).items(), key=lambda one: -one[1])
    first = listed([f"{printable(name)} {size(many)}" for name, many in sizes[:3] if many])
    words = [f"Sizes of tables; the largest: {first}."]
    known = known_relations()
    words += [f"{name}: {known[name].about}" for name, _ in sizes[:5] if name in known]
    return _Said(words, [*_steps_of(name for name, _ in sizes[:5]), _BACK])


# -- work that goes on, and what is left ---------------------------------------------------------------------


def _share(row: Mapping[str, str], done: str, of: str) -> str:
    """How much of it is done, in words; "" if that is not told."""
    counts = [row.get(done, ""), row.get(of, "")]
    if not all(map(_is_count, counts)) or not int(counts[1]):
        return ""
    return f", {int(counts[0]) * 100 // int(counts[1])} % of {int(counts[1]):,}"


def _told_of_index_builds(rows: _Rows) -> _Said:
    words, waits = [], []
    for row in rows:
        phase = printable(row.get("phase", ""))
        done = _share(row, "blocks_done", "blocks_total") or _share(row, "tuples_done", "tuples_total")
        words.append(f"An index is made (pid {printable(row.get('pid', 'not told'))}): {phase}{done}.")
        if phase.startswith("waiting"):
            waits.append(printable(row.get("current_locker_pid", "")))
    if not waits:
        return _Said([*words, "Reads and writes go on if it is made CONCURRENTLY, as Synapse does."], [])
    return _Said(
        [
            *words,
            "It waits until transactions that were open before it have ended: it does nothing till then.",
        ],
        [
            (
                f"see what that one does: SELECT state, xact_start, query FROM pg_stat_activity WHERE pid ="
                f" {waits[0] or 'PID'}; idle in transaction for long: pg_terminate_backend of it"
            )
        ],
        "look",
    )


def _told_of_vacuums(rows: _Rows) -> _Said:
    words = [
        f"VACUUM works on {printable(row.get('relname') or row.get('relid', 'a table'))}"
        f" (pid {printable(row.get('pid', 'not told'))}): {printable(row.get('phase', ''))}"
        f"{_share(row, 'heap_blks_scanned', 'heap_blks_total')}."
        for row in rows
    ]
    return _Said(
        [*words, "Reads and writes of the table go on meanwhile; ALTER TABLE and the like wait."], []
    )


def _told_of_prepared(rows: _Rows) -> _Said:
    names = several([printable(row.get("gid", "")) for row in rows])
    return _Said(
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


def _told_of_invalid(rows: _Rows) -> _Said:
    names = [
        printable(row.get("indexrelid") or row.get("relname") or row.get("indexrelname") or "one")
        for row in rows
        if row.get("indisvalid") in ("f", "false")
    ]
    if not names:
        return _Said(["These indexes are valid (indisvalid t)."], [])
    return _Said(
        [
            (
                f"Indexes that are not valid: {several(names)}: making one CONCURRENTLY was broken off, or"
                " failed by rows that are there twice. It costs at each write, and no statement uses it; as a"
                " unique one it does not keep the rules that Synapse relies on."
            )
        ],
        [
            (
                "\\d TABLE shows how it is made. REINDEX INDEX CONCURRENTLY NAME (12 and newer), or DROP"
                " INDEX CONCURRENTLY NAME and make it again; of a background update: SELECT * FROM"
                " background_updates. If rows are there twice, it fails and names one: synrepl doctor shows"
                " those"
            )
        ],
        "look",
    )


_WASTED: Final = ("wastedbytes", "wastedsize", "bloat_size", "waste", "table_waste")


def _told_of_bloat(rows: _Rows) -> _Said:
    wasted: dict[str, float] = {}
    for row in rows:
        name = (
            row.get("tablename") or row.get("relname") or row.get("table_name") or row.get("tblname") or "one"
        )
        many = max((_bytes_of(row.get(one, "")) for one in _WASTED), default=-1.0)
        wasted[name] = max(many, wasted.get(name, 0.0))
    first = [
        f"{printable(name)} {size(many)}"
        for name, many in sorted(wasted.items(), key=lambda one: -one[1])[:3]
    ]
    return _Said(
        [
            (
                "An estimate from statistics of how much room of tables and indexes is empty (bloat). Most"
                f" here: {listed(first)}. PostgreSQL uses that room again; it costs disk, and reads that are"
                " longer."
            )
        ],
        [
            (
                "ANALYZE first, as old statistics mislead it; see what holds VACUUM back (old transactions,"
                " slots), and autovacuum_vacuum_scale_factor of large tables"
            ),
            _BACK,
            "an index alone: REINDEX INDEX CONCURRENTLY NAME (12 and newer), with room for a second one",
        ],
    )


def _told_of_checkpoints(rows: _Rows) -> _Said:
    row = rows[0] if rows else {}
    counts = [row.get(one, "") for one in ("checkpoints_timed", "checkpoints_req")]
    if not all(map(_is_count, counts)):
        return _Said(["How PostgreSQL writes to its disk (pg_stat_bgwriter)."], [])
    timed, asked = map(int, counts)
    words = [
        f"Checkpoints of PostgreSQL: {timed:,} by time, and {asked:,} as much was written (or asked for)."
    ]
    if asked <= timed:
        return _Said(words, [])
    return _Said(
        [*words, "More come by amount than by time: the disk is written more often than it need be."],
        ["raise max_wal_size (a few GB; recovery after a crash takes longer), and look again after a day"],
        "look",
    )


def _told_of_databases(rows: _Rows) -> _Said:
    found = {
        row["datname"]: _bytes_of(next((row[one] for one in row if _SIZED.fullmatch(one)), ""))
        for row in rows
    }
    first = [
        f"{printable(name)} {size(many)}"
        for name, many in sorted(found.items(), key=lambda one: -one[1])[:5]
        if many > 0
    ]
    return _Said(
        [f"Sizes of databases: {listed(first)}."],
        [
            (
                "which tables: SELECT oid::regclass, pg_size_pretty(pg_total_relation_size(oid)) FROM"
                " pg_class WHERE relkind = 'r' ORDER BY pg_total_relation_size(oid) DESC LIMIT 20"
            )
        ],
    )


def _told_of_settings(rows: _Rows) -> _Said:
    said = {
        row["name"]: _SETTINGS[row["name"]](printable(row["setting"][:MAX_CELL]))
        for row in rows
        if row["name"] in _SETTINGS
    }
    if not said:
        return _Said(["Settings of PostgreSQL (pg_settings)."], [])
    severities = [one.severity for one in said.values()]
    return _Said(
        [f"{name}: {word}" for name, one in said.items() for word in one.words],
        list(dict.fromkeys(step for one in said.values() for step in one.advice)),
        next((one for one in ("error", "look") if one in severities), ""),
    )


# -- PgBouncer -----------------------------------------------------------------------------------------------

_HELD: Final = (
    "In the mode session, which Synapse needs, a connection of Synapse holds one to PostgreSQL for as long"
    " as it is open, and a process keeps its connections open: so the pool must be as large as cp_max of all"
    " processes together"
)
_ENLARGE: Final = (
    "raise default_pool_size in pgbouncer.ini (20 if not set), or pool_size of that database in [databases]:"
    " for Synapse to the sum of cp_max of all its processes, which synrepl inspect --files tells;"
    " max_connections of PostgreSQL must be above it. Or lower cp_max in database: args"
)
_LONG_ONES: Final = (
    "or find what keeps them: SELECT pid, state, xact_start, query FROM pg_stat_activity WHERE xact_start IS"
    " NOT NULL ORDER BY xact_start"
)


def _told_of_pools(rows: _Rows) -> _Said:
    full = [row for row in rows if _is_count(row.get("cl_waiting", "")) and int(row["cl_waiting"])]
    if not full:
        return _Said(
            ["Pools of PgBouncer (SHOW POOLS): no client waits for a connection (cl_waiting 0)."], []
        )
    told = several(
        [
            f"{printable(row.get('database', ''))}: {row['cl_waiting']} clients, with"
            f" {printable(row.get('sv_active', 'some'))} connections in use"
            for row in full
        ]
    )
    words = [f"Clients wait for a connection to PostgreSQL, as the pool has no more: {told}."]
    if any(row.get("pool_mode", "session") == "session" for row in full):
        words.append(f"{_HELD}.")
    if any(row.get("pool_mode") == "transaction" for row in full):
        words.append(
            "In the mode transaction a connection in use is in a transaction: long ones, or ones that stand"
            " open, keep the others waiting. Synapse must not have that mode, but session."
        )
    words.append("After query_wait_timeout (120 s if not set) PgBouncer closes a client that waits.")
    return _Said(words, [_ENLARGE, _LONG_ONES], "error")


def _told_of_pooled_databases(rows: _Rows) -> _Said:
    shown = listed(
        [
            f"{printable(row.get('name', ''))} up to {printable(row.get('pool_size', ''))} connections"
            f" (now {printable(row.get('current_connections', ''))})"
            for row in rows[:5]
        ]
    )
    shared = [printable(row["name"]) for row in rows if row.get("pool_mode") in ("transaction", "statement")]
    words = [f"Databases of a PgBouncer: {shown}. {_HELD}."]
    if not shared:
        words.append("An empty pool_mode is that of pgbouncer.ini, as SHOW CONFIG tells.")
        return _Said(words, [f"if clients wait (SHOW POOLS, cl_waiting): {_ENLARGE}"])
    return _Said(
        [f"{several(shared)} is in a mode that Synapse must not have: it needs pool_mode session.", *words],
        ["pool_mode = session for that database; a pgbouncer.ini is read by synrepl inspect --files"],
        "error",
    )


def _told_of_pooler_settings(rows: _Rows) -> _Said:
    given = {row.get("key", ""): row.get("value", "") for row in rows}
    mode = printable(given.get("pool_mode", "session"))
    size, clients = (
        printable(given.get(key, "not told")) for key in ("default_pool_size", "max_client_conn")
    )
    settings = f"pool_mode {mode}, default_pool_size {size}, max_client_conn {clients}"
    words = [f"Settings of a PgBouncer: {settings}. {_HELD}."]
    if mode in ("transaction", "statement"):
        words.insert(
            0,
            f"The pool_mode is {mode}, and Synapse needs session, unless [databases] has another one for it.",
        )
        return _Said(
            words, ["pool_mode=session at the database of Synapse in [databases], then RELOAD"], "error"
        )
    return _Said(words, [f"if clients wait (SHOW POOLS, cl_waiting): {_ENLARGE}"])


# -- plans ---------------------------------------------------------------------------------------------------

_WHOLE: Final = re.compile(
    r"Seq Scan on (?P<table>\w{1,63})(?:.{0,200}?actual time=[\d.]{1,50} rows=(?P<rows>[\d.]{1,20})"
    r" loops=(?P<loops>\d{1,12})|.{0,100}?\brows=(?P<guessed>\d{1,15}) )",
    re.ASCII,
)
"""A table that is read as a whole: how many rows that were, or are guessed to be."""
_FILTERED: Final = re.compile(r"Rows Removed by Filter: (?P<rows>\d{1,15})", re.ASCII)
_TOOK: Final = re.compile(r"Execution Time: (?P<ms>[\d.]{1,20}) ms", re.ASCII)
MANY_ROWS: Final = 100_000
PLAN: Final = "query plan"
"""The column of a table that EXPLAIN prints."""


def _told_of_plan(rows: _Rows) -> _Said:
    lines = [row.get(PLAN, "") for row in rows]
    took = next((float(found["ms"]) / 1000 for one in lines if (found := _TOOK.search(one))), None)
    words = [
        "How PostgreSQL runs a statement (EXPLAIN)"
        + (f"; it took {took:,.3g} s." if took is not None else ".")
    ]
    whole: dict[str, int] = {}
    for at, line in enumerate(lines):
        if (found := _WHOLE.search(line)) is None:
            continue
        removed = next(
            (int(one["rows"]) for text in lines[at + 1 : at + 4] if (one := _FILTERED.search(text))), 0
        )
        read = int(float(found["rows"] or found["guessed"]) + removed) * int(found["loops"] or 1)
        whole[found["table"]] = max(read, whole.get(found["table"], 0))
    by_size = sorted(whole.items(), key=lambda one: -one[1])
    large = {name: read for name, read in by_size if read >= MANY_ROWS}
    if took is None and large:
        words.append("The numbers of rows are guesses of PostgreSQL; EXPLAIN (ANALYZE, BUFFERS) counts them.")
    if took is not None and took < 1 and large:
        return _Said([*words, "It reads a large table as a whole, and is quick all the same."], [])
    if not large:
        return _Said([*words, "It reads no large table as a whole."] if took is not None else words, [])
    told = several([f"{printable(name)} ({read:,} rows)" for name, read in large.items()])
    return _Said(
        [
            f"It reads the whole of {told}: no index fits it, or PostgreSQL does not know that one would.",
            *words,
        ],
        [
            (
                f"ANALYZE {printable(next(iter(large)))}, and look again: after a restore, an upgrade or many"
                " deletions the statistics are not there, or old"
            ),
            (
                "SELECT * FROM background_updates: an index may still be made in the background; \\d TABLE"
                " shows those that are there, INVALID ones too (DROP INDEX, and make it again)"
            ),
            (
                "if it is a statement of Synapse, and its indexes are all there: update, as newer releases"
                " may ask otherwise"
            ),
            *_steps_of(large),
        ],
        "look",
    )


def _steps_of(names: Iterable[str]) -> list[str]:
    """What else helps with these tables of Synapse."""
    known = known_relations()
    return [f"{name}: {known[name].do}" for name in names if name in known and known[name].do]


# -- statements ----------------------------------------------------------------------------------------------

QUOTE: Final = "'"
"""Where the first literal of a statement begins: what comes after it may be a secret."""
SLOW: Final = 1_000.0
"""From how many milliseconds on average a statement is slow."""
_SPENT: Final = ("total_exec_time", "total_time", "total", "total_ms", "ms")
_EACH: Final = ("mean_exec_time", "mean_time", "mean", "avg", "avg_time", "mean_ms")


def _milliseconds(row: Mapping[str, str], names: Sequence[str]) -> float:
    """What one of these columns has, in ms; 0: none has any."""
    for text in (row[name] for name in names if name in row):
        if (lasted := _lasted(text)) >= 0:
            return lasted * 1000.0
        if _SIZE.fullmatch(plain := text.replace(",", "")):
            return float(plain)
    return 0.0


def _told_of_statements(rows: _Rows) -> _Said:
    spent = []
    for row in rows:
        calls, total, each = (row.get("calls", ""), _milliseconds(row, _SPENT), _milliseconds(row, _EACH))
        count = int(calls.replace(",", "")) if _is_count(calls.replace(",", "")) else 0
        spent.append((total or each * count, each or total / max(1, count), count, row.get("query", "")))
    total, each, count, query = max(spent, default=(0.0, 0.0, 0, ""))
    if not total:
        return _Said(["Statements and how often they ran (pg_stat_statements)."], [])
    words = [
        (
            "Statements by the time that PostgreSQL spent on them since pg_stat_statements_reset(), or since"
            f" they were counted. Most in this text: {total / 1000:,.1f} s in {count:,} calls, {each:,.3g} ms"
            f" each: {excerpt(query.partition(QUOTE)[0])}"
        ),
        "A large sum may come of many calls: that is load, and by itself no fault.",
    ]
    slow = sorted((one for one in spent if one[1] >= SLOW), reverse=True)
    tables = [name for name in known_relations() for one in slow if re.search(rf"\b{name}\b", one[3])]
    if not slow:
        return _Said([*words, "None here takes a second on average."], [])
    return _Said(
        [f"{counted(len(slow), 'statement')} here takes a second or more on average.", *words],
        [
            (
                "EXPLAIN (ANALYZE, BUFFERS) of a SELECT among these, with values (it runs it); ANALYZE of its"
                " tables after a restore or an upgrade; SELECT * FROM background_updates for an index that is"
                " still to be made"
            ),
            *_steps_of(dict.fromkeys(tables)),
        ],
        "look",
    )


# -- settings ------------------------------------------------------------------------------------------------


def _told_of_encoding(value: str) -> _Said:
    if value.upper() in ("UTF8", "UTF-8"):
        return _Said([f"The encoding is {value}, as Synapse needs it."], [])
    return _Said(
        [f"The encoding is {value}: Synapse needs UTF8, and does not start on this database."],
        [_NEW_DATABASE],
        "error",
    )


_NEW_DATABASE: Final = (
    "make a new one (createdb --encoding=UTF8 --locale=C --template=template0 --owner=USER NAME), and move"
    " the data there by pg_dump and pg_restore"
)


def _told_of_locale(value: str) -> _Said:
    if value == "C":
        return _Said(["The locale of this database is C, as Synapse needs it."], [])
    return _Said(
        [
            (
                f"The locale of this database is {value}: Synapse needs C, as indexes of texts break when the"
                " system's library changes the order of another one."
            )
        ],
        [
            _NEW_DATABASE,
            "or allow_unsafe_locale: true in database:, since 1.56, while that library stays the same",
        ],
        "error",
    )


def _told_of_copy(value: str) -> _Said:
    if value != "t":
        return _Said(["This PostgreSQL is no standby (pg_is_in_recovery f): it takes writes."], [])
    return _Said(
        [
            (
                "This PostgreSQL is a standby (pg_is_in_recovery t): it takes no writes, and Synapse cannot"
                " run on it."
            )
        ],
        [
            (
                "give Synapse the address of the primary (database: args: host), or, if that is gone for"
                " good: SELECT pg_promote(); afterwards, before Synapse starts: synrepl doctor"
                " --before-start"
            )
        ],
        "error",
    )


def _told_of_read_only(value: str) -> _Said:
    if value != "on":
        return _Said(["Transactions may write."], [])
    return _Said(
        ["New transactions may only read: what Synapse writes is refused."],
        [
            (
                "a standby is always so: SELECT pg_is_in_recovery(). Else see who set it: SELECT * FROM"
                " pg_db_role_setting, and postgresql.conf; managed databases do so when their disk is full"
            )
        ],
        "error",
    )


def _told_of_connections(value: str) -> _Said:
    return _Said(
        [
            (
                f"PostgreSQL takes {value} connections; a few of them are kept for superusers. Each process"
                " of Synapse opens up to cp_max for each database (5 if not set)."
            )
        ],
        [
            (
                "compare it with the sum of all processes: synrepl inspect --files has a note if they may be"
                " more than the default; SELECT count(*), usename, state FROM pg_stat_activity GROUP BY 2, 3"
                " tells who has them"
            )
        ],
    )


def _told_of_isolation(value: str) -> _Said:
    return _Said(
        [
            (
                f"The isolation of transactions that set none is {value}. Synapse sets repeatable read for"
                " each connection that it opens, so that this does not count for it; behind a PgBouncer in"
                " the mode transaction it does."
            )
        ],
        [],
    )


def _told_of_limit(value: str) -> _Said:
    if value in ("0", "0ms"):
        return _Said(["No limit (0) for sessions that set none."], [])
    return _Said(
        [
            (
                f"The limit is {value} for sessions that set none: PostgreSQL ends what takes longer (for"
                " statement_timeout Synapse sets its own: an hour, 10 minutes in newer releases)."
            )
        ],
        [],
    )


def _told_of_durability(value: str) -> _Said:
    if value != "off":
        return _Said([f"The setting is {value}: a commit is on disk."], [])
    return _Said(
        [
            (
                "With fsync or full_page_writes off, a crash may damage the database; with"
                " synchronous_commit off, it loses the last commits, below a second: Synapse has announced"
                " these, its processes and clients have them, and their ids may be given out again."
            )
        ],
        ["turn it on; after a crash, before Synapse starts: synrepl doctor --before-start"],
        "look",
    )


_SETTINGS: Final[Mapping[str, Callable[[str], _Said]]] = {
    "server_encoding": _told_of_encoding,
    "datcollate": _told_of_locale,
    "datctype": _told_of_locale,
    "lc_collate": _told_of_locale,
    "lc_ctype": _told_of_locale,
    "pg_is_in_recovery": _told_of_copy,
    "transaction_read_only": _told_of_read_only,
    "default_transaction_read_only": _told_of_read_only,
    "max_connections": _told_of_connections,
    "transaction_isolation": _told_of_isolation,
    "default_transaction_isolation": _told_of_isolation,
    "statement_timeout": _told_of_limit,
    "lock_timeout": _told_of_limit,
    "idle_in_transaction_session_timeout": _told_of_limit,
    "fsync": _told_of_durability,
    "full_page_writes": _told_of_durability,
    "synchronous_commit": _told_of_durability,
}
"""Values that stand alone, as SHOW prints them."""

_VIEWS: Final = (
    _View(
        (frozenset({"blocked_pid"}), frozenset({"blocked_by"}), frozenset({"pg_blocking_pids"})),
        "who waits for whom",
        _told_of_blocking,
    ),
    _View((frozenset({"granted", "mode"}), frozenset({"granted", "locktype"})), "pg_locks", _told_of_locks),
    _View((frozenset({"slot_name"}),), "pg_replication_slots", _told_of_slots),
    _View(
        (frozenset({"sync_state", "state"}), frozenset({"sent_lsn", "replay_lsn"})),
        "pg_stat_replication",
        _told_of_standbys,
    ),
    _View((frozenset({"cl_waiting"}),), "pools", _told_of_pools),
    _View((frozenset({PLAN}),), "plan", _told_of_plan),
    _View((frozenset({"key", "value", "changeable"}),), "settings of PgBouncer", _told_of_pooler_settings),
    _View((frozenset({"pool_size", "name"}),), "databases of PgBouncer", _told_of_pooled_databases),
    _View(
        (
            frozenset({"pid", "state"}),
            frozenset({"pid", "query"}),
            frozenset({"count", "state"}),
            frozenset({"usename", "state"}),
        ),
        "pg_stat_activity",
        _told_of_sessions,
    ),
    _View((frozenset({"query", "calls"}),), "pg_stat_statements", _told_of_statements),
    _View(
        (frozenset({"phase", "lockers_total"}), frozenset({"phase", "index_relid"})),
        "pg_stat_progress_create_index",
        _told_of_index_builds,
    ),
    _View((frozenset({"phase", "heap_blks_total"}),), "pg_stat_progress_vacuum", _told_of_vacuums),
    _View((frozenset({"gid", "prepared"}),), "pg_prepared_xacts", _told_of_prepared),
    _View((frozenset({"indisvalid"}),), "pg_index", _told_of_invalid),
    _View(tuple(frozenset({one}) for one in _WASTED), "bloat", _told_of_bloat),
    _View((frozenset({"checkpoints_timed", "checkpoints_req"}),), "pg_stat_bgwriter", _told_of_checkpoints),
    _View(
        (frozenset({"datname", "pg_size_pretty"}), frozenset({"datname", "size"})),
        "sizes of databases",
        _told_of_databases,
    ),
    _View((frozenset({"name", "setting"}),), "pg_settings", _told_of_settings),
    _View((frozenset({"n_dead_tup"}),), "pg_stat_user_tables", _told_of_dead_rows),
    _View((frozenset({"datname", "age"}), frozenset({"relname", "age"})), "ages", _told_of_ages),
)


def has_words(column: str) -> bool:
    """Whether a column has the value of a setting, or lines of a plan: words with spaces."""
    return column.lower() in _SETTINGS or column.lower() == PLAN


def explain_view(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Passage | None:
    """Explain a table that psql printed of the server itself; None if it is none that is known."""
    named: _Rows = [dict(zip(columns, row, strict=False)) for row in rows]
    if len(columns) == 1 and len(rows) == 1 and (setting := _SETTINGS.get(columns[0])) is not None:
        said = setting(printable(rows[0][0][:MAX_CELL]))
        return _passage(columns[0], said, [])
    view = next((one for one in _VIEWS if any(needed <= {*columns} for needed in one.columns)), None)
    if view is not None:
        return _passage(view.name, view.told(named), named)
    if any(name in known_relations() for name in _sizes(named)):
        return _passage("sizes of tables", _told_of_sizes(named), named)
    return None


def _passage(name: str, said: _Said, rows: _Rows) -> Passage:
    shown = [
        {
            key: printable(without_secrets(value[:MAX_CELL]))
            for key, value in row.items()
            if key not in ("query", "queryid") and "statement" not in key
        }
        for row in rows[:MAX_SHOWN]
    ]
    return Passage(
        kind="sql_table",
        text=name,
        words=said.words,
        advice=said.advice,
        severity=said.severity,
        fields=shown if len({tuple(one) for one in shown}) == 1 else [],
    )


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 16
