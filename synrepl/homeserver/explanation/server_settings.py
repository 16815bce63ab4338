"""Settings of a PostgreSQL server, and its checkpoints, as psql shows them."""

from collections.abc import Callable, Mapping
from typing import Final

from synrepl.homeserver.explanation.server_rows import MAX_CELL, Rows, Said, is_count
from synrepl.wire.text import printable


def told_of_checkpoints(rows: Rows) -> Said:
    """How often checkpoints came by time, and by amount."""
    row = rows[0] if rows else {}
    counts = [row.get(one, "") for one in ("checkpoints_timed", "checkpoints_req")]
    if not all(map(is_count, counts)):
        return Said(["How PostgreSQL writes to its disk (pg_stat_bgwriter)."], [])
    timed, asked = map(int, counts)
    words = [
        f"Checkpoints of PostgreSQL: {timed:,} by time, and {asked:,} as much was written (or asked for)."
    ]
    if asked <= timed:
        return Said(words, [])
    return Said(
        [*words, "More come by amount than by time: the disk is written more often than it need be."],
        ["raise max_wal_size (a few GB; recovery after a crash takes longer), and look again after a day"],
        "look",
    )


def told_of_settings(rows: Rows) -> Said:
    """Settings, each as if it stood alone."""
    said = {
        row["name"]: SETTINGS[row["name"]](printable(row["setting"][:MAX_CELL]))
        for row in rows
        if row["name"] in SETTINGS
    }
    if not said:
        return Said(["Settings of PostgreSQL (pg_settings)."], [])
    severities = [one.severity for one in said.values()]
    return Said(
        [f"{name}: {word}" for name, one in said.items() for word in one.words],
        list(dict.fromkeys(step for one in said.values() for step in one.advice)),
        next((one for one in ("error", "look") if one in severities), ""),
    )


def _told_of_encoding(value: str) -> Said:
    if value.upper() in ("UTF8", "UTF-8"):
        return Said([f"The encoding is {value}, as Synapse needs it."], [])
    return Said(
        [f"The encoding is {value}: Synapse needs UTF8, and does not start on this database."],
        [_NEW_DATABASE],
        "error",
    )


_NEW_DATABASE: Final = (
    "make a new one (createdb --encoding=UTF8 --locale=C --template=template0 --owner=USER NAME), and move"
    " the data there by pg_dump and pg_restore"
)


def _told_of_locale(value: str) -> Said:
    if value == "C":
        return Said(["The locale of this database is C, as Synapse needs it."], [])
    return Said(
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


def _told_of_copy(value: str) -> Said:
    if value != "t":
        return Said(["This PostgreSQL is no standby (pg_is_in_recovery f): it takes writes."], [])
    return Said(
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


def _told_of_read_only(value: str) -> Said:
    if value != "on":
        return Said(["Transactions may write."], [])
    return Said(
        ["New transactions may only read: what Synapse writes is refused."],
        [
            (
                "a standby is always so: SELECT pg_is_in_recovery(). Else see who set it: SELECT * FROM"
                " pg_db_role_setting, and postgresql.conf; managed databases do so when their disk is full"
            )
        ],
        "error",
    )


def _told_of_connections(value: str) -> Said:
    return Said(
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


def _told_of_isolation(value: str) -> Said:
    return Said(
        [
            (
                f"The isolation of transactions that set none is {value}. Synapse sets repeatable read for"
                " each connection that it opens, so that this does not count for it; behind a PgBouncer in"
                " the mode transaction it does."
            )
        ],
        [],
    )


def _told_of_limit(value: str) -> Said:
    if value in ("0", "0ms"):
        return Said(["No limit (0) for sessions that set none."], [])
    return Said(
        [
            (
                f"The limit is {value} for sessions that set none: PostgreSQL ends what takes longer (for"
                " statement_timeout Synapse sets its own: an hour, 10 minutes in newer releases)."
            )
        ],
        [],
    )


def _told_of_durability(value: str) -> Said:
    if value != "off":
        return Said([f"The setting is {value}: a commit is on disk."], [])
    return Said(
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


SETTINGS: Final[Mapping[str, Callable[[str], Said]]] = {
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
