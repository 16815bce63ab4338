"""The examination of a database: finds problems, and repairs those that it safely can."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from synrepl.errors import StorageError
from synrepl.homeserver.doctor.complaints import Complaint, Diagnosis
from synrepl.homeserver.doctor.counters import (
    RAISED,
    USER_IDS,
    check_user_ids,
    complain,
    counters_in,
    examine_counter,
    not_looked_at,
    without_index,
)
from synrepl.homeserver.doctor.log_check import check_log, repair_positions
from synrepl.homeserver.doctor.stalls import Stall, stalls_in
from synrepl.homeserver.doctor.statements import quoted, raise_sequence_sql
from synrepl.homeserver.doctor.synapse import MARKS, STREAMS, Catalog, is_homeservers, read_catalog
from synrepl.homeserver.doctor.unique_indexes import check_unique_indexes, tables_with_unique_indexes
from synrepl.storage.databases import Database
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.id_problems import IdProblem, IdProblems, examine, repair
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.storage.schema import OLDER_LOG_HINT
from synrepl.storage.wal_check import find_damage

ORDER: Final = ("error", "warning", "note")
HARMLESS: Final = ("unknown_writer", "sequence_unused")
LOG: Final = "the log"
LOCK_NOT_AVAILABLE: Final = "55P03"
STOPPED: Final = "stop the homeserver, run the statement, start it"
FIX: Final = "run synrepl doctor --fix; synrepl's id generators make the same repair when a writer starts"


@dataclasses.dataclass(eq=False)
class Doctor:
    """Examines one database. `streams` are those of the configuration, `now` gives seconds since 1970, and
    `progress` is called with the number of newly checked facts and the total. Without `has_log`, a log in it
    is not looked at, and without `has_writers`, what writers told. With `only_indexed`, tables are left out
    whose highest id would take a scan.

    The tables of a homeserver are never changed: their repairs are given as SQL, to be run while the
    homeserver is stopped.
    """

    database: Database
    streams: Sequence[IdStream] = ()
    _: dataclasses.KW_ONLY
    now: Callable[[], float]
    progress: Callable[[int, int], None] = lambda more, total: None
    has_log: bool = True
    has_writers: bool = True
    only_indexed: bool = False

    def examine(self, *, whole_log: bool = True) -> Diagnosis:
        """Examine everything as of one moment; of the log, unless `whole_log`, only the newest 10,000 facts.

        Raises `StorageError` if the database cannot be opened. A part that cannot be read is a complaint.
        """
        # First: SQLite, once it has opened the file, may take back what is left of damaged commits.
        damage = self._wal_damage() if self.has_log and self.database.flavor == "sqlite" else []
        found = self.database.read_transaction(
            "examine", lambda cursor: self.examine_in(cursor, whole_log=whole_log)
        )
        return msgspec.structs.replace(found, complaints=_ordered([*found.complaints, *damage]))

    def _wal_damage(self) -> list[Complaint]:
        wal = self.database.path.with_name(f"{self.database.path.name}-wal")
        try:
            damage = find_damage(wal)
        except OSError as error:
            damage = f"it cannot be read: {error.strerror}"
        text, remedy = f"{wal}: {damage}", "restore the log from a copy, and open it with no other program"
        complaint = Complaint(severity="error", kind="damaged_wal", stream="", text=text, remedy=remedy)
        return [complaint] if damage else []

    def repair(self, diagnosis: Diagnosis) -> Diagnosis:
        """Make the repairs that lose nothing. Returns the diagnosis with repairs marked, failures added.

        Raises `StorageError` if the database cannot be opened for writing.
        """
        kinds = {one.kind for one in diagnosis.complaints}
        is_homeservers = diagnosis.kind == "synapse"
        if not kinds & (REPAIRABLE_LOG if is_homeservers else REPAIRABLE_IDS | REPAIRABLE_LOG):
            return diagnosis
        mended: set[tuple[str, str]] = set()
        failed: list[Complaint] = []

        def try_repair(cursor: Any, stream: str, work: Callable[[Any], Iterable[tuple[str, str]]]) -> None:
            try:
                mended.update(self.database.savepoint(cursor, "repair", work))
            except StorageError as error:
                what = "the ids" if stream else "positions in the log"
                text = f"{what} could not be repaired: {reason_of(error)}"
                failed.append(Complaint(severity="error", kind="not_mended", stream=stream, text=text))

        def work(cursor: Any) -> None:
            for stream in () if is_homeservers else self.streams:
                try_repair(cursor, stream.name, partial(self._repair, stream))
            # The facts prove positions only if they are intact.
            if "position_behind_facts" in kinds and not kinds & DAMAGED:
                try_repair(cursor, "", partial(repair_positions, flavor=self.database.flavor))

        self.database.write_transaction("mend", work)
        complaints = [
            msgspec.structs.replace(one, mended=(one.stream, one.kind) in mended)
            for one in diagnosis.complaints
        ]
        return msgspec.structs.replace(diagnosis, complaints=_ordered([*complaints, *failed]))

    def _repair(self, stream: IdStream, cursor: Any) -> list[tuple[str, str]]:
        ids = IdDatabase(stream, self.database.flavor)
        ids.lock_start(cursor)
        examined = _examine_ids(cursor, ids)
        repair(cursor, ids, examined)
        return [(stream.name, problem.kind) for problem in examined.found]

    def examine_in(self, cursor: Any, *, whole_log: bool = True) -> Diagnosis:
        """Examine the same in the transaction of this cursor."""
        catalog = read_catalog(cursor, self.database.flavor)
        is_synapse = is_homeservers(catalog)
        has_numbers = is_synapse and self.database.flavor == "postgresql"
        found = present_streams(catalog, only_indexed=self.only_indexed) if has_numbers else []
        streams = _merged(found, self.streams)
        complaints: list[Complaint] = []
        unread: dict[str, list[str]] = {}
        locked_out: list[str] = []

        def look(name: str, work: Callable[[Any], list[Complaint]]) -> None:
            try:
                complaints.extend(self.database.savepoint(cursor, "look", work))
            except StorageError as error:
                if is_locked_out(error):
                    locked_out.append(name)
                else:
                    unread.setdefault(reason_of(error), []).append(name)

        checked: int | None = None

        def look_at_log(cursor: Any) -> list[Complaint]:
            nonlocal checked
            checked, found = check_log(cursor, self.database.flavor, whole=whole_log, progress=self.progress)
            return found

        for stream in streams:
            look(stream.name, partial(self._check_stream, stream, is_synapse=is_synapse))
        counters = counters_in(catalog, streams, only_indexed=self.only_indexed) if has_numbers else []
        sequences = [counter.sequence for counter in counters]
        for counter in counters:
            look(counter.sequence, partial(self._check_counter, counter))
        unique: list[str] = []

        def look_at_unique_indexes(cursor: Any) -> list[Complaint]:
            unique[:] = tables_with_unique_indexes(cursor, catalog)
            return check_unique_indexes(cursor, catalog, unique)

        if has_numbers:
            look("the unique indexes", look_at_unique_indexes)
        if has_numbers and self.only_indexed:
            complaints += without_index(catalog, streams, sequences)
        elif has_numbers:
            if USER_IDS in catalog.sequences and "name" in catalog.tables.get("users", ()):
                look(USER_IDS, lambda cursor: list(check_user_ids(cursor, self.database.flavor)))
                # A column may take its default from it, as one of a module does.
                sequences += [USER_IDS] if USER_IDS not in sequences else []
            complaints += not_looked_at(catalog, [*sequences, *(stream.sequence for stream in streams)])
        if self.has_writers:
            look("the writers' unfinished ids", partial(self._check_writers, catalog))
        if catalog.has_log and self.has_log:
            look(LOG, look_at_log)
        if catalog.has_older_log and self.has_log:
            complaints.append(OLDER_SCHEMA)
        complaints += [_unread(reason, names) for reason, names in unread.items()]
        if locked_out:
            complaints.append(_locked_out(locked_out))
        if is_synapse and not has_numbers:
            complaints.append(NO_SEQUENCES)
        has_ours = catalog.has_log or catalog.has_older_log or streams or "synrepl_writers" in catalog.tables
        if not is_synapse and not has_ours:
            complaints.append(NOTHING_KNOWN if catalog.tables else EMPTY)
        if self.database.flavor == "postgresql" and (schemas := _schemas(cursor)):
            # Whoever runs a statement may have another search_path.
            complaints = [
                msgspec.structs.replace(one, statement=f"SET search_path TO {schemas}; {one.statement}")
                if one.statement
                else one
                for one in complaints
            ]
        return Diagnosis(
            database=self.database.name,
            kind="synapse" if is_synapse else "synrepl" if has_ours else "other",
            streams=[stream.name for stream in streams],
            complaints=_ordered(complaints),
            facts_checked=checked,
            sequences=sequences,
            unique_tables=unique,
        )

    def _check_counter(self, counter: IdStream, cursor: Any) -> list[Complaint]:
        problem = examine_counter(cursor, counter, self.database.flavor)
        return [] if problem is None else [complain(problem, self.database.flavor, STOPPED)]

    def _check_stream(self, stream: IdStream, cursor: Any, *, is_synapse: bool) -> list[Complaint]:
        examined = _examine_ids(cursor, IdDatabase(stream, self.database.flavor))
        return [self._complaint(stream, examined, one, is_synapse=is_synapse) for one in examined.found]

    def _complaint(
        self, stream: IdStream, examined: IdProblems, problem: IdProblem, *, is_synapse: bool
    ) -> Complaint:
        text = problem.text
        if problem.kind == "unknown_writer":
            statement = (
                f"DELETE FROM stream_positions WHERE stream_name = {quoted(stream.name)}"
                f" AND instance_name = {quoted(problem.writer)}"
            )
        else:
            statement = raise_sequence_sql(stream, examined.goal, self.database.flavor)
        if is_synapse:
            text += f"; {_synapse_behavior(stream, examined, problem)}"
        return Complaint(
            severity="warning" if problem.kind in HARMLESS else "error",
            kind=problem.kind,
            stream=stream.name,
            text=text,
            remedy=STOPPED if is_synapse else FIX,
            statement=statement,
        )

    def _check_writers(self, catalog: Catalog, cursor: Any) -> list[Complaint]:
        return [
            Complaint(
                severity="warning" if stall.is_stuck else "note",
                kind=KINDS[stall.why],
                stream=stall.stream,
                text=stall.text,
                remedy=_remedy(stall),
            )
            for stall in stalls_in(cursor, catalog.tables, self.now())
            if stall.is_stuck or stall.why != "unfinished"
        ]


KINDS: Final = {"unfinished": "unfinished_id", "silent": "silent_writer", "behind": "writer_behind"}

REPAIRABLE_IDS: Final = frozenset(
    ("sequence_behind_tables", "sequence_behind_positions", "sequence_unused", "unknown_writer")
)
DAMAGED: Final = frozenset(("damaged_fact", "damaged_file", "missing_serial", "wrong_digest"))
REPAIRABLE_LOG: Final = frozenset(["position_behind_facts"])

NO_SEQUENCES: Final = Complaint(
    severity="note",
    kind="no_sequences",
    stream="",
    text="a homeserver on SQLite counts its ids from its tables at each start, so no sequence can be behind",
)

OLDER_SCHEMA: Final = Complaint(
    severity="error",
    kind="older_schema",
    stream="",
    text="the log: a release before 26.11.0 wrote it: not examined",
    remedy=OLDER_LOG_HINT,
)

NOTHING_KNOWN: Final = Complaint(
    severity="error",
    kind="nothing_known",
    stream="",
    text="this database has neither a synrepl log nor a homeserver's streams",
    remedy="choose another database, or name its tables with --config, under table_streams",
)

EMPTY: Final = Complaint(
    severity="error",
    kind="nothing_known",
    stream="",
    text="this database has no tables, at least none in the schemas in which names are looked for",
    remedy="if it should have them, look at the name of the database, at search_path, and at what was to copy"
    " them (synapse_port_db, pg_restore); a homeserver makes its tables at its start",
)


def _schemas(cursor: Any) -> str:
    """The schemas in which names without one are looked for, as in SQL; "" if that is public first."""
    cursor.execute(
        "SELECT current_schema(),"
        " array_to_string(ARRAY(SELECT quote_ident(one) FROM unnest(current_schemas(false)) AS one), ', ')"
    )
    first, all_of_them = cursor.fetchone()
    return "" if first in (None, "public") else str(all_of_them)


def _examine_ids(cursor: Any, ids: IdDatabase) -> IdProblems:
    """Examine a stream's ids. Without a sequence only unknown writers can be found."""
    examined = examine(cursor, ids)
    if ids.stream.sequence:
        return examined
    return msgspec.structs.replace(
        examined,
        goal=examined.allocated,
        found=[one for one in examined.found if one.kind == "unknown_writer"],
    )


