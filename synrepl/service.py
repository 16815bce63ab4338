"""The daemon: everything built from the settings, started in order, stopped in order."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.internet.task import deferLater
from twisted.logger import Logger

from synrepl.config import Settings
from synrepl.errors import ReplicationError, StorageError
from synrepl.ports.metrics import Metrics
from synrepl.ports.tasks import Tasks
from synrepl.replication.observing import Observer
from synrepl.replication.publisher import Publisher
from synrepl.storage import Log, ReactorThread, engine_for
from synrepl.streams.declare import Stream
from synrepl.streams.table import StreamTable
from synrepl.transports.http.server import make_site
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.dialect import NEWEST
from synrepl.wire.session import Keepalive

if TYPE_CHECKING:
    from synrepl.hearing import Sources
    from synrepl.replication.writes import Writing
    from synrepl.storage.ids.writers import WriterState
    from synrepl.storage.tables.layout import TableStream
    from synrepl.storage.tables.source import TableSource
    from synrepl.storage.wakeups import Wakeups

__all__ = ["Daemon"]

POLL_SECONDS: Final = 1.0
"""How often tables are looked at although nobody said that they changed."""

FAREWELL_SECONDS: Final = 2.0
"""How long followers are given to take the last they are sent, when the daemon stops."""


class Daemon(Service):
    """Keeps the log and serves it, from `startService` to `stopService`.

    `ready` fires once everything listens; `ports` are then the listening ports, those of followers in the
    order of the settings, then HTTP. When it cannot start it says why in one line, lets go of what it had,
    keeps the reason in `failure`, and calls `on_failure`.
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
    ) -> None:
        self.settings = settings
        self.table = table if table is not None else StreamTable.default()
        self.metrics = Metrics(CollectorRegistry())
        self.ports: list[IListeningPort] = []
        self.ready: Deferred[None] = Deferred()
        self.failure = ""
        self.log: Log | None = None
        self.publisher: Publisher | None = None
        self.tables: TableSource | None = None
        self.sources: Sources | None = None
        self._wakeups: Wakeups | None = None
        self._writing: Writing | None = None
        self._reactor = reactor
        self._on_failure = on_failure if on_failure is not None else reactor.stop
        self._tasks = Tasks(self._logger, "daemon")
        self._starting: Deferred[None] | None = None
        self._factories: list[PublisherFactory] = []

    def startService(self) -> None:
        super().startService()
        for warning in self.settings.warnings:
            self._logger.warn("{warning}", warning=warning)
        self._starting = self._tasks.start(self._start(), "starting")

    def stopService(self) -> "Deferred[None]":
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    # -- starting ------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        try:
            await self._open_log()
            self._open_tables()
            self._open_sources()
            await self._listen()
        except _CannotStart as error:
            self.failure = str(error)
        except ReplicationError as error:
            self.failure = str(error)
        except BaseException as error:
            self._logger.failure("a fault in starting")
            self.failure = f"unexpected {type(error).__name__}: {error}"
        if self.failure:
            self._logger.critical("cannot start: {why}", why=self.failure)
            await self._close()
            self._on_failure()
        elif self.running:
            assert self.log is not None
            self._logger.info(
                "ready: {server} as {instance}, epoch {epoch}, serial {serial}",
                server=self.settings.server_name,
                instance=self.settings.instance_name,
                epoch=self.log.epoch,
                serial=self.log.serial,
            )
            self.ready.callback(None)

    async def _open_log(self) -> None:
        reactor = self._reactor
        try:
            engine = engine_for(self.settings.database)
        except StorageError as error:
            raise _CannotStart(f"the log: {error}") from error
        settings = self.settings
        if settings.redis is not None or settings.follow:
            # Here, so that a daemon that hears nobody need not have all of this in memory.
            from synrepl.replication.writes import Writing

            self._writing = Writing(
                settings.redis_writes,
                instance=settings.instance_name,
                table=self.table,
                tables=[one.stream for one in self._followed_tables()],
            )
        log = Log(
            engine,
            ReactorThread(reactor, "log writing"),
            ReactorThread(reactor, "log reading"),
            reactor,
            ephemeral=[stream.name for stream in self.table if stream.ephemeral],
            key_of=self._key_of,
            adopted=[one.stream for one in self._followed_tables()],
            unordered=[stream.name for stream in self.table if not stream.ordered],
            told_by_all=[stream.name for stream in self.table if stream.told_by_all],
            refuses=self._refuses,
            logger=Logger(namespace="synrepl.storage"),
        )
        try:
            await log.start()
        except StorageError as error:
            raise _CannotStart(f"the log {self.settings.database}: {error}") from error
        self.log = log
        log.watch(Observer(self.metrics).committed)
        self.publisher = Publisher(
            log,
            self.table,
            reactor,
            self.metrics,
            instance=self.settings.instance_name,
            ring_bytes=self.settings.reader_bytes,
        )
        self.metrics.send_buffer.set_function(self._unsent_bytes)

    def _refuses(self, stream: str, writer: str) -> str:
        """Why a fact cannot be posted here, if others bring the facts of its stream."""
        if self._writing is None:
            return ""
        assert self.log is not None
        if self.sources is not None and (why := self.sources.refusal(stream, writer)):
            return why
        return self._writing.refusal(self.log, stream, writer)

    def _followed_tables(self) -> "list[TableStream]":
        """The tables whose facts are taken in, not only what was missed of them.

        Of a stream that is also told on Redis, those of the writers that this process tells: real writers
        store no positions of some streams, so that only they can say how far they are.
        """
        followed = [one for one in self.settings.table_streams if not one.for_catch_up]
        if self.settings.redis is None:
            return followed
        return [msgspec.structs.replace(one, only=self._told_from(one.stream)) for one in followed]

    def _told_from(self, stream: str) -> tuple[str, ...]:
        instance = self.settings.instance_name
        return tuple(one.writer or instance for one in self.settings.redis_writes if one.stream == stream)

    def _open_tables(self) -> None:
        """Follow the tables that the settings name, if they name any."""
        settings = self.settings
        followed = self._followed_tables()
        if not followed:
            return
        # Here, so that a daemon without tables need not have all of this in memory.
        from synrepl.storage.databases import Database
        from synrepl.storage.ids.generator import CHANNEL
        from synrepl.storage.tables.source import TableSource
        from synrepl.storage.wakeups import Wakeups

        assert self.log is not None
        for one in followed:
            if one.stream not in self.table or self.table[one.stream].ephemeral:
                raise _CannotStart(f"table_streams: {one.stream} is no stream that can be kept")
        url = settings.tables_database or settings.database
        try:
            database = Database(url, what="synrepl-tables")
        except ReplicationError as error:
            raise _CannotStart(f"the tables: {error}") from error
        self.tables = TableSource(
            database.connect,
            followed,
            flavor=database.flavor,
            log=self.log,
            table=self.table,
            clock=self._reactor,
            thread=ReactorThread(self._reactor, "tables"),
            writers_told=self._writers_told,
            lost=self._history_lost,
        )
        self.tables.start()
        if database.flavor == "postgresql":
            self._wakeups = Wakeups(self._reactor, url, CHANNEL, self.tables.wake, POLL_SECONDS)
            self._wakeups.start()

    def _open_sources(self) -> None:
        """Hear what the settings name, if they name anything."""
        if self._writing is None:
            return
        from synrepl.hearing import Sources

        assert self.log is not None
        assert self.publisher is not None
        self.sources = Sources(
            self.settings,
            self._reactor,
            log=self.log,
            publisher=self.publisher,
            table=self.table,
            metrics=self.metrics,
            writing=self._writing,
            tables=[one.stream for one in self._followed_tables() if not one.only],
            lost=self._history_lost,
        )
        self.sources.start()

    def _writers_told(self, states: "Sequence[WriterState]") -> None:
        now = self._reactor.seconds()
        for state in states:
            age = 0.0 if state.oldest_since is None else max(0.0, now - state.oldest_since)
            self.metrics.oldest_unfinished_id_age.labels(state.stream, state.writer).set(age)

    def _history_lost(self, stream: str) -> None:
        """Followers have what is true no more: they connect again, are told where the stream stands, and read
        it again.
        """
        for factory in self._factories:
            factory.close(f"history of {stream} was lost, a new epoch has begun")

    async def _listen(self) -> None:
        settings = self.settings
        assert self.log is not None
        assert self.publisher is not None
        keepalive = Keepalive(ping_seconds=settings.ping_seconds, timeout_seconds=settings.timeout_seconds)
        for description in settings.listen:
            factory = PublisherFactory(
                self.publisher,
                server_name=settings.server_name,
                dialect=settings.dialect,
                clock=self._reactor,
                metrics=self.metrics,
                keepalive=keepalive,
            )
            self._factories.append(factory)
            port = await self._open(description, factory)
            dialect = settings.dialect.name if settings.dialect is not None else "auto"
            self._logger.info(
                "followers: listening at {address}, dialect {dialect}",
                address=_address(port),
                dialect=dialect,
            )
        site = make_site(
            log=self.log,
            publisher=self.publisher,
            table=self.table,
            tables=self.tables,
            sources=self.sources,
            metrics=self.metrics,
            clock=self._reactor,
            instance=settings.instance_name,
            server_name=settings.server_name,
            secret=settings.secret,
            dialect=settings.dialect,
            max_body=settings.max_body_bytes,
        )
        port = await self._open(settings.http, site)
        self._logger.info("http: listening at {address}", address=_address(port))

    async def _open(self, description: str, factory: IProtocolFactory) -> IListeningPort:
        try:
            port: IListeningPort = await serverFromString(self._reactor, description).listen(factory)
        except (CannotListenError, OSError) as error:
            raise _CannotStart(f"cannot listen at {description}: {_reason(error)}") from error
        self.ports.append(port)
        return port

    def _key_of(self, stream: str, row: bytes) -> Any:
        declared: Stream[Any] | None = self.table.get(stream)
        if declared is None or declared.key is None:
            return None
        return declared.key(declared.decode(row, NEWEST))

    # -- stopping ------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        if self._starting is not None:
            # It ends by itself, soon; half a start is not to be undone under its feet.
            await self._starting
        await self._close()

    async def _close(self) -> None:
        """Let go of everything: who comes first, who is there, what is under way, the log."""
        ports, self.ports = self.ports, []
        for port in ports:
            stopped = port.stopListening()
            if stopped is not None:
                await stopped
        for factory in self._factories:
            factory.close("server shutting down")
        if self._wakeups is not None:
            wakeups, self._wakeups = self._wakeups, None
            await wakeups.stop()
        if self.sources is not None:
            sources, self.sources = self.sources, None
            await sources.stop()
        if self.tables is not None:
            tables, self.tables = self.tables, None
            await tables.stop()
        if self.publisher is not None:
            self.publisher.stop()
            self.publisher = None
        if self.log is not None:
            log, self.log = self.log, None
            await log.stop()
        until = self._reactor.seconds() + FAREWELL_SECONDS
        while any(self._protocols()) and self._reactor.seconds() < until:
            await deferLater(self._reactor, 0.01)
        self._factories = []

    # -- what to know about it -----------------------------------------------------------------------------

    def _protocols(self) -> Iterable[Any]:
        for factory in self._factories:
            yield from factory.protocols

    def _unsent_bytes(self) -> int:
        """Bytes that wait in the transports of followers."""
        return sum(_unsent(protocol.transport) for protocol in self._protocols())


class _CannotStart(Exception):
    """Why the daemon cannot start, in words for the operator."""


def _unsent(transport: Any) -> int:
    """What Twisted holds for a socket: it has no public way to ask."""
    held = len(getattr(transport, "dataBuffer", b"")) - getattr(transport, "offset", 0)
    return int(held + getattr(transport, "_tempDataLen", 0))


def _address(port: IListeningPort) -> str:
    """Where a port listens, as an endpoint string would say it."""
    host = port.getHost()
    number = getattr(host, "port", None)
    if number is None:
        name = getattr(host, "name", None)
        return f"unix:{name.decode() if isinstance(name, bytes) else name}"
    return f"tcp:{getattr(host, 'host', '')}:{number}"


def _reason(error: Exception) -> str:
    """The system's words, without the numbers around them."""
    cause = getattr(error, "socketError", error)
    return getattr(cause, "strerror", None) or str(cause)
