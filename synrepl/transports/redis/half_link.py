"""One of the two connections to Redis: attempts to connect, and reconnecting."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from twisted.internet import defer, error
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, UNIXClientEndpoint
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from synrepl.base.time import Backoff, Timer, doubling
from synrepl.errors import ConfigError
from synrepl.transports.redis.connections import (
    WITHOUT_A_WORD,
    Lost,
    PublisherConnection,
    QueryConnection,
    RedisConnection,
    RedisRefused,
    SubscriberConnection,
    describe_redis_failure,
    tls_words,
)
from synrepl.transports.tls import ClientTls, TlsFiles
from synrepl.wire.text import printable

if TYPE_CHECKING:
    from synrepl.transports.redis.link import RedisChannels

CONNECT_SECONDS: Final = 10.0
"""Timeout for connecting: TCP, TLS, AUTH and SUBSCRIBE together."""
SENTINEL_SECONDS: Final = 3.0
"""Timeout for one Sentinel, so that an unreachable one does not delay the next."""
FIRST_DELAY_SECONDS: Final = 0.2
LAST_DELAY_SECONDS: Final = 5.0
STABLE_SECONDS: Final = 5.0
"""A connection that has received data for this time is stable: its loss resets the backoff."""
STOP_SECONDS: Final = 5.0
"""Time between our close and the abort of the connection, for a peer that does not read the rest."""

C = TypeVar("C", bound=RedisConnection)
Working = TypeVar("Working", bound=SubscriberConnection | PublisherConnection)
Greeting = TypeVar("Greeting", bound=SubscriberConnection | PublisherConnection | QueryConnection)
T = TypeVar("T")


class _Attempt:
    """Opens a connection, or describes the failure. `on_open` is called with every opened connection."""

    _logger = Logger()

    def __init__(self, link: "RedisChannels", on_open: Callable[[RedisConnection], None]) -> None:
        self._link = link
        self._on_open = on_open
        self._current: RedisConnection | None = None
        """The connection opened last; there is one at a time."""
        self._tls: ClientTls | None = None
        self._peer = ""

    async def connect(self, connection_type: type[Greeting]) -> Greeting:
        """Open a connection and complete its handshake. `describe` explains what this raises."""
        password = self._link.address.password()
        host, port = await self._find_address()
        # The host may be of another program's configuration, where somebody wrote a URL with a password.
        self._peer = printable(f"{host.rpartition('@')[2]}:{port}" if port else host)
        return await self.within(CONNECT_SECONDS, self._greet(connection_type, host, port, password))

    async def open(self, host: str, port: int, connection_type: type[C]) -> C:
        """Open a connection without a handshake. Raises `RedisRefused`."""
        link = self._link
        connections: list[C] = []

        def build() -> C:
            # The connection is kept here, because an endpoint with TLS returns a wrapper.
            connections.append(connection_type(link))
            self._current = connections[0]
            self._on_open(connections[0])
            return connections[0]

        plain = Factory.forProtocol(build)
        plain.noisy = False
        wrapped: IProtocolFactory = plain
        endpoint: IStreamClientEndpoint
        if link.endpoint is not None:
            endpoint = link.endpoint(host, port)
        elif not port:
            endpoint = UNIXClientEndpoint(link.reactor, host, timeout=CONNECT_SECONDS)
        else:
            endpoint = HostnameEndpoint(link.reactor, host, port, timeout=CONNECT_SECONDS)
            if link.address.tls:
                address = link.address
                files = TlsFiles(
                    ca_file=address.ca_file, cert_file=address.cert_file, key_file=address.key_file
                )
                self._tls = ClientTls(files, address.server_name or host, tls_words(address.words))
                wrapped = TLSMemoryBIOFactory(self._tls, True, wrapped, link.reactor)
        try:
            await endpoint.connect(wrapped)
        except error.ConnectingCancelledError:
            # `addTimeout` recognizes its own cancellation by this type.
            raise defer.CancelledError from None
        except (error.ConnectError, error.DNSLookupError) as failed:
            raise RedisRefused(describe_redis_failure(Failure(failed), link.address.words)) from failed
        except ValueError as invalid:
            # Twisted's endpoint refuses a text that can be no name, and quotes it.
            self._peer = ""
            raise RedisRefused("its host is not the name of a host") from invalid
        if port and (set_no_delay := getattr(connections[0].transport, "setTcpNoDelay", None)):
            set_no_delay(True)
        return connections[0]

    async def within(self, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine. Raises `RedisRefused` after the timeout."""
        try:
            return await Deferred.fromCoroutine(coroutine).addTimeout(seconds, self._link.reactor)
        except defer.TimeoutError:
            is_tls_working = self._tls is None or self._tls.saw_certificate
            hint = "" if is_tls_working else " (perhaps it does not speak TLS)"
            raise RedisRefused(self._tls_why() or f"no answer within {seconds:g} seconds{hint}") from None

    def describe(self, failure: Failure) -> str:
        if failure.check(ConfigError):
            return str(failure.value)
        if failure.check(RedisRefused):
            why = str(failure.value)
        elif failure.check(Lost):
            why = self.describe_loss(failure)
        else:
            if not failure.check(defer.CancelledError):
                self._logger.failure("connecting to {peer} failed", failure, peer=self._link.address.public)
            why = describe_redis_failure(failure, self._link.address.words)
        return f"{self._peer}: {why}" if self._peer else why

    def describe_loss(self, failure: Failure) -> str:
        """Describe why the last connection was lost; the connection may know more than `failure` tells."""
        why = (
            self._tls_why()
            or (self._current.why if self._current is not None else "")
            or describe_redis_failure(failure, self._link.address.words)
        )
        if why == WITHOUT_A_WORD and self._tls is None and not self._link.address.path:
            return f"{why} (perhaps it requires TLS: {self._link.address.words.use_tls})"
        return why

    async def _find_address(self) -> tuple[str, int]:
        """Return the host and port; of a socket, its path and 0. Raises `RedisRefused`."""
        address = self._link.address
        if address.service:
            return await self._find_master()
        return (address.path, 0) if address.path else address.hosts[0]

    async def _find_master(self) -> tuple[str, int]:
        """Ask the Sentinels in order. Raises `RedisRefused` if none knows the master."""
        failures = []
        sentinels = self._link.sentinels
        for host, port in list(sentinels):
            try:
                master = await self.within(SENTINEL_SECONDS, self._find_at(host, port))
            except RedisRefused as failed:
                failures.append(f"{host}:{port}: {failed}")
                continue
            # The next lookup starts with this Sentinel.
            sentinels.remove((host, port))
            sentinels.insert(0, (host, port))
            return master
        raise RedisRefused(f"no Sentinel knows the master: {'; '.join(failures)}")

    async def _find_at(self, host: str, port: int) -> tuple[str, int]:
        address = self._link.address
        password = address.sentinel_password()
        try:
            connection = await self.open(host, port, RedisConnection)
            await connection.log_in("", password)
            reply = await connection.run_command("SENTINEL", "get-master-addr-by-name", address.service)
        except Lost as lost:
            raise RedisRefused(self.describe_loss(Failure(lost))) from None
        finally:
            if self._current is not None:
                self._current.end("closed by this process")
        match reply:
            case None:
                raise RedisRefused(f"it does not know the service {address.service}")
            case [bytes(master_host), bytes(master_port)] if master_port.isdigit():
                return master_host.decode("utf-8", "replace"), int(master_port)
            case _:
                raise RedisRefused("the server is not a Sentinel")

    async def _greet(
        self, connection_type: type[Greeting], host: str, port: int, password: str | None
    ) -> Greeting:
        connection = await self.open(host, port, connection_type)
        await connection.log_in(self._link.address.username, password)
        await connection.set_name(f"synrepl:{self._link.instance}:{connection_type.role}")
        if self._link.sentinels:
            # The server may have been demoted since the Sentinel was updated.
            role = await connection.run_command("ROLE")
            if role[0] != b"master":
                raise RedisRefused(f"this server is not the master but a {role[0].decode()}")
        await connection.greet()
        return connection

    def _tls_why(self) -> str:
        return self._tls.why if self._tls is not None else ""


