"""The check of a homeserver's database before the homeserver starts, and the repair that lets it start.

After PostgreSQL was switched over and back, a stored position can be above its sequence, and Synapse refuses
to start (its issue #18544). Only sequences are raised; positions and rows are never written.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from synrepl.errors import StorageError
from synrepl.homeserver.doctor.complaints import Complaint, Diagnosis, Severity
from synrepl.homeserver.doctor.counters import KIND, CounterProblem, counters_in, examine_counter
from synrepl.homeserver.doctor.examination import (
    NO_SEQUENCES,
    Doctor,
    present_streams,
    reason_of,
)
from synrepl.homeserver.doctor.statements import raise_sequence_sql
from synrepl.homeserver.doctor.synapse import is_homeservers, raises_at_start, read_catalog
from synrepl.homeserver.doctor.unique_indexes import KIND as UNIQUE
from synrepl.storage.databases import Database
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.id_problems import examine
from synrepl.storage.id_tables.layout import IdStream
from synrepl.wire.text import printable

APPLY_LOCK: Final = 0x5359_4E44
"""The advisory lock (1398361668) that lets one doctor at a time raise sequences."""

BATCH: Final = 10_000
"""The most ids that one statement takes from a sequence."""

MAX_BESIDE_OTHERS: Final = 1_000_000
"""The most ids that a sequence is raised by while other sessions are in the database."""

STATEMENT_SECONDS: Final = 30.0
"""The longest statement, in seconds: also the longest wait for another doctor's lock."""

RETRY_SECONDS: Final = 1.0
SAY_SECONDS: Final = 10.0

BEHIND: Final = frozenset(("sequence_behind_positions", "sequence_behind_tables", KIND))

NOT_LOOKED_AT: Final = frozenset(("not_examined", "locked_out"))
"""Kinds of complaints about parts that could not be read."""

REMEDY: Final = "add --apply, or run the statement, as the owner of the sequence"

NO_TABLES: Final = Complaint(
    severity="note",
    kind="no_tables",
    stream="",
    text="this database has no homeserver's tables yet: the homeserver makes them at its start",
)

ENCODING: Final = "UTF8"
LOCALE: Final = "C"

_DATABASE: Final = """
    SELECT pg_encoding_to_char(encoding), datcollate, datctype FROM pg_database
    WHERE datname = current_database()
"""

MOVE: Final = (
    "dump the database with pg_dump, and load it into one that was made with CREATE DATABASE ... TEMPLATE"
    f" template0 ENCODING '{ENCODING}' LC_COLLATE '{LOCALE}' LC_CTYPE '{LOCALE}'"
)

# Not counted: this program's connection of the look before, which may still be ending; autovacuum, which has
# no user; replicas; and doctors that wait for the lock, since they look again when they have it.
OTHERS: Final = """
    SELECT count(*) FROM pg_stat_activity AS activity
    WHERE activity.datname = current_database() AND activity.pid <> pg_backend_pid()
        AND activity.application_name <> current_setting('application_name')
        AND activity.usesysid IS NOT NULL AND activity.backend_type IS DISTINCT FROM 'walsender'
        AND NOT EXISTS (SELECT FROM pg_locks AS locks WHERE locks.pid = activity.pid AND NOT locks.granted
            AND locks.locktype = 'advisory' AND locks.classid = 0 AND locks.objid = %s)
"""

T = TypeVar("T")


class RaisedSequence(msgspec.Struct, frozen=True):
    """A sequence that was raised: the last ids that it had allocated `before` and `after`.

    `stream` is empty if it is that of no stream.
    """

    stream: str
    sequence: str
    before: int
    after: int


class StartReport(msgspec.Struct, frozen=True):
    """What was found before a start, after what was `raised`."""

    diagnosis: Diagnosis
    raised: list[RaisedSequence] = []

    @property
    def may_start(self) -> bool | None:
        """Whether the homeserver would start, and reuse no id. None: a part could not be read."""
        kinds = {one.kind for one in self.diagnosis.complaints if one.severity == "error"}
        return None if kinds and kinds <= NOT_LOOKED_AT else not kinds


