"""The daemon: builds every part from the settings, starts them in order and stops them in order."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import quoteStringArgument
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.logger import Logger

from synrepl.config import Settings
from synrepl.config import settings as all_settings
from synrepl.daemon.ingest import IngestServices
from synrepl.daemon.replication import ReplicationServices
from synrepl.errors import ConfigError, ReplicationError, StorageError
from synrepl.ports.metrics import CommitMetrics, Metrics
from synrepl.ports.tasks import Tasks
from synrepl.ports.time import sleep
from synrepl.replication.addresses import Address
from synrepl.replication.publisher import Publisher
from synrepl.replication.relay import ReplicaRegistry
from synrepl.replication.roles import PRIMARY, REPLICA
from synrepl.storage import Log, ReactorThread, engine_for
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.transports.endpoints import server_endpoint
from synrepl.transports.http.server import Services, make_site
from synrepl.transports.limits import LimitedFactory, connection_limit
from synrepl.transports.tcp import MAX_CONNECTIONS, PublisherFactory
from synrepl.wire.dialect import NEWEST

if TYPE_CHECKING:
    from synrepl.transports.http.request import ApiSite
    from synrepl.transports.tls import ServerTls

__all__ = ["Daemon"]

EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104  # compared with, not listened at
FAREWELL_SECONDS: Final = 2.0
"""How long a stopping daemon waits for followers to receive what was sent to them."""


class Daemon(Service):
    """Keeps the log and serves it, from `startService` to `stopService`.

    `ready` fires once every port listens. `ports` are the listening ports: those for followers in the order
    of the settings, then HTTP. A daemon that cannot start logs the reason in one line, keeps it in `failure`,
    closes what it had opened, and calls `on_failure`.
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
        self.ingest: IngestServices
        self.replication: ReplicationServices | None = None
        self._reactor = reactor
        self._on_failure = on_failure if on_failure is not None else reactor.stop
        self._tasks = Tasks(self._logger, "daemon")
        self._starting: Deferred[None] | None = None
        self._factories: list[PublisherFactory] = []
        self._site: ApiSite | None = None
        self._tls: list[ServerTls] = []
        self._secured: list[bool] = []
        """For each of `ports`: whether it speaks TLS."""

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
            await self._open_replication()
            await self._listen()
        except _CannotStart as error:
            self.failure = str(error)
        except ReplicationError as error:
            self.failure = str(error)
        except BaseException as error:
            self._logger.failure("unexpected error while starting")
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
        self.ingest = IngestServices(
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
            assigned=self.ingest.followed_streams,
            unordered=[stream.name for stream in self.table if not stream.ordered],
            any_writer=[stream.name for stream in self.table if stream.any_writer],
            append_refusal=self.ingest.refusal,
            server_name=self.settings.server_name,
            logger=Logger(namespace="synrepl.storage"),
        )
        try:
            await log.start()
        except StorageError as error:
            raise _CannotStart(f"the log {self.settings.database}: {error}") from error
        self.log = log
        log.subscribe(CommitMetrics(self.metrics).committed)
        self.publisher = Publisher(
            log,
            self.table,
            reactor,
            self.metrics,
            instance=self.settings.instance_name,
            ring_bytes=self.settings.reader_bytes,
        )
        self.metrics.send_buffer.set_function(self._unsent_bytes)

    async def _open_replication(self) -> None:
        assert self.log is not None
        assert self.publisher is not None
        if self.settings.snapshot is not None:
            await self._restore(self.log, self.settings.snapshot)
        self.replication = ReplicationServices(
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
        self.log.on_epoch_started(self._epoch_began)
        self.log.on_replaced(self.replication.files.rebuild)
        await self.replication.start()
        if self.replication.roles.role == PRIMARY:
            # Before the ports open: a bad source must stop the start.
            self._open_ingest()

    async def _restore(self, log: Log, location: str) -> None:
        """Restore the snapshot that the settings name, if the log is empty."""
        try:
            # Imported on use: it needs the pipeline's libraries.
            from synrepl.daemon.restore import restore_snapshot
        except ImportError as error:
            raise _CannotStart(f"a snapshot needs pyarrow ({error}): pip install 'synrepl[arrow]'") from error
        await restore_snapshot(
            log,
            location,
            self._reactor,
            server_name=self.settings.server_name,
            is_replica=self.settings.upstream is not None,
        )

    def _own_address(self) -> Address:
        """The address that other daemons use: the advertised host, or else the listening one."""
        reachable = [_reachable(port, self.settings.advertise) for port in self.ports]
        schemes = [("tls", "https") if secured else ("tcp", "http") for secured in self._secured]
        natives = [
            f"{scheme}:{quoteStringArgument(target[0])}:{target[1]}"
            for target, (scheme, _) in zip(reachable[:-1], schemes, strict=False)
            if target
        ]
        http = ""
        if reachable and (target := reachable[-1]) is not None:
            host = f"[{target[0]}]" if ":" in target[0] else target[0]
            http = f"{schemes[-1][1]}://{host}:{target[1]}"
        return Address(native=next(iter(natives), ""), http=http)

    def _role_changed(self) -> None:
        """Start ingest on a new primary, and stop it on any other daemon."""
        self._tasks.start(self._adjust_ingest(), "starting or stopping ingest")

    async def _adjust_ingest(self) -> None:
        if self.replication is None:
            return
        try:
            if self.replication.roles.role == PRIMARY:
                self._open_ingest()
            else:
                await self.ingest.close()
        except ReplicationError as error:
            self._fail(str(error))

    def _open_ingest(self) -> None:
        assert self.log is not None
        assert self.publisher is not None
        self.ingest.open(self.log, self.publisher)

    def _fail(self, why: str) -> None:
        self.failure = why
        self._logger.critical("stopping after a failure: {why}", why=why)
        self._on_failure()

    def _history_replaced(self) -> None:
        assert self.publisher is not None
        self.publisher.log_replaced()
        for factory in self._factories:
            factory.close("this replica has joined again: read its streams again")

    def _epoch_began(self) -> None:
        """On a replica: disconnect followers if the epoch began with lost facts."""
        assert self.log is not None
        epoch_start = self.log.epoch_starts[-1]
        if epoch_start.stream and self.replication is not None and self.replication.roles.role == REPLICA:
            self._history_lost(epoch_start.stream)

    def _history_lost(self, stream: str) -> None:
        """Followers hold facts that this log has discarded. Disconnect them: after the reconnect they receive
        the new position of the stream, and read it again.
        """
        for factory in self._factories:
            factory.close(f"history of {stream} was lost, a new epoch has begun")

    async def _listen(self) -> None:
        settings = self.settings
        assert self.log is not None
        assert self.publisher is not None
        assert self.replication is not None
        most = connection_limit(len(settings.listen) + 1, MAX_CONNECTIONS)
        for description in settings.listen:
            factory = PublisherFactory(
                self.publisher,
                server_name=settings.server_name,
                dialect=settings.dialect,
                clock=self._reactor,
                metrics=self.metrics,
                keepalive=settings.keepalive,
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
            Services(
                log=self.log,
                publisher=self.publisher,
                table=self.table,
                metrics=self.metrics,
                clock=self._reactor,
                settings=settings,
                ingest=self.ingest,
                is_followed=self.ingest.is_followed,
                replication=self.replication,
                files=self.replication.files,
                write_forwarder=self.replication.write_forwarder,
                roles=self.replication.roles,
                relays=self.replication.relays,
            ),
            keys=self.keyring,
        )
        port = await self._open(settings.http, LimitedFactory(site, most, self._reactor))
        self._logger.info("http: listening at {address}", address=_address(port))

    def _relays(self) -> ReplicaRegistry:
        assert self.replication is not None
        return self.replication.relays

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
        """Reload secrets, keys and certificates, and disconnect peers whose key or certificate is gone.

        Other changed settings need a restart. The log names them.
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
        if self.replication is not None:
            self.replication.relays.recheck()
        if self._site is not None:
            self._site.recheck()
        for warning in fresh.warnings:
            self._logger.warn("{warning}", warning=warning)
        later = [one.flag for one in all_settings() if _differs(one.name, self.settings, fresh)]
        self._logger.info(
            "reloaded secrets, keys and certificates; reopened log files{later}",
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
            # A start ends soon. Closing its parts while it opens them would race.
            await self._starting
        await self._close()

    async def _close(self) -> None:
        """Shut down in order: ports, connections, replication, ingest, the log."""
        ports, self.ports = self.ports, []
        for port in ports:
            stopped = port.stopListening()
            if stopped is not None:
                await stopped
        for factory in self._factories:
            factory.close("server shutting down")
        if self.replication is not None:
            replication, self.replication = self.replication, None
            await replication.stop()
        await self.ingest.close()
        if self.publisher is not None:
            self.publisher.stop()
            self.publisher = None
        if self.log is not None:
            log, self.log = self.log, None
            await log.stop()
        until = self._reactor.seconds() + FAREWELL_SECONDS
        while any(self._protocols()) and self._reactor.seconds() < until:
            await sleep(self._reactor, 0.01)
        self._factories = []

    # -- numbers -------------------------------------------------------------------------------------------

    def _protocols(self) -> Iterable[Any]:
        for factory in self._factories:
            yield from factory.protocols

    def _unsent_bytes(self) -> int:
        """Bytes in the send buffers of followers."""
        return sum(_unsent(protocol.transport) for protocol in self._protocols())


RELOADED: Final = frozenset({"secret_file", "keys_file", "ca_file", "certificate_file", "private_key_file"})


def _differs(name: str, before: Settings, after: Settings) -> bool:
    return name not in RELOADED and bool(getattr(before, name) != getattr(after, name))


class _CannotStart(Exception):
    """The daemon cannot start; the text is for the operator."""


def _unsent(transport: Any) -> int:
    """Bytes in the send buffer of a Twisted transport, which has no public attribute for them."""
    held = len(getattr(transport, "dataBuffer", b"")) - getattr(transport, "offset", 0)
    return int(held + getattr(transport, "_tempDataLen", 0))


def _reachable(port: IListeningPort, host: str | None) -> tuple[str, int] | None:
    """Host and port for other machines; None if this is no TCP port."""
    address = port.getHost()
    number: int | None = getattr(address, "port", None)
    if number is None:
        return None
    bound = str(getattr(address, "host", ""))
    if host is None:
        host = "127.0.0.1" if bound in EVERYWHERE else bound
    return host, number


def _address(port: IListeningPort) -> str:
    """The endpoint string of a listening port."""
    host = port.getHost()
    number = getattr(host, "port", None)
    if number is None:
        name = getattr(host, "name", None)
        return f"unix:{name.decode() if isinstance(name, bytes) else name}"
    return f"tcp:{quoteStringArgument(getattr(host, 'host', ''))}:{number}"


def _reason(error: Exception) -> str:
    """The operating system's message, without the error number."""
    cause = getattr(error, "socketError", error)
    return getattr(cause, "strerror", None) or str(cause)
