"""Locks in a homeserver's database: what a look reads of a real PostgreSQL, and what is found in it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from synrepl.homeserver.comparison import compare, unseen
from synrepl.homeserver.configuration import DatabaseSettings, Homeserver
from synrepl.homeserver.database import STATEMENT_SECONDS, DatabaseViewer
from synrepl.homeserver.findings import Finding
from synrepl.homeserver.looks import DatabaseLook, Look, OpenTransaction
from synrepl.homeserver.transactions import MAX_STATEMENT, find_lock_waits, statement_head
from synrepl.storage.databases import Database
from tests.homeserver.doctor.places import Place
from tests.processes.channel import eventually

SERVER = Homeserver(server_name="hs", database=DatabaseSettings(path="/hs.db"), redis=None, processes=())
TABLES = {
    "events": "events_stream_seq",
    "receipts_linearized": "receipts_sequence",
    "account_data": "account_data_sequence",
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A homeserver's database with some streams."""
    place = Place("postgresql", tmp_path)
    place.make_homeserver()
    for table, sequence in TABLES.items():
        id_column = "stream_ordering" if table == "events" else "stream_id"
        place.do(
            f"CREATE TABLE {table} ({id_column} BIGINT PRIMARY KEY, instance_name TEXT, content TEXT,"
            " received_ts BIGINT, outlier BOOLEAN)",
            f"INSERT INTO {table} VALUES (1, 'w1', '', 1, FALSE)",
            f"CREATE SEQUENCE {sequence} START 2",
        )
    return place


class Sessions:
    """Sessions of a homeserver, and of an operator who forgets one."""

    def __init__(self, place: Place, ends: ExitStack) -> None:
        self.place = place
        self._ends = ends

    def holder(self, statement: str) -> int:
        """A session of bob that leaves its transaction open after this statement; its number."""
        connection = self._ends.enter_context(
            closing(psycopg.connect(self.place.url, application_name="psql-by-bob"))
        )
        connection.execute(statement.encode())
        return connection.info.backend_pid

    def waiter(self, statement: str) -> int:
        """A session of the homeserver whose statement waits; its number."""
        connection = psycopg.connect(self.place.url, application_name="synapse-w1", autocommit=True)
        pid = connection.info.backend_pid

        def work() -> None:
            with closing(connection), suppress(psycopg.errors.QueryCanceled):
                connection.execute(statement.encode())

        thread = threading.Thread(target=work)
        thread.start()
        self._ends.callback(thread.join, 30)
        self._ends.callback(self._end, pid)
        waits = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
        with psycopg.connect(self.place.url, autocommit=True) as database:
            eventually(lambda: database.execute(waits, (pid,)).fetchone(), "it waits")
        return pid

    def _end(self, pid: int) -> None:
        with psycopg.connect(self.place.url, autocommit=True) as database:
            database.execute("SELECT pg_cancel_backend(%s)", (pid,))


@pytest.fixture
def sessions(place: Place) -> Iterator[Sessions]:
    """They end with the test: first those that hold a lock."""
    with ExitStack() as ends:
        yield Sessions(place, ends)


def looks_at(place: Place, *, ages: float = 21.0, **changes: str) -> list[Look]:
    """Three looks, with sessions that are so many seconds older than they are."""
    moments = iter((0.0, 5.0, 15.0))
    address = {name: str(value) for name, value in (conninfo_to_dict(place.url) | changes).items()}
    database = Database(address, what="synrepl inspect", statement_seconds=STATEMENT_SECONDS)
    viewer = DatabaseViewer(database, lambda: next(moments))
    with closing(viewer):
        found = [viewer.look(), viewer.look(), viewer.look()]
    return [Look(at=one.at, database=older(one, ages)) for one in found]


def older(look: DatabaseLook, seconds: float) -> DatabaseLook:
    """The same some seconds later."""

    def later(age: float | None) -> float | None:
        return None if age is None else age + seconds

    return msgspec.structs.replace(
        look,
        open_transactions=[
            msgspec.structs.replace(one, seconds=later(one.seconds), wait_seconds=later(one.wait_seconds))
            for one in look.open_transactions
        ],
    )


INSERT = "INSERT INTO {} VALUES (7, 'w1', 'a secret')"


