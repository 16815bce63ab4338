"""The daemon: everything built from the settings, started in order, stopped in order."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import quoteStringArgument
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.internet.task import deferLater
from twisted.logger import Logger

from synrepl.config import Settings
from synrepl.config import settings as all_settings
from synrepl.daemon.ingest import IngestServices
from synrepl.daemon.replication import ReplicationServices
from synrepl.daemon.write_forwarder import LazyWriteForwarder
from synrepl.errors import ConfigError, ReplicationError, StorageError
from synrepl.ports.metrics import Metrics
from synrepl.ports.tasks import Tasks
from synrepl.replication.addresses import Address
from synrepl.replication.commit_metrics import CommitMetrics
from synrepl.replication.publisher import Publisher
from synrepl.replication.relay import ReplicaRegistry
from synrepl.replication.roles import PRIMARY, REPLICA
from synrepl.storage import Log, ReactorThread, engine_for
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.transports.endpoints import server_endpoint
from synrepl.transports.http.server import make_site
from synrepl.transports.limits import LimitedFactory, connections_of
from synrepl.transports.tcp import MAX_CONNECTIONS, PublisherFactory
from synrepl.wire.dialect import NEWEST
from synrepl.wire.session import Keepalive

if TYPE_CHECKING:
    from synrepl.transports.http.request import ApiSite
    from synrepl.transports.tls import ServerTls

__all__ = ["Daemon"]

EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104  # compared with, not listened at
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
        self.keyring = settings.keyring()
        self.credentials = settings.credentials()
        self.metrics = Metrics(CollectorRegistry())
        self.ports: list[IListeningPort] = []
        self.ready: Deferred[None] = Deferred()
        self.failure = ""
        self.log: Log | None = None
        self.publisher: Publisher | None = None
        self.bringing: IngestServices
        self.copies: ReplicationServices | None = None
        self.passing: LazyWriteForwarder | None = None
        self._reactor = reactor
        self._on_failure = on_failure if on_failure is not None else reactor.stop
        self._tasks = Tasks(self._logger, "daemon")
        self._starting: Deferred[None] | None = None
        self._factories: list[PublisherFactory] = []
        self._site: ApiSite | None = None
        self._tls: list[ServerTls] = []
        self._secured: list[bool] = []
        """Of each port whether it speaks TLS."""

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
            await self._open_copies()
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
        self.bringing = IngestServices(
            self.settings,
            reactor,
            table=self.table,
            metrics=self.metrics,
            credentials=self.credentials,
            lost=self._history_lost,
        )
        log = Log(
            engine,
            ReactorThread(reactor, "log writing"),
            ReactorThread(reactor, "log reading"),
            reactor,
            ephemeral=[stream.name for stream in self.table if stream.ephemeral],
            key_of=self._key_of,
            adopted=self.bringing.followed_streams,
            unordered=[stream.name for stream in self.table if not stream.ordered],
            told_by_all=[stream.name for stream in self.table if stream.told_by_all],
            refuses=self.bringing.refusal,
            server_name=self.settings.server_name,
            logger=Logger(namespace="synrepl.storage"),
        )
        try:
            await log.start()
        except StorageError as error:
            raise _CannotStart(f"the log {self.settings.database}: {error}") from error
        self.log = log
        log.watch(CommitMetrics(self.metrics).committed)
        self.publisher = Publisher(
            log,
            self.table,
            reactor,
            self.metrics,
            instance=self.settings.instance_name,
            ring_bytes=self.settings.reader_bytes,
        )
        self.metrics.send_buffer.set_function(self._unsent_bytes)

    async def _open_copies(self) -> None:
        assert self.log is not None
        assert self.publisher is not None
        if self.settings.snapshot is not None:
            await self._restore(self.log, self.settings.snapshot)
        self.copies = ReplicationServices(
            self.settings,
            self._reactor,
            log=self.log,
            publisher=self.publisher,
            table=self.table,
            metrics=self.metrics,
            keys=self.keyring,
            credentials=self.credentials,
            address=self._own_address,
            changed=self._role_changed,
        )
        self.log.on_replaced(self._history_replaced)
        self.log.on_turned(self._epoch_began)
        self.log.on_replaced(self.copies.files.rebuild)
        self.passing = LazyWriteForwarder(self.log, self._reactor, self.copies, self.credentials)
        await self.copies.start()
        if self.copies.roles.role == PRIMARY:
            # Here, so that what is wrong with them is said before anybody is served.
            self._open_sources()

    async def _restore(self, log: Log, position: str) -> None:
        """Begin with a snapshot, if there is nothing yet."""
        try:
            # Here, as it needs what only the pipeline does.
            from synrepl.daemon.restore import restore
        except ImportError as error:
            raise _CannotStart(f"a snapshot needs pyarrow ({error}): pip install 'synrepl[arrow]'") from error
        await restore(
            log,
            position,
            self._reactor,
            server_name=self.settings.server_name,
            is_replica=self.settings.upstream is not None,
        )

    def _own_address(self) -> Address:
        """Where others reach this daemon: as it says itself, or else where it listens."""
        places = [_reachable(port, self.settings.advertise) for port in self.ports]
        schemes = [("tls", "https") if secured else ("tcp", "http") for secured in self._secured]
        natives = [
            f"{scheme}:{quoteStringArgument(position[0])}:{position[1]}"
            for position, (scheme, _) in zip(places[:-1], schemes, strict=False)
            if position
        ]
        http = ""
        if places and (position := places[-1]) is not None:
            host = f"[{position[0]}]" if ":" in position[0] else position[0]
            http = f"{schemes[-1][1]}://{host}:{position[1]}"
        return Address(native=next(iter(natives), ""), http=http)

    def _role_changed(self) -> None:
        """What brings facts in is there while this daemon is the primary, and only then."""
        if self.publisher is not None and self.copies is not None and self.passing is not None:
            is_replica = self.copies.roles.role == REPLICA
            self.publisher.upstream.elsewhere = self.passing.append if is_replica else None
        self._tasks.start(self._mind_sources(), "starting or stopping what brings facts")

    async def _mind_sources(self) -> None:
        if self.copies is None:
            return
        try:
            if self.copies.roles.role == PRIMARY:
                self._open_sources()
            else:
                await self.bringing.close()
        except ReplicationError as error:
            self._fail(str(error))

    def _open_sources(self) -> None:
        assert self.log is not None
        assert self.publisher is not None
        self.bringing.open(self.log, self.publisher)

    def _fail(self, why: str) -> None:
        self.failure = why
        self._logger.critical("cannot go on: {why}", why=why)
        self._on_failure()

    def _history_replaced(self) -> None:
        assert self.publisher is not None
        self.publisher.replaced()
        for factory in self._factories:
            factory.close("this replica has joined anew: what was told before may not be true")

    def _epoch_began(self) -> None:
        """Where facts were lost followers have what is true no more."""
        assert self.log is not None
        epoch_start = self.log.epoch_starts[-1]
        if epoch_start.stream and self.copies is not None and self.copies.roles.role == REPLICA:
            self._history_lost(epoch_start.stream)

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
        assert self.copies is not None
        keepalive = Keepalive(ping_seconds=settings.ping_seconds, timeout_seconds=settings.timeout_seconds)
        most = connections_of(len(settings.listen) + 1, MAX_CONNECTIONS)
        for description in settings.listen:
            factory = PublisherFactory(
                self.publisher,
                server_name=settings.server_name,
                dialect=settings.dialect,
                clock=self._reactor,
                metrics=self.metrics,
                keepalive=keepalive,
                relays=self._relays,
                keys=self.keyring,
                max_connections=most,
            )
            self._factories.append(factory)
            port = await self._open(description, factory)
            dialect = settings.dialect.name if settings.dialect is not None else "auto"
            self._logger.info(
                "followers: listening at {address}, dialect {dialect}",
                address=_address(port),
                dialect=dialect,
            )
        site = self._site = make_site(
            log=self.log,
            publisher=self.publisher,
            table=self.table,
            bringing=self.bringing,
            copies=self.copies,
            files=self.copies.files,
            max_file=settings.max_file_bytes,
            relaying=self.passing,
            refuses_stale=settings.refuse_stale_reads,
            roles=self.copies.roles,
            relays=self.copies.relays,
            metrics=self.metrics,
            clock=self._reactor,
            instance=settings.instance_name,
            server_name=settings.server_name,
            keys=self.keyring,
            hosts=self._hosts(),
            dialect=settings.dialect,
            max_body=settings.max_body_bytes,
        )
        port = await self._open(settings.http, LimitedFactory(site, most, self._reactor))
        self._logger.info("http: listening at {address}", address=_address(port))

    def _hosts(self) -> list[str]:
        """Names with dots by which clients may reach this daemon over HTTP."""
        advertised = [self.settings.advertise] if self.settings.advertise else []
        return [*(self.settings.allowed_hosts or ()), *advertised]

    def _relays(self) -> ReplicaRegistry:
        assert self.copies is not None
        return self.copies.relays

    async def _open(self, description: str, factory: IProtocolFactory) -> IListeningPort:
        try:
            endpoint = server_endpoint(self._reactor, description)
            port: IListeningPort = await endpoint.listen(factory)
        except (CannotListenError, OSError) as error:
            raise _CannotStart(f"cannot listen at {description}: {_reason(error)}") from error
        self.ports.append(port)
        self._secured.append(hasattr(endpoint, "tls"))
        if (tls := getattr(endpoint, "tls", None)) is not None:
            self._tls.append(tls)
        return port

    # -- while it runs -------------------------------------------------------------------------------------

    def reload(self, fresh: Settings) -> None:
        """Take secrets, keys and certificates as they are now, and let go of peers that have lost theirs.

        Everything else wants a restart, and is named in the log.
        """
        self.keyring.replace(fresh.keyring())
        self.credentials.replace(fresh.credentials())
        for tls in self._tls:
            try:
                tls.reload()
            except ConfigError as error:
                self._logger.error("the old certificates stay in use: {why}", why=str(error))
        for factory in self._factories:
            factory.recheck()
        if self.copies is not None:
            self.copies.relays.recheck()
        if self._site is not None:
            self._site.recheck()
        for warning in fresh.warnings:
            self._logger.warn("{warning}", warning=warning)
        later = [one.flag for one in all_settings() if _differs(one.name, self.settings, fresh)]
        self._logger.info(
            "reloaded secrets, keys, certificates and log files{later}",
            later=f"; a restart is needed for --{', --'.join(later)}" if later else "",
        )

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
        if self.passing is not None:
            passing, self.passing = self.passing, None
            await passing.stop()
        if self.copies is not None:
            copies, self.copies = self.copies, None
            await copies.stop()
        await self.bringing.close()
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


RELOADED: Final = frozenset({"secret_file", "keys_file", "ca_file", "certificate_file", "private_key_file"})


def _differs(name: str, before: Settings, after: Settings) -> bool:
    return name not in RELOADED and bool(getattr(before, name) != getattr(after, name))


class _CannotStart(Exception):
    """Why the daemon cannot start, in words for the operator."""


def _unsent(transport: Any) -> int:
    """What Twisted holds for a socket: it has no public way to ask."""
    held = len(getattr(transport, "dataBuffer", b"")) - getattr(transport, "offset", 0)
    return int(held + getattr(transport, "_tempDataLen", 0))


def _reachable(port: IListeningPort, host: str | None) -> tuple[str, int] | None:
    """Host and port at which others reach this; None for what is no TCP port."""
    address = port.getHost()
    number: int | None = getattr(address, "port", None)
    if number is None:
        return None
    bound = str(getattr(address, "host", ""))
    if host is None:
        host = "127.0.0.1" if bound in EVERYWHERE else bound
    return host, number


def _address(port: IListeningPort) -> str:
    """Where a port listens, as an endpoint string would say it."""
    host = port.getHost()
    number = getattr(host, "port", None)
    if number is None:
        name = getattr(host, "name", None)
        return f"unix:{name.decode() if isinstance(name, bytes) else name}"
    return f"tcp:{quoteStringArgument(getattr(host, 'host', ''))}:{number}"


def _reason(error: Exception) -> str:
    """The system's words, without the numbers around them."""
    cause = getattr(error, "socketError", error)
    return getattr(cause, "strerror", None) or str(cause)