def _synapse_behavior(stream: IdStream, examined: IdProblems, problem: IdProblem) -> str:
    stored = max(examined.positions.values(), default=0)
    if problem.kind == "unknown_writer":
        return "the homeserver deletes this position at its start"
    if problem.kind == "sequence_unused":
        return "the homeserver does not check this"
    if stored > examined.allocated and not stream.negative:
        return "the homeserver refuses to start with it"
    if problem.kind == "sequence_behind_positions":
        return "the homeserver does not check this, since these ids descend"
    return RAISED


def _remedy(stall: Stall) -> str:
    if stall.why == "unfinished":
        return "find out what the code that reserved the id waits for; ending the process releases its ids"
    if stall.why == "silent":
        return "if the process is gone, start it or another writer of the stream again: this releases its ids"
    if stall.is_stuck:
        return "let the writer finish, or stop it"
    return "nothing, if the writer runs and is idle; if it writes no more, remove it from the configuration"


def present_streams(catalog: Catalog, *, only_indexed: bool = False) -> list[IdStream]:
    """The homeserver streams whose sequence this database has, with those of their tables that it has.

    Releases in which a stream has only one writer have no sequence for it. With `only_indexed`, tables are
    left out that have no index by id.
    """
    found = []
    for stream in STREAMS if MARKS[-1] in catalog.tables else ():
        tables = tuple(
            IdTable(
                name=table.name,
                id_column=table.id_column,
                writer_column="instance_name" if "instance_name" in catalog.tables[table.name] else None,
            )
            for table in stream.tables
            if table.id_column in catalog.tables.get(table.name, ())
            and (not only_indexed or (table.name, table.id_column) in catalog.indexed)
        )
        if (tables or only_indexed) and stream.sequence in catalog.sequences:
            found.append(msgspec.structs.replace(stream, tables=tables))
    return found


