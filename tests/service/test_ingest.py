"""Ingest follows the role: sources are open on a primary alone."""

from typing import Any, Final

from synrepl.config import Settings
from synrepl.daemon.ingest import Ingest
from synrepl.errors import ConfigError
from synrepl.replication.follower.updates import MissedFacts
from synrepl.replication.hooks import Alone
from synrepl.transports.credentials import Credentials
from tests.http.builders import SiteCase

DECLARED: Final = {"packages": {"columns": {"id": "str"}}}


class Recorded:
    """An `IFactSource` that notes what it is told to do. `why` is the reason not to open."""

    streams = whole_streams = ("push_rules",)
    missed_streams: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.told: list[str] = []
        self.why = ""

    def open(self) -> None:
        if self.why:
            raise ConfigError(self.why)
        self.told.append("open")

    async def close(self) -> None:
        self.told.append("close")

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        raise NotImplementedError


class IngestTests(SiteCase):
    """The daemon of a source, whose role changes."""

    def setUp(self) -> None:
        super().setUp()
        self.role = Alone()
        self.source = Recorded()
        self.failures: list[str] = []
        self.ingest = self.make_ingest()

    def make_ingest(self, **settings: Any) -> Ingest:
        return Ingest(
            Settings.build(settings),
            self.clock,
            log=self.log,
            publisher=self.publisher,
            table=self.table,
            metrics=self.metrics,
            credentials=Credentials(),
            declared=self.declared,
            refused=self.refused,
            role=self.role,
            history_lost=self.fail,
            on_failure=self.failures.append,
            fact_sources=[self.source],
        )

    def become(self, *, primary: bool) -> None:
        """Change the role, and say so."""
        self.role.is_primary = primary
        self.ingest.role_changed()

    def test_sources_are_open_while_the_daemon_is_primary(self) -> None:
        """On a replica they would bring facts a second time."""
        self.wait(self.ingest.start())
        was_followed = self.ingest.is_followed("push_rules")

        for primary in (False, False, True, True):
            self.become(primary=primary)

        self.assertTrue(was_followed)
        self.assertEqual(["open", "close", "open"], self.source.told)
        self.assertEqual(frozenset(["push_rules"]), self.log.table_streams)

    def test_no_source_of_a_replica_is_opened(self) -> None:
        """Nor are its facts expected from one."""
        self.role.is_primary = False

        self.wait(self.ingest.start())

        self.assertEqual([], self.source.told)
        self.assertFalse(self.ingest.is_followed("push_rules"))

    def test_a_role_that_changes_before_the_start_or_after_the_stop_opens_nothing(self) -> None:
        """The log of these moments is not open, or about to be closed."""
        self.become(primary=True)
        self.wait(self.ingest.start())
        self.wait(self.ingest.stop())
        self.become(primary=True)

        self.assertEqual(["open", "close"], self.source.told)

    def test_a_source_that_cannot_be_opened_later_stops_the_daemon(self) -> None:
        """At the start the error is raised; here nobody would see it."""
        self.role.is_primary = False
        self.wait(self.ingest.start())
        self.source.why = "no such database"

        self.become(primary=True)

        self.assertEqual(["no such database"], self.failures)

    def test_a_former_replica_declares_the_configured_streams(self) -> None:
        """Its primary may have known others."""
        self.role.is_primary = False
        self.ingest = self.make_ingest(streams=DECLARED)
        self.wait(self.ingest.start())
        before = "packages" in self.table

        self.become(primary=True)
        self.clock.advance(0)

        self.assertEqual((False, True), (before, "packages" in self.table))
        self.assertEqual([], self.failures)
