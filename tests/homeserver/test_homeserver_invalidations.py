"""Rows of `caches` in the database of a homeserver that others run."""

import psycopg
import pytest

from synrepl.errors import StorageError
from synrepl.homeserver.homeserver_invalidations import SEQUENCE, HomeserverInvalidations, Standing
from synrepl.storage.databases import Database
from synrepl.storage.id_tables.layout import INVALIDATIONS
from synrepl.streams.catalog import CacheInvalidation
from tests.postgres import new_database

OURS = "synrepl-invalidate"
ROWS = [
    CacheInvalidation(cache_func="get_user_by_id", keys=["@a:hs"], invalidation_ts=5),
    CacheInvalidation(cache_func="get_device", keys=None, invalidation_ts=5),
    CacheInvalidation(cache_func="get_partial_rooms", keys=[], invalidation_ts=5),
]


def homeserver() -> str:
    """The URL of a database as a homeserver has it: two rows of its main process, the sequence at 4."""
    url = new_database()
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(
            f"CREATE TABLE {INVALIDATIONS} (stream_id BIGINT NOT NULL UNIQUE, instance_name TEXT NOT NULL,"
            " cache_func TEXT NOT NULL, keys TEXT[], invalidation_ts BIGINT)"
        )
        database.execute(f"CREATE SEQUENCE {SEQUENCE}")
        database.execute(
            "CREATE TABLE stream_positions (stream_name TEXT, instance_name TEXT, stream_id INT)"
        )
        database.execute(f"SELECT setval('{SEQUENCE}', 4)")
        database.execute(
            f"INSERT INTO {INVALIDATIONS} VALUES (2, 'master', 'a', NULL, 1), (3, 'master', 'a', NULL, 1)"
        )
    return url


def writer(url: str) -> HomeserverInvalidations:
    """As the command has it: a guest in the database."""
    return HomeserverInvalidations(Database(url, statement_seconds=2), instance=OURS)


def rows(url: str) -> list[tuple[object, ...]]:
    """Our rows."""
    with psycopg.connect(url) as database:
        return database.execute(
            f"SELECT stream_id, cache_func, keys, invalidation_ts FROM {INVALIDATIONS}"
            " WHERE instance_name = %s ORDER BY 1",
            (OURS,),
        ).fetchall()


def test_rows_as_synapse_writes_them() -> None:
    """With ids of the sequence; null keys, empty keys and texts stay what they are."""
    url = homeserver()
    ours = writer(url)

    assert Standing(last_row=0, allocated=4) == ours.open()
    assert [5, 6, 7] == ours.write(ROWS)
    ours.close()

    assert [
        (5, "get_user_by_id", ["@a:hs"], 5),
        (6, "get_device", None, 5),
        (7, "get_partial_rooms", [], 5),
    ] == rows(url)
    again = writer(url)
    assert Standing(last_row=7, allocated=7) == again.open()
    again.close()


def test_one_transaction() -> None:
    """A row that cannot be written takes the others with it; ids that were taken are not given again."""
    url = homeserver()
    ours = writer(url)
    ours.open()
    bad = CacheInvalidation(cache_func="a\0", keys=None, invalidation_ts=5)

    with pytest.raises(StorageError):
        ours.write([ROWS[0], bad])

    assert [] == rows(url)
    (token,) = ours.write(ROWS[:1])
    ours.close()
    assert token > 4


def test_the_name_is_taken_by_one() -> None:
    """Rows of two programs would be announced out of order. It is free again after the first."""
    url = homeserver()
    first, second = writer(url), writer(url)
    first.open()

    with pytest.raises(StorageError, match=f"another process writes as {OURS} now"):
        second.open()

    first.close()
    second.open()
    second.close()


def test_a_process_of_that_name() -> None:
    """It writes another stream, and stores positions."""
    url = homeserver()
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("INSERT INTO stream_positions VALUES ('receipts', %s, 5)", (OURS,))

    with pytest.raises(
        StorageError, match=r"a process of the homeserver has the name .*: it writes receipts"
    ):
        writer(url).open()


def test_a_sequence_behind_its_table() -> None:
    """Its ids would be taken for known: nothing is written."""
    url = homeserver()
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(f"SELECT setval('{SEQUENCE}', 2)")
    ours = writer(url)
    ours.open()

    with pytest.raises(StorageError, match="gave 3, and the table has rows up to 3"):
        ours.write(ROWS)

    ours.close()
    assert [] == rows(url)


def test_another_database() -> None:
    """It is left alone."""
    with pytest.raises(StorageError, match="it is not a homeserver's database"):
        writer(new_database()).open()


def test_sqlite() -> None:
    """Such a homeserver is one process."""
    with pytest.raises(StorageError, match="uses SQLite"):
        HomeserverInvalidations(Database("sqlite:homeserver.db"), instance=OURS).open()
