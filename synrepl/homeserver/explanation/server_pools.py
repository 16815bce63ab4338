"""Pools of a PgBouncer, as psql shows them."""

from typing import Final

from synrepl.homeserver.explanation.server_rows import Rows, Said, is_count
from synrepl.html.humanize import listed, several
from synrepl.wire.text import printable

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


def told_of_pools(rows: Rows) -> Said:
    """The pools of a PgBouncer: who waits for a connection."""
    full = [row for row in rows if is_count(row.get("cl_waiting", "")) and int(row["cl_waiting"])]
    if not full:
        return Said(["Pools of PgBouncer (SHOW POOLS): no client waits for a connection (cl_waiting 0)."], [])
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
    return Said(words, [_ENLARGE, _LONG_ONES], "error")


def told_of_pooled_databases(rows: Rows) -> Said:
    """The databases of a PgBouncer: how many connections each may have."""
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
        return Said(words, [f"if clients wait (SHOW POOLS, cl_waiting): {_ENLARGE}"])
    return Said(
        [f"{several(shared)} is in a mode that Synapse must not have: it needs pool_mode session.", *words],
        ["pool_mode = session for that database; a pgbouncer.ini is read by synrepl inspect --files"],
        "error",
    )


def told_of_pooler_settings(rows: Rows) -> Said:
    """The settings of a PgBouncer that matter for Synapse."""
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
        return Said(
            words, ["pool_mode=session at the database of Synapse in [databases], then RELOAD"], "error"
        )
    return Said(words, [f"if clients wait (SHOW POOLS, cl_waiting): {_ENLARGE}"])
