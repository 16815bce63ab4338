"""Services that connect a follower, or serve a publisher, within a Twisted application."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IStreamClientEndpoint, IStreamServerEndpoint

from synrepl.base.metric_values import Registry
from synrepl.base.metrics import Metrics
from synrepl.errors import ConfigError
from synrepl.http_api.route import public_url
from synrepl.replication.follower.follower import Follower
from synrepl.replication.serving.publisher import Publisher
from synrepl.transports.connection_monitor import ConnectionMonitor, http_probe
from synrepl.transports.credentials import Credentials
from synrepl.transports.endpoints import check_client, client_endpoint, server_endpoint
from synrepl.transports.http.catch_up import HttpCatchUp
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.redis.address import SCHEMES, RedisAddress
from synrepl.transports.tcp import FollowerFactory, PublisherFactory
from synrepl.wire.dialect import CURRENT, Dialect
from synrepl.wire.keepalive import KEEPALIVE, Keepalive
from synrepl.wire.session import AUTO


@dataclass(eq=False, repr=False)
class FollowerService(Service):
    """Keeps a follower connected through one of several endpoints while the service runs."""

    factory: FollowerFactory
    follower: Follower
    endpoints: Mapping[str, IStreamClientEndpoint]
    urls: Mapping[str, str]
    """The HTTP addresses of the same servers, by the address of the endpoint."""
    monitor: ConnectionMonitor

    def startService(self) -> None:
        super().startService()
        self.factory.connect(self.endpoints, self.urls)

    def stopService(self) -> None:
        super().stopService()
        self.monitor.stop()
        self.factory.stop()
        self.follower.stop()


class RedisService(Service):
    """Keeps a follower subscribed to a homeserver's Redis channel while the service runs."""

    def __init__(
        self, reactor: Any, url: str, follower: Follower, server_name: str, metrics: Metrics
    ) -> None:
        # Not at the top: a worker that follows over TCP need not load these modules.
        from synrepl.replication.membership.daemon_member import DaemonMember
        from synrepl.transports.redis.link import RedisLink

        self._follower = follower
        self._member = DaemonMember(clock=reactor, follower=follower)
        self._link = RedisLink(
            reactor,
            RedisAddress.parse(url),
            self._member,
            server_name=server_name,
            instance=follower.instance,
            metrics=metrics,
        )
        self._member.use(self._link)

    def startService(self) -> None:
        super().startService()
        self._link.start()

    def stopService(self) -> Any:
        super().stopService()
        self._member.stop()
        self._follower.stop()
        return self._link.stop()


class PublisherService(Service):
    """Serves a publisher's followers while the service runs.

    `listening` fires with the port once it is open, or fails if it cannot be opened.
    """

    def __init__(self, factory: PublisherFactory, endpoint: IStreamServerEndpoint) -> None:
        self._factory = factory
        self._endpoint = endpoint
        self._port: IListeningPort | None = None
        self.listening: Deferred[IListeningPort] = Deferred()

    def startService(self) -> None:
        super().startService()
        self._endpoint.listen(self._factory).addCallback(self._opened).chainDeferred(self.listening)

    def _opened(self, port: IListeningPort) -> IListeningPort:
        self._port = port
        return port

    def stopService(self) -> Any:
        super().stopService()
        self._factory.close("server shutting down")
        return self._port.stopListening() if self._port is not None else None


