"""The look at a homeserver's database before its start: what is refused, what is raised, and beside whom."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from synrepl.errors import StorageError
from synrepl.homeserver.doctor.before_start import (
    APPLY_LOCK,
    BATCH,
    OTHERS,
    RaisedSequence,
    StartCheck,
    StartReport,
    wait_for,
)
from synrepl.storage.databases import Database
from tests.homeserver.doctor.places import Place
from tests.postgres import shared_server

POSITION = "INSERT INTO stream_positions VALUES ('{}', '{}', {})"
ROW = "INSERT INTO {} VALUES ({}, 'master')"
BEHIND_POSITIONS, BEHIND_TABLES = "sequence_behind_positions", "sequence_behind_tables"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """What matters of a homeserver's database, with three streams; nothing is wrong."""
    place = Place("postgresql", tmp_path)
    place.make_homeserver()
    place.do(
        "CREATE TABLE receipts_linearized (stream_id BIGINT PRIMARY KEY, instance_name TEXT)",
        "CREATE TABLE presence_stream (stream_id BIGINT, instance_name TEXT)",
        "CREATE TABLE events (stream_ordering BIGINT UNIQUE, instance_name TEXT)",
        "CREATE SEQUENCE pushers_sequence START 2",
        "CREATE SEQUENCE receipts_sequence START 2",
        "CREATE SEQUENCE presence_stream_sequence START 2",
        "CREATE SEQUENCE events_backfill_stream_seq START 2",
        "SELECT setval('receipts_sequence', 4)",
        POSITION.format("receipts", "master", 4),
        ROW.format("receipts_linearized", 4),
    )
    return place


def check(place: Any, *, applies: bool = True) -> StartReport:
    """As the command does, each time with a connection of its own."""
    return StartCheck(Database(place.url, what="a doctor", statement_seconds=30.0)).run(applies=applies)


def last_value(place: Place, sequence: str = "receipts_sequence") -> int:
    """The last id of a sequence."""
    found: int = place.do(f"SELECT last_value FROM {sequence}")[0][0]
    return found


def kinds(report: StartReport) -> list[tuple[str, str]]:
    """How grave, and what."""
    return [(one.severity, one.kind) for one in report.diagnosis.complaints]


def receipts(before: int, after: int) -> list[RaisedSequence]:
    """What is told when only this one was raised."""
    return [RaisedSequence("receipts", "receipts_sequence", before, after)]


@pytest.mark.parametrize(
    ("made", "encoding", "locale", "allows", "seen", "may_start"),
    [
        ("by-1.109", "UTF8", "C", False, [], True),
        ("by-1.109", "UTF8", "C.UTF-8", False, [("error", "wrong_locale")], False),
        ("by-1.109", "UTF8", "C.UTF-8", True, [], True),
        ("older", "UTF8", "C.UTF-8", False, [("note", "wrong_locale")], True),
        ("not-yet", "UTF8", "C.UTF-8", False, [("error", "wrong_locale"), ("note", "no_tables")], False),
        ("by-1.109", "LATIN1", "C", True, [("error", "wrong_encoding")], False),
    ],
)
def test_a_database_whose_text_the_homeserver_refuses(
    tmp_path: Path,
    made: str,
    encoding: str,
    locale: str,
    allows: bool,
    seen: list[tuple[str, str]],
    may_start: bool,
) -> None:
    """As 1.163.2 does; before 1.57 another locale was a warning (matrix-org/synapse#15250)."""
    server = shared_server()
    name = f"text_{tmp_path.name.lower().replace('-', '_')}"[:60]
    server.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE '{locale}'"
        f" LC_CTYPE '{locale}'"
    )
    url = server.url_of(name)
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        if made != "not-yet":
            connection.execute("CREATE TABLE schema_version (version INTEGER)")
            connection.execute("CREATE TABLE applied_schema_deltas (version INTEGER)")
            connection.execute(
                "CREATE TABLE stream_positions (stream_name TEXT, instance_name TEXT, stream_id BIGINT)"
            )
        if made == "by-1.109":
            connection.execute("CREATE SEQUENCE pushers_sequence START 2")

    report = StartCheck(Database(url, what="a doctor", statement_seconds=30.0), allows_locale=allows).run(
        applies=True
    )

    assert seen == kinds(report)
    assert may_start is report.may_start


