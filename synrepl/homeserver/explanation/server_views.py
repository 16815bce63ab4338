"""What psql shows of a PostgreSQL server itself, or of a PgBouncer before it: sessions, locks, slots, sizes.

A view is told by its columns, as people select some of them alone. Docs: docs/howto/explain.md.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from synrepl.homeserver.explanation.excerpts import without_secrets
from synrepl.homeserver.explanation.relations import known_relations
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.server_activity import (
    told_of_blocking,
    told_of_locks,
    told_of_prepared,
    told_of_sessions,
)
from synrepl.homeserver.explanation.server_copies import told_of_slots, told_of_standbys
from synrepl.homeserver.explanation.server_pools import (
    told_of_pooled_databases,
    told_of_pooler_settings,
    told_of_pools,
)
from synrepl.homeserver.explanation.server_rows import MAX_CELL, Rows, Said, sizes_in
from synrepl.homeserver.explanation.server_settings import SETTINGS, told_of_checkpoints, told_of_settings
from synrepl.homeserver.explanation.server_sizes import (
    WASTED,
    told_of_ages,
    told_of_bloat,
    told_of_databases,
    told_of_dead_rows,
    told_of_index_builds,
    told_of_invalid,
    told_of_sizes,
    told_of_vacuums,
)
from synrepl.homeserver.explanation.server_statements import PLAN, told_of_plan, told_of_statements
from synrepl.wire.text import printable

MAX_SHOWN: Final = 20
"""The most rows that are shown."""


class _View(NamedTuple):
    """A view: sets of columns of which it has one, its name, and what is said of its rows."""

    columns: tuple[frozenset[str], ...]
    name: str
    told: Callable[[Rows], Said]


_VIEWS: Final = (
    _View(
        (frozenset({"blocked_pid"}), frozenset({"blocked_by"}), frozenset({"pg_blocking_pids"})),
        "who waits for whom",
        told_of_blocking,
    ),
    _View((frozenset({"granted", "mode"}), frozenset({"granted", "locktype"})), "pg_locks", told_of_locks),
    _View((frozenset({"slot_name"}),), "pg_replication_slots", told_of_slots),
    _View(
        (frozenset({"sync_state", "state"}), frozenset({"sent_lsn", "replay_lsn"})),
        "pg_stat_replication",
        told_of_standbys,
    ),
    _View((frozenset({"cl_waiting"}),), "pools", told_of_pools),
    _View((frozenset({PLAN}),), "plan", told_of_plan),
    _View((frozenset({"key", "value", "changeable"}),), "settings of PgBouncer", told_of_pooler_settings),
    _View((frozenset({"pool_size", "name"}),), "databases of PgBouncer", told_of_pooled_databases),
    _View(
        (
            frozenset({"pid", "state"}),
            frozenset({"pid", "query"}),
            frozenset({"count", "state"}),
            frozenset({"usename", "state"}),
        ),
        "pg_stat_activity",
        told_of_sessions,
    ),
    _View((frozenset({"query", "calls"}),), "pg_stat_statements", told_of_statements),
    _View(
        (frozenset({"phase", "lockers_total"}), frozenset({"phase", "index_relid"})),
        "pg_stat_progress_create_index",
        told_of_index_builds,
    ),
    _View((frozenset({"phase", "heap_blks_total"}),), "pg_stat_progress_vacuum", told_of_vacuums),
    _View((frozenset({"gid", "prepared"}),), "pg_prepared_xacts", told_of_prepared),
    _View((frozenset({"indisvalid"}),), "pg_index", told_of_invalid),
    _View(tuple(frozenset({one}) for one in WASTED), "bloat", told_of_bloat),
    _View((frozenset({"checkpoints_timed", "checkpoints_req"}),), "pg_stat_bgwriter", told_of_checkpoints),
    _View(
        (frozenset({"datname", "pg_size_pretty"}), frozenset({"datname", "size"})),
        "sizes of databases",
        told_of_databases,
    ),
    _View((frozenset({"name", "setting"}),), "pg_settings", told_of_settings),
    _View((frozenset({"n_dead_tup"}),), "pg_stat_user_tables", told_of_dead_rows),
    _View((frozenset({"datname", "age"}), frozenset({"relname", "age"})), "ages", told_of_ages),
)


def has_words(column: str) -> bool:
    """Whether a column has the value of a setting, or lines of a plan: words with spaces."""
    return column.lower() in SETTINGS or column.lower() == PLAN


def explain_view(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Passage | None:
    """Explain a table that psql printed of the server itself; None if it is none that is known."""
    named: Rows = [dict(zip(columns, row, strict=False)) for row in rows]
    if len(columns) == 1 and len(rows) == 1 and (setting := SETTINGS.get(columns[0])) is not None:
        said = setting(printable(rows[0][0][:MAX_CELL]))
        return _passage(columns[0], said, [])
    view = next((one for one in _VIEWS if any(needed <= {*columns} for needed in one.columns)), None)
    if view is not None:
        return _passage(view.name, view.told(named), named)
    if any(name in known_relations() for name in sizes_in(named)):
        return _passage("sizes of tables", told_of_sizes(named), named)
    return None


def _passage(name: str, said: Said, rows: Rows) -> Passage:
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