@pytest.mark.parametrize(
    ("lock", "statements", "stream", "locked"),
    [
        ("LOCK TABLE events IN SHARE ROW EXCLUSIVE MODE", [INSERT.format("events")], "events", "events"),
        (
            "LOCK TABLE receipts_linearized IN SHARE ROW EXCLUSIVE MODE",
            [INSERT.format("receipts_linearized")],
            "receipts",
            "receipts_linearized",
        ),
        (
            "LOCK TABLE receipts_linearized IN ACCESS EXCLUSIVE MODE",
            [INSERT.format("receipts_linearized")],
            "receipts",
            "receipts_linearized",
        ),
        (
            "LOCK TABLE account_data IN SHARE ROW EXCLUSIVE MODE",
            [INSERT.format("account_data")] * 5,
            "account_data",
            "account_data",
        ),
        (
            "INSERT INTO events VALUES (7, 'bob', 'another secret')",
            [INSERT.format("events")],
            "",
            "a row",
        ),
    ],
    ids=["events", "receipts", "exclusive", "five", "row"],
)
def test_a_blocked_writer_is_found(
    place: Place, sessions: Sessions, lock: str, statements: Sequence[str], stream: str, locked: str
) -> None:
    """Whatever its sequence does. It names the waiter, the lock, who holds it, and how to end that."""
    holder = sessions.holder(lock)
    waiters = [sessions.waiter(statement) for statement in statements]
    looks = looks_at(place)
    (finding,) = compare(SERVER, looks)

    assert ("waiting_for_lock", stream, len(waiters)) == (finding.kind, finding.stream, finding.count)
    assert any(f"session {pid} (synapse-w1, user " in finding.why for pid in waiters)
    assert f"waits for a lock ({locked}) for 2" in finding.why
    assert f"session {holder} (psql-by-bob, user " in finding.why
    assert "is idle in its transaction" in finding.why
    assert "which is open for 2" in finding.why
    assert "INSERT INTO " in finding.why
    assert "secret" not in finding.why
    assert f"pg_terminate_backend({holder})" in finding.remedy
    assert [] == unseen(SERVER, looks, [finding])


def test_a_table_that_is_locked_for_everybody_is_found(place: Place, sessions: Sessions) -> None:
    """Nobody of the homeserver has asked for it yet; a look that needs it says the same, once."""
    holder = sessions.holder("LOCK TABLE receipts_linearized, stream_positions IN ACCESS EXCLUSIVE MODE")
    looks = looks_at(place)
    (finding,) = compare(SERVER, looks)

    assert looks[-1].database is not None
    assert ("positions",) == looks[-1].database.locked_out
    assert () == looks[-1].database.unread
    assert ("waiting_for_lock", "receipts") == (finding.kind, finding.stream)
    assert "nobody can read or write receipts_linearized, stream_positions: session" in finding.why
    assert f"pg_terminate_backend({holder})" in finding.remedy
    assert [] == unseen(SERVER, looks, [finding])
    assert ["another session has locked what is needed for positions"] == [
        one.why for one in unseen(SERVER, looks)
    ]


def test_a_doctor_says_that_a_table_is_locked(place: Place, sessions: Sessions) -> None:
    """It is not taken for a slow statement, and does not wait for ever."""
    sessions.holder("LOCK TABLE receipts_linearized IN ACCESS EXCLUSIVE MODE")
    place.database = Database(place.url, statement_seconds=0.5)
    (complaint,) = [one for one in place.examine().complaints if one.severity == "error"]

    assert ("locked_out", "receipts") == (complaint.kind, complaint.stream)


def test_sessions_of_another_user_are_found_without_rights(place: Place, sessions: Sessions) -> None:
    """Their numbers and programs are there, and that the rest is not shown."""
    place.do(
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
        "GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO reader",
    )
    holder = sessions.holder("LOCK TABLE events IN SHARE ROW EXCLUSIVE MODE")
    waiter = sessions.waiter(INSERT.format("events"))
    try:
        (finding,) = compare(SERVER, looks_at(place, user="reader"))
    finally:
        place.do("DROP OWNED BY reader", "DROP ROLE reader")

    assert f"session {waiter} (synapse-w1, user " in finding.why
    assert f"session {holder} (psql-by-bob, user " in finding.why
    assert "what it does is shown to users of the database with pg_read_all_stats" in finding.why
    assert "insufficient" not in finding.why