@dataclasses.dataclass(eq=False)
class StartCheck:
    """Looks at the sequences of one homeserver's database before a start, and raises those that are behind.

    Only tables are read whose highest id an index gives, so that a look takes no scan. On SQLite, where ids
    have no sequences, the file is not opened: the homeserver may be about to make it.

    `allows_locale`: the homeserver is told to start whatever the locale is.
    """

    database: Database
    allows_locale: bool = False

    def run(self, *, applies: bool) -> StartReport:
        """Look, and if it `applies`, raise sequences and look again.

        Raises `StorageError`; `retryable` while the database is starting, switched over or a standby.
        """
        if self.database.flavor == "sqlite":
            return StartReport(self._diagnosis([], [NO_SEQUENCES]))
        found = self.database.read_transaction("look", self._look)
        if not applies or not any(one.kind in BEHIND for one in found.complaints):
            return StartReport(found)
        raised, failed = self.database.write_transaction("raise", self._raise_sequences)
        found = self.database.read_transaction("look", self._look)
        refused = {one.stream for one in found.complaints if one.severity == "error"}
        for stream, text in failed:
            severity: Severity = "error" if stream in refused else "note"
            found.complaints.append(Complaint(severity=severity, kind="not_mended", stream=stream, text=text))
        return StartReport(found, raised)

    def _look(self, cursor: Any) -> Diagnosis:
        self._check_primary(cursor)
        catalog = read_catalog(cursor, self.database.flavor)
        if not is_homeservers(catalog):
            return self._diagnosis([], [*self._check_text(cursor, "error"), NO_TABLES])
        # The time would only be compared with what writers told.
        doctor = Doctor(self.database, now=lambda: 0.0, has_log=False, has_writers=False, only_indexed=True)
        found = doctor.examine_in(cursor)
        refused = {one.stream for one in found.complaints if one.kind == "sequence_behind_positions"}
        complaints = [*self._check_text(cursor, "error" if raises_at_start(catalog) else "note")]
        for one in found.complaints:
            if one.kind in BEHIND:
                # Since 1.109 rows above the sequence are no reason to refuse: the homeserver raises it by
                # itself. Of other sequences it may raise none, and fails later.
                is_raised = raises_at_start(catalog) and one.stream not in refused and one.kind != KIND
                severity: Severity = "note" if is_raised else "error"
                complaints.append(msgspec.structs.replace(one, severity=severity, remedy=REMEDY))
            elif one.kind == UNIQUE:
                # It starts all the same.
                complaints.append(msgspec.structs.replace(one, severity="note"))
            elif one.kind in NOT_LOOKED_AT or one.kind == "not_looked_at":
                complaints.append(one)
        return self._diagnosis(found.streams, complaints, found.sequences)

    def _check_primary(self, cursor: Any) -> None:
        """Raise a retryable `StorageError` on a standby: its sequences show the 32 ids logged ahead."""
        cursor.execute("SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')")
        is_standby, read_only = cursor.fetchone()
        if is_standby or read_only == "on":
            what = "a standby" if is_standby else "read only"
            raise StorageError(
                op="look",
                why=f"{self.database.name}: the server is {what}, and the homeserver would write to it",
                hint="wait until it is promoted, or use the primary",
                retryable=True,
                tried=False,
            )

    def _check_text(self, cursor: Any, locale: Severity) -> Iterator[Complaint]:
        """Yield what is wrong with the encoding and the locale; `locale` says how grave the latter is."""
        cursor.execute(_DATABASE)
        encoding, *locales = cursor.fetchone()
        if encoding != ENCODING:
            yield Complaint(
                severity="error",
                kind="wrong_encoding",
                stream="",
                text=f"the encoding of the database is {encoding}: the homeserver refuses to start with"
                f" another than {ENCODING}",
                remedy=MOVE,
            )
        if locales != [LOCALE, LOCALE] and not self.allows_locale:
            collate, ctype = map(printable, locales)
            yield Complaint(
                severity=locale,
                kind="wrong_locale",
                stream="",
                text=f"the database has LC_COLLATE {collate} and LC_CTYPE {ctype}: since 1.57 the homeserver"
                f" refuses to start with others than {LOCALE}, unless `database` in its files has"
                " allow_unsafe_locale: true",
                remedy=MOVE,
            )

    def _raise_sequences(self, cursor: Any) -> tuple[list[RaisedSequence], list[tuple[str, str]]]:
        """Raise what is behind. Returns what was raised, and stream and reason of what could not be."""
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (APPLY_LOCK,))
        raised: list[RaisedSequence] = []
        failed: list[tuple[str, str]] = []
        catalog = read_catalog(cursor, self.database.flavor)
        streams = present_streams(catalog, only_indexed=True)
        counters = counters_in(catalog, streams, only_indexed=True)
        for stream in (*streams, *counters):
            is_counter = stream in counters
            name = "" if is_counter else stream.name
            raise_it = self._raise_counter if is_counter else self._raise_stream
            try:
                # Looked at again: another doctor may have held the lock.
                one = self.database.savepoint(cursor, "raise", partial(raise_it, stream))
            except StorageError as error:
                failed.append((name, f"{stream.sequence} could not be raised: {reason_of(error)}"))
            else:
                raised += [] if one is None else [one]
        return raised, failed

    def _raise_stream(self, stream: IdStream, cursor: Any) -> RaisedSequence | None:
        examined = examine(cursor, IdDatabase(stream, self.database.flavor))
        if not any(problem.kind in BEHIND for problem in examined.found):
            return None
        return self._raise(stream.name, stream, examined.allocated, examined.goal, cursor)

    def _raise_counter(self, counter: IdStream, cursor: Any) -> RaisedSequence | None:
        match examine_counter(cursor, counter, self.database.flavor):
            case CounterProblem(_, allocated, goal):
                return self._raise("", counter, allocated, goal, cursor)
        return None

    def _raise(self, name: str, stream: IdStream, before: int, goal: int, cursor: Any) -> RaisedSequence:
        if goal - before > MAX_BESIDE_OTHERS:
            after = self._set_sequence(stream, before, goal, cursor)
        else:
            after = before
            while after < goal:
                # Taking ids cannot lower a sequence, whatever other processes take meanwhile.
                cursor.execute(
                    "SELECT max(nextval(%s)) FROM generate_series(1, %s)",
                    (stream.sequence, min(goal - after, BATCH)),
                )
                after = int(cursor.fetchone()[0])
        return RaisedSequence(name, stream.sequence, before, after)

    def _set_sequence(self, stream: IdStream, before: int, goal: int, cursor: Any) -> int:
        """Set a sequence to `goal`, if no other session could take ids from it meanwhile."""
        cursor.execute(OTHERS, (APPLY_LOCK,))
        others = cursor.fetchone()[0]
        if others:
            raise StorageError(
                op="raise",
                why=f"from {before} to {goal} are more than {MAX_BESIDE_OTHERS:,} ids, and this database has"
                f" other sessions ({others}): stop the homeserver with all its workers, and repeat this",
                tried=False,
            )
        cursor.execute(raise_sequence_sql(stream, goal, self.database.flavor))
        return int(cursor.fetchone()[0])

    def _diagnosis(
        self, streams: list[str], complaints: list[Complaint], sequences: Sequence[str] = ()
    ) -> Diagnosis:
        return Diagnosis(
            database=self.database.name,
            kind="synapse",
            streams=streams,
            complaints=complaints,
            sequences=list(sequences),
        )


def wait_for(
    work: Callable[[], T],
    seconds: float,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    say: Callable[[str], None],
) -> T:
    """Do `work`, and again for as long as the database cannot be reached, for at most so many seconds.

    `clock` gives seconds, `sleep` waits, and `say` gets a line at once and then every ten seconds. Raises the
    last `StorageError`, and at once one that is not `retryable`.
    """
    until = clock() + seconds
    say_at = clock()
    while True:
        try:
            return work()
        except StorageError as error:
            now = clock()
            if not error.retryable or now >= until:
                raise
            if now >= say_at:
                say(f"waiting for the database, {until - now:.0f} s left: {error}")
                say_at = now + SAY_SECONDS
        sleep(min(RETRY_SECONDS, until - now))
