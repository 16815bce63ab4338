"""The daemon: builds every part from the settings, starts them in order and stops them in order."""

import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.metric_values import Registry
from synrepl.base.metrics import Metrics
from synrepl.base.settings import UNNAMED
from synrepl.base.tasks import Loops, Tasks
from synrepl.base.time import ExpiryClock
from synrepl.config import Settings
from synrepl.config import settings as all_settings
from synrepl.daemon.ingest import Ingest
from synrepl.daemon.listeners import Listeners
from synrepl.daemon.parts import DaemonParts, Part, hooks_of
from synrepl.errors import ConfigError, ReplicationError, StorageError
from synrepl.ingest.channel_host import IChannelHost
from synrepl.ingest.write_policy import WritePolicy
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.hooks import Hooks
from synrepl.replication.own_facts import warn_of_unproven
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.retention import Retention, keys_of
from synrepl.replication.serving.publisher import Publisher
from synrepl.replication.serving.read_gate import ReadGate
from synrepl.rooms import rooms, wanted_rooms
from synrepl.storage.append_gate import AppendGate, WriterRules, starting
from synrepl.storage.databases import engine_for
from synrepl.storage.log import Log
from synrepl.storage.threads import ReactorThread
from synrepl.streams.catalog import FEDERATION
from synrepl.streams.declared import DaemonStreams
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.transports.http.site_context import SiteContext
from synrepl.wire.dialect import NEWEST

RELOADED: Final = frozenset({"secret_file", "keys_file", "ca_file", "certificate_file", "private_key_file"})
"""The settings that `Daemon.reload` applies."""

RECURSION_LIMIT: Final = 1_500
"""A log of an earlier release can have rows nested in some 980 levels, which are read below many calls."""