@pytest.mark.parametrize(
    ("damage", "seen", "may_start", "raised"),
    [
        pytest.param([], [], True, [], id="nothing"),
        pytest.param(
            [POSITION.format("receipts", "worker", 36)],
            [("error", BEHIND_POSITIONS)],
            False,
            receipts(4, 36),
            id="position-beyond",
        ),
        pytest.param(
            [POSITION.format("receipts", "worker", 4 + 2 * BATCH + 7)],
            [("error", BEHIND_POSITIONS)],
            False,
            receipts(4, 4 + 2 * BATCH + 7),
            id="several-batches",
        ),
        pytest.param(
            [ROW.format("receipts_linearized", 9)],
            [("note", BEHIND_TABLES)],
            True,
            receipts(4, 9),
            id="rows-beyond",
        ),
        pytest.param(
            [ROW.format("receipts_linearized", 9), POSITION.format("receipts", "worker", 7)],
            [("error", BEHIND_TABLES), ("error", BEHIND_POSITIONS)],
            False,
            receipts(4, 9),
            id="both",
        ),
        pytest.param(
            ["SELECT setval('receipts_sequence', 4, false)"],
            [("error", BEHIND_TABLES), ("error", BEHIND_POSITIONS)],
            False,
            receipts(3, 4),
            id="not-called",
        ),
        pytest.param(
            [POSITION.format("backfill", "master", -36), ROW.format("events", -40)],
            [("error", BEHIND_TABLES), ("error", BEHIND_POSITIONS)],
            False,
            [RaisedSequence("backfill", "events_backfill_stream_seq", 1, 40)],
            id="ids-that-descend",
        ),
        pytest.param([ROW.format("presence_stream", 9)], [], True, [], id="a-table-without-an-index"),
        pytest.param(
            ["ALTER SEQUENCE receipts_sequence RESTART WITH 1", "DELETE FROM stream_positions"],
            [("note", BEHIND_TABLES)],
            True,
            receipts(0, 4),
            id="never-used",
        ),
        pytest.param([POSITION.format("receipts", "gone", 1)], [], True, [], id="an-idle-writer"),
    ],
)
def test_what_is_behind_is_seen_and_raised(
    place: Place,
    damage: list[str],
    seen: list[tuple[str, str]],
    may_start: bool,
    raised: list[RaisedSequence],
) -> None:
    """A look changes nothing; once raised, there is nothing more to say, and no position was written."""
    if damage:
        place.do(*damage)
    positions = place.tables()["stream_positions"]

    looks = [check(place, applies=False), check(place, applies=False)]
    report = check(place)

    for look in looks:
        assert (seen, may_start, []) == (kinds(look), look.may_start, look.raised)
    assert ([], True, raised) == (kinds(report), report.may_start, report.raised)
    assert [one.after for one in raised] == [last_value(place, one.sequence) for one in raised]
    assert positions == place.tables()["stream_positions"]
    assert [] == check(place).raised


# -- a raise by more than a million ids --------------------------------------------------------------------


def test_a_release_before_1_109_refuses_what_newer_ones_raise(place: Place) -> None:
    """Its database has no sequence of `pushers`: rows beyond a sequence are then an error."""
    place.do("DROP SEQUENCE pushers_sequence", ROW.format("receipts_linearized", 9))

    report = check(place, applies=False)
    assert [("error", BEHIND_TABLES)] == kinds(report)
    assert report.may_start is False
    assert "before 1.109 it refuses to start with it" in report.diagnosis.complaints[0].text
    assert check(place).may_start


def test_a_large_raise_is_made_alone(place: Place) -> None:
    """At once, without taking the ids one by one; the next id is the one after."""
    place.do(POSITION.format("receipts", "worker", 5_000_000_004))

    report = check(place)

    assert receipts(4, 5_000_000_004) == report.raised
    assert report.may_start
    assert [(5_000_000_005,)] == place.do("SELECT nextval('receipts_sequence')")


def test_a_large_raise_is_not_made_beside_others(place: Place) -> None:
    """The others may be a homeserver that runs. What is less is raised all the same."""
    place.do(
        POSITION.format("receipts", "worker", 1_000_005),
        POSITION.format("presence_stream", "master", 1_000_001),
    )

    with psycopg.connect(place.url):
        report = check(place)

    assert [("error", BEHIND_POSITIONS), ("error", "not_mended")] == kinds(report)
    assert report.diagnosis.complaints[1].text == (
        "receipts_sequence could not be raised: from 4 to 1000005 are more than 1,000,000 ids, and this"
        " database has other sessions (1): stop the homeserver with all its workers, and repeat this"
    )
    assert [RaisedSequence("presence_stream", "presence_stream_sequence", 1, 1_000_001)] == report.raised
    assert report.may_start is False
    assert 4 == last_value(place)


