"""Makes the stale caches of a running homeserver right: rows, an announcement, and who received it.

The rows are written as Synapse writes them, under a name of our own, and then announced on Redis. No process
is restarted, and none is asked (docs/howto/invalidate.md).
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from synrepl.base.metric_values import Registry
from synrepl.base.metrics import Metrics
from synrepl.base.tasks import shielded
from synrepl.caches.changes import Changes
from synrepl.caches.names import (
    EVENTS,
    NEWEST_KNOWN,
    ROOM_ALIASES,
    CacheName,
    Release,
    all_names,
    find_name,
    names_of,
    parse_release,
)
from synrepl.caches.relations import find_like, said_of, said_of_source
from synrepl.caches.rules import later_sources
from synrepl.caches.unreachable import kept_answer
from synrepl.caches.vintage import Invalidation, Vintage
from synrepl.errors import ConfigError, LocalProtocolError
from synrepl.homeserver.channel_monitor import announcements, redis_address
from synrepl.homeserver.configuration import Homeserver
from synrepl.homeserver.database import open_database
from synrepl.homeserver.homeserver_invalidations import HomeserverInvalidations
from synrepl.homeserver.invalidation_requests import (
    InvalidationReport,
    InvalidationRequest,
    NotInvalidated,
    ProcessReport,
)
from synrepl.homeserver.looks import MetricsLook
from synrepl.homeserver.metrics import MetricsScraper
from synrepl.html.humanize import listed
from synrepl.replication.membership.member import ChannelMember
from synrepl.streams.catalog import CACHES, CacheInvalidation
from synrepl.transports.redis.link import RedisLink
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.dialect import release_text, whole_release
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun

INSTANCE: Final = "synrepl-invalidate"
"""The name that the rows are written under."""
MAX_ROWS: Final = 1_000
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 5.0
"""How long our own announcement, and then each process, is awaited."""
STEP_SECONDS: Final = 0.25
ATTEMPTS: Final = 5
"""How often rows are written again that others overtook."""

RECEIVED_MEANS: Final = (
    "received: the process has counted the row. It does not tell whether an entry had that key: if what it"
    " answers is still stale, drop the whole cache with --all NAME"
)
"""What it does not mean that a process received a row with keys."""

NOT_ALL: Final = {
    "_get_presence_for_user": "what users see is in the memory of the process that writes presence, and this"
    " is what it reads of users that it does not have there: a restart of that process reads all anew",
}
"""Caches that are not all that keeps an answer."""

CHANGES: Final = {
    "cs_cache_fake": "changes of the state of a room",
    "dr_cache_fake": "rooms that are deleted",
    "ph_cache_fake": "rooms whose history is purged",
}
"""What an alias stands for."""

OF_CLIENTS: Final = (
    "clients keep what they were sent: one that shows a room which was deleted has to clear its own cache"
)

T = TypeVar("T")


def is_by_key(report: InvalidationReport) -> bool:
    """Whether a process that received the rows may have had no entry of their keys."""
    is_received = any(one.received for one in report.processes)
    # Of the names for several caches every process drops what is of the room.
    return is_received and any(
        row["keys"] is not None and row["name"] not in ROOM_ALIASES for row in report.rows
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class InvalidationPlan:
    """The rows to write. `drops` are what the processes of each release drop. `notes` are for people."""

    rows: Sequence[CacheInvalidation]
    drops: Mapping[Release, Sequence[Invalidation]]
    notes: Sequence[str] = ()

    def report(
        self,
        processes: Sequence[ProcessReport],
        *,
        ids: Sequence[int] = (),
        overtaken: Sequence[int] = (),
    ) -> InvalidationReport:
        """The report of this plan, carried out or not."""
        return InvalidationReport(
            rows=[{"name": row.cache_func, "keys": row.keys} for row in self.rows],
            drops={
                _text(release): [{"name": one.cache, "key": one.key} for one in found]
                for release, found in self.drops.items()
            },
            notes=list(self.notes),
            ids=list(ids),
            overtaken=list(overtaken),
            processes=list(processes),
        )


def make_plan(
    wanted: InvalidationRequest, releases: Sequence[Release], *, now_ms: int = 0
) -> InvalidationPlan:
    """Plan the rows for processes of these releases. Without releases the newest known counts.

    Raises `ConfigError` for a name that none of them has, for keys that do not fit, and for too many rows.
    """
    newest = _text(NEWEST_KNOWN)
    notes = []
    if not releases:
        releases = [NEWEST_KNOWN]
        notes.append(f"the release is unknown: taken for {newest}; --release says another")
    newest_first = sorted(set(releases), reverse=True)
    notes += [
        f"Synapse {_text(release)} is newer than what is known here: taken for {newest}"
        for release in newest_first
        if release > NEWEST_KNOWN
    ]
    entries: list[tuple[str, tuple[str, ...] | None]] = []
    if wanted.name:
        entries.append((wanted.name, tuple(wanted.key)))
    entries += [(name, None) for name in wanted.all]
    for room in wanted.rooms:
        if not room.startswith("!"):
            raise ConfigError("--room takes the id of a room, which begins with !")
        for release in newest_first:
            alias = next(one for one in ROOM_ALIASES if one in names_of(release))
            if alias != ROOM_ALIASES[0]:
                notes.append(
                    f"{alias} is all that Synapse {_text(release)} has: only the state of the room. Its"
                    " events stay in the memory of each process: after a room was deleted, restart all of"
                    " them before anybody here joins it again (matrix-org/synapse#11521); ask for the"
                    " deletion of one room once, and wait until it has ended, as two at once hinder each"
                    " other (matrix-org/synapse#11223)"
                )
            entries.append((alias, (room,)))
    if wanted.rooms:
        notes.append(OF_CLIENTS)
    rows: dict[tuple[str, tuple[str, ...] | None], CacheInvalidation] = {}
    drops: dict[Release, dict[Invalidation, None]] = {release: {} for release in reversed(newest_first)}
    for name, key in dict.fromkeys(entries):
        forms = _forms(name, newest_first)
        found = next(iter(forms.values()))
        if found.is_of_module:
            notes.append(
                f"{name} is taken for a function of a module, as none of Synapse's own caches has that name:"
                " only processes that have the module drop it, and only if it was registered there"
                " (ModuleApi.register_cached_function): one that was not keeps its entry, without an error."
                " Its keys are not checked"
            )
        if why := NOT_ALL.get(found.name) or said_of_source(found.name, newest_first[-1]):
            notes.append(f"{found.name}: {why}")
        notes += _left_by(found.name, newest_first[-1])
        for row in _rows(found, key, now_ms):
            rows[row.cache_func, None if row.keys is None else tuple(row.keys)] = row
            for release, form in forms.items():
                if key is None or form.takes_as(found, key):
                    drops[release] |= dict.fromkeys(_drops(row, form, release))
                else:
                    cure = f": --all {name} drops all of it" if form.can_drop_all else ""
                    notes.append(
                        f"Synapse {_text(release)} has other keys for {name}, and drops nothing{cure}"
                    )
    if len(rows) > MAX_ROWS or sum(len(row.keys or ()) for row in rows.values()) > MAX_ROWS:
        raise ConfigError(f"at most {MAX_ROWS} rows and keys at once")
    return InvalidationPlan(
        rows=list(rows.values()),
        drops={release: list(found) for release, found in drops.items()},
        notes=tuple(dict.fromkeys(notes)),
    )


def _left_by(name: str, release: Release) -> Iterator[str]:
    """Say what a release changes without dropping this cache, as newer ones do."""
    what = [
        f"{CHANGES.get(source, f'rows of {source}')} ({release_text(since)})"
        for source, since in later_sources(name, whole_release(release)).items()
    ]
    if what:
        yield (
            f"Synapse {_text(release)} does not drop {name} for {listed(what)}, as the releases in brackets"
            " and newer ones do: it grows stale again with the next of them, until the upgrade"
        )


def _forms(name: str, newest_first: Sequence[Release]) -> dict[Release, CacheName]:
    """What the name is in each release that has it. Raises `ConfigError` if none has."""
    is_known = name in all_names() or kept_answer(name)
    if not is_known and (said := said_of(name, newest_first[0])):
        raise ConfigError(said)
    found, refused = {}, list[ConfigError]()
    for release in newest_first:
        try:
            found[release] = find_name(name, release)
        except ConfigError as error:
            refused.append(error)
    if not found and not is_known and (like := find_like(name)):
        raise ConfigError(f"{refused[0]}; in the database there is {listed(like)}: name one of these")
    if not found:
        raise refused[0]
    return found


def _rows(found: CacheName, key: tuple[str, ...] | None, now_ms: int) -> list[CacheInvalidation]:
    """The rows for one entry of a cache, or for all of it."""
    # Changes of several entries together would replace an alias by another, which older processes lack.
    changes = Changes()
    try:
        if key is not None:
            found.check(key)
            changes.invalidate(found.name, key)
        elif found.can_drop_all:
            changes.invalidate_all(found.name)
        else:
            raise ConfigError(f"{found.name} cannot be dropped whole: give {' '.join(found.arguments)}")
    except LocalProtocolError as error:
        raise ConfigError(error.why) from error
    return changes.rows(now_ms)


def _drops(row: CacheInvalidation, form: CacheName, release: Release) -> list[Invalidation]:
    """What every process of this release drops for the row, of the caches that it has."""
    there = {*names_of(release), EVENTS}
    if form.is_of_module:
        return []  # Only the processes know whether they have it.
    found = Vintage.of(_text(release)).expand(row.cache_func, row.keys)
    return [one for one in found if not form.is_alias or one.cache in there]


def _text(release: Release) -> str:
    return ".".join(map(str, release))


class Announcer(ChannelMember):
    """Announces rows of ``caches`` on the channel, and hears them come back (the member of a `RedisLink`)."""

    def __init__(self, reactor: Any, homeserver: Homeserver) -> None:
        assert homeserver.redis is not None
        self.overtaken: list[int] = []
        """Own ids that came after a higher one of another writer: a process may have ignored them."""
        self.heard = 0
        """The last own id that came back."""
        self.is_name_taken = False
        """Whether another process announced something under our name."""
        self._has_announced = False
        self._highest = 0
        self._down = {"subscriber", "publisher"}
        self.trouble = ""
        """Why an attempt to connect failed."""
        self._link = RedisLink(
            reactor,
            redis_address(homeserver.redis),
            self,
            server_name=homeserver.server_name,
            instance=INSTANCE,
            metrics=Metrics(Registry()),
            hears=("",),
        )

    @property
    def is_up(self) -> bool:
        """Whether both connections are established."""
        return not self._down

    def start(self) -> None:
        """Connect."""
        self._link.start()

    def stop(self) -> Any:
        """Close the connections. Fires when Redis has processed what was announced."""
        return self._link.stop()

    def announce_position(self, prev_token: int, token: int) -> None:
        """Say that there are no rows between: without a position, processes drop the rows that follow."""
        self._has_announced = True
        self._link.send(Position(stream="caches", instance=INSTANCE, prev_token=prev_token, token=token))

    def announce(self, ids: Sequence[int], rows: Sequence[CacheInvalidation]) -> None:
        """Publish each row under its id."""
        self._has_announced = True
        for token, row in zip(ids, rows, strict=True):
            self._link.send(Rdata(stream="caches", instance=INSTANCE, token=token, row=CACHES.encode(row)))

    # -- what the link calls -------------------------------------------------------------------------------

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Compare own ids with those of others, in the order in which all processes hear them."""
        for one in announcements(commands):
            if one.writer == INSTANCE:
                if not self._has_announced or one.stream != "caches":
                    self.is_name_taken = True
                if one.rows and one.stream == "caches":
                    self.overtaken += [token for token in one.tokens if token < self._highest]
                    self.heard = max(self.heard, *one.tokens, 0)
            elif one.stream == "caches":
                self._highest = max(self._highest, *one.tokens, 0)

    def subscriber_up(self) -> None:
        """Note that Redis has confirmed the subscription."""
        self._down.discard("subscriber")

    def subscriber_down(self, why: str) -> None:
        """Note that the subscription was lost, and why."""
        self._down.add("subscriber")
        self.trouble = why

    def publisher_up(self) -> None:
        """Note that the publishing connection is up: announcements reach Redis."""
        self._down.discard("publisher")

    def publisher_down(self, why: str) -> None:
        """Note that the publishing connection was lost, and why."""
        self._down.add("publisher")
        self.trouble = why

    def unreachable(self, why: str) -> None:
        """Note why an attempt to connect failed."""
        self.trouble = why


