"""Looks at a homeserver's database: read only, in short transactions, without a scan of a table."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from synrepl.errors import StorageError
from synrepl.homeserver.configuration import DatabaseSettings
from synrepl.homeserver.doctor.examination import is_locked_out, present_streams, reason_of
from synrepl.homeserver.doctor.stalls import read_positions
from synrepl.homeserver.doctor.synapse import MARKS, Catalog, read_catalog
from synrepl.homeserver.explanation import HomeserverState
from synrepl.homeserver.looks import (
    Appservice,
    CommittedRow,
    Consumers,
    DatabaseLook,
    EventsProgress,
    FailingPushers,
    OpenTransaction,
)
from synrepl.homeserver.merging import MAIN
from synrepl.homeserver.transactions import MAX_STATEMENT, ROW, statement_head
from synrepl.storage.databases import Database
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.layout import IdStream
from synrepl.wire.text import printable

STATEMENT_SECONDS: Final = 2.0
MAX_ROWS: Final = 1_000
"""The most rows read of one table between two looks."""
MAX_SESSIONS: Final = 100
MAX_TABLES: Final = 5
"""The most tables that are named of those that one session has locked."""
MAX_APPSERVICES: Final = 200
MAX_WRITERS: Final = 10_000
MAX_PUSHERS: Final = 10_000
MAX_PUSHER_DATA: Final = 2_000
MAX_GATEWAYS: Final = 20

T = TypeVar("T")

UNIX_SECONDS: Final = {
    "postgresql": "extract(epoch FROM clock_timestamp())",
    "sqlite": "strftime('%s', 'now')",
}
# Sessions that wait, those that they wait for, those that keep others from a table, and old transactions.
# Without rights, a user sees no more of another user's session than its number and its names. Only since 14 a
# server says when a wait began; it began no sooner than its statement. Waits for advisory locks hold up no
# homeserver; a new index waits for the end of old transactions (virtualxid) while others go on.
SESSIONS: Final = f"""
    WITH waits AS (
        SELECT locks.pid, pg_blocking_pids(locks.pid) AS blockers,
            CASE WHEN locks.relation IS NOT NULL THEN locks.relation::regclass::text
                WHEN locks.locktype = 'transactionid' THEN '{ROW}' ELSE locks.locktype END AS lock,
            (to_jsonb(locks) ->> 'waitstart')::timestamptz AS since
        FROM pg_locks AS locks
        WHERE NOT locks.granted AND locks.locktype NOT IN ('advisory', 'virtualxid')
            AND locks.pid <> pg_backend_pid()
    ), exclusive AS (
        SELECT locks.pid, array_agg(relation.oid::regclass::text ORDER BY relation.relname) AS tables
        FROM pg_locks AS locks JOIN pg_class AS relation ON relation.oid = locks.relation
        WHERE locks.granted AND locks.mode = 'AccessExclusiveLock'
            AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND relation.relkind IN ('r', 'p') AND relation.relpersistence = 'p' AND relation.oid >= 16384
            AND locks.pid <> pg_backend_pid()
        GROUP BY locks.pid
    )
    SELECT activity.pid, activity.application_name, extract(epoch FROM now() - activity.xact_start),
        activity.usename, activity.state LIKE 'idle in transaction%%', waits.blockers, waits.lock,
        CASE WHEN waits.pid IS NULL THEN NULL
            ELSE extract(epoch FROM now() - coalesce(waits.since, activity.query_start)) END,
        exclusive.tables[:{MAX_TABLES}], left(activity.query, {10 * MAX_STATEMENT}),
        activity.backend_xid IS NOT NULL
    FROM pg_stat_activity AS activity LEFT JOIN waits USING (pid) LEFT JOIN exclusive USING (pid)
    WHERE activity.datname = current_database() AND (
        waits.pid IS NOT NULL OR exclusive.pid IS NOT NULL
        OR activity.pid IN (SELECT unnest(blockers) FROM waits)
        OR activity.pid <> pg_backend_pid() AND activity.backend_type = 'client backend'
            AND now() - activity.xact_start > interval '1 second')
    ORDER BY CASE WHEN waits.pid IS NOT NULL THEN 1
            WHEN activity.pid IN (SELECT unnest(blockers) FROM waits) THEN 0
            WHEN exclusive.pid IS NOT NULL THEN 2 ELSE 3 END, activity.xact_start
    LIMIT %s
