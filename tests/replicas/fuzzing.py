"""What scripts/fuzz feeds the connections of replicas with."""

from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from scripts.fuzz_parts.target import Target, conversed, pieces, words
from synrepl.base.metrics import Metrics
from synrepl.errors import RemoteProtocolError
from synrepl.replicas.native_client import NativeConversation, NativeUpstream
from synrepl.replicas.settings import UpstreamSettings
from synrepl.replication.addresses import Address
from synrepl.testing import MemoryEndpoint, Network
from tests.replicas.clusters import FakeCluster
from tests.replicas.wire.block_buffer import BlockBuffer


class NativeTarget(Target):
    """A native connection. First byte: block reader, replica or primary; second: the seed of the split."""

    def seeds(self) -> list[bytes]:
        spoken: list[bytes] = []

        def record(data: bytes) -> bytes:
            spoken.append(data)
            return data

        cluster = FakeCluster(corrupt=record)
        cluster.node("a")
        cluster.wrote(cluster.nodes["a"], 3)
        cluster.node("b", "a")
        cluster.pass_(2)
        cluster.wrote(cluster.nodes["a"], 2)
        cluster.pass_(0.5)
        every = b"".join(spoken)
        _end(cluster)
        return [bytes([who, 5]) + every[start:] for who in range(3) for start in range(0, len(every), 700)]

    def run(self, data: bytes) -> object:
        who, seed, text = (*data[:1], 0)[0] % 3, (*data[1:2], 0)[0], data[2:]
        if who == 0:
            return who, self._read(text, seed)
        if who == 1:
            return who, self._upstream(text, seed)
        return who, self._relayed(text, seed)

    @staticmethod
    def _read(text: bytes, seed: int) -> object:
        reader = BlockBuffer()
        kinds = set()
        try:
            for piece in pieces(text, seed):
                kinds |= {type(found).__name__ for found in reader.runs(piece)}
        except RemoteProtocolError as error:
            return sorted(kinds), error.why[:20]
        return sorted(kinds), ""

    @staticmethod
    def _upstream(text: bytes, seed: int) -> object:
        """Send the text to a replica."""
        clock = Clock()
        nowhere = MemoryEndpoint(Network(clock), "b", "a")
        connection = NativeUpstream(
            nowhere, clock, Metrics(CollectorRegistry()), UpstreamSettings(), where=Address(native="a")
        ).build("b")
        conversation = NativeConversation(connection, Metrics(CollectorRegistry()))
        connection.make_owner = lambda _: conversation
        answer = conversed(connection, clock, text, seed)
        events = 0
        while events < 10_000 and conversation._events:
            conversation.ready()
            events += 1
        return words(answer[0]), answer[1]

    @staticmethod
    def _relayed(text: bytes, seed: int) -> object:
        """Send the text to a primary."""
        cluster = FakeCluster()
        node = cluster.node("a")
        cluster.wrote(node, 3)
        try:
            protocol: Any = node._factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
            answer = conversed(protocol, cluster.clock, text, seed)
        finally:
            _end(cluster)
        return words(answer[0]), answer[1]


def _end(cluster: FakeCluster) -> None:
    FakeCluster.made.remove(cluster)
    for node in cluster.nodes.values():
        node.kill()


TARGETS: Final[Mapping[str, type[Target]]] = {"native": NativeTarget}