def connect(
    reactor: Any,
    endpoint: str | IStreamClientEndpoint | Sequence[str | IStreamClientEndpoint],
    follower: Follower,
    *,
    dialect: Dialect | None = None,
    server_name: str | None = None,
    http: str | Sequence[str] | None = None,
    instance_map: Mapping[str, str] | None = None,
    secret: str | Credentials | None = None,
    metrics: Metrics | None = None,
    keepalive: Keepalive = KEEPALIVE,
) -> Service:
    """Make a service that keeps `follower` connected to a server, or subscribed to a homeserver's Redis.

    * `endpoint`: a Twisted client endpoint, its description (``tcp:master:9092``), or the URL of a Redis
      (``redis://localhost:6379``). A sequence of endpoints has the daemons of one log, in order of
      preference: when one is lost, fenced or stopped, the follower goes on at the next, at its exact
      position. A daemon that names the primary chooses among them, and never adds one.
    * `dialect`: the release that the server speaks, by default `CURRENT`. On Redis, where nobody says it, it
      only tells the follower's caches what invalidates them; by default what does so in any release.
    * `server_name`: the homeserver. The connection closes if the server has another name (None: any name).
      On Redis it is required, as it is the name of the channel.
    * `http`: the base URL to fetch missing facts from and to ask which tokens exist (`Follower.wait_for`).
      A follower's own `catch_up` and `allocated` are used instead. With several endpoints, give the URL of
      each, in the same order, or one for all.
    * `instance_map`: the base URLs of writers that have their own; without Redis it needs `http`
    * `secret`: the shared secret for `http` and `instance_map`
    * `metrics`: where to count; by default in a registry that is not served
    * `keepalive`: PING and timeouts, in seconds; ignored on Redis

    The service logs where it is connected and, once for each reason, why it is not.

    A gap on Redis is given up, and reported, if no URL is known for its writer.

    Raises `ConfigError` if the URL of a Redis is invalid, is one of several endpoints, or if `server_name` is
    missing for it; for an endpoint string or a URL of `http` that is invalid; and without endpoints, with the
    same one twice, or if `http` has another number of URLs.

    >>> from twisted.internet.testing import MemoryReactorClock
    >>> follower = Follower(instance="pusher1")
    >>> service = connect(MemoryReactorClock(), "tcp:master:9092", follower, http="http://master:9093")
    >>> service.startService()  # or service.setServiceParent(application)
    """
    metrics = metrics or Metrics(Registry())
    given: list[Any] = list(endpoint) if isinstance(endpoint, (list, tuple)) else [endpoint]
    is_redis = [isinstance(one, str) and one.startswith(SCHEMES) for one in given]
    if any(is_redis) and len(given) > 1:
        raise ConfigError("a Redis must be the only endpoint")
    urls = [] if http is None else [http] if isinstance(http, str) else list(http)
    if len(urls) not in (0, 1, len(given)):
        raise ConfigError(
            f"http has {len(urls)} URLs for {len(given)} endpoints: give one for each, in the same order, or"
            " one for all"
        )
    for url in urls:
        if not re.match(r"https?://[^/]", url):
            raise ConfigError(f"http must be a URL such as http://127.0.0.1:9093, not {public_url(url)!r}")
    catch_up = None
    if urls or any(is_redis):
        http_client = HttpClient(reactor, urls[0] if urls else "", secret=secret, is_homeserver=True)
        catch_up = HttpCatchUp(http_client, instance_map or {})
    follower.server.complete(reactor, catch_up, catch_up if urls else None)
    if any(is_redis):
        if server_name is None:
            raise ConfigError("server_name is required on Redis: it is the name of the channel")
        follower.server.shared_dialect = dialect
        return RedisService(reactor, given[0], follower, server_name, metrics)
    endpoints: dict[str, IStreamClientEndpoint] = {}
    for number, one in enumerate(given, 1):
        if isinstance(one, str):
            try:
                check_client(one)
            except ConfigError as error:
                raise ConfigError(f"an endpoint {error}") from error
            endpoints[one] = client_endpoint(reactor, one)
        else:
            endpoints["the server" if len(given) == 1 else f"endpoint {number}"] = one
    if len(endpoints) < len(given):
        raise ConfigError("an endpoint is given twice")
    if not endpoints:
        raise ConfigError("no endpoint is given: give at least one")
    url_of = dict(zip(endpoints, urls, strict=True)) if len(urls) == len(given) else {}

    def use(address: str) -> None:
        if catch_up is not None and address in url_of:
            catch_up.use(url_of[address])

    factory = FollowerFactory(
        follower,
        dialect=dialect or CURRENT,
        expected_server=server_name,
        clock=reactor,
        metrics=metrics,
        keepalive=keepalive,
        on_attempt=use,
    )

    async def speaks_http() -> bool:
        # With several endpoints, the next one is tried.
        return len(endpoints) == 1 and await http_probe(reactor, *endpoints.values())()

    monitor = ConnectionMonitor(
        follower, lambda: factory.addresses.current, clock=reactor, speaks_http=speaks_http
    )
    return FollowerService(factory, follower, endpoints, url_of, monitor)


def serve(
    reactor: Any,
    endpoint: str | IStreamServerEndpoint,
    publisher: Publisher,
    *,
    server_name: str,
    dialect: Dialect | None = AUTO,
    keepalive: Keepalive = KEEPALIVE,
) -> PublisherService:
    """Make a service that serves the followers of `publisher` on an endpoint.

    * `endpoint`: a Twisted server endpoint, or its description (``tcp:9092:interface=127.0.0.1``)
    * `server_name`: the name to greet followers with
    * `dialect`: the release that followers speak; by default it is detected for each connection
    * `keepalive`: PING and timeouts, in seconds

    `PublisherService.listening` fires once the port is open. Raises as `endpoints.server_endpoint` does.

    >>> from twisted.internet.testing import MemoryReactorClock
    >>> from synrepl.testing import Cluster
    >>> reactor, publisher = MemoryReactorClock(), Cluster().daemon.publisher
    >>> service = serve(reactor, "tcp:9092:interface=127.0.0.1", publisher, server_name="example.org")
    >>> service.startService()
    >>> [port for port, *_ in reactor.tcpServers]
    [9092]
    """
    publisher.follow_log()
    factory = PublisherFactory(
        publisher,
        server_name=server_name,
        dialect=dialect,
        clock=reactor,
        metrics=publisher.metrics,
        keepalive=keepalive,
    )
    target = server_endpoint(reactor, endpoint) if isinstance(endpoint, str) else endpoint
    return PublisherService(factory, target)
