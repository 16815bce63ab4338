"""What the RESP port promises to a reader, as every transport does."""

from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from synrepl.base.access import Keyring
from synrepl.base.metrics import Metrics
from synrepl.channel.resp.server import RespFactory, RespServer
from synrepl.channel.served_channel import ServedChannel
from synrepl.channel.served_link import ServedLink
from synrepl.testing import MemoryEndpoint, Network
from synrepl.testing.network import MemoryLink
from tests.redis.daemon import OnFakeRedis, RedisDaemon
from tests.transports.pairs import STREAM, RedisPair, TransportPair
from tests.transports.test_transport_contract import *  # noqa: F403  # the same tests


class RespPort:
    """The RESP port of a daemon in memory, as the processes see it: in place of a `FakeRedis`."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.server = RespServer(network.clock, keys=Keyring(), metrics=Metrics(CollectorRegistry()))
        network.listen("resp", RespFactory(self.server))

    def endpoint(self, client: str) -> MemoryEndpoint:
        """The endpoint for the process `client`."""
        return MemoryEndpoint(self.network, client, "resp")


class ServingDaemon(RedisDaemon):
    """A daemon that serves the channel itself."""

    def make_side(self, redis: Any) -> OnFakeRedis:
        return ServingChannel(self, redis)


class ServingChannel(OnFakeRedis):
    """Its part on the channel, wired as `ChannelPart` does it."""

    redis: Any

    def make_link(self) -> ServedLink:
        server: RespServer = self.redis.server
        channel = ServedChannel(
            self.daemon.clock,
            "hs",
            is_ephemeral=lambda stream: self.daemon.table[stream].ephemeral,
            metrics=self.daemon.metrics,
        )
        link = ServedLink(
            self.daemon.clock,
            self.member,
            channel,
            instance=self.daemon.instance,
            metrics=self.daemon.metrics,
            on_space=server.release,
        )
        server.use(channel)
        channel.use(ingest=link.take)
        return link

    def kill(self) -> None:
        super().kill()
        channel = self.redis.server.channel
        self.redis.server.stop()
        channel.stop()
        self.redis.network.stop_listening("resp")
        for link in self.redis.network.links_of("resp"):
            link.cut()


class RespPair(RedisPair):
    """A process at the RESP port of the server."""

    def make_channel(self) -> Any:
        return RespPort(self.network)

    def make_server(self) -> RedisDaemon:
        return ServingDaemon(
            self.network, self.redis, name="server", writes=[STREAM], peers={}, chance=Random(1)
        )

    def names(self) -> list[str]:
        return [one["name"] for one in self.redis.server.status()["clients"]]

    def links(self) -> list[MemoryLink]:
        subscribers = [
            one.transport for one in self.redis.server.connections if one.client.describe()["subscribes"]
        ]
        return [link for link in TransportPair.links(self) if link.server in subscribers]

    def outgoing(self) -> list[MemoryLink]:
        return self.links()


@pytest.fixture(name="kind")
def _kind() -> type[TransportPair]:
    """The RESP port."""
    return RespPair