class Invalidator:
    """Invalidates caches of one homeserver. `seconds` gives the time in seconds since 1970."""

    def __init__(self, reactor: Any, homeserver: Homeserver, *, seconds: Callable[[], float]) -> None:
        self._reactor = reactor
        self._homeserver = homeserver
        self._seconds = seconds
        self._scraper = MetricsScraper(reactor)
        self._before: dict[str, MetricsLook] = {}
        self._is_running = False

    def _check(self) -> None:
        """Raise `ConfigError` if the files say that it cannot work."""
        homeserver = self._homeserver
        if any(one.name == INSTANCE for one in homeserver.processes):
            raise ConfigError(f"a process of the homeserver is called {INSTANCE}: rename it")
        if homeserver.database is None:
            raise ConfigError("the files name no database that can be used")
        if homeserver.redis is None:
            raise ConfigError(
                "`redis` is not enabled in the files: a homeserver of one process hears nothing; restart it"
            )

    async def _look(self) -> list[ProcessReport]:
        """Read the metrics of each process, which tell its release."""
        self._before = await self._look_at([one.name for one in self._homeserver.processes])
        return [
            ProcessReport(name=name, release=look.release, why=look.trouble)
            for name, look in self._before.items()
        ]

    async def invalidate(
        self, request: InvalidationRequest, confirm: Callable[[InvalidationPlan], None] = lambda plan: None
    ) -> InvalidationReport:
        """Do it. `confirm` is called before anything is written, and may raise. See `IInvalidator`."""
        given = [parse_release(request.release)] if request.release else []
        if not request.dry_run:
            self._check()
        processes = [] if given else await self._look()
        releases = given or releases_of(processes)
        plan = make_plan(request, releases, now_ms=int(self._seconds() * 1000))
        if request.dry_run:
            return plan.report(processes)
        confirm(plan)
        if self._is_running:
            raise NotInvalidated("nothing was written: another invalidation is going on", code="busy")
        self._is_running = True
        # Who asked may go: rows that are written are announced all the same.
        return await shielded(self._carry_out(plan, verifies=request.verify))

    async def _carry_out(self, plan: InvalidationPlan, *, verifies: bool) -> InvalidationReport:
        try:
            return await self._write_and_announce(plan, verifies=verifies)
        finally:
            self._is_running = False

    async def _write_and_announce(self, plan: InvalidationPlan, *, verifies: bool) -> InvalidationReport:
        database = self._homeserver.database
        assert database is not None
        writer = HomeserverInvalidations(open_database(database, what=INSTANCE), instance=INSTANCE)
        announcer = Announcer(self._reactor, self._homeserver)
        if verifies:
            # Again: what was received before this is no answer.
            await self._look()
        announcer.start()
        try:
            # Both ends first: nothing is written that cannot be announced.
            await self._until(lambda: announcer.is_up or bool(announcer.trouble), CONNECT_SECONDS)
            if not announcer.is_up:
                raise NotInvalidated(f"nothing was written: Redis: {announcer.trouble or 'no answer'}")
            standing = await self._in_thread(writer.open)
            if announcer.is_name_taken:
                raise NotInvalidated(f"nothing was written: another process announces as {INSTANCE} on Redis")
            announcer.announce_position(standing.last_row, standing.allocated)
            ids, overtaken = await self._write(writer, announcer, plan.rows)
        finally:
            await announcer.stop()
            await self._in_thread(writer.close)
        processes = await self._verify(len(plan.rows)) if verifies else []
        report = plan.report(processes, ids=ids, overtaken=overtaken)
        if is_by_key(report):
            report = msgspec.structs.replace(report, notes=[*report.notes, RECEIVED_MEANS])
        return report

    async def _write(
        self, writer: HomeserverInvalidations, announcer: Announcer, rows: Sequence[CacheInvalidation]
    ) -> tuple[list[int], list[int]]:
        """Return the ids of all rows, and those that were overtaken at every attempt."""
        ids: list[int] = []
        left = list(rows)
        for _ in range(ATTEMPTS):
            written = await self._in_thread(writer.write, left)
            ids += written
            announcer.overtaken.clear()
            announcer.announce(written, left)
            await self._until(lambda last=written[-1]: announcer.heard >= last, ANSWER_SECONDS)  # type: ignore[misc]
            if announcer.heard < written[-1]:
                why = announcer.trouble or "they did not come back"
                raise NotInvalidated(
                    f"{len(ids)} rows are written, and were not all announced: {why}; run it again"
                )
            overtaken = set(announcer.overtaken)
            left = [row for token, row in zip(written, left, strict=True) if token in overtaken]
            if not left:
                return ids, []
        return ids, sorted(overtaken)

    async def _verify(self, count: int) -> list[ProcessReport]:
        """Wait until each process has received this many rows more than before."""
        waiting = {name for name, look in self._before.items() if not look.trouble}
        last: dict[str, MetricsLook] = dict(self._before)
        until = self._reactor.seconds() + ANSWER_SECONDS
        while waiting:
            last |= await self._look_at(sorted(waiting))
            waiting -= {name for name in waiting if self._rise(name, last[name]) >= count}
            if not waiting or self._reactor.seconds() >= until:
                break
            await deferLater(self._reactor, STEP_SECONDS)
        found = []
        for name, look in last.items():
            rise = self._rise(name, look)
            why = look.trouble or f"its metrics count {rise} of {count} rows"
            received = not look.trouble and rise >= count
            found.append(
                ProcessReport(name=name, release=look.release, received=received, why="" if received else why)
            )
        return found

    def _rise(self, name: str, look: MetricsLook) -> int:
        return look.received.get("caches", 0) - self._before[name].received.get("caches", 0)

    async def _look_at(self, names: Sequence[str]) -> dict[str, MetricsLook]:
        return await self._scraper.look_at(one for one in self._homeserver.processes if one.name in names)

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        until = self._reactor.seconds() + seconds
        while not is_so() and self._reactor.seconds() < until:
            await deferLater(self._reactor, 0.01)

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        found: T = await deferToThread(work, *args)
        return found


def releases_of(processes: Sequence[ProcessReport]) -> list[Release]:
    """The releases that processes told, without those that are no release."""
    found = []
    for one in processes:
        try:
            found.append(parse_release(one.release))
        except ConfigError:
            continue
    return found
