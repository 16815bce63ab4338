"""A log of a release before 26.11.0 is refused in one line, and stays as it is."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from synrepl.errors import StorageError
from synrepl.storage.schema import TABLES, VERSION, is_older_log
from tests.storage.builders import LogCase
from tests.storage.engines import OverPostgres, OverSQLite

if TYPE_CHECKING:
    Case = LogCase
else:
    # Not a test itself: the engines' own cases bring that.
    Case = object

DUMPS = Path(__file__).with_name("older_log")
"""The same log in both databases, dumped from what the last release before 26.11.0 had written."""

REFUSAL = (
    "has the log of a release before 26.11.0, which this release cannot read (keep it for the release that"
    " wrote it, and start with a new database, which --upstream fills from another daemon, and --snapshot"
    " from an archive)"
)


class Contract(Case):
    """What both databases keep to."""

    def again(self) -> Any:
        raise NotImplementedError

    def load(self) -> None:
        """Make the older log."""
        raise NotImplementedError

    def execute(self, statement: str) -> None:
        """Execute a statement where the log is."""
        raise NotImplementedError

    def dump(self) -> list[Any]:
        """All tables and rows."""
        raise NotImplementedError

    def refused(self) -> str:
        """Open the log; the message of the refusal."""
        with self.assertRaises(StorageError) as caught:
            self.again().open()
        return str(caught.exception)

    def test_an_older_log_is_refused_in_one_line(self) -> None:
        """The line says what happened and what to do."""
        self.load()

        self.assertTrue(self.refused().endswith(REFUSAL), self.refused())

    def test_a_refused_log_is_unchanged(self) -> None:
        """The release that wrote it can still use it."""
        self.load()
        before = self.dump()

        self.refused()

        self.assertEqual(before, self.dump())

    def test_an_older_log_with_the_version_of_a_new_one_is_refused(self) -> None:
        """Versions count from 1 again: what tells the logs apart is the name of a table."""
        self.load()
        self.execute(f"UPDATE meta SET value = {VERSION} WHERE key = 'version'")

        self.assertTrue(self.refused().endswith(REFUSAL), self.refused())

    def test_an_older_log_of_the_first_version_is_refused(self) -> None:
        """It had these tables only."""
        self.load()
        for table in ("voids", "turns", "places", "keyed", "notes", "leases"):
            self.execute(f"DROP TABLE {table}")

        self.assertTrue(self.refused().endswith(REFUSAL), self.refused())


class SQLiteTests(OverSQLite, Contract):
    """The embedded default."""

    def load(self) -> None:
        with closing(sqlite3.connect(self.path)) as database:
            database.executescript((DUMPS / "sqlite.sql").read_text("utf-8"))

    def execute(self, statement: str) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute(statement)

    def dump(self) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as database:
            return list(database.iterdump())


class PostgresTests(OverPostgres, Contract):
    """For sites that run one already."""

    def load(self) -> None:
        with psycopg.connect(self.url) as database:
            database.execute((DUMPS / "postgresql.sql").read_bytes())

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url) as database:
            database.execute("SET search_path = synrepl")
            database.execute(statement.encode())

    def dump(self) -> list[Any]:
        with psycopg.connect(self.url) as database:
            tables = database.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'synrepl' ORDER BY tablename"
            ).fetchall()
            return [
                (name, database.execute(f"SELECT * FROM synrepl.{name}".encode()).fetchall())
                for (name,) in tables
            ]


def test_an_older_release_cannot_take_a_new_log_for_its_own() -> None:
    """It would find no version, make its tables, and fail at the first one that is there already."""
    assert "meta" not in TABLES
    assert "facts" in TABLES


def test_tables_of_others_are_no_older_log() -> None:
    """A database may have a table of a common name."""
    assert not is_older_log({"meta", "facts"})
    assert not is_older_log(TABLES)
    assert is_older_log({"meta", "facts", "positions", "turns"})
