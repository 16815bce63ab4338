"""A server and a replica of its log, over TCP and over HTTP, on one network and one clock."""

from io import BytesIO
from typing import Any

from treq.client import HTTPClient
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Cooperator
from twisted.web.client import URI, Agent, FileBodyProducer, HTTPConnectionPool
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from synrepl.replicas.http.native_endpoint import NativeHttpEndpoint
from synrepl.replicas.native_client import NativeUpstream
from synrepl.replicas.replica.conversation import IUpstream
from synrepl.replication.addresses import Address
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.testing import MemoryEndpoint, Network
from synrepl.transports.http.api import make_site
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.http.site_context import SiteContext
from synrepl.transports.settings import ApiSettings
from tests.replicas.nodes import FakeNode
from tests.replicas.served import ServedReplicas
from tests.transports.pairs import TransportPair

__all__ = ["HttpPair", "NativePair"]


class NativePair(TransportPair):
    """A replica on the native wire."""

    malformed = (b"FOO bar\n", "invalid command")
    too_long = (b"x" * 20_000, "a line has at most 16384 bytes")

    def __init__(self, **network: Any) -> None:
        super().__init__(**network)
        self.nodes: dict[str, FakeNode] = {}
        self.server = FakeNode(self.network, self.nodes, name="server")
        self.server.start()
        self.wait(0.1)
        self.reader = self.make_reader()

    def make_reader(self) -> FakeNode:
        """Make the replica."""
        return FakeNode(self.network, self.nodes, name="reader", upstream="server")

    def names(self) -> list[str]:
        return [relay.name for relay in self.server.registry.connected]

    def why(self) -> str:
        return str(self.reader.replica.why)

    def leave(self) -> None:
        self.reader.roles.stop()


@implementer(IAgentEndpointFactory)
class Endpoints:
    """Connects an HTTP client to an address of the network."""

    def __init__(self, network: Network, client: str, address: str) -> None:
        self._endpoint = MemoryEndpoint(network, client, address)

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        return self._endpoint


class HttpNode(FakeNode):
    """A replica that follows over HTTP."""

    def make_upstream(self, address: str) -> IUpstream:
        # Bodies are sent on this clock, not on that of the global reactor.
        cooperator = Cooperator(scheduler=lambda work: self.clock.callLater(0.001, work))
        endpoints = Endpoints(self._network, self.name, "site")
        client = HTTPClient(
            Agent.usingEndpointFactory(
                self.clock, endpoints, HTTPConnectionPool(self.clock, persistent=False)
            ),
            data_to_body_producer=lambda data: FileBodyProducer(BytesIO(data), cooperator),
        )
        where = Address(http="http://localhost:9093")
        return NativeUpstream(
            NativeHttpEndpoint(HttpClient(self.clock, where.http, client=client)),
            self.clock,
            self.metrics,
            self.settings,
            where=where,
        )


class HttpPair(NativePair):
    """A replica over HTTP."""

    malformed = (b"zz\r\n", "the answer ended early")
    too_long = (b"8000\r\n" + b"x" * 0x8000 + b"\r\n", "a line has at most 16384 bytes")

    def __init__(self, **network: Any) -> None:
        super().__init__(**network)
        server = self.server
        context = SiteContext(
            log=server.log,
            publisher=server.publisher,
            table=server.table,
            metrics=server.metrics,
            clock=self.clock,
            settings=ApiSettings(instance_name="server", server_name="hs"),
            declared=server.declared,
            refused=RefusedFacts(server.log, server.table, server.metrics, instance="server"),
            **ServedReplicas(server.roles, server.registry).options(),
        )
        self.network.listen("site", make_site(context))

    def make_reader(self) -> FakeNode:
        return HttpNode(self.network, self.nodes, name="reader", upstream="server")

    def names(self) -> list[str]:
        return [lease["name"] for lease in self.server.registry.status() if lease["state"] == "live"]
