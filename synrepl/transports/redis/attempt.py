"""One attempt to connect to Redis."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twisted.internet import defer, error
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, UNIXClientEndpoint
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from synrepl.errors import ConfigError
from synrepl.transports.redis.connections import (
    Lost,
    PublisherConnection,
    RedisConnection,
    SubscriberConnection,
)
from synrepl.transports.redis.errors import (
    TLS_WORDS,
    WITHOUT_A_WORD,
    RedisRefused,
    describe_failure,
    host_and_port,
)
from synrepl.transports.tls import ClientTls, TlsFiles

if TYPE_CHECKING:
    from synrepl.transports.redis.link import RedisLink

__all__ = ["Attempt"]

CONNECT_SECONDS: Final = 10.0
"""Timeout for connecting: TCP, TLS, AUTH and SUBSCRIBE together."""

SENTINEL_SECONDS: Final = 3.0
"""Timeout for one Sentinel, so that an unreachable one does not delay the next."""

C = TypeVar("C", bound=RedisConnection)
Working = TypeVar("Working", bound=SubscriberConnection | PublisherConnection)
T = TypeVar("T")


class Attempt:
    """Opens a connection, or describes the failure. `on_open` is called with every opened connection."""

    _logger = Logger()

    def __init__(self, link: "RedisLink", on_open: Callable[[RedisConnection], None]) -> None:
        self._link = link
        self._on_open = on_open
        self._current: RedisConnection | None = None
        """The connection opened last; there is one at a time."""
        self._tls: ClientTls | None = None
        self._peer = ""

    async def connect(self, connection_type: type[Working]) -> Working:
        """Open a connection and complete its handshake. `describe` explains what this raises."""
        password = self._link.address.password()
        host, port = await self._find_address()
        self._peer = host_and_port(host, port)
        return await self.within(CONNECT_SECONDS, self._greet(connection_type, host, port, password))

    async def open(self, host: str, port: int, connection_type: type[C]) -> C:
        """Open a connection without a handshake. Raises `RedisRefused`."""
        link = self._link
        connections: list[C] = []

        def build() -> C:
            # Kept because an endpoint with TLS returns a wrapper.
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
                self._tls = ClientTls(files, address.server_name or host, TLS_WORDS)
                wrapped = TLSMemoryBIOFactory(self._tls, True, wrapped, link.reactor)
        try:
            await endpoint.connect(wrapped)
        except error.ConnectingCancelledError:
            # Another type, which `addTimeout` does not mistake for its own cancellation.
            raise defer.CancelledError from None
        except (error.ConnectError, error.DNSLookupError) as failed:
            raise RedisRefused(describe_failure(Failure(failed))) from failed
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
        """Describe the failure of this attempt."""
        if failure.check(ConfigError):
            return str(failure.value)
        if failure.check(RedisRefused):
            why = str(failure.value)
        elif failure.check(Lost):
            why = self.describe_loss(failure)
        else:
            if not failure.check(defer.CancelledError):
                self._logger.failure("connecting to {peer} failed", failure, peer=self._link.address.public)
            why = describe_failure(failure)
        return f"{self._peer}: {why}" if self._peer else why

    def describe_loss(self, failure: Failure) -> str:
        """Describe why the last connection was lost; it knows more than the failed command."""
        why = (
            self._tls_why()
            or (self._current.why if self._current is not None else "")
            or describe_failure(failure)
        )
        if why == WITHOUT_A_WORD and self._tls is None and not self._link.address.path:
            return f"{why} (perhaps it requires TLS: use rediss://)"
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
        for sentinel in list(sentinels):
            try:
                master = await self.within(SENTINEL_SECONDS, self._find_at(*sentinel))
            except RedisRefused as failed:
                failures.append(f"{host_and_port(*sentinel)}: {failed}")
                continue
            # The next lookup starts with this Sentinel.
            sentinels.remove(sentinel)
            sentinels.insert(0, sentinel)
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
                raise RedisRefused(f"unknown service {address.service}")
            case [bytes(master_host), bytes(master_port)] if master_port.isdigit():
                return master_host.decode("utf-8", "replace"), int(master_port)
            case _:
                raise RedisRefused("the server is not a Sentinel")

    async def _greet(
        self, connection_type: type[Working], host: str, port: int, password: str | None
    ) -> Working:
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
