"""The daemon: builds every part from the settings, starts them in order and stops them in order."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, disable_created_metrics
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.config import Settings
from synrepl.config import settings as all_settings
from synrepl.daemon.ingest import IngestServices
from synrepl.daemon.listeners import Listeners
from synrepl.daemon.parts import DaemonParts, Part
from synrepl.errors import ConfigError, ReplicationError, StorageError
from synrepl.ports.metrics import Metrics
from synrepl.ports.settings import UNNAMED
from synrepl.ports.tasks import Tasks
from synrepl.replicas.roles.messages import PRIMARY, REPLICA
from synrepl.replicas.services import ReplicationServices
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.publisher import Publisher
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.rooms import wanted_rooms
from synrepl.storage.databases import engine_for
from synrepl.storage.log import Log
from synrepl.storage.threads import ReactorThread
from synrepl.streams.catalog import FEDERATION
from synrepl.streams.declared import DaemonStreams
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.transports.http.server import Services
from synrepl.wire.dialect import NEWEST

if TYPE_CHECKING:
    from synrepl.channel.services import ChannelServices

RELOADED: Final = frozenset({"secret_file", "keys_file", "ca_file", "certificate_file", "private_key_file"})
"""The settings that `Daemon.reload` applies."""


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
        self.declared: DeclaredStreams | None = None
        self.refused: RefusedFacts | None = None
        self.keyring = settings.keyring()
        self.credentials = settings.credentials()
        # When a counter began is a series for each: more than all others together, and asked for by nobody.
        disable_created_metrics()
        self.metrics = Metrics(CollectorRegistry())
        self.listeners = Listeners(settings, reactor)
        self.ready: Deferred[None] = Deferred()
        self.failure = ""
        self.is_misconfigured = False
        """Whether `failure` is a mistake in the settings, such as a port that is in use."""
        self.replication: ReplicationServices | None = None
        self._services: Services | None = None
        self._needs_name = needs_name
        self.reactor = reactor
        self._on_failure = on_failure if on_failure is not None else reactor.stop
        self._tasks = Tasks(self._logger, "daemon")
        self._starting: Deferred[None] | None = None
        self._channel: ChannelServices | None = None
        self._stops: list[Callable[[], Awaitable[None] | None]] = []
        """What stops each open part, in the order in which the parts were opened."""

    @property
    def has_copy(self) -> bool:
        """Whether the ports are open and, on a replica, the copy of the upstream's log is complete."""
        return self.ready.called and self.replication is not None and self.replication.roles.is_whole

    def describe(self) -> str:
        """Describe the state in a line: role and position, then the first reason not to be ready."""
        if self._services is None or self.replication is None:
            return f"cannot start: {self.failure}" if self.failure else "starting"
        log, reasons = self._services.log, self._services.not_ready_reasons()
        name = self.settings.server_name_of(log.notes)
        described = (
            f"{self.replication.roles.role} of {name}, epoch {log.head.epoch}, serial {log.head.serial}"
        )
        return f"{described}; {reasons[0]}" if reasons else described

    def startService(self) -> None:
        super().startService()
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
            assert self.replication is not None
            reasons = [f"; {one.text}" for one in self.replication.problems() if one.not_ready]
            names, notes = self.settings, log.notes
            is_new = self.replication.roles.role != PRIMARY and names.expected_name(notes) is None
            self._logger.info(
                "ready: {server} as {instance}, epoch {epoch}, serial {serial}{reason}",
                server="a new replica" if is_new else names.server_name_of(notes),
                instance=self.settings.instance_name,
                epoch=log.head.epoch,
                serial=log.head.serial,
                reason="".join(reasons[:1]),
            )
            self.ready.callback(None)

    async def _open(self) -> Log:
        """Open every part: the log, the publisher, replication, the sources of a primary, the ports."""
        settings, reactor, listeners = self.settings, self.reactor, self.listeners
        if settings.resp:
            # Imported on use: most daemons have no such port.
            from synrepl.channel.resp.server import RespServer

            listeners.resp = RespServer(
                reactor, keys=self.keyring, metrics=self.metrics, addresses=settings.resp
            )
        ingest = IngestServices(
            settings,
            reactor,
            table=self.table,
            metrics=self.metrics,
            credentials=self.credentials,
            history_lost=listeners.history_lost,
            assigned=self._assigned_streams(),
            resp_server=listeners.resp,
        )
        log = await self._open_log(ingest)
        self._stops.append(log.stop)
        self._check_name(log)
        # The first subscriber of the log: the others find newly declared streams in the table.
        declared = self.declared = DeclaredStreams(log, self.table, instance=settings.instance_name)
        log.subscribe(self.metrics.count_facts)
        publisher = Publisher(
            log,
            self.table,
            reactor,
            self.metrics,
            instance=settings.instance_name,
            ring_bytes=settings.reader_bytes,
        )
        declared.subscribers.append(publisher.stream_added)
        self._stops += [publisher.stop, self._stop_channel, ingest.close]
        self.metrics.send_buffer.set_function(listeners.unsent_bytes)
        refused = self.refused = RefusedFacts(log, self.table, self.metrics, instance=settings.instance_name)
        made = self._build_rooms(log, publisher, declared, refused)
        for part in made.values():
            await part.prepare()
        fact_sources = [part.fact_source for part in made.values() if part.fact_source is not None]
        open_ingest = partial(ingest.open, log, publisher, refused, fact_sources)
        await declared.load()
        await refused.load()
        log.copies.on_replaced(self._read_own)
        adjust = partial(self._adjust_ingest, ingest, open_ingest)
        replication = self.replication = ReplicationServices(
            settings,
            reactor,
            log,
            publisher,
            table=self.table,
            metrics=self.metrics,
            keyring=self.keyring,
            credentials=self.credentials,
            address=listeners.address,
            changed=lambda: self._tasks.start(adjust(), "starting or stopping ingest"),
            resp=listeners.resp,
        )
        self._stops += reversed(replication.stops)
        for stream in self.table:
            replication.files.stream_added(stream)
        declared.subscribers.append(replication.files.stream_added)
        log.copies.on_replaced(publisher.log_replaced)
        log.copies.on_replaced(
            lambda: listeners.close_followers("this replica has joined again: read its streams again")
        )
        log.copies.on_epoch_started(lambda: self._on_epoch_started(log, replication))
        log.copies.on_replaced(replication.files.rebuild)
        if listeners.resp is not None:
            # Imported on use: most daemons have no such port.
            from synrepl.channel.services import ChannelServices

            self._channel = ChannelServices(
                settings,
                reactor,
                log,
                publisher,
                replication,
                table=self.table,
                metrics=self.metrics,
                server=listeners.resp,
            )
        await replication.start()
        self._update_channel()
        if replication.roles.role == PRIMARY:
            # Before the ports open: a source that cannot be opened ends the start.
            open_ingest()
            await self._declare_streams()
        for part in made.values():
            await part.start()
        thread = ReactorThread(reactor, "http work")
        self._stops += [thread.stop, listeners.stop]
        services = self._services = Services(
            log=log,
            publisher=publisher,
            table=self.table,
            metrics=self.metrics,
            clock=reactor,
            settings=settings,
            ingest=ingest,
            is_followed=ingest.is_followed,
            replication=replication,
            files=replication.files,
            write_forwarder=replication.write_forwarder,
            roles=replication.roles,
            relays=replication.relays,
            declared=declared,
            refused=refused,
            thread=thread,
            rooms=made,
        )
        replication.relays.issued.subscribers.append(listeners.recheck)
        await listeners.open(services, replication.relays, self.keyring)
        return log

    async def _open_log(self, ingest: IngestServices) -> Log:
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
            append_refusal=lambda stream, writer: (
                (self.declared.refusal(stream, writer) if self.declared is not None else "")
                or ingest.refusal(stream, writer)
            ),
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

    def _build_rooms(
        self, log: Log, publisher: Publisher, declared: DeclaredStreams, refused: RefusedFacts
    ) -> dict[str, Part]:
        """Make the parts of all rooms that the settings want. Raises `ConfigError`."""
        made: dict[str, Part] = {}
        parts = DaemonParts(
            settings=self.settings,
            reactor=self.reactor,
            table=self.table,
            registry=self.metrics.registry,
            metrics=self.metrics,
            keyring=self.keyring,
            credentials=self.credentials,
            log=log,
            publisher=publisher,
            declared=declared,
            refused=refused,
            listeners=self.listeners,
            rooms=made,
        )
        for room in wanted_rooms(self.settings):
            if (part := room.build(parts)) is not None:
                made[room.name] = part
                self._stops.append(part.stop)
        return made

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
        return not self.settings.upstream and not self.settings.is_named

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

    def _read_own(self) -> None:
        if self.declared is not None:
            self._tasks.start(self.declared.load(), "reading the declared streams")
        if self.refused is not None:
            self._tasks.start(self.refused.load(), "reading the refused facts")

    async def _declare_streams(self) -> None:
        for one in self.settings.streams:
            assert self.declared is not None
            try:
                await self.declared.declare(one)
            except ConfigError as error:
                raise ConfigError(f"cannot declare the configured streams: {error}") from error

    async def _adjust_ingest(self, ingest: IngestServices, open_ingest: Callable[[], None]) -> None:
        """Start ingest on a new primary, and stop it on any other daemon."""
        if self.replication is None:
            return
        self._update_channel()
        try:
            if self.replication.roles.role != PRIMARY:
                await ingest.close()
                return
            open_ingest()
            try:
                if self.ready.called:
                    await self._declare_streams()
            except ReplicationError as error:
                # Such as a declaration unlike that of the former primary, on which followers rely.
                self._logger.error("{why}", why=error)
        except ReplicationError as error:
            self.failure = str(error)
            self._logger.critical("ingest cannot start or stop, the daemon stops: {why}", why=self.failure)
            self._on_failure()

    def _update_channel(self) -> None:
        if self._channel is not None:
            self._channel.update()

    def _stop_channel(self) -> None:
        if self._channel is not None:
            self._channel.stop()

    def _on_epoch_started(self, log: Log, replication: ReplicationServices) -> None:
        """On a replica: disconnect followers if the epoch began with lost facts."""
        epoch_start = log.head.epoch_starts[-1]
        if epoch_start.stream and replication.roles.role == REPLICA:
            self.listeners.history_lost(epoch_start.stream)

    def reload(self, fresh: Settings) -> None:
        """Reload secrets, keys and certificates, and disconnect peers whose key or certificate was revoked.

        Other changed settings need a restart: a log line names them.
        """
        self.keyring.replace(fresh.keyring())
        self.credentials.replace(fresh.credentials())
        self.listeners.reload()
        if self.replication is not None:
            self.replication.addresses.reload()
            self.replication.relays.recheck()
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
        self.replication = self._services = None
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
