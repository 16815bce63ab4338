"""Tables and indexes of a PostgreSQL server, as psql shows them: sizes, ages, dead rows, builds."""

from collections.abc import Mapping
from typing import Final

from synrepl.homeserver.explanation.relations import known_relations
from synrepl.homeserver.explanation.server_rows import (
    SIZED,
    Rows,
    Said,
    bytes_of,
    is_count,
    sizes_in,
    steps_of,
)
from synrepl.html.humanize import listed, several, size
from synrepl.wire.text import printable

FREEZE_AGE: Final = 200_000_000
"""At which age autovacuum begins to freeze a table, if autovacuum_freeze_max_age is not set."""
FAILSAFE_AGE: Final = 1_600_000_000
"""At which age it leaves everything else, if vacuum_failsafe_age is not set."""


def _share_of(row: Mapping[str, str], done: str, of: str) -> str:
    """How much of it is done, in words; "" if that is not told."""
    counts = [row.get(done, ""), row.get(of, "")]
    if not all(map(is_count, counts)) or not int(counts[1]):
        return ""
    return f", {int(counts[0]) * 100 // int(counts[1])} % of {int(counts[1]):,}"


def told_of_ages(rows: Rows) -> Said:
    """The ages of databases or tables, by which PostgreSQL stops taking writes."""
    ages = {
        printable(row.get("datname") or row.get("relname") or row.get("oid::regclass") or "it"): int(age)
        for row in rows
        if is_count(age := row.get("age", ""))
    }
    if not ages:
        return Said(["Ages of transactions in PostgreSQL."], [])
    name, most = max(ages.items(), key=lambda one: one[1])
    words = [
        (
            f"{name} has transactions of age {most:,}. Autovacuum freezes them from {FREEZE_AGE:,} on"
            " (autovacuum_freeze_max_age, if not set), and at 2,000,000,000 and some PostgreSQL takes no"
            " writes."
        )
    ]
    if most < 2 * FREEZE_AGE:
        return Said([*words, "That is normal."], [])
    words.append(
        "So something holds it back: an old transaction, a replication slot, a prepared transaction, or a"
        " table on which VACUUM fails."
    )
    return Said(
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


def told_of_dead_rows(rows: Rows) -> Said:
    """Rows that were deleted, and not removed."""
    bloated = {
        printable(row.get("relname") or row.get("table_name") or "a table"): int(dead)
        for row in rows
        if is_count(dead := row.get("n_dead_tup", ""))
        and int(dead) > max(MANY_DEAD, int(row["n_live_tup"]) if is_count(row.get("n_live_tup", "")) else 0)
    }
    words = [
        (
            "Rows of tables, and those that were deleted or changed and not cleared yet (n_dead_tup):"
            " autovacuum clears them, and their room is used again."
        )
    ]
    if not bloated:
        return Said([*words, "No table here has more dead rows than others."], [])
    told = several([f"{name} ({count:,})" for name, count in bloated.items()])
    return Said(
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


def told_of_sizes(rows: Rows) -> Said:
    """The sizes of tables."""
    sizes = sorted(sizes_in(rows).items(), key=lambda one: -one[1])
    first = listed([f"{printable(name)} {size(many)}" for name, many in sizes[:3] if many])
    words = [f"Sizes of tables; the largest: {first}."]
    known = known_relations()
    words += [f"{name}: {known[name].about}" for name, _ in sizes[:5] if name in known]
    return Said(words, [*steps_of(name for name, _ in sizes[:5]), _BACK])


def told_of_index_builds(rows: Rows) -> Said:
    """Indexes that are being built."""
    words, waits = [], []
    for row in rows:
        phase = printable(row.get("phase", ""))
        done = _share_of(row, "blocks_done", "blocks_total") or _share_of(row, "tuples_done", "tuples_total")
        words.append(f"An index is made (pid {printable(row.get('pid', 'not told'))}): {phase}{done}.")
        if phase.startswith("waiting"):
            waits.append(printable(row.get("current_locker_pid", "")))
    if not waits:
        return Said([*words, "Reads and writes go on if it is made CONCURRENTLY, as Synapse does."], [])
    return Said(
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


def told_of_vacuums(rows: Rows) -> Said:
    """VACUUMs that are under way."""
    words = [
        f"VACUUM works on {printable(row.get('relname') or row.get('relid', 'a table'))}"
        f" (pid {printable(row.get('pid', 'not told'))}): {printable(row.get('phase', ''))}"
        f"{_share_of(row, 'heap_blks_scanned', 'heap_blks_total')}."
        for row in rows
    ]
    return Said([*words, "Reads and writes of the table go on meanwhile; ALTER TABLE and the like wait."], [])


def told_of_invalid(rows: Rows) -> Said:
    """Indexes that were not built to their end."""
    names = [
        printable(row.get("indexrelid") or row.get("relname") or row.get("indexrelname") or "one")
        for row in rows
        if row.get("indisvalid") in ("f", "false")
    ]
    if not names:
        return Said(["These indexes are valid (indisvalid t)."], [])
    return Said(
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


WASTED: Final = ("wastedbytes", "wastedsize", "bloat_size", "waste", "table_waste")


def told_of_bloat(rows: Rows) -> Said:
    """Room in tables and indexes that has nothing in it."""
    wasted: dict[str, float] = {}
    for row in rows:
        name = (
            row.get("tablename") or row.get("relname") or row.get("table_name") or row.get("tblname") or "one"
        )
        many = max((bytes_of(row.get(one, "")) for one in WASTED), default=-1.0)
        wasted[name] = max(many, wasted.get(name, 0.0))
    first = [
        f"{printable(name)} {size(many)}"
        for name, many in sorted(wasted.items(), key=lambda one: -one[1])[:3]
    ]
    return Said(
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


def told_of_databases(rows: Rows) -> Said:
    """The sizes of databases."""
    found = {
        row["datname"]: bytes_of(next((row[one] for one in row if SIZED.fullmatch(one)), "")) for row in rows
    }
    first = [
        f"{printable(name)} {size(many)}"
        for name, many in sorted(found.items(), key=lambda one: -one[1])[:5]
        if many > 0
    ]
    return Said(
        [f"Sizes of databases: {listed(first)}."],
        [
            (
                "which tables: SELECT oid::regclass, pg_size_pretty(pg_total_relation_size(oid)) FROM"
                " pg_class WHERE relkind = 'r' ORDER BY pg_total_relation_size(oid) DESC LIMIT 20"
            )
        ],
    )
