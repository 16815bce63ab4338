"""One inspection of a homeserver: looks at its three ends, several times, and compares them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from synrepl.errors import StorageError
from synrepl.homeserver.channel_monitor import ChannelMonitor
from synrepl.homeserver.comparison import compare, unseen
from synrepl.homeserver.configuration import Homeserver
from synrepl.homeserver.consumers import remarks
from synrepl.homeserver.database import DatabaseViewer, open_database
from synrepl.homeserver.doctor.complaints import Complaint
from synrepl.homeserver.doctor.examination import Doctor
from synrepl.homeserver.findings import Finding, Unseen, with_cost
from synrepl.homeserver.looks import DatabaseLook, Look, MetricsLook
from synrepl.homeserver.metrics import MetricsScraper
from synrepl.homeserver.streams import WIRE
from synrepl.transports.redis.connections import RedisRefused

SHORT_SECONDS: Final = 5.0
"""From the first look to the second, of the database only."""
LONG_SECONDS: Final = 15.0
"""From the first look to the last; metrics are read no more often."""
ANSWER_SECONDS: Final = 2.0
"""How long answers to REPLICATE are awaited before it is published again."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectionReport:
    """The result: what is wrong, what could not be looked at, and what was.

    `mended` are findings that were there before REPLICATE was published, and are gone. `notes` are what is
    worth a look and not wrong. `seen` counts what was looked at: ``streams``, ``writers``, ``processes``,
    ``announced`` (writers heard on Redis).
    """

    homeserver: Homeserver
    findings: Sequence[Finding]
    unseen: Sequence[Unseen]
    seen: dict[str, int]
    mended: Sequence[Finding] = ()
    notes: Sequence[Finding] = ()
    looks: Sequence[Look] = ()

    @property
    def exit_code(self) -> int:
        """0 well, 1 unwell, 2 nothing was seen, 3 nothing unwell in what was seen."""
        if self.findings:
            return 1
        if not any(self.seen.values()):
            return 2
        return 3 if self.unseen else 0