"""


def open_database(
    settings: DatabaseSettings, *, what: str = "synrepl inspect", statement_seconds: float = STATEMENT_SECONDS
) -> Database:
    """The homeserver's database, not connected yet. `what` is the name of sessions there.

    Raises `ReplicationError` for parameters of no use.
    """
    address = f"sqlite:{settings.path}" if settings.parameters is None else settings.parameters.value
    return Database(address, what=what, statement_seconds=statement_seconds)


@dataclasses.dataclass(eq=False)
class DatabaseViewer:
    """Looks at one database over one connection, in one thread at a time."""

    database: Database
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._connection: Any = None
        self._catalog: Catalog | None = None
        self._streams: Sequence[IdStream] = ()

    def look(self, before: DatabaseLook | None = None) -> DatabaseLook:
        """Look once. With the look `before`, the rows since are read. Raises `StorageError`."""
        if self._connection is None:
            self._connection = self.database.connect(read_only=True)
        try:
            return self.database.read(self._connection, "inspect", lambda cursor: self._look(cursor, before))
        except StorageError:
            self.close()
            raise

    def writer_names(self) -> dict[int, str]:
        """The names of writers by their numbers in tokens; empty if the release has none."""
        if self._connection is None or self._catalog is None or "instance_map" not in self._catalog.tables:
            return {}

        def read(cursor: Any) -> dict[int, str]:
            cursor.execute("SELECT instance_id, instance_name FROM instance_map")
            return dict(cursor.fetchmany(MAX_WRITERS))

        return self.database.read(self._connection, "inspect", read)

    def close(self) -> None:
        """Close the connection. Harmless when repeated."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _look(self, cursor: Any, before: DatabaseLook | None) -> DatabaseLook:
        if self._catalog is None:
            self._catalog = read_catalog(cursor, self.database.flavor)
            self._streams = present_streams(self._catalog) if self.database.flavor == "postgresql" else ()
        catalog, unread, locked_out = self._catalog, dict[str, None](), dict[str, None]()
        if missing := [mark for mark in MARKS if mark not in catalog.tables]:
            raise StorageError(
                op="inspect",
                why=f"{self.database.name} has no table {missing[0]}: it is not a homeserver's database",
                hint="check `database` in the homeserver's configuration, and this user's search_path",
            )

        def part(what: str, work: Callable[[Any], T], otherwise: T) -> T:
            try:
                return self.database.savepoint(cursor, "inspect", work)
            except StorageError as error:
                if is_locked_out(error):
                    locked_out[what] = None
                else:
                    unread[f"{what}: {reason_of(error)}"] = None
                return otherwise

        at = self.clock()
        # First: what follows may have to wait for them.
        open_transactions: list[OpenTransaction] = []
        if self.database.flavor == "postgresql":
            open_transactions = part("sessions", _open_transactions, [])
        # Before the rest: what is stored later is then above it.
        positions: dict[str, dict[str, int]] = part("positions", read_positions, {})
        sequences: dict[str, int] = {}
        rows: list[CommittedRow] = []
        for stream in self._streams:
            ids = IdDatabase(stream, self.database.flavor)
            value = part(stream.name, ids.allocated, None)
            if value is None:
                continue
            sequences[stream.name] = value
            known = None if before is None else before.sequences.get(stream.name)
            if known is not None and known < value:
                rows += part(stream.name, _rows_between(stream, catalog, known, value), [])
        return DatabaseLook(
            at=at,
            positions=positions,
            sequences=sequences,
            rows=rows,
            open_transactions=open_transactions,
            consumers=_read_consumers(catalog.tables, UNIX_SECONDS[self.database.flavor], part),
            unread=tuple(unread),
            locked_out=tuple(locked_out),
        )


def read_state(settings: DatabaseSettings, clock: Callable[[], float]) -> HomeserverState:
    """Read what a pasted text is compared with. Raises `ReplicationError`."""
    viewer = DatabaseViewer(open_database(settings), clock)
    try:
        look = viewer.look()
        return HomeserverState(
            writers=viewer.writer_names(), positions=look.positions, allocated=look.sequences
        )
    finally:
        viewer.close()


def _rows_between(
    stream: IdStream, catalog: Catalog, after: int, upto: int
) -> Callable[[Any], list[CommittedRow]]:
    """Read the rows with ids after this one up to that one, of those tables that tell their writers."""

    def read(cursor: Any) -> list[CommittedRow]:
        found = []
        low, high = sorted(((after + 1) * stream.sign, upto * stream.sign))
        for table in stream.tables:
            if table.writer_column is None or (table.name, table.id_column) not in catalog.indexed:
                continue
            cursor.execute(
                f"SELECT {table.id_column}, {table.writer_column} FROM {table.name}"
                f" WHERE {table.id_column} BETWEEN {low} AND {high} LIMIT {MAX_ROWS}"
            )
            found += [
                CommittedRow(stream.name, writer or MAIN, abs(token)) for token, writer in cursor.fetchall()
            ]
        return found

    return read


def _open_transactions(cursor: Any) -> list[OpenTransaction]:
    cursor.execute(SESSIONS, (MAX_SESSIONS,))
    found = [
        OpenTransaction(
            pid=pid,
            program=printable(program or ""),
            seconds=_seconds(age),
            user=printable(user or ""),
            is_idle=bool(is_idle),
            has_written=bool(has_xid),
            waits_for=tuple(waits_for or ()),
            lock=printable(lock or ""),
            wait_seconds=_seconds(waited),
            locked=tuple(printable(one) for one in locked or ()),
            # Of another user, without rights, there is no age, and a remark in place of the statement.
            statement="" if age is None else statement_head(statement or ""),
        )
        for pid, program, age, user, is_idle, waits_for, lock, waited, locked, statement, has_xid in (
            cursor.fetchall()
        )
    ]
    return sorted(found, key=lambda one: one.seconds or 0.0, reverse=True)


