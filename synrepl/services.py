"""Following and serving from within a worker of one's own: services to put into an application."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IStreamClientEndpoint, IStreamServerEndpoint

from synrepl.errors import ConfigError
from synrepl.ports.metrics import Metrics
from synrepl.replication.follower.catchup import NoCatchUp
from synrepl.replication.follower.follower import Follower
from synrepl.replication.publisher import Publisher
from synrepl.transports.endpoints import client_endpoint, server_endpoint
from synrepl.transports.http.client import HttpCatchUp
from synrepl.transports.redis.address import SCHEMES, RedisAddress
from synrepl.transports.tcp import FollowerFactory, PublisherFactory
from synrepl.wire.dialect import CURRENT, Dialect
from synrepl.wire.session import AUTO, KEEPALIVE, Keepalive

__all__ = ["FollowerService", "PublisherService", "RedisService", "connect", "serve"]


class FollowerService(Service):
    """Keeps a follower connected while it runs."""

    def __init__(self, factory: FollowerFactory, follower: Follower, endpoint: IStreamClientEndpoint) -> None:
        self._factory = factory
        self._follower = follower
        self._endpoint = endpoint

    def startService(self) -> None:
        super().startService()
        self._factory.connect(self._endpoint)

    def stopService(self) -> None:
        super().stopService()
        self._factory.stop()
        self._follower.stop()


class RedisService(Service):
    """Keeps a follower on the channel of a homeserver while it runs."""

    def __init__(
        self, reactor: Any, url: str, follower: Follower, server_name: str, metrics: Metrics
    ) -> None:
        # Here, so that a worker that follows over TCP need not have all of this in memory.
        from synrepl.replication.broker import BrokerPeer
        from synrepl.transports.redis import RedisLink

        self._follower = follower
        self._peer = BrokerPeer(clock=reactor, follower=follower)
        self._link = RedisLink(
            reactor,
            RedisAddress.parse(url),
            self._peer,
            server_name=server_name,
            instance=follower.instance,
            metrics=metrics,
        )
        self._peer.broker = self._link

    def startService(self) -> None:
        super().startService()
        self._link.start()

    def stopService(self) -> Any:
        super().stopService()
        self._peer.stop()
        self._follower.stop()
        return self._link.stop()


class PublisherService(Service):
    """Serves a publisher's followers while it runs."""

    def __init__(self, factory: PublisherFactory, endpoint: IStreamServerEndpoint) -> None:
        self._factory = factory
        self._endpoint = endpoint
        self._port: IListeningPort | None = None
        self.listening: Deferred[IListeningPort] = Deferred()

    def startService(self) -> None:
        super().startService()
        self._endpoint.listen(self._factory).addCallback(self._listening).chainDeferred(self.listening)

    def _listening(self, port: IListeningPort) -> IListeningPort:
        self._port = port
        return port

    def stopService(self) -> Any:
        super().stopService()
        self._factory.close("server shutting down")
        return self._port.stopListening() if self._port is not None else None


def connect(
    reactor: Any,
    endpoint: str | IStreamClientEndpoint,
    follower: Follower,
    *,
    dialect: Dialect = CURRENT,
    server_name: str | None = None,
    http: str | None = None,
    instance_map: Mapping[str, str] | None = None,
    secret: str | None = None,
    metrics: Metrics | None = None,
    keepalive: Keepalive = KEEPALIVE,
) -> Service:
    """A service that keeps `follower` connected to a server, or to the channel of a homeserver on Redis.

    `endpoint` is a Twisted client endpoint, or its description, as ``tcp:master:9092``, or the URL of a
    Redis, as ``redis://localhost:6379``. A server that is not called `server_name` is refused (None: any will
    do); on Redis it names the channel, and there `dialect` and `keepalive` mean nothing. Where what was
    missed is pulled, `http` is the address to pull from, and, for `Follower.wait_for`, to ask what was ever
    allocated; ``instance_map`` the addresses for writers that have their own, `secret` what they want to see.
    On Redis a gap is given up, and reported, if nobody is known who could be asked.

    Raises `ConfigError` if the URL of a Redis makes no sense, or `server_name` is missing.
    """
    if follower.clock_is_missing:
        follower.clock = reactor
    metrics = metrics or Metrics(CollectorRegistry())
    on_redis = isinstance(endpoint, str) and endpoint.startswith(SCHEMES)
    if http is not None or on_redis:
        asked = HttpCatchUp(reactor, http, secret=secret, instance_map=instance_map or {})
        if isinstance(follower.catch_up, NoCatchUp):
            follower.catch_up = asked
        if follower.allocated is None and http is not None:
            follower.allocated = asked
    if on_redis:
        if server_name is None:
            raise ConfigError("on Redis the server_name is needed: it is the name of the channel")
        assert isinstance(endpoint, str)
        return RedisService(reactor, endpoint, follower, server_name, metrics)
    factory = FollowerFactory(
        follower,
        dialect=dialect,
        expected_server=server_name,
        clock=reactor,
        metrics=metrics,
        keepalive=keepalive,
    )
    target = client_endpoint(reactor, endpoint) if isinstance(endpoint, str) else endpoint
    return FollowerService(factory, follower, target)


def serve(
    reactor: Any,
    endpoint: str | IStreamServerEndpoint,
    publisher: Publisher,
    *,
    server_name: str,
    dialect: Dialect | None = AUTO,
    keepalive: Keepalive = KEEPALIVE,
) -> PublisherService:
    """A service that serves `publisher`'s followers on an endpoint, as ``tcp:9092:interface=127.0.0.1``."""
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