def _merged(known: Sequence[IdStream], configured: Sequence[IdStream]) -> list[IdStream]:
    """The known streams with their configured writers, and the other configured streams."""
    by_name = {stream.name: stream for stream in known}
    for stream in configured:
        mine = by_name.get(stream.name)
        by_name[stream.name] = (
            stream if mine is None else msgspec.structs.replace(mine, writers=stream.writers)
        )
    return list(by_name.values())


def _unread(reason: str, names: Sequence[str]) -> Complaint:
    is_one_stream = len(names) == 1 and names[0] != LOG
    return Complaint(
        severity="error",
        kind="not_examined",
        stream=names[0] if is_one_stream else "",
        text=f"not examined: {reason}" + ("" if is_one_stream else f" (needed for {', '.join(names)})"),
        remedy="grant this user SELECT (on a schema: USAGE)" if "permission" in reason else "",
    )


def _locked_out(names: Sequence[str]) -> Complaint:
    return Complaint(
        severity="error",
        kind="locked_out",
        stream=names[0] if len(names) == 1 and names[0] != LOG else "",
        text=f"not examined, since another session has locked its tables: {', '.join(names)}",
        remedy="synrepl inspect --homeserver names that session; when it has ended, run this again",
    )


def reason_of(error: StorageError) -> str:
    """The database's own words for a failure, or else the error's, in one line."""
    cause = error.__cause__
    message = getattr(getattr(cause, "diag", None), "message_primary", None) or cause or error.why
    return " ".join(str(message).split())


def is_locked_out(error: StorageError) -> bool:
    """Whether the failure is that another session keeps a lock on a table."""
    return getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE


def _ordered(complaints: Iterable[Complaint]) -> list[Complaint]:
    return sorted(complaints, key=lambda one: ORDER.index(one.severity))
