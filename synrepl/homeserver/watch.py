"""The watch: a daemon compares the three ends of a homeserver's streams all the time, and writes nothing."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from twisted.logger import Logger

from synrepl.base.tasks import Tasks
from synrepl.base.time import Timer
from synrepl.errors import StorageError
from synrepl.homeserver.channel_monitor import ChannelMonitor
from synrepl.homeserver.comparison import compare, unseen
from synrepl.homeserver.configuration import Homeserver
from synrepl.homeserver.consumers import remarks
from synrepl.homeserver.database import DatabaseViewer, open_database
from synrepl.homeserver.findings import Finding, Unseen
from synrepl.homeserver.looks import Look, MetricsLook
from synrepl.homeserver.metrics import MetricsScraper
from synrepl.homeserver.watch_metrics import WatchMetrics
from synrepl.storage.threads import ReactorThread

LOOK_SECONDS: Final = 5.0
"""From one look at the database and the channel to the next."""
METRICS_EVERY: Final = 3
"""Metrics are read at each third look."""
WINDOW: Final = METRICS_EVERY + 1
"""The number of looks that are compared: 15 seconds."""

LAGS: Final = ("not_received", "never_announced", "held", "not_connected", "silent_process")
"""The kinds that are the reason of a lag (`because`)."""


class HomeserverWatch:
    """Looks at one homeserver, and keeps what is wrong now.

    `findings` are those of the last looks; a stream that is never announced stays among them until it is.
    """

    _logger = Logger()

    def __init__(self, reactor: Any, homeserver: Homeserver, metrics: WatchMetrics) -> None:
        self.findings: list[Finding] = []
        self._reactor = reactor
        self._homeserver = homeserver
        self._metrics = metrics
        self._scraper = MetricsScraper(reactor)
        self._thread = ReactorThread(reactor, "homeserver watch")
        self._tasks = Tasks(self._logger, "the watch of the homeserver")
        self._timer = Timer(reactor, self._tick)
        self._channel: ChannelMonitor | None = None
        self._viewer: DatabaseViewer | None = None
        self._looks: deque[Look] = deque(maxlen=WINDOW)
        self._pages: deque[dict[str, MetricsLook]] = deque(maxlen=2)
        self._count = 0
        self._since: dict[tuple[str, str, str, str], float] = {}
        self._database_error: StorageError | None = None
        """Why the last query of the database failed."""

    def start(self) -> None:
        """Begin to look."""
        if self._homeserver.redis is not None:
            self._channel = ChannelMonitor(
                self._reactor, self._homeserver.redis, self._homeserver.server_name
            )
        if self._homeserver.database is not None:
            try:
                database = open_database(self._homeserver.database)
                self._viewer = DatabaseViewer(database, self._reactor.seconds)
            except StorageError as error:
                self._database_error = error
        self._tasks.start(self._begin(), "looking")

    async def stop(self) -> None:
        """Stop looking, and close what is open."""
        self._timer.stop()
        self._tasks.stop()
        if self._channel is not None:
            await self._channel.stop()
        if self._viewer is not None:
            await self._thread.run(self._viewer.close)
        await self._thread.stop()

    def status(self) -> dict[str, Any]:
        """The section of the status: what is wrong, what cannot be seen, and when it was looked at."""
        last = self._looks[-1] if self._looks else None
        return {
            "server_name": self._homeserver.server_name,
            "looked_at": None if last is None else round(last.at, 3),
            "findings": msgspec.to_builtins(self.findings),
            "notes": msgspec.to_builtins(remarks(self._homeserver, list(self._looks))),
            "unseen": msgspec.to_builtins(self._unseen()),
        }

    def _unseen(self) -> Sequence[Unseen]:
        return unseen(self._homeserver, list(self._looks), self.findings)

    async def _begin(self) -> None:
        """Look once the channel hears: what is announced before can never be told from what is not."""
        if self._channel is not None:
            await self._channel.start()
        self._timer.restart(LOOK_SECONDS)
        await self._look()

    def _tick(self) -> None:
        self._timer.restart(LOOK_SECONDS)
        if not self._tasks.is_working:
            self._tasks.start(self._look(), "looking")

    async def _look(self) -> None:
        has_metrics = self._count % METRICS_EVERY == 0
        self._count += 1
        at = self._reactor.seconds()
        database = None
        before = self._looks[-1].database if self._looks else None
        if (viewer := self._viewer) is not None:
            self._database_error = None
            try:
                database = await self._thread.run(lambda: viewer.look(before))
            except StorageError as error:
                self._database_error = error
        if has_metrics:
            await self._read_metrics()
        heard = None if self._channel is None else self._channel.heard()
        pages = self._pages[-1] if self._pages else {}
        failed = self._database_error
        self._looks.append(
            Look(
                at=at,
                database=database,
                database_trouble="" if failed is None else failed.why,
                database_hint="" if failed is None else failed.hint,
                heard=heard,
                metrics=pages,
            )
        )
        self._compare()

    async def _read_metrics(self) -> None:
        self._pages.append(await self._scraper.look_at(self._homeserver.processes))
        if self._channel is not None:
            await self._channel.query_redis()

    def _compare(self) -> None:
        window = [msgspec.structs.replace(look, metrics={}) for look in self._looks]
        # Pages are read at some looks only; they belong to the first and the last.
        if len(self._pages) == 2 and len(window) > 1:
            window[0] = msgspec.structs.replace(window[0], metrics=self._pages[0])
            window[-1] = msgspec.structs.replace(window[-1], metrics=self._pages[1])
        found = {_key(one): one for one in compare(self._homeserver, window)}
        for key, finding in self._still_unannounced():
            found.setdefault(key, finding)
        now = self._reactor.seconds()
        for key, finding in found.items():
            if key not in self._since:
                kind, why, remedy = finding.kind, finding.why, finding.remedy
                self._logger.warn("{kind}: {why}; {remedy}", kind=kind, why=why, remedy=remedy)
            self._since.setdefault(key, now - (finding.since_seconds or 0.0))
        for key in [key for key in self._since if key not in found]:
            del self._since[key]
        self.findings = [
            msgspec.structs.replace(one, since_seconds=round(now - self._since[key], 1))
            for key, one in found.items()
        ]
        self._tell()

    def _still_unannounced(self) -> "Sequence[tuple[tuple[str, str, str, str], Finding]]":
        """The streams that were found before, of which nothing more was heard."""
        heard = self._looks[-1].heard
        if heard is None or heard.trouble:
            return []
        return [
            (_key(one), one)
            for one in self.findings
            if one.kind == "never_announced"
            and heard.positions.get(one.stream, {}).get(one.writer, -1) < (one.position or 0)
        ]

    def _tell(self) -> None:
        metrics = self._metrics
        metrics.unannounced_rows.clear()
        metrics.unannounced_seconds.clear()
        metrics.homeserver_lag_rows.clear()
        metrics.homeserver_findings.clear()
        for one in self.findings:
            metrics.homeserver_findings.labels(one.kind).inc()
            if one.kind == "never_announced":
                metrics.unannounced_rows.labels(one.stream, one.writer).set(one.count or 1)
                metrics.unannounced_seconds.labels(one.stream, one.writer).set(one.since_seconds or 0)
            if one.kind in LAGS:
                labels = (one.stream, one.writer, one.process, one.kind)
                metrics.homeserver_lag_rows.labels(*labels).set(one.count or 0)


def _key(finding: Finding) -> tuple[str, str, str, str]:
    # Of what is refused there may be several at one process; the files, and so the text, stay as they are.
    about = finding.why if finding.kind.startswith("refused_") else finding.process
    return finding.kind, finding.stream, finding.writer, about
