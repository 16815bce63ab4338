"""Sequences that give the ids of a table's rows, and are those of no stream.

A table that was copied without its sequences, as logical replication does, has ids above them: the next row
gets an id that is taken, and fails. Most sequences belong to a column, which the database itself knows
(`pg_depend`); a few are used by the homeserver's code alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from synrepl.homeserver.doctor.complaints import Complaint
from synrepl.homeserver.doctor.statements import raise_sequence_sql
from synrepl.homeserver.doctor.synapse import Catalog, OwnedSequence
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.storage.sql import Flavor
from synrepl.storage.worker_database import IDENTIFIER

TRANSACTIONS: Final = "application_services_txn_id_seq"
"""Ids of what all application services are sent."""

BY_CODE: Final = (
    OwnedSequence("state_group_id_seq", "state_groups", "id"),
    OwnedSequence("event_auth_chain_id", "event_auth_chains", "chain_id"),
    OwnedSequence(TRANSACTIONS, "application_services_txns", "txn_id"),
    OwnedSequence(TRANSACTIONS, "application_services_state", "last_txn"),
)
"""Sequences that the homeserver's code names. It compares them with their tables when it starts, since 1.21,
the second since 1.29; the last column it does not look at."""

SMALL: Final = frozenset(("application_services_txns", "application_services_state"))
"""Tables of which the highest id is read without an index: they have transactions that wait, and services."""

REFERS_TO_GROUPS: Final = "event_to_state_groups"
"""The table by which a database refers to groups of states, which may be in another one."""

RAISED: Final = (
    "since 1.109 the homeserver raises it at its start, with a warning; before 1.109 it refuses"
    " to start with it"
)
"""The effect of a sequence that is behind its rows, where the homeserver checks it."""

USER_IDS: Final = "user_id_seq"
"""Numbers for users without a name, as guests are. If one is taken, the homeserver tries the next."""

HIGHEST_USER: Final = """
    SELECT max(substring(name FROM '^@([0-9]{1,18}):')::bigint) FROM users WHERE name ~ '^@[0-9]{1,18}:'
"""

KIND: Final = "counter_behind_table"


def counters_in(catalog: Catalog, streams: Iterable[IdStream], *, only_indexed: bool) -> list[IdStream]:
    """The sequences with their tables, as streams without positions; those of `streams` are left out.

    With `only_indexed` a table counts only if an index gives its highest id.
    """
    taken = {stream.sequence for stream in streams}
    tables: dict[str, dict[tuple[str, str], IdTable]] = {}
    for one in (*BY_CODE, *catalog.owned):
        names = (one.sequence, one.table, one.column)
        if one.sequence in taken or one.sequence not in catalog.sequences or not all(map(_is_plain, names)):
            continue
        if one.column not in catalog.tables.get(one.table, ()):
            continue
        if only_indexed and one.table not in SMALL and (one.table, one.column) not in catalog.indexed:
            continue
        table = IdTable(name=one.table, id_column=one.column, writer_column=None)
        tables.setdefault(one.sequence, {})[one.table, one.column] = table
    return [
        IdStream(name=sequence, sequence=sequence, tables=tuple(found.values()))
        for sequence, found in sorted(tables.items())
    ]


def _is_plain(name: str) -> bool:
    """Whether SQL takes the name without quotes."""
    return bool(IDENTIFIER.fullmatch(name)) and name == name.lower()


class CounterProblem(msgspec.Struct, frozen=True):
    """A sequence at `allocated`, and an id of its tables above it."""

    counter: IdStream
    allocated: int
    goal: int


def examine_counter(cursor: Any, counter: IdStream, flavor: Flavor) -> CounterProblem | None:
    """Compare a sequence with its tables; None if it is not behind them."""
    database = IdDatabase(counter, flavor)
    goal = database.highest_row(cursor)
    # Last: others may be writing, and the sequence must be ahead of all that was read before.
    allocated = database.allocated(cursor)
    return CounterProblem(counter, allocated, goal) if allocated < goal else None


def complain(problem: CounterProblem, flavor: Flavor, remedy: str) -> Complaint:
    """Describe the problem, with the statement that repairs it."""
    counter = problem.counter
    tables = ", ".join(table.name for table in counter.tables)
    is_checked = any(one.sequence == counter.sequence for one in BY_CODE)
    check = RAISED if is_checked else "the homeserver never checks this"
    harm = "new rows get ids that are taken, and fail"
    if counter.sequence == TRANSACTIONS:
        harm += ", and application services ignore transactions whose ids they have had"
    return Complaint(
        severity="error",
        kind=KIND,
        stream="",
        text=f"sequence {counter.sequence} is at {problem.allocated}, behind the rows of {tables}"
        f" ({problem.goal}); {harm}; {check}",
        remedy=remedy,
        statement=raise_sequence_sql(counter, problem.goal, flavor),
    )


def check_user_ids(cursor: Any, flavor: Flavor) -> Iterator[Complaint]:
    """Compare the numbers of users without a name with those that there are; takes a scan of the users."""
    counter = IdStream(name=USER_IDS, sequence=USER_IDS, tables=())
    cursor.execute(HIGHEST_USER)
    highest = int(cursor.fetchone()[0] or 0)
    allocated = IdDatabase(counter, flavor).allocated(cursor)
    if allocated < highest:
        yield Complaint(
            severity="note",
            kind=KIND,
            stream="",
            text=f"sequence {USER_IDS} is at {allocated}, behind a user whose name is a number ({highest});"
            " the homeserver tries the next number if one is taken",
            statement=raise_sequence_sql(counter, highest, flavor),
        )


def not_looked_at(catalog: Catalog, examined: Iterable[str]) -> Iterator[Complaint]:
    """Name the sequences that were not examined, as nothing is known of what has their ids."""
    if left := sorted(catalog.sequences - set(examined)):
        yield _not_examined(f"since it is not known which rows have their ids: {', '.join(left)}")
    groups = BY_CODE[0].sequence
    if REFERS_TO_GROUPS in catalog.tables and groups not in catalog.sequences:
        yield _not_examined(
            f"{groups} is not here: groups of states are in another database of the homeserver"
        )


def without_index(
    catalog: Catalog, streams: Sequence[IdStream], examined: Iterable[str]
) -> Iterator[Complaint]:
    """Name the sequences whose rows have no index by id, so that they were not examined."""
    known = {counter.sequence for counter in counters_in(catalog, streams, only_indexed=False)}
    if left := sorted(known - set(examined)):
        yield _not_examined(f"as no index gives the highest id of its rows: {', '.join(left)}")


def _not_examined(why: str) -> Complaint:
    return Complaint(severity="note", kind="not_looked_at", stream="", text=f"not examined, {why}")
