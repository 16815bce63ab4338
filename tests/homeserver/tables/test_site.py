"""What a daemon that follows tables says of them over HTTP."""

import sqlite3
import tempfile
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace

from synrepl.config import Settings
from synrepl.daemon.ingest import Ingest
from synrepl.homeserver.part import HomeserverPart
from synrepl.homeserver.settings import homeserver_settings
from synrepl.homeserver.tables import facts
from synrepl.replication.hooks import Alone
from synrepl.storage.id_tables.writers import create_writers
from synrepl.storage.threads import ImmediateThread
from synrepl.transports.credentials import Credentials
from tests.http.builders import SiteCase

PUSHERS = {"stream": "push_rules", "table": "rules", "row": ["user_id"]}


class TablesSiteTests(SiteCase):
    """Honest about tables as about all else."""

    def setUp(self) -> None:
        super().setUp()
        directory = Path(tempfile.mkdtemp(prefix="synrepl-tables-"))
        self.addCleanup(rmtree, directory, ignore_errors=True)
        self.database = sqlite3.connect(directory / "homeserver.db", check_same_thread=False)
        self.addCleanup(self.database.close)
        self.database.executescript(
            "CREATE TABLE stream_positions (stream_name, instance_name, stream_id);"
            "CREATE TABLE rules (stream_id, instance_name, user_id);"
        )
        create_writers(self.database.cursor())
        self.is_gone = False
        self.path = directory / "homeserver.db"
        self.patch(
            facts, "Database", lambda url, what: SimpleNamespace(connect=self.connect, flavor="sqlite")
        )
        self.patch(facts, "ReactorThread", lambda reactor, name: ImmediateThread())
        settings = Settings.build({"table_streams": [PUSHERS]})
        self.tables = facts.TableFacts(
            homeserver_settings(settings),
            self.clock,
            log=self.log,
            table=self.table,
            metrics=self.metrics,
            history_lost=self.fail,
        )
        self.ingest = Ingest(
            settings,
            self.clock,
            log=self.log,
            publisher=self.publisher,
            table=self.table,
            metrics=self.metrics,
            credentials=Credentials(),
            declared=self.declared,
            refused=self.refused,
            role=Alone(),
            history_lost=self.fail,
            on_failure=self.fail,
            fact_sources=[self.tables],
        )
        self.addCleanup(lambda: self.wait(self.ingest.stop()))
        self.site = self.make_site(
            ingest=self.ingest,
            is_followed=self.ingest.is_followed,
            rooms={"homeserver": HomeserverPart(tables=self.tables)},
        )

    def start(self) -> None:
        """Take in what is there: the log stores it at the end of the reactor's turn."""
        self.wait(self.ingest.start())
        self.clock.advance(0)

    def connect(self) -> sqlite3.Connection:
        if self.is_gone:
            raise sqlite3.OperationalError("the disk is gone")
        return sqlite3.connect(self.path, check_same_thread=False)

    def test_how_far_a_table_is_taken_in(self) -> None:
        """And that whoever waits for one of its ids is not told that there is none: others give them out."""
        with self.database:
            self.database.execute("INSERT INTO stream_positions VALUES ('push_rules', 'w1', 5)")
        self.start()

        table = self.get("/v1/status").json()["tables"][0]
        allocated = self.get("/v1/streams/push_rules/allocated").json()

        self.assertEqual(
            ("push_rules", 5, 5, ""), tuple(table[key] for key in ("stream", "upto", "limit", "trouble"))
        )
        self.assertIsNone(allocated["allocated"])

    def test_a_table_that_cannot_be_read_shows_everywhere(self) -> None:
        """The daemon serves on from its log, but it is not ready: what it serves gets older."""
        self.is_gone = True
        self.start()

        status = self.get("/v1/status").json()
        ready = self.get("/readyz")

        self.assertEqual("behind", status["state"])
        self.assertIn("table of push_rules: OperationalError: the disk is gone", status["errors"][0]["what"])
        self.assertEqual(503, ready.status)
        self.assertIn("the disk is gone", ready.json()["reasons"][0])

    def test_unfinished_ids_are_on_the_page(self) -> None:
        """Which one, whose, and who reserved it."""
        with self.database:
            self.database.execute(
                "INSERT INTO synrepl_writers VALUES ('push_rules', 'w1', 'host:7', ?, 4, 1, 5, ?, 'insert')",
                (self.clock.seconds(), self.clock.seconds() - 40),
            )
        self.start()

        page = self.get("/status").body.decode()

        self.assertIn("<span>insert</span>", page)
        self.assertIn("40 s", page)
