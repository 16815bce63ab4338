"""What it means that a row is in the database already: of a sequence, of two requests, of an update."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from synrepl.wire.text import printable

_SEQUENCES: Final[Mapping[str, str]] = {
    "events_stream_ordering": "events_stream_seq",
    "state_groups_pkey": "state_group_id_seq",
    "event_auth_chains_c_seq_index": "event_auth_chain_id",
    "application_services_txns_as_id_txn_id_key": "application_services_txn_id_seq",
}
"""Sequences of which a taken id tells, by the name of the constraint."""


_KEY: Final = re.compile(r"Key \((?P<names>[^()]{1,300})\)=\((?P<values>.{0,500}?)\) ", re.ASCII)
_OF_SQLITE: Final = re.compile(r"UNIQUE constraint failed: (?P<names>[\w., ]{1,300})", re.ASCII)
_OF_TEXTS: Final = ("_uniqueness", "_key", "_idx", "_index", "_index2")
"""Ends of the names of unique indexes of more than a number."""

UPDATES: Final = "synapse/storage/background_updates.py"
"""The file that runs the updates of the database in the background."""


_UPGRADES: Final = (
    "synapse/storage/prepare_database.py",
    "synapse/storage/engines/postgres.py",
    "synapse/storage/engines/sqlite.py",
    "synapse/storage/schema/",
)
"""The files that bring the schema of the database up to date at a start, or their folder."""
_OF_UPGRADE: Final = re.compile(r"(?<![\w.])(?:temp_\w{1,80}|\w{1,80}_(?:new|temp))(?![\w])", re.ASCII)
"""A table that only a step of an upgrade makes, to put it in the place of another one."""


def is_of_upgrade(text: str, frames: Sequence[str]) -> bool:
    """Whether a failure was one of an upgrade of the schema, by the files of its traceback or its table."""
    return any(frame.startswith(_UPGRADES) for frame in frames) or _OF_UPGRADE.search(text) is not None


class Duplicate(NamedTuple):
    """What is said of a row that is there already. `is_harmless`: Synapse may do without it."""

    words: list[str]
    advice: list[str]
    is_harmless: bool = False


def told_of_duplicate(text: str, constraint: str) -> Duplicate | None:
    """Return what is said of a row that a unique index refused; None if it may be that of a sequence."""
    named = constraint.split()
    name = named[0].strip("\"'") if named else ""
    if name in _SEQUENCES:
        return Duplicate(
            [f"The sequence {_SEQUENCES[name]} gives out ids that are in use: it is behind its table."], []
        )
    if "event_id" in name or "Key (event_id)=" in text:
        return _event(name)
    key = _KEY.search(text)
    found = key or _OF_SQLITE.search(text)
    columns = printable(found["names"].strip()) if found else ""
    if (key is not None and key["values"].isdecimal()) or not (columns or name.endswith(_OF_TEXTS)):
        return None
    what = f"the same {columns}" if columns else f"the same key ({printable(name)})"
    first = f"The database refused a row, as one with {what} is there. No sequence is at fault."
    if "event_push_summary" in name or "event_push_summary" in columns:
        return Duplicate([first, COUNTS], [SEE_COUNTS])
    if "_locks" in name or "lock_key" in columns:
        return Duplicate([LOCKED], [SEE_LOCKS], is_harmless=True)
    return Duplicate([first, AT_ONCE], [SEE_PROCESSES], is_harmless=True)


def _event(name: str) -> Duplicate:
    told = (
        f"The database has this event already ({printable(name)}): it was stored twice at once, or the tables"
        " of events do not agree about it. No sequence is at fault."
    )
    return Duplicate(
        [told],
        ["once: nothing to do. For the same event again and again: see which tables of events have it"],
    )


COUNTS: Final = (
    "It has counts of notifications. Since threads (1.69) rows differ by thread_id too, and a unique index of"
    " before, without it, or rows that are there twice, stand in the way: users' counts may be wrong, nothing"
    " else."
)
SEE_COUNTS: Final = (
    "see whether updates are left: SELECT * FROM background_updates. Let them end, and update: they make the"
    " new index and drop the old one. Counts are made anew from what users read: rows that are there twice"
    " may be deleted"
)
LOCKED: Final = (
    "A process tried to take one of Synapse's own locks, and another process or task has it: this is how it"
    " finds out. It tries again until the lock is free. No sequence is at fault."
)
SEE_LOCKS: Final = (
    "now and then: nothing is to be done. If the same lock_key comes for hours, what it keeps back waits (a"
    " room is not purged while its history is being fetched): SELECT * FROM worker_read_write_locks (or"
    " worker_locks) tells who has it; a last_renewed_ts of more than two minutes ago is given up by itself."
    " Let that task end, or restart that process"
)
AT_ONCE: Final = (
    "Two requests or processes stored it at the same moment. Synapse then leaves or changes the row that is"
    " there: in PostgreSQL's own log alone, without a failure in Synapse's, that is no trouble, and old"
    " releases do so all the time."
)
SEE_PROCESSES: Final = (
    "only if Synapse itself logs it, for the same key again and again: two processes do the same work"
    " (synrepl inspect --files), or an index of an older release is still there: SELECT * FROM"
    " background_updates"
)

IN_AN_UPDATE: Final[Mapping[str, tuple[str, str]]] = {
    "db_index_not_made": (
        (
            "An update in the background makes a unique index, and cannot, as rows are in the table twice"
            " (the line has their key): it fails again at each try, and the updates after it wait. Synapse"
            " serves all the same."
        ),
        (
            "remove the rows that are there twice, keeping one of each: SELECT the columns of that index,"
            " count(*) ... GROUP BY ... HAVING count(*) > 1 finds them; the update then ends by itself. Of"
            " many of these the fault was the release's, and a newer one removes them: update first"
        ),
    ),
    "id_twice": (
        (
            "An update in the background met a row whose key is there already: it fails again at each try,"
            " and the updates after it wait. Synapse serves all the same. No sequence is at fault."
        ),
        (
            "SELECT * FROM background_updates tells which update it is. Look at the rows with that key, and"
            " remove what is there twice; or update: of many of these the fault was the release's"
        ),
    ),
    "no_row_unnamed": (
        (
            "An update in the background was gone when its next step came: another process did it meanwhile."
            " Two processes run the same updates, as two main processes on one database do."
        ),
        (
            "see that one main process alone has this database, and no spare one; with a single one: once is"
            " no trouble"
        ),
    ),
}
"""What a reason means where it ended an update of the database in the background, and what to do."""

_TWICE_AT_A_START: Final = (
    (
        "A step that brings the schema of the database up to date could not be done, as rows are in a table"
        " twice that must be there once: Synapse does not start."
    ),
    (
        "keep a copy of the database, remove the rows that are there twice (SELECT the columns in the line,"
        " count(*) ... GROUP BY ... HAVING count(*) > 1 finds them), and start the main process again; or"
        " start the release of before, and look whether a newer one does it better"
    ),
)

LIKELY_AN_UPGRADE: Final = (
    "It ended a start: most likely (the files of the traceback are not in the text) so:"
)
IN_AN_UPGRADE: Final[Mapping[str, tuple[str, str]]] = {
    "db_there_already": (
        (
            "A step that brings the schema of the database up to date wants to make what is there already:"
            " most likely a start before was broken off in the middle of that step (as by the time limit of"
            " systemd), of which SQLite keeps what was done, or a state of the development ran on this"
            " database; or schema_version is not the one of this database (a dump loaded in part, another"
            " search_path). Synapse fails so at each start."
        ),
        (
            "end all processes and keep a copy. SELECT * FROM schema_version: without a row, load the dump"
            " again into an empty database. Else load the backup of before the upgrade and start the main"
            " process alone, without a time limit (update_synapse_database does the same with Synapse down);"
            " without a backup see how far the step came, by its file (Applying schema ... in the log;"
            " applied_schema_deltas has those that are done), and undo by hand what it left"
        ),
    ),
    "db_index_not_made": _TWICE_AT_A_START,
    "id_twice": _TWICE_AT_A_START,
    "deadlock": (
        (
            "A step that brings the schema of the database up to date, and another process that used the same"
            " table, waited for each other: PostgreSQL ended one of them, and the start."
        ),
        (
            "end all workers, and what else has the database open, and start the main process alone; then the"
            " workers"
        ),
    ),
    "db_no_column": (
        (
            "A step that brings the schema of the database up to date did not find what it changes: the"
            " database was restored in part, or changed by hand, or is another one."
        ),
        (
            "see that it is the right database (SELECT current_database(), count(*) FROM events). Keep a"
            " copy, make by hand what the line names, as the release of before had it, and start the main"
            " process again; or restore anew, and whole"
        ),
    ),
}
"""What a reason means where it ended an upgrade of the schema at a start, and what to do."""
