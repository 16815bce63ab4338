"""The listening ports of a daemon: for followers and replicas, for HTTP, and those of rooms."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.endpoints import quoteStringArgument
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.logger import Logger

from synrepl.base.access import Keyring
from synrepl.base.time import sleep
from synrepl.base.turn_queue import TurnQueue
from synrepl.config import Settings
from synrepl.errors import ConfigError
from synrepl.replication.addresses import Address
from synrepl.replication.hooks import IHello, NoHello
from synrepl.replication.serving.read_gate import ReadGate
from synrepl.transports.endpoints import server_endpoint
from synrepl.transports.http.site_context import SiteContext
from synrepl.transports.late_factory import LateFactory
from synrepl.transports.limits import MAX_CONNECTIONS, LimitedFactory, connection_limit
from synrepl.transports.send_buffer import unsent_bytes

if TYPE_CHECKING:
    from synrepl.transports.http.server import ApiSite
    from synrepl.transports.tcp import PublisherFactory
    from synrepl.transports.tls import ServerTls

EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104  # compared with, not listened at
FAREWELL_SECONDS: Final = 2.0
"""How long a stopping daemon waits for followers to receive what was sent to them."""


@dataclass(frozen=True)
class Port:
    """A port that a room has opened: its name in log lines, and its server endpoint string.

    `last_words` are sent to a client that exceeds the limit of connections, which is their argument.
    `recheck` disconnects clients whose key or certificate was revoked.
    """

    name: str
    endpoint: str
    factory: IProtocolFactory
    last_words: Callable[[int], bytes]
    recheck: Callable[[], object]


class Listeners:
    """Opens and closes the ports of a daemon: those of `listen` in their order, that of `http`, then those
    of rooms."""

    _logger = Logger()

    def __init__(self, settings: Settings, reactor: Any) -> None:
        self.ports: list[IListeningPort] = []
        self._others: list[Port] = []
        self._other_ports: list[IListeningPort] = []
        self._settings = settings
        self._reactor = reactor
        self._queue = TurnQueue(reactor)
        self._factories: list[PublisherFactory] = []
        self._site: ApiSite | None = None
        self._read_gate: ReadGate | None = None
        self._hello: IHello = NoHello()
        self._tls: list[ServerTls | None] = []
        """For each of `ports`, then for those of rooms: its certificates, if it speaks TLS."""

    def add(self, ports: Iterable[Port]) -> None:
        """Open these ports of a room too, at `open`."""
        self._others += ports

    async def open(self, context: SiteContext, keys: Keyring) -> None:
        """Listen at every port. Raises `ConfigError` if one cannot be opened."""
        settings = self._settings
        self._read_gate = context.publisher.read_gate
        self._hello = context.hooks.hello
        most = connection_limit(len(settings.listen) + len(self._others) + 1, MAX_CONNECTIONS)
        for description in settings.listen:
            followers = LateFactory("followers", partial(self._make_publisher, context, keys, most))
            self._logger.info(
                "followers: listening at {address}, dialect {dialect}",
                address=_endpoint_of(await self._listen(description, followers, self.ports, most)),
                dialect=settings.dialect.name if settings.dialect is not None else "auto",
            )
        http = LateFactory("http", partial(self._make_site, context, keys, most))
        port = await self._listen(settings.http, http, self.ports, most)
        self._logger.info("http: listening at {address}", address=_endpoint_of(port))
        for other in self._others:
            limited = LimitedFactory(other.factory, most, self._reactor, last_words=other.last_words(most))
            port = await self._listen(other.endpoint, limited, self._other_ports, most)
            self._logger.info("{name}: listening at {address}", name=other.name, address=_endpoint_of(port))

    def _make_publisher(self, context: SiteContext, keys: Keyring, most: int) -> IProtocolFactory:
        # Imported on use: 0.3 MiB.
        from synrepl.transports.tcp import PublisherFactory

        settings, publisher = self._settings, context.publisher
        factory = PublisherFactory(
            publisher,
            server_name=lambda: settings.server_name_of(context.log.notes),
            dialect=settings.dialect,
            clock=self._reactor,
            metrics=context.metrics,
            keepalive=settings.keepalive,
            hello=self._hello,
            keys=keys,
            max_connections=most,
            queue=self._queue,
        )
        self._factories.append(factory)
        publisher.read_gate.subscribers.append(factory.retire)
        return factory

    def _make_site(self, context: SiteContext, keys: Keyring, most: int) -> IProtocolFactory:
        # Imported on use, with Twisted's HTTP server: 1.2 MiB.
        from synrepl.transports.http.api import make_site
        from synrepl.transports.http.api_error import ApiError, encode_response

        # Its own turns: a request does not wait behind the lines of thousands of connections.
        self._site = make_site(context, keys=keys)
        why = f"this listener has {most} connections, its limit: retry later"
        refusal = encode_response(ApiError("out_of_descriptors", why))
        return LimitedFactory(self._site, most, self._reactor, last_words=refusal)

    async def _listen(
        self, description: str, factory: IProtocolFactory, ports: list[IListeningPort], most: int
    ) -> IListeningPort:
        try:
            endpoint: Any = server_endpoint(self._reactor, description)
            if (tls := getattr(endpoint, "tls", None)) is not None:
                endpoint.most = most
            port: IListeningPort = await endpoint.listen(factory)
        except (CannotListenError, OSError) as error:
            raise ConfigError(f"cannot listen at {description}: {_reason(error)}") from error
        ports.append(port)
        self._tls.append(tls)
        return port

    def address(self) -> Address:
        """The native and HTTP address for other daemons, at the advertised host, or else the listening one.

        A part is empty if none of its ports is a TCP port, or before `open`.
        """
        reachable = [_reachable(port, self._settings.advertise) for port in self.ports]
        schemes = [
            ("tcp", "http") if tls is None else ("tls", "https") for tls in self._tls[: len(self.ports)]
        ]
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

    def close_followers(self, why: str) -> None:
        """Disconnect all followers, and all replicas with a native connection, with this ERROR."""
        for factory in self._factories:
            factory.close(why)
        self._hello.close(why)

    def history_lost(self, stream: str) -> None:
        """Call `close_followers`, since some followers have facts that the log has discarded.

        When a follower connects again, it gets the new position of the stream, and reads the stream again.
        """
        self.close_followers(f"history of {stream} was lost, a new epoch has begun")

    def reload(self) -> None:
        """Read the certificates again, and disconnect peers whose key or certificate was revoked."""
        for tls in filter(None, self._tls):
            try:
                tls.reload()
            except ConfigError as error:
                self._logger.error("cannot reload certificates, the old ones stay: {why}", why=str(error))
        self.recheck()

    def recheck(self) -> None:
        """Disconnect peers whose key or certificate was revoked."""
        for factory in self._factories:
            factory.recheck()
        if self._site is not None:
            self._site.recheck()
        self._hello.recheck()
        for other in self._others:
            other.recheck()

    def unsent_bytes(self) -> int:
        """Bytes in the send buffers of the connections at the ports of `listen`."""
        return sum(unsent_bytes(protocol.transport) for protocol in self._protocols())

    async def stop(self) -> None:
        """Close the ports, then begin to close the connections of followers and replicas."""
        ports = [*self.ports, *self._other_ports]
        self.ports, self._other_ports = [], []
        for port in ports:
            stopped = port.stopListening()
            if stopped is not None:
                await stopped
        if self._read_gate is not None:
            self._read_gate.stop()
        self.close_followers("server shutting down")

    async def drain(self) -> None:
        """Wait until followers and replicas are disconnected, at most `FAREWELL_SECONDS`."""
        until = self._reactor.seconds() + FAREWELL_SECONDS
        while (any(self._protocols()) or self._hello.connected) and self._reactor.seconds() < until:
            await sleep(self._reactor, 0.01)
        self._factories = []
        self._queue.stop()
        if self._site is not None:
            self._site.stop()

    def _protocols(self) -> Iterator[Any]:
        for factory in self._factories:
            yield from factory.protocols


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


def _endpoint_of(port: IListeningPort) -> str:
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
