"""One try to connect to Redis."""

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

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
from synrepl.transports.redis.errors import TLS_WORDS, WITHOUT_A_WORD, RedisRefused, host_and_port, told
from synrepl.transports.redis.interfaces import IRedisLink
from synrepl.transports.tls import ClientTls, TlsFiles

__all__ = ["Attempt"]

CONNECT_SECONDS: Final = 10.0
"""What connecting may take, all of it: TCP, TLS, AUTH and SUBSCRIBE."""

C = TypeVar("C", bound=RedisConnection)
Working = TypeVar("Working", bound=SubscriberConnection | PublisherConnection)
T = TypeVar("T")


class Attempt:
    """Opens a connection, or knows in words why it could not. `opened` is given all that it opens."""

    _logger = Logger()

    def __init__(self, link: IRedisLink, opened: Callable[[RedisConnection], None]) -> None:
        self._link = link
        self._opened = opened
        self._last: RedisConnection | None = None
        """What was opened last; there is one at a time."""
        self._tls: ClientTls | None = None
        self._where = ""

    async def connect(self, kind: type[Working]) -> Working:
        """A connection that has been greeted. Raises what `why` has words for."""
        password = self._link.address.password()
        host, port = await self._find()
        self._where = host_and_port(host, port)
        return await self.within(CONNECT_SECONDS, self._greet(kind, host, port, password))

    async def reach(self, host: str, port: int, kind: type[C]) -> C:
        """A new connection to there, on which nothing was said yet. Raises `RedisRefused`."""
        link = self._link
        made: list[C] = []

        def build() -> C:
            # Kept, as an endpoint with TLS gives something else.
            made.append(kind(link))
            self._last = made[0]
            self._opened(made[0])
            return made[0]

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
            # A kind of its own, which no time limit takes for its own doing.
            raise defer.CancelledError from None
        except (error.ConnectError, error.DNSLookupError) as failed:
            raise RedisRefused(told(Failure(failed))) from failed
        if port and (set_no_delay := getattr(made[0].transport, "setTcpNoDelay", None)):
            set_no_delay(True)
        return made[0]

    async def within(self, seconds: float, waited_for: Coroutine[Any, Any, T]) -> T:
        """What it gives. Raises `RedisRefused` if that takes too long."""
        try:
            return await Deferred.fromCoroutine(waited_for).addTimeout(seconds, self._link.reactor)
        except defer.TimeoutError:
            is_shown = self._tls is None or self._tls.saw_certificate
            hint = "" if is_shown else " (perhaps it does not speak TLS)"
            raise RedisRefused(self._tls_why() or f"no answer within {seconds:g} seconds{hint}") from None

    def hang_up(self, why: str) -> None:
        """Cut what was opened last, if it still is there."""
        if self._last is not None:
            self._last.end(why)

    def why(self, failure: Failure) -> str:
        """Why it came to nothing."""
        if failure.check(ConfigError):
            return str(failure.value)
        if failure.check(RedisRefused):
            why = str(failure.value)
        elif failure.check(Lost):
            why = self.why_lost(failure)
        else:
            if not failure.check(defer.CancelledError):
                self._logger.failure("connecting to {peer} failed", failure, peer=self._link.address.public)
            why = told(failure)
        return f"{self._where}: {why}" if self._where else why

    def why_lost(self, failure: Failure) -> str:
        """Why the connection opened last was lost: itself knows more than what waited for its answer."""
        why = self._tls_why() or (self._last.why if self._last is not None else "") or told(failure)
        if why == WITHOUT_A_WORD and self._tls is None and not self._link.address.path:
            return f"{why} (perhaps it wants TLS: say rediss://)"
        return why

    async def _find(self) -> tuple[str, int]:
        """Where to connect to: a path and 0 for a socket. Raises `RedisRefused`."""
        address, sentinels = self._link.address, self._link.sentinels
        if sentinels is not None:
            return await sentinels.find_master(self)
        return (address.path, 0) if address.path else address.hosts[0]

    async def _greet(self, kind: type[Working], host: str, port: int, password: str | None) -> Working:
        connection = await self.reach(host, port, kind)
        await connection.log_in(self._link.address.username, password)
        await connection.be_called(f"synrepl:{self._link.instance}:{kind.role}")
        if self._link.sentinels is not None:
            # It may have been demoted since the Sentinel last heard of it.
            role = await connection.ask("ROLE")
            if role[0] != b"master":
                raise RedisRefused(f"it is not the master now, but a {role[0].decode()}")
        await connection.greet()
        return connection

    def _tls_why(self) -> str:
        return self._tls.why if self._tls is not None else ""