def _seconds(given: Any) -> float | None:
    return None if given is None else max(0.0, float(given))


def _read_consumers(tables: Mapping[str, Any], now: str, part: Callable[..., Any]) -> Consumers:
    def highest(cursor: Any) -> int | None:
        cursor.execute("SELECT max(stream_ordering) FROM events")
        (token,) = cursor.fetchone()
        return None if token is None else int(token)

    def progress(cursor: Any, position: int) -> EventsProgress:
        # Nobody sends an outlier on. The column stream_ordering has an index of its own in each release.
        cursor.execute(
            f"SELECT {now} - received_ts / 1000.0 FROM events"
            f" WHERE stream_ordering > {position} AND NOT outlier ORDER BY stream_ordering LIMIT 1"
        )
        row = cursor.fetchone()
        is_behind = row is not None and row[0] is not None
        return EventsProgress(position, max(0.0, float(row[0])) if is_behind else None)

    def appservices_reader(cursor: Any) -> EventsProgress | None:
        cursor.execute("SELECT stream_ordering FROM appservice_stream_position")
        row = cursor.fetchone()
        return None if row is None or row[0] is None else progress(cursor, int(row[0]))

    def appservices(cursor: Any) -> list[Appservice]:
        cursor.execute(
            "SELECT state.as_id, state.state = 'down', waiting.first, waiting.last"
            " FROM application_services_state AS state LEFT JOIN"
            " (SELECT as_id, min(txn_id) AS first, max(txn_id) AS last FROM application_services_txns"
            " GROUP BY as_id) AS waiting ON waiting.as_id = state.as_id"
        )
        return [
            Appservice(name=name, is_down=bool(is_down), first_waiting=first, last_waiting=last)
            for name, is_down, first, last in cursor.fetchmany(MAX_APPSERVICES)
        ]

    def federation(cursor: Any) -> dict[str, EventsProgress]:
        cursor.execute(
            "SELECT instance_name, stream_id FROM federation_stream_position WHERE type = 'events'"
        )
        tokens = {name: int(token) for name, token in cursor.fetchmany(MAX_WRITERS)}
        return {name: progress(cursor, token) for name, token in tokens.items() if token >= 0}

    def pushers(cursor: Any) -> tuple[list[FailingPushers], bool, float | None]:
        cursor.execute(
            f"SELECT substr(data, 1, {MAX_PUSHER_DATA}), app_id, user_name, failing_since,"
            " last_stream_ordering FROM pushers WHERE failing_since > 0 ORDER BY last_stream_ordering"
            f" LIMIT {MAX_PUSHERS}"
        )
        gateways: dict[str, list[Any]] = {}
        for data, *rest in cursor.fetchall():
            gateways.setdefault(_gateway_host(data), []).append(rest)
        failing = [
            FailingPushers(
                host=host,
                example=f"{printable(str(each[0][0]))} of {printable(str(each[0][1]))}",
                count=len(each),
                failing_since=min(since for *_, since, _ in each) / 1000,
                newest_since=max(since for *_, since, _ in each) / 1000,
                lowest=progress(cursor, int(each[0][3] or 0)),
            )
            for host, each in sorted(gateways.items(), key=lambda item: -len(item[1]))[:MAX_GATEWAYS]
        ]
        cursor.execute(
            "SELECT max(CASE WHEN coalesce(failing_since, 0) = 0 THEN last_success END), max(last_success)"
            " FROM pushers WHERE kind <> 'email'"
        )
        working, pushed = cursor.fetchone()
        return failing, bool(working), pushed / 1000 if pushed else None

    nothing: tuple[list[FailingPushers], bool, float | None] = [], False, None
    failing_pushers, has_working_pushers, pushed_at = (
        part("pushers", pushers, nothing) if "pushers" in tables else nothing
    )
    return Consumers(
        events=part("events", highest, None) if "events" in tables else None,
        appservices_reader=part("application services", appservices_reader, None)
        if {"events", "appservice_stream_position"} <= set(tables)
        else None,
        appservices=part("application services", appservices, [])
        if {"application_services_state", "application_services_txns"} <= set(tables)
        else [],
        federation=part("federation", federation, {}) if "federation_stream_position" in tables else {},
        failing_pushers=failing_pushers,
        has_working_pushers=has_working_pushers,
        pushed_at=pushed_at,
    )


def _gateway_host(data: Any) -> str:
    """The host of a pusher's gateway; a pusher that sends mail has none."""
    try:
        found = json.loads(data)
        host = urlsplit(found["url"]).hostname if isinstance(found, dict) and "url" in found else ""
    except (TypeError, ValueError, AttributeError, RecursionError):
        return "an unknown host"
    return printable(host) if host else "no gateway"
