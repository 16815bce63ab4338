"""Slots and standbys of a PostgreSQL server, as psql shows them."""

from collections.abc import Mapping

from synrepl.homeserver.explanation.server_rows import Rows, Said
from synrepl.html.humanize import several
from synrepl.wire.text import printable


def _name_of(row: Mapping[str, str]) -> str:
    """Who is connected: its name, or else its address."""
    return printable(row.get("application_name") or row.get("client_addr") or row.get("pid", "one"))


def told_of_slots(rows: Rows) -> Said:
    """Replication slots: what they keep, and whether somebody reads them."""
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
    return Said(words, advice, "error" if lost else "look" if idle or near else "")


def told_of_standbys(rows: Rows) -> Said:
    """The servers that copy this one."""
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
    return Said(words, ["no process of Synapse may read at a copy: it expects to see what it has written"])
