"""What a look reads of a homeserver's database, on both kinds of databases."""

import time
from pathlib import Path
from typing import Any

import pytest

from synrepl.homeserver.database import DatabaseViewer
from synrepl.homeserver.looks import CommittedRow, DatabaseLook
from synrepl.storage.databases import Database
from tests.homeserver.doctor.places import FLAVORS, Place


@pytest.fixture(params=FLAVORS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """What matters of a homeserver's database."""
    now = int(time.time() * 1000)
    place = Place(request.param, tmp_path)
    place.make_homeserver()
    place.do(
        "CREATE TABLE events (stream_ordering BIGINT UNIQUE, received_ts BIGINT, outlier BOOLEAN,"
        " instance_name TEXT)",
        "CREATE TABLE appservice_stream_position (lock CHAR(1), stream_ordering BIGINT)",
        "CREATE TABLE federation_stream_position (type TEXT, stream_id BIGINT, instance_name TEXT)",
        "CREATE TABLE application_services_state (as_id TEXT, state TEXT)",
        "CREATE TABLE application_services_txns (as_id TEXT, txn_id BIGINT)",
        "CREATE TABLE pushers (id BIGINT, user_name TEXT, app_id TEXT, data TEXT, failing_since BIGINT,"
        " last_success BIGINT, last_stream_ordering BIGINT, kind TEXT)",
        "INSERT INTO stream_positions VALUES ('events', 'w1', 30)",
        "INSERT INTO appservice_stream_position VALUES ('X', 10)",
        "INSERT INTO federation_stream_position VALUES ('events', 29, 'w1'), ('events', -1, 'w2'),"
        " ('federation', 7, 'w1')",
        "INSERT INTO application_services_state VALUES ('bridge', 'down'), ('other', 'up')",
        "INSERT INTO application_services_txns VALUES ('bridge', 3), ('bridge', 5)",
        f"INSERT INTO pushers VALUES (1, '@a:hs', 'app', '{GATEWAY}', NULL, {now - 700_000}, 2, 'http'),"
        f" (2, '@b:hs', 'app', '{GATEWAY}', {now - 500_000}, 1, 30, 'http'),"
        f" (3, '@c:hs', 'app', '{GATEWAY}', {now - 600_000}, 1, 30, 'http'),"
        f" (4, '@d:hs', 'mail', '{{}}', {now - 600_000}, 1, 29, 'http'),"
        f" (5, '@e:hs', 'x', 'junk', {now}, NULL, 31, 'http'),"
        f" (6, '@f:hs', 'm.email', '{{}}', NULL, {now}, 31, 'email')",
    )
    # The first event above position 10 is an outlier, which nobody sends on.
    for token, seconds, outlier in ((10, 900, False), (20, 800, True), (29, 600, False), (30, 500, False)):
        flag = str(outlier).upper()
        place.do(f"INSERT INTO events VALUES ({token}, {now - seconds * 1000}, {flag}, 'w1')")
    if place.flavor == "postgresql":
        place.do("CREATE SEQUENCE events_stream_seq", "SELECT setval('events_stream_seq', 30)")
    return place


GATEWAY = '{"url": "https://push.example.org/_matrix/push/v1/notify", "format": "event_id_only"}'


def look(place: Place, before: DatabaseLook | None = None) -> DatabaseLook:
    """One look, over a connection of its own."""
    viewer = DatabaseViewer(place.database, time.monotonic)
    try:
        return viewer.look(before)
    finally:
        viewer.close()


def test_how_far_readers_of_events_are(place: Place) -> None:
    """With the age of the first event that waits for each."""
    found = look(place).consumers
    appservices, federation = found.appservices_reader, found.federation

    assert found.events == 30
    assert appservices is not None
    assert appservices.position == 10
    assert appservices.waiting_seconds == pytest.approx(600, abs=60)
    assert list(federation) == ["w1"]
    assert federation["w1"].position == 29
    assert federation["w1"].waiting_seconds == pytest.approx(500, abs=60)


def test_failing_pushers_are_read_by_their_gateways(place: Place) -> None:
    """With one of each, and whether any pusher succeeds."""
    found = look(place).consumers
    gateway, *others = found.failing_pushers

    assert found.has_working_pushers
    assert ("push.example.org", 2) == (gateway.host, gateway.count)
    assert gateway.example in ("app of @b:hs", "app of @c:hs")
    assert (30, None) == (gateway.lowest.position, gateway.lowest.waiting_seconds)
    assert gateway.failing_since == pytest.approx(time.time() - 600, abs=60)
    assert gateway.newest_since == gateway.failing_since + 100
    # A mail that was sent tells nothing of gateways.
    assert found.pushed_at == pytest.approx(time.time() - 700, abs=60)
    assert [("no gateway", "mail of @d:hs"), ("an unknown host", "x of @e:hs")] == [
        (one.host, one.example) for one in others
    ]
    place.do("UPDATE pushers SET last_success = NULL WHERE id = 1")
    assert not look(place).consumers.has_working_pushers


def test_down_application_services_are_read_with_their_transactions(place: Place) -> None:
    """Which are down, and the transactions that wait for them."""
    bridge, other = sorted(look(place).consumers.appservices, key=lambda one: one.name)

    assert (True, 3, 5) == (bridge.is_down, bridge.first_waiting, bridge.last_waiting)
    assert (False, None) == (other.is_down, other.first_waiting)


def test_a_database_without_events(place: Place) -> None:
    """Nobody is behind."""
    place.do("DELETE FROM events", "DELETE FROM pushers", "DELETE FROM appservice_stream_position")
    found = look(place).consumers

    assert (None, None) == (found.events, found.appservices_reader)
    assert ([], False) == (found.failing_pushers, found.has_working_pushers)
    assert found.federation["w1"].waiting_seconds is None


def test_a_table_of_an_older_release(place: Place) -> None:
    """What it lacks is left out, and the rest is read."""
    place.do("DROP TABLE federation_stream_position", "DROP TABLE application_services_state")
    found = look(place)

    assert ({}, [], 30) == (found.consumers.federation, found.consumers.appservices, found.consumers.events)
    assert {"events": {"w1": 30}} == found.positions
    assert () == found.unread


def test_a_part_that_cannot_be_read(place: Place) -> None:
    """It is named, and the others are read."""
    place.do("DROP TABLE pushers", "CREATE TABLE pushers (id BIGINT)")
    found = look(place)

    assert found.consumers.events == 30
    assert [] == found.consumers.failing_pushers
    assert [True] == [one.startswith("pushers: ") for one in found.unread]


def test_rows_since_the_look_before(place: Place) -> None:
    """With their writers; PostgreSQL only, as sequences are."""
    if place.flavor == "sqlite":
        assert {} == look(place).sequences
        return
    before = look(place)
    place.do("SELECT setval('events_stream_seq', 33)")
    place.do("INSERT INTO events VALUES (33, 1, FALSE, NULL), (40, 1, FALSE, 'w1')")
    after = look(place, before)

    assert (30, 33) == (before.sequences["events"], after.sequences["events"])
    assert [CommittedRow("events", "master", 33)] == after.rows


def test_an_open_transaction(place: Place) -> None:
    """Its session, its program and how old it is."""
    if place.flavor == "sqlite":
        assert [] == look(place).open_transactions
        return
    connection: Any = place.database.connect()
    try:
        cursor = connection.cursor()
        cursor.execute("SELECT pg_sleep(1.1), pg_backend_pid()")
        (_, pid) = cursor.fetchone()
        sessions = look(place).open_transactions
    finally:
        connection.close()

    assert [pid] == [one.pid for one in sessions]
    assert sessions[0].is_idle
    assert (sessions[0].seconds or 0.0) > 1


def test_no_statement_takes_longer_than_it_may(place: Place) -> None:
    """The database is the homeserver's; only transactions are bounded, not the session."""
    if place.flavor == "sqlite":
        return
    database = Database(place.url, statement_seconds=0.25)
    connection: Any = database.connect()

    def bound(cursor: Any) -> str:
        found: str = cursor.execute("SHOW statement_timeout").fetchone()[0]
        return found

    try:
        assert database.read(connection, "bound", bound) == "250ms"
        assert bound(connection.cursor()) == "0"
    finally:
        connection.close()