class Daemon(Service):
    """Keeps the log and serves it, from `startService` to `stopService`.

    `ready` fires once every port listens. A daemon that cannot start logs the reason in one line, keeps it in
    `failure`, closes what it had opened, and calls `on_failure`. A part that does not stop is also kept in
    `failure`. With `needs_name` a primary refuses an empty log unless the settings or the log have the server
    name.
    """

    name = "synrepl"
    _logger = Logger()

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        *,
        table: StreamTable | None = None,
        on_failure: Callable[[], None] | None = None,
        needs_name: bool = False,
    ) -> None:
        self.settings = settings
        streams = table if table is not None else StreamTable.default()
        self.table = DaemonStreams(
            stream for stream in streams if not (settings.no_federation and stream.name == FEDERATION.name)
        )
        self.keyring = settings.keyring()
        self.credentials = settings.credentials()
        self.metrics = Metrics(Registry())
        self.listeners = Listeners(settings, reactor)
        self.ready: Deferred[None] = Deferred()
        self.failure = ""
        self.is_misconfigured = False
        """Whether `failure` is a mistake in the settings, such as a port that is in use."""
        self.hooks = Hooks()
        """Who answers what concerns other daemons of the log; before the start a daemon alone."""
        self._context: SiteContext | None = None
        self._needs_name = needs_name
        self.reactor = reactor
        self._on_failure = on_failure if on_failure is not None else reactor.stop
        self._tasks = Tasks(self._logger, "daemon")
        self._starting: Deferred[None] | None = None
        self._parts: dict[str, Part] = {}
        """The parts of rooms, in the order in which they were made."""
        self._stops: list[Callable[[], Awaitable[None] | None]] = []
        """What stops each open part, in the order in which the parts were opened."""

    @property
    def has_started(self) -> bool:
        """Whether the ports are open; on a replica also whether its copy is complete and was compared.

        If it was not compared with the upstream, it is enough that it is known why.
        """
        role = self.hooks.role
        return self.ready.called and self._context is not None and role.is_whole and role.is_settled

    def describe(self) -> str:
        """Describe the state in a line: role and position, then the first reason not to be ready."""
        if self._context is None:
            return f"cannot start: {self.failure}" if self.failure else "starting"
        log, reasons = self._context.log, self._context.not_ready_reasons()
        name = self.settings.server_name_of(log.notes)
        described = f"{self.hooks.role.role} of {name}, epoch {log.head.epoch}, serial {log.head.serial}"
        return f"{described}; {reasons[0]}" if reasons else described

    def startService(self) -> None:
        super().startService()
        sys.setrecursionlimit(max(RECURSION_LIMIT, sys.getrecursionlimit()))
        for warning in self.settings.warnings:
            self._logger.warn("{warning}", warning=warning)
        self._starting = self._tasks.start(self._start(), "starting")

    def stopService(self) -> "Deferred[None]":
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _start(self) -> None:
        try:
            log = await self._open()
        except ReplicationError as error:
            self.failure = str(error)
            self.is_misconfigured = isinstance(error, ConfigError)
        except BaseException as error:
            self._logger.failure("unexpected error while the daemon starts")
            self.failure = f"unexpected {type(error).__name__}: {error}"
        if self.failure:
            self._logger.critical("cannot start: {why}", why=self.failure)
            await self._close()
            self._on_failure()
        elif self.running:
            problems = [one for part in self._parts.values() for one in part.problems()]
            reasons = [f"; {one.text}" for one in problems if one.not_ready]
            names, notes = self.settings, log.notes
            is_new = not self.hooks.role.is_primary and names.expected_name(notes) is None
            self._logger.info(
                "ready: {server} as {instance}, epoch {epoch}, serial {serial}{reason}",
                server=f"a new {self.hooks.role.role}" if is_new else names.server_name_of(notes),
                instance=self.settings.instance_name,
                epoch=log.head.epoch,
                serial=log.head.serial,
                reason="".join(reasons[:1]),
            )
            self.ready.callback(None)

    async def _open(self) -> Log:
        """Make all parts, give them to each other, and start them in order: the ports open last."""
        settings, reactor, listeners = self.settings, self.reactor, self.listeners
        # Before the log is opened: a mistake in the settings ends the start, and leaves nothing behind.
        write_policy = self._write_policy()
        rules = WriterRules()
        log = await self._open_log(rules)
        self._stops.append(log.stop)
        self._check_name(log)
        declared = DeclaredStreams(log, self.table, instance=settings.instance_name)
        publisher = Publisher(
            log,
            self.table,
            reactor,
            self.metrics,
            instance=settings.instance_name,
            ring_bytes=settings.reader_bytes,
        )
        self._stops.append(publisher.stop)
        refused = RefusedFacts(log, self.table, self.metrics, instance=settings.instance_name)
        # Who hears of each commit, in this order. The declared streams first: the others find a new one in
        # the table. The rooms subscribe as they are made, so after the publisher: followers wait for none.
        log.subscribe(declared.committed)
        log.subscribe(self.metrics.count_facts)
        publisher.follow_log()
        log.subscribe(refused.committed)
        expiry = ExpiryClock(reactor, time.monotonic)
        parts = await self._make_parts(
            DaemonParts(
                settings=settings,
                reactor=reactor,
                table=self.table,
                registry=self.metrics.registry,
                metrics=self.metrics,
                keyring=self.keyring,
                credentials=self.credentials,
                log=log,
                publisher=publisher,
                declared=declared,
                refused=refused,
                listeners=listeners,
                expiry=expiry,
                rooms=self._parts,
            )
        )
        hooks = self.hooks = hooks_of(parts.values())
        ingest = Ingest(
            settings,
            reactor,
            log=log,
            publisher=publisher,
            table=self.table,
            metrics=self.metrics,
            credentials=self.credentials,
            declared=declared,
            refused=refused,
            role=hooks.role,
            history_lost=listeners.history_lost,
            on_failure=self._ingest_failed,
            write_policy=write_policy,
            fact_sources=[part.fact_source for part in parts.values() if part.fact_source is not None],
            host=self._channel_host(),
        )
        retention = Retention(
            log, reactor, settings, keys=keys_of(self.table), leases=hooks.leases, expiry=expiry
        )
        thread = ReactorThread(reactor, "http work")
        context = self._context = SiteContext(
            log=log,
            publisher=publisher,
            table=self.table,
            metrics=self.metrics,
            clock=reactor,
            settings=settings,
            ingest=ingest,
            is_followed=ingest.is_followed,
            hooks=hooks,
            declared=declared,
            refused=refused,
            thread=thread,
            rooms=parts,
        )

        loops = Loops(reactor, self._logger, "log")

        def read_again() -> None:
            loops.finish(declared.load, "reading the declared streams")
            loops.finish(refused.load, "reading the refused facts")

        rules.add(declared.refusal)
        rules.add(ingest.refusal)
        declared.subscribers.append(publisher.stream_added)
        log.copies.on_replaced(read_again)
        log.copies.on_replaced(publisher.log_replaced)
        log.copies.on_replaced(
            partial(listeners.close_followers, "this replica has joined again: read its streams again")
        )
        log.copies.on_replaced(partial(self._warn_of_filter, publisher.read_gate))
        publisher.use(hooks.role, hooks.forwarding)
        self.keyring.use(hooks.keys)
        self.keyring.subscribers.append(listeners.recheck)
        hooks.role.subscribers.append(ingest.role_changed)
        self.metrics.send_buffer.set_function(listeners.unsent_bytes)

        own = Tasks(self._logger, "own facts")
        self._stops += [own.stop, loops.stop, retention.stop, ingest.stop, thread.stop, listeners.stop]
        await declared.load()
        await refused.load()
        if not any(part.hooks() for part in parts.values()):
            log.gate.open()
        # A room comes after those on which it builds: these begin to act last, when the others are there.
        for part in reversed(list(parts.values())):
            await part.start()
        # Before the ports open: a source that cannot be opened ends the start.
        await ingest.start()
        retention.start()
        self._warn_of_filter(publisher.read_gate)
        primary = settings.instance_name if hooks.role.is_primary else ""
        own.start(warn_of_unproven(log, self._logger, primary=primary), "looking for forged facts")
        await listeners.open(context, self.keyring)
        return log

    async def _open_log(self, rules: WriterRules) -> Log:
        database = self.settings.database
        kind, _, path = database.partition(":")
        if self._needs_name and self._lacks_name and kind == "sqlite" and not Path(path).exists():
            # Before the file is created: a refused start leaves nothing behind.
            raise self._new_log_error()
        try:
            engine = engine_for(database)
        except StorageError as error:
            raise ConfigError(f"cannot open the log: {error}") from error
        log = Log(
            engine,
            ReactorThread(self.reactor, "log writing"),
            ReactorThread(self.reactor, "log reading"),
            self.reactor,
            ephemeral=[stream.name for stream in self.table if stream.ephemeral],
            key_of=self._key_of,
            assigned=self._assigned_streams(),
            unordered=[stream.name for stream in self.table if not stream.ordered],
            any_writer=[stream.name for stream in self.table if stream.any_writer],
            append_refusal=rules.refusal,
            gate=AppendGate(starting),
            server_name=self.settings.server_name if self.settings.is_named else "",
            logger=Logger(namespace="synrepl.storage"),
        )
        try:
            await log.start()
        except StorageError as error:
            raise ConfigError(f"the log {database}: {error}") from error
        return log

    def _assigned_streams(self) -> list[str]:
        """The streams whose facts have tokens before this daemon has them."""
        settings = self.settings
        return [name for room in wanted_rooms(settings) for name in room.assigned_streams(settings)]

    def _write_policy(self) -> WritePolicy | None:
        """Which posts the channel and followed servers permit; None without them. Raises `ConfigError`."""
        settings = self.settings
        if not settings.has_channel and not settings.follow:
            return None
        return WritePolicy(
            settings.channel_writes,
            instance=settings.instance_name,
            table=self.table,
            tables=self._assigned_streams(),
        )

    async def _make_parts(self, daemon: DaemonParts) -> Mapping[str, Part]:
        """Make the parts of all rooms that the settings want. Raises `ReplicationError`."""
        place = len(self._stops)
        for room in wanted_rooms(self.settings):
            if (part := await room.build(daemon)) is not None:
                self._parts[room.name] = part
                # What began to act last is stopped first.
                self._stops.insert(place, part.stop)
        return self._parts

    def _channel_host(self) -> IChannelHost | None:
        """The part of a room that serves a channel; None if none does."""
        hosts = (part.channel_host() for part in self._parts.values())
        return next((one for one in hosts if one is not None), None)

    def _check_name(self, log: Log) -> None:
        """Warn of a primary's log that belongs to no homeserver. With `needs_name`, refuse an empty one."""
        if not self._lacks_name or "server_name" in log.notes:
            return
        if self._needs_name and not log.head.serial and not log.head.trimmed_upto.serial:
            raise self._new_log_error()
        self._logger.warn(
            "the log belongs to no homeserver, and is served as {name}: set --server-name", name=UNNAMED
        )

    @property
    def _lacks_name(self) -> bool:
        """Whether neither a setting nor an upstream names the homeserver: only the log can."""
        return not self._is_copy and not self.settings.is_named

    @property
    def _is_copy(self) -> bool:
        """Whether the settings make this daemon a copy of another one."""
        return any(room.role_of(self.settings) for room in rooms())

    def _new_log_error(self) -> ConfigError:
        database = self.settings.database
        return ConfigError(
            f"the log {database} is new: set --server-name to the server_name of its homeserver"
        )

    def _key_of(self, stream: str, row: bytes) -> Any:
        declared: Stream[Any] | None = self.table.get(stream)
        if declared is None or declared.key is None:
            return None
        return declared.key(declared.decode(row, NEWEST))

    def _warn_of_filter(self, read_gate: ReadGate) -> None:
        if held := read_gate.describe():
            self._logger.warn("{held}: requests for other streams and writers are refused", held=held)

    def _ingest_failed(self, why: str) -> None:
        self.failure = why
        self._logger.critical("ingest cannot start or stop, the daemon stops: {why}", why=why)
        self._on_failure()

    def reload(self, fresh: Settings) -> None:
        """Reload secrets, keys and certificates, and disconnect peers whose key or certificate was revoked.

        Other changed settings need a restart: a log line names them.
        """
        self.keyring.replace(fresh.keyring())
        self.credentials.replace(fresh.credentials())
        self.listeners.reload()
        for warning in fresh.warnings:
            self._logger.warn("{warning}", warning=warning)
        later = [
            one.name
            for one in all_settings()
            if one.name not in RELOADED and getattr(self.settings, one.name) != getattr(fresh, one.name)
        ]
        self._logger.info(
            "reloaded secrets, keys and certificates; reopened log files{later}",
            later=f"; a restart is needed for changes of {', '.join(later)}" if later else "",
        )

    async def _stop(self) -> None:
        if self._starting is not None:
            # A start ends soon. Closing its parts while it opens them would race.
            await self._starting
        await self._close()

    async def _close(self) -> None:
        """Stop every part, the last one first: ports and connections, replication, ingest, publisher, log.

        A part that cannot stop is logged, and is the `failure` if there is none; the others still stop.
        Otherwise the log would stay open, and queued appends would get no answer.
        """
        self._context, self._parts, self.hooks = None, {}, Hooks()
        stops, self._stops = [self.listeners.drain, *self._stops], []
        while stops:
            stop = stops.pop()
            try:
                stopped = stop()
                if stopped is not None:
                    await stopped
            except Exception as error:
                part = type(getattr(stop, "__self__", stop)).__name__
                self._logger.failure("{part} did not stop", part=part)
                self.failure = self.failure or f"{part} did not stop: {error or type(error).__name__}"
