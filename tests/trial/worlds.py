"""A log with a publisher and a site, and a follower, on sockets of this machine."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.trial.unittest import TestCase

from synrepl.base.metrics import Metrics
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, Updates
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.serving.publisher import Publisher
from synrepl.services import PublisherService, connect, serve
from synrepl.storage.engine import SQLEngine
from synrepl.storage.log import Log
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.storage.threads import ReactorThread
from synrepl.streams.catalog import PUSH_RULES
from synrepl.streams.declared import DaemonStreams
from synrepl.streams.table import StreamTable
from synrepl.transports.http.api import make_site
from synrepl.transports.http.site_context import SiteContext
from synrepl.transports.settings import ApiSettings

__all__ = ["World", "running_log"]


async def running_log(case: TestCase, path: str | Path, table: StreamTable) -> Log:
    """A log in SQLite with threads of its own, which is stopped at the end of the test."""
    clock: Any = reactor
    log = Log(
        SQLEngine(SQLiteDatabase(path)),
        ReactorThread(clock, "writing"),
        ReactorThread(clock, "reading"),
        clock,
        ephemeral=[stream.name for stream in table if stream.ephemeral],
        logger=Logger(),
    )
    await log.start()
    case.addCleanup(lambda: ensureDeferred(log.stop()))
    return log


class World(TestCase):
    """A publisher of ``push_rules`` whose followers come over real connections."""

    timeout = 60.0

    async def setUp(self) -> None:  # type: ignore[override]
        self.clock: Any = reactor
        # Short: the path of a UNIX socket has some hundred characters at most.
        self.home = Path(tempfile.mkdtemp(prefix="synrepl-"))
        self.addCleanup(shutil.rmtree, self.home)
        table = DaemonStreams(StreamTable.default())
        self.log = await running_log(self, self.home / "log.db", table)
        metrics = Metrics(CollectorRegistry())
        self.publisher = Publisher(self.log, table, self.clock, metrics, instance="master")
        self.publisher.follow_log()
        self.addCleanup(self.publisher.stop)
        site: Any = make_site(
            SiteContext(
                log=self.log,
                publisher=self.publisher,
                table=table,
                metrics=metrics,
                clock=self.clock,
                settings=ApiSettings(server_name="hs.example"),
                declared=DeclaredStreams(self.log, table, instance="master"),
                refused=RefusedFacts(self.log, table, metrics, instance="master"),
            )
        )
        port: Any = self.clock.listenTCP(0, site, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        self.url = f"http://127.0.0.1:{port.getHost().port}"
        self.applied: list[int] = []
        self.events: list[FollowerEvent] = []
        self._waiting: list[tuple[str, int, Deferred[None]]] = []

    async def serving(self, description: str) -> tuple[PublisherService, Any]:
        """A listener for followers, and its port."""
        service = serve(self.clock, description, self.publisher, server_name="hs.example")
        service.startService()
        port = await service.listening
        self.addCleanup(lambda: service.running and service.stopService())
        return service, port

    def following(self, description: str, **options: Any) -> Follower:
        """A follower that is kept connected until the end of the test."""
        follower = Follower(instance="worker", start="earliest")
        follower.on(PUSH_RULES)(self._apply)
        follower.on_event(self._note)
        service = connect(self.clock, description, follower, http=self.url, **options)
        service.startService()
        self.addCleanup(service.stopService)
        self.addCleanup(lambda: ensureDeferred(follower.server.catch_up.http.stop()))  # type: ignore[union-attr]
        return follower

    async def append(self, *users: str) -> None:
        """A fact for each of these."""
        facts = [json.dumps([[user]], separators=(",", ":")).encode() for user in users]
        await self.log.append("push_rules", "master", facts)

    def happens(self, kind: str, times: int) -> "Deferred[None]":
        """Fires when this has happened so many times (``applied``: so many facts were applied)."""
        done: Deferred[None] = Deferred()
        self._waiting.append((kind, times, done))
        self._look()
        return done

    def _apply(self, updates: Updates[Any]) -> None:
        self.applied.append(updates.token)
        self._look()

    def _note(self, event: FollowerEvent) -> None:
        self.events.append(event)
        self._look()

    def _look(self) -> None:
        for waiting in list(self._waiting):
            kind, times, done = waiting
            if kind == "applied":
                count = len(self.applied)
            else:
                count = sum(event.kind == kind for event in self.events)
            if count >= times:
                self._waiting.remove(waiting)
                done.callback(None)