def test_a_healthy_databases_locks_are_no_finding(place: Place, sessions: Sessions) -> None:
    """A lock that is waited for a moment, a lock for readers, and a table that is not there yet."""
    sessions.holder("CREATE TABLE new_one (number BIGINT)")
    sessions.holder("LOCK TABLE receipts_linearized IN SHARE ROW EXCLUSIVE MODE")
    sessions.holder("LOCK TABLE events IN SHARE ROW EXCLUSIVE MODE")
    sessions.waiter(INSERT.format("events"))

    assert [] == compare(SERVER, looks_at(place, ages=0.0))


def waits(
    *each: OpenTransaction, moments: tuple[float, ...] = (0.0, 5.0, 15.0), earlier: bool = True
) -> list[Finding]:
    """What is found if these sessions are there at each look, or at the last alone."""
    return list(
        find_lock_waits(
            [
                Look(
                    at=at,
                    database=DatabaseLook(
                        at=at,
                        positions={},
                        sequences={},
                        open_transactions=each if earlier or at == moments[-1] else (),
                    ),
                )
                for at in moments
            ]
        )
    )


WAITER = OpenTransaction(
    pid=7, program="w1", seconds=20.0, waits_for=(8,), lock="events", wait_seconds=20.0, statement="INSERT"
)
HOLDER = OpenTransaction(pid=8, program="", seconds=40.0)


def test_a_wait_counts_after_ten_seconds() -> None:
    """By the server's clock, and by the looks, as an older server does not say when it began."""
    young = msgspec.structs.replace(WAITER, wait_seconds=4.0)

    assert 1 == len(waits(WAITER, HOLDER))
    assert [] == waits(young, HOLDER)
    assert [] == waits(WAITER, HOLDER, earlier=False)
    assert [] == waits(WAITER, HOLDER, moments=(0.0, 5.0))


def test_the_session_that_waits_for_nobody_is_named() -> None:
    """A queue is one finding."""
    queue = [WAITER, msgspec.structs.replace(WAITER, pid=9, waits_for=(7,), wait_seconds=12.0), HOLDER]
    (finding,) = waits(*queue)

    assert 2 == finding.count
    assert "and 1 more session; session 8 holds the lock and is working" in finding.why


@pytest.mark.parametrize(
    ("blockers", "said"),
    [((0,), "pg_prepared_xacts"), ((99,), "pg_terminate_backend(99)"), ((7,), "pg_terminate_backend(7)")],
    ids=["a prepared transaction", "of another database", "itself"],
)
def test_a_blocker_that_is_not_among_the_sessions(blockers: tuple[int, ...], said: str) -> None:
    """It is named all the same."""
    (finding,) = waits(msgspec.structs.replace(WAITER, waits_for=blockers))

    assert said in finding.remedy


@pytest.mark.parametrize(
    ("statement", "head"),
    [
        ("INSERT INTO events (a, b) VALUES ('secret', 1)", "INSERT INTO events (a, b) VALUES ( ..."),
        ("UPDATE users SET password_hash = E'\\'sec' WHERE", "UPDATE users SET password_hash = ..."),
        ("SELECT 1 FROM t", "SELECT ..."),
        ("select -1.5, x", "select - ..."),
        ("SELECT x FROM e2e_keys_2 WHERE y = $1", "SELECT x FROM e2e_keys_2 WHERE y = ..."),
        ("SELECT $tag$secret$tag$", "SELECT ..."),
        ("SELECT U&'secret'", "SELECT ..."),
        ("/* secret */ SELECT", " ..."),
        ("SELECT a -- secret", "SELECT a ..."),
        ("LOCK TABLE\n\tevents IN SHARE MODE", "LOCK TABLE events IN SHARE MODE"),
        ("SELECT \x1b]x\x07", "SELECT \\x1b]x\\x07"),
        ("COMMIT", "COMMIT"),
        ("", ""),
    ],
)
def test_a_statement_is_shown_up_to_its_first_literal(statement: str, head: str) -> None:
    """Any value may be a secret, and where a literal ends is not known for certain."""
    assert head == statement_head(statement)


def test_a_long_statement_is_cut() -> None:
    """Before its first literal as well."""
    assert len(statement_head("SELECT " + "a" * 1_000)) <= MAX_STATEMENT + 3