async def query(link: "RedisChannels", *words: str) -> Any:
    """Run one command over a connection of its own, and return the reply. Raises `RedisRefused`."""
    attempt = _Attempt(link, lambda _: None)
    connecting = Deferred.fromCoroutine(attempt.connect(QueryConnection))
    try:
        connection = await connecting
    except Exception as error:
        raise RedisRefused(attempt.describe(Failure(error))) from error
    try:
        return await attempt.within(CONNECT_SECONDS, connection.run_command(*words))
    except RedisRefused:
        raise
    except Exception as error:
        # Of txredisapi, which has several for a connection that ends.
        raise RedisRefused(attempt.describe(Failure(error))) from error
    finally:
        connection.end("closed by this process")


class HalfLink(Generic[Working]):
    """Keeps one of the two connections open; reconnects with backoff.

    This is not a ReconnectingClientFactory: the address is resolved again for each attempt, and the backoff
    resets when a follower has applied a POSITION, or a stable connection is lost, not when a socket opens.
    """

    def __init__(self, link: "RedisChannels", connection_type: type[Working]) -> None:
        self.current: Working | None = None
        """The connection, if it is established."""
        self.why = ""
        self._link = link
        self._connection_type = connection_type
        self._clock = link.clock
        self._open: set[RedisConnection] = set()
        """Every open connection in any state; each attempt has one at a time."""
        self._connecting: Deferred[None] | None = None
        self._timer = Timer(link.clock, self._connect_once)
        # Jitter: otherwise all processes would reconnect at once to a restarted Redis.
        self._backoff = Backoff(
            doubling(FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS), jitter=lambda: link.chance.uniform(0.5, 1.0)
        )
        self._connects = 0
        self._connected_at = 0.0
        self._stopped = True
        self._close_waiters: list[Deferred[None]] = []

    def start(self) -> None:
        """Start to connect."""
        if self._stopped:
            self._stopped = False
            self._backoff.reset()
            self._connect_once()

    def stop(self) -> "Deferred[None]":
        """Close all connections and stop reconnecting. Fires when they are closed."""
        self._stopped = True
        self._timer.stop()
        if self._connecting is not None:
            self._connecting.cancel()
        abort_timer = None
        for connection in list(self._open):
            if isinstance(connection, PublisherConnection) and connection.is_up:
                connection.close()
                abort_timer = Timer(self._clock, connection.transport.abortConnection)
                abort_timer.start(STOP_SECONDS)
            else:
                connection.end("closed by this process")
        self.current = None
        if not self._open:
            return defer.succeed(None)
        closed: Deferred[None] = Deferred()
        if abort_timer is not None:
            closed.addCallback(lambda _: abort_timer.stop())
        self._close_waiters.append(closed)
        return closed

    def drop(self, why: str) -> None:
        """Abort all connections. After a delay this half connects again, unless it is stopped."""
        for connection in list(self._open):
            connection.end(why)

    def reset_delay(self) -> None:
        """Reset the backoff: the connection works."""
        if self.current is not None:
            self._backoff.reset()

    def _connect_once(self) -> None:
        attempt = _Attempt(self._link, self._on_open)
        connecting = Deferred.fromCoroutine(attempt.connect(self._connection_type))
        self._connecting = connecting.addCallback(self._on_connected).addErrback(self._failed, attempt)

    def _on_open(self, connection: RedisConnection) -> None:
        connection.on_lost = self._lost
        self._open.add(connection)

    def _on_connected(self, connection: Working) -> None:
        self._connecting = None
        self.current = connection
        self.why = ""
        self._connected_at = self._clock.seconds()
        self._connects += 1
        self._link.changed(again=self._connects > 1)
        connection.start_watching()
        connection.report_up()

    def _failed(self, failure: Failure, attempt: _Attempt) -> None:
        self._connecting = None
        why = attempt.describe(failure)
        for connection in list(self._open):
            connection.end(why)
        # If the member raised in `report_up`, `_lost` handles the rest.
        if self._stopped or self.current is not None:
            return
        self.why = why
        self._retry()
        self._link.member.unreachable(why)

    def _lost(self, connection: RedisConnection) -> None:
        self._open.discard(connection)
        current = self.current
        if current is not None and connection is current:
            self.current = None
            self.why = connection.why
            if connection.received_at - self._connected_at >= STABLE_SECONDS:
                self._backoff.reset()
            if not self._stopped:
                self._link.changed()
                # Retry first, so that an error of the member does not prevent it.
                self._retry()
                current.report_down()
        if not self._open:
            waiters, self._close_waiters = self._close_waiters, []
            for waiter in waiters:
                waiter.callback(None)

    def _retry(self) -> None:
        self._timer.restart(self._backoff.next())