class Inspection:
    """Looks at one homeserver. `progress` gets the name of a step, and the seconds done and in all."""

    def __init__(
        self,
        reactor: Any,
        homeserver: Homeserver,
        *,
        asks: bool = False,
        progress: Callable[[str, float, float], None] = lambda step, done, total: None,
    ) -> None:
        self._reactor = reactor
        self._homeserver = homeserver
        self._asks = asks
        self._progress = progress
        self._metrics = MetricsScraper(reactor)
        self._viewer: DatabaseViewer | None = None
        self._unseen: list[Unseen] = []
        self._database_error: StorageError | None = None
        """Why the settings of the database are of no use."""
        self._sequences_unread = ""
        self._sequences_locked = ""
        self._seconds = LONG_SECONDS * (2 if asks else 1)
        self._began = 0.0

    async def run(self) -> InspectionReport:
        """Inspect. The report also lists everything that could not be looked at.

        Raises `StorageError` if the driver of the database is not installed.
        """
        homeserver = self._homeserver
        self._began = self._reactor.seconds()
        channel = None
        if homeserver.redis is not None:
            channel = ChannelMonitor(self._reactor, homeserver.redis, homeserver.server_name)
            await channel.start()
        try:
            return await self._look_and_compare(channel)
        finally:
            if channel is not None:
                await channel.stop()
            if self._viewer is not None:
                self._viewer.close()

    async def _look_and_compare(self, channel: ChannelMonitor | None) -> InspectionReport:
        complaints = await self._open_database()
        began = self._reactor.seconds()
        looks = [await self._look(channel, None, has_metrics=True)]
        await self._pass_until(began + SHORT_SECONDS)
        looks.append(await self._look(channel, looks[-1].database))
        await self._pass_until(began + LONG_SECONDS)
        looks.append(await self._look(channel, looks[-1].database, has_metrics=True))
        findings = compare(self._homeserver, looks)
        mended: list[Finding] = []
        if self._asks and channel is not None:
            before = findings
            await self._ask(channel)
            await self._pass_until(began + 2 * LONG_SECONDS)
            looks.append(await self._look(channel, looks[-1].database, has_metrics=True))
            findings = compare(self._homeserver, looks, has_asked=True)
            there = {(one.kind, one.stream, one.process) for one in findings}
            mended = [one for one in before if (one.kind, one.stream, one.process) not in there]
        kinds = {one.kind for one in findings}
        if self._sequences_locked and "waiting_for_lock" not in kinds:
            self._miss("sequences", self._sequences_locked)
        if self._sequences_unread and "database_unreachable" not in kinds:
            self._miss("sequences", self._sequences_unread)
        return InspectionReport(
            homeserver=self._homeserver,
            findings=[*findings, *complaints],
            unseen=[*self._unseen, *unseen(self._homeserver, looks, findings)],
            seen=_count(looks),
            mended=mended,
            notes=remarks(self._homeserver, looks),
            looks=looks,
        )

    # -- looking -------------------------------------------------------------------------------------------

    async def _open_database(self) -> list[Finding]:
        settings = self._homeserver.database
        if settings is None:
            return []
        try:
            database = open_database(settings)
        except StorageError as error:
            if isinstance(error.__cause__, ImportError):
                raise
            self._database_error = error
            return []
        self._viewer = DatabaseViewer(database, self._reactor.seconds)
        doctor = Doctor(database, now=self._reactor.seconds, has_log=False, only_indexed=True)
        try:
            diagnosis = await self._in_thread(doctor.examine)
        except StorageError as error:
            self._sequences_unread = error.why
            return []
        for complaint in diagnosis.complaints:
            if complaint.kind == "not_examined":
                self._miss(
                    "sequences", complaint.text + (f": {complaint.remedy}" if complaint.remedy else "")
                )
            elif complaint.kind == "locked_out":
                self._sequences_locked = complaint.text
        return [
            _finding(one) for one in diagnosis.complaints if one.severity == "error" and one.kind in DOCTORS
        ]

    async def _look(
        self, channel: ChannelMonitor | None, before: DatabaseLook | None, *, has_metrics: bool = False
    ) -> Look:
        at = self._reactor.seconds()
        database, failed = None, self._database_error
        if self._viewer is not None:
            try:
                database = await self._in_thread(lambda viewer: viewer.look(before), self._viewer)
            except StorageError as error:
                failed = error
        found: dict[str, MetricsLook] = {}
        if has_metrics:
            found = await self._metrics.look_at(self._homeserver.processes)
            if channel is not None:
                await channel.query_redis()
        heard = None if channel is None else channel.heard()
        return Look(
            at=at,
            database=database,
            database_trouble="" if failed is None else failed.why,
            database_hint="" if failed is None else failed.hint,
            heard=heard,
            metrics=found,
        )

    async def _ask(self, channel: ChannelMonitor) -> None:
        """Publish REPLICATE; again if an answer came twice, which only a second process explains then."""
        try:
            await channel.ask()
            await self._pass_until(self._reactor.seconds() + ANSWER_SECONDS)
            if any(count > 1 for count in channel.heard().answers.values()):
                await channel.ask()
        except RedisRefused as error:
            self._miss("answers to REPLICATE", str(error))

    # -- time ----------------------------------------------------------------------------------------------

    async def _pass_until(self, moment: float) -> None:
        while (left := moment - self._reactor.seconds()) > 0:
            self._progress("listening", self._reactor.seconds() - self._began, self._seconds)
            await deferLater(self._reactor, min(left, 0.5))

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        found: T = await deferToThread(work, *args)
        return found

    def _miss(self, what: str, why: str) -> None:
        missed = Unseen(what=what, why=why)
        if missed not in self._unseen:
            self._unseen.append(missed)


DOCTORS: Final = (
    "sequence_behind_positions",
    "sequence_behind_tables",
    "sequence_unused",
    "counter_behind_table",
)
"""The doctor's complaints that are findings here, by the same kinds."""


def _finding(complaint: Complaint) -> Finding:
    finding = Finding(
        kind=complaint.kind,
        stream=WIRE.get(complaint.stream, complaint.stream),
        why=complaint.text,
        remedy=complaint.remedy,
        cure=complaint.statement,
        command="synrepl doctor --homeserver HOMESERVER.YAML",
    )
    return with_cost(finding)


def _count(looks: Sequence[Look]) -> dict[str, int]:
    last = looks[-1]
    positions = {} if last.database is None else last.database.positions
    heard = {} if last.heard is None else last.heard.positions
    return {
        "streams": len({} if last.database is None else last.database.sequences),
        "writers": sum(map(len, positions.values())),
        "announced": sum(map(len, heard.values())),
        "processes": sum(not look.trouble for look in last.metrics.values()),
    }