def test_a_raise_that_the_homeserver_makes_itself_may_fail(place: Place) -> None:
    """Only rows are above the sequence: it may start."""
    place.do(ROW.format("receipts_linearized", 2_000_000))

    with psycopg.connect(place.url):
        report = check(place)

    assert [("note", BEHIND_TABLES), ("note", "not_mended")] == kinds(report)
    assert report.may_start


# -- beside others -----------------------------------------------------------------------------------------


@contextmanager
def in_thread(work: Any) -> Iterator[list[Any]]:
    """Runs `work` meanwhile; at the end its result is in the list."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    yield results
    thread.join(60)
    assert not thread.is_alive()


def wait_for_a_waiter(place: Place) -> None:
    """Ask until a session waits for the lock of another one."""
    until = time.monotonic() + 20
    while not place.do("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
        assert time.monotonic() < until


def test_a_second_doctor_waits_and_looks_again(place: Place) -> None:
    """It raises nothing that the first one has raised."""
    place.do(POSITION.format("receipts", "worker", 36))

    with closing(psycopg.connect(place.url)) as first:
        first.execute("SELECT pg_advisory_xact_lock(%s)", (APPLY_LOCK,))
        with in_thread(lambda: check(place)) as results:
            wait_for_a_waiter(place)
            assert 4 == last_value(place)
            first.execute("SELECT setval('receipts_sequence', 50)")
            first.commit()

    assert [([], True)] == [(one.raised, one.may_start) for one in results]
    assert 50 == last_value(place)


def test_a_doctor_that_waits_for_the_lock_does_not_count(place: Place) -> None:
    """It takes no ids before the first one is done."""
    place.do(POSITION.format("receipts", "worker", 2_000_000))

    def lock(database: psycopg.Connection[Any]) -> None:
        database.execute("SELECT pg_advisory_xact_lock(%s)", (APPLY_LOCK,))

    def wait_for_the_lock() -> None:
        with psycopg.connect(place.url, application_name="another doctor") as database:
            lock(database)

    with psycopg.connect(place.url) as first:
        lock(first)
        with in_thread(wait_for_the_lock):
            wait_for_a_waiter(place)
            # Another connection, which asked for the waiter, may still be ending.
            statement = f"{OTHERS} AND activity.application_name = 'another doctor'"
            found = first.execute(statement.encode(), (APPLY_LOCK,)).fetchall()
            first.rollback()

    assert [(0,)] == found


def test_two_doctors_at_once(place: Place) -> None:
    """One of them raises."""
    place.do(POSITION.format("receipts", "worker", 50_004))

    with in_thread(lambda: check(place)) as one, in_thread(lambda: check(place)) as other:
        pass

    assert receipts(4, 50_004) == one[0].raised + other[0].raised
    assert one[0].may_start
    assert other[0].may_start
    assert 50_004 == last_value(place)


def test_beside_running_processes(place: Place) -> None:
    """Each of their ids is above the one before, and nobody has it twice."""
    place.do(POSITION.format("receipts", "worker", 100_004))
    done = threading.Event()
    started = threading.Barrier(3)

    def allocate() -> list[int]:
        ids: list[int] = []
        with psycopg.connect(place.url, autocommit=True) as database:
            started.wait(60)
            while not done.is_set() or len(ids) < 100:
                ids += [row[0] for row in database.execute("SELECT nextval('receipts_sequence')").fetchall()]
        return ids

    with in_thread(allocate) as one, in_thread(allocate) as other:
        started.wait(60)
        report = check(place)
        done.set()

    assert report.may_start
    assert report.raised[0].after >= 100_004
    assert sorted(one[0]) == one[0]
    assert sorted(other[0]) == other[0]
    assert len({*one[0], *other[0]}) == len(one[0]) + len(other[0])
    assert last_value(place) > 100_004


# -- rights ------------------------------------------------------------------------------------------------


@pytest.fixture
def user(place: Place) -> Iterator[str]:
    """The URL of a user who may read the tables."""
    server = shared_server()
    server.execute("CREATE ROLE starts LOGIN")
    place.do(
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO starts",
        "GRANT SELECT ON events_backfill_stream_seq, presence_stream_sequence, pushers_sequence TO starts",
        POSITION.format("receipts", "worker", 36),
    )
    yield place.url.replace("postgres@", "starts@")
    place.do("DROP OWNED BY starts")
    server.execute("DROP ROLE starts")


class _As:
    """The same database, as another user."""

    def __init__(self, url: str) -> None:
        self.url = url


def test_ids_are_taken_and_the_sequence_is_not_set(place: Place, user: str) -> None:
    """A user with the right to take ids, and not to set a sequence, is enough."""
    place.do("GRANT SELECT, USAGE ON receipts_sequence TO starts")

    assert receipts(4, 36) == check(_As(user)).raised


def test_a_sequence_that_may_not_be_raised(place: Place, user: str) -> None:
    """In the words of the database."""
    place.do("GRANT SELECT ON receipts_sequence TO starts")

    report = check(_As(user))

    assert [("error", BEHIND_POSITIONS), ("error", "not_mended")] == kinds(report)
    assert report.diagnosis.complaints[1].text == (
        "receipts_sequence could not be raised: permission denied for sequence receipts_sequence"
    )
    assert (False, []) == (report.may_start, report.raised)


def test_a_sequence_that_may_not_be_read(user: str) -> None:
    """Whether the homeserver may start is not known."""
    report = check(_As(user))

    assert [("error", "not_examined")] == kinds(report)
    assert report.may_start is None


# -- what is not a primary with a homeserver's tables ------------------------------------------------------


def test_a_server_that_is_read_only(place: Place) -> None:
    """A retry may find it writable."""
    place.do(POSITION.format("receipts", "worker", 36))
    name = place.url.partition("?")[0].rpartition("/")[2]
    shared_server().execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")

    with pytest.raises(StorageError, match="the server is read only") as raised:
        check(place)

    assert raised.value.retryable


def test_a_database_before_the_first_start(tmp_path: Path) -> None:
    """The homeserver makes its tables."""
    report = check(Place("postgresql", tmp_path))

    assert ([("note", "no_tables")], True) == (kinds(report), report.may_start)


def test_a_homeserver_on_sqlite() -> None:
    """It counts its ids from its tables. The file may not be there before the first start."""
    report = StartCheck(Database("sqlite:/no/such/file", statement_seconds=30.0)).run(applies=True)

    assert ([("note", "no_sequences")], True, []) == (kinds(report), report.may_start, report.raised)


# -- waiting -----------------------------------------------------------------------------------------------


class Waiting:
    """A database that cannot be reached for so many seconds, and what happens until it is."""

    def __init__(self, seconds: float, *, retryable: bool = True) -> None:
        self.now = 1_000.0
        self.ready_at = self.now + seconds
        self.retryable = retryable
        self.said: list[str] = []
        self.looks = 0

    def look(self) -> str:
        self.looks += 1
        if self.now < self.ready_at:
            raise StorageError(op="connect", why="it is starting", retryable=self.retryable)
        return "looked"

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def wait(self, seconds: float) -> str:
        return wait_for(self.look, seconds, clock=lambda: self.now, sleep=self.sleep, say=self.said.append)


def test_waiting_until_the_database_is_there() -> None:
    """With a line at first, and each ten seconds."""
    database = Waiting(12)

    assert "looked" == database.wait(30)

    assert [
        "waiting for the database, 30 s left: connect failed: it is starting",
        "waiting for the database, 20 s left: connect failed: it is starting",
    ] == database.said
    assert 13 == database.looks


@pytest.mark.parametrize(("seconds", "looks"), [(0, 1), (0.5, 2), (2, 3), (2.25, 4)])
def test_the_last_look_is_at_the_end_of_the_time(seconds: float, looks: int) -> None:
    """Without a time there is one look."""
    database = Waiting(60)

    with pytest.raises(StorageError):
        database.wait(seconds)

    assert (looks, 1_000 + seconds) == (database.looks, database.now)
    assert bool(seconds) == bool(database.said)


def test_a_problem_that_waiting_cannot_mend_ends_the_wait() -> None:
    """Such as a missing right."""
    database = Waiting(5, retryable=False)

    with pytest.raises(StorageError):
        database.wait(60)

    assert (1, []) == (database.looks, database.said)
