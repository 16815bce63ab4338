"""The examination: what is there, what is wrong with it, and mending what can be mended."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from synrepl.errors import StorageError
from synrepl.storage.databases import Database
from synrepl.storage.doctor.catalog import Catalog, read_catalog
from synrepl.storage.doctor.complaints import Complaint, Diagnosis
from synrepl.storage.doctor.holds import Hold, holds, read_positions
from synrepl.storage.doctor.log_check import check_log, mend_positions
from synrepl.storage.doctor.synapse import MARKS, STREAMS
from synrepl.storage.ids.database import IdDatabase
from synrepl.storage.ids.layout import IdStream, IdTable
from synrepl.storage.ids.startup import IdProblem, IdProblems, examine, mend
from synrepl.storage.ids.writers import read_writers

__all__ = ["Doctor"]

ORDER: Final = ("error", "warning", "note")
HARMLESS: Final = ("unknown_writer", "sequence_unused")
LOG: Final = "the log"
STOPPED: Final = "stop the homeserver, run the statement, start it"
FIX: Final = "run synrepl doctor --fix; the generators do the same when they start"


class Doctor:
    """Examines one database. `streams` are those that a configuration names, `now` gives seconds since 1970,
    `progress` hears how many more facts of how many are checked.

    A homeserver's own database is only ever read: what would mend it is said as SQL, to be run while the
    homeserver is stopped.
    """

    def __init__(
        self,
        database: Database,
        streams: Sequence[IdStream] = (),
        *,
        now: Callable[[], float],
        progress: Callable[[int, int], None] = lambda more, total: None,
    ) -> None:
        self._database = database
        self._configured = list(streams)
        self._now = now
        self._progress = progress

    def examine(self, *, whole_log: bool = True) -> Diagnosis:
        """Look at everything, as it is at one moment. Raises `StorageError` if the database cannot be read.

        What alone cannot be read is a complaint.
        """
        return self._database.ask("examine", lambda cursor: self._examine(cursor, whole_log=whole_log))

    def mend(self, diagnosis: Diagnosis) -> Diagnosis:
        """Do what loses nothing, if it may be done here, and give the diagnosis with what was."""
        kinds = {one.kind for one in diagnosis.complaints}
        if diagnosis.kind == "synapse" or not kinds & MENDABLE:
            return diagnosis
        mended: set[tuple[str, str]] = set()
        failed: list[Complaint] = []

        def attempt(cursor: Any, stream: str, work: Callable[[Any], Iterable[tuple[str, str]]]) -> None:
            try:
                mended.update(self._database.attempt(cursor, "mend", work))
            except StorageError as error:
                failed.append(_not_mended(stream, error))

        def work(cursor: Any) -> None:
            for stream in self._configured:
                attempt(cursor, stream.name, partial(self._mend, stream))
            # What the facts say counts only as long as nobody changed them.
            if "position_behind_facts" in kinds and not kinds & {"missing_serial", "wrong_digest"}:
                attempt(cursor, "", partial(mend_positions, flavor=self._database.flavor))

        self._database.change("mend", work)
        complaints = [
            msgspec.structs.replace(one, mended=(one.stream, one.kind) in mended)
            for one in diagnosis.complaints
        ]
        return msgspec.structs.replace(diagnosis, complaints=_ordered([*complaints, *failed]))

    def _mend(self, stream: IdStream, cursor: Any) -> list[tuple[str, str]]:
        """The kinds of what was mended of this stream."""
        ids = IdDatabase(stream, self._database.flavor)
        ids.lock_start(cursor)
        findings = _findings(cursor, ids)
        mend(cursor, ids, findings)
        return [(stream.name, finding.kind) for finding in findings.found]

    # -- looking -------------------------------------------------------------------------------------------

    def _examine(self, cursor: Any, *, whole_log: bool) -> Diagnosis:
        catalog = read_catalog(cursor, self._database.flavor)
        is_synapse = all(mark in catalog.tables for mark in MARKS)
        has_numbers = is_synapse and self._database.flavor == "postgresql"
        streams = _merged(_present(catalog) if has_numbers else [], self._configured)
        complaints: list[Complaint] = []
        unread: dict[str, list[str]] = {}
        for stream in streams:
            try:
                complaints += self._database.attempt(
                    cursor,
                    "look",
                    partial(self._of_stream, stream, is_synapse=is_synapse),
                )
            except StorageError as error:
                unread.setdefault(_reason(error), []).append(stream.name)
        try:
            complaints += self._database.attempt(cursor, "look", partial(self._of_writers, catalog))
        except StorageError as error:
            unread.setdefault(_reason(error), []).append("who holds what")
        checked = None
        if catalog.has_log:
            try:
                checked, found = self._database.attempt(
                    cursor,
                    "look",
                    partial(
                        check_log, flavor=self._database.flavor, whole=whole_log, progress=self._progress
                    ),
                )
                complaints += found
            except StorageError as error:
                unread.setdefault(_reason(error), []).append(LOG)
        complaints += [_unread(reason, names) for reason, names in unread.items()]
        if is_synapse and not has_numbers:
            complaints.append(COUNTED)
        has_ours = catalog.has_log or streams or "synrepl_writers" in catalog.tables
        if not is_synapse and not has_ours:
            complaints.append(NOTHING)
        return Diagnosis(
            database=self._database.name,
            kind="synapse" if is_synapse else "synrepl" if has_ours else "other",
            streams=[stream.name for stream in streams],
            complaints=_ordered(complaints),
            facts_checked=checked,
        )

    def _of_stream(self, stream: IdStream, cursor: Any, *, is_synapse: bool) -> list[Complaint]:
        findings = _findings(cursor, IdDatabase(stream, self._database.flavor))
        return [self._complaint(stream, findings, one, is_synapse=is_synapse) for one in findings.found]

    def _complaint(
        self, stream: IdStream, findings: IdProblems, finding: IdProblem, *, is_synapse: bool
    ) -> Complaint:
        text = finding.text
        if finding.kind == "unknown_writer":
            statement = (
                f"DELETE FROM stream_positions WHERE stream_name = {_quoted(stream.name)}"
                f" AND instance_name = {_quoted(finding.writer)}"
            )
        else:
            statement = self._raising(stream, findings.goal)
        if is_synapse:
            text += f"; {_what_synapse_does(stream, findings, finding)}"
        return Complaint(
            severity="warning" if finding.kind in HARMLESS else "error",
            kind=finding.kind,
            stream=stream.name,
            text=text,
            remedy=STOPPED if is_synapse else FIX,
            statement=statement,
        )

    def _raising(self, stream: IdStream, goal: int) -> str:
        """Never takes a sequence back, whenever it is run."""
        if self._database.flavor == "postgresql":
            return (
                f"SELECT setval({_quoted(stream.sequence)},"
                f" greatest({goal}, (SELECT last_value FROM {stream.sequence})))"
            )
        return (
            f"UPDATE synrepl_sequences SET value = max(value, {goal}) WHERE name = {_quoted(stream.sequence)}"
        )

    def _of_writers(self, catalog: Catalog, cursor: Any) -> list[Complaint]:
        states = read_writers(cursor) if "synrepl_writers" in catalog.tables else []
        positions = read_positions(cursor) if "stream_positions" in catalog.tables else {}
        return [
            Complaint(
                severity="warning" if hold.is_stuck else "note",
                kind=KINDS[hold.why],
                stream=hold.stream,
                text=hold.text,
                remedy=_remedy(hold),
            )
            for hold in holds(states, positions, self._now())
            if hold.is_stuck or hold.why != "unfinished"
        ]


KINDS: Final = {"unfinished": "unfinished_id", "silent": "silent_writer", "behind": "writer_behind"}

MENDABLE: Final = frozenset(
    (
        "sequence_behind_tables",
        "sequence_behind_positions",
        "sequence_unused",
        "unknown_writer",
        "position_behind_facts",
    )
)

COUNTED: Final = Complaint(
    severity="note",
    kind="no_sequences",
    stream="",
    text="a homeserver on SQLite counts its ids from its tables at each start: no sequence can be behind",
)

NOTHING: Final = Complaint(
    severity="error",
    kind="nothing_known",
    stream="",
    text="there is neither a log of synrepl in this database nor a homeserver's streams",
    remedy="name another database, or its tables with --config, under table_streams",
)


def _findings(cursor: Any, ids: IdDatabase) -> IdProblems:
    """What is wrong with a stream. Where no sequence is named, nothing can be said of it, or done to it."""
    findings = examine(cursor, ids)
    if ids.stream.sequence:
        return findings
    return msgspec.structs.replace(
        findings,
        goal=findings.allocated,
        found=[one for one in findings.found if one.kind == "unknown_writer"],
    )


def _what_synapse_does(stream: IdStream, findings: IdProblems, finding: IdProblem) -> str:
    stored = max(findings.positions.values(), default=0)
    if finding.kind == "unknown_writer":
        return "the homeserver forgets it at its start"
    if finding.kind == "sequence_unused":
        return "the homeserver does not look at this"
    if stored > findings.allocated and not stream.negative:
        return "the homeserver refuses to start with it"
    if finding.kind == "sequence_behind_positions":
        return "the homeserver does not look at this, since these ids go down"
    return "the homeserver mends this at its start"


def _remedy(hold: Hold) -> str:
    if hold.why == "unfinished":
        return "see what that place waits for; ending the process releases its ids"
    if hold.why == "silent":
        return "if it is gone, another writer of the stream releases its ids when it runs"
    if hold.is_stuck:
        return "let it finish, or end it"
    return "nothing, if it is idle and runs; if it writes no more, take it out of the configuration"


def _present(catalog: Catalog) -> list[IdStream]:
    """The streams of a homeserver that this one has, with those of their tables that it has.

    Releases before a stream had several writers have no sequence for it.
    """
    found = []
    for stream in STREAMS:
        tables = tuple(
            IdTable(
                name=table.name,
                id_column=table.id_column,
                writer_column="instance_name" if "instance_name" in catalog.tables[table.name] else None,
            )
            for table in stream.tables
            if table.id_column in catalog.tables.get(table.name, ())
        )
        if tables and stream.sequence in catalog.sequences:
            found.append(msgspec.structs.replace(stream, tables=tables))
    return found


def _merged(known: Sequence[IdStream], configured: Sequence[IdStream]) -> list[IdStream]:
    """What is known of a homeserver's streams, with the writers that are configured, and what else is."""
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
        remedy="grant this user SELECT on it" if "permission" in reason else "",
    )


def _not_mended(stream: str, error: StorageError) -> Complaint:
    return Complaint(
        severity="error", kind="not_mended", stream=stream, text=f"could not be mended: {_reason(error)}"
    )


def _reason(error: StorageError) -> str:
    """What the database says, and nothing around it."""
    cause = error.__cause__
    said = getattr(getattr(cause, "diag", None), "message_primary", None) or cause or error.why
    return " ".join(str(said).split())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _ordered(complaints: Iterable[Complaint]) -> list[Complaint]:
    return sorted(complaints, key=lambda one: ORDER.index(one.severity))
