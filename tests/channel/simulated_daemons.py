"""The daemons of the world `channel`: their RESP ports, their channels, and the connections between them."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.base.access import Keyring
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.metrics import Metrics
from synrepl.channel.downlink import ChannelDownlink
from synrepl.channel.redis_connections import BridgeConnections
from synrepl.channel.resp.server import RespFactory, RespServer
from synrepl.channel.served_channel import ServedChannel
from synrepl.channel.uplink import ChannelUplink
from synrepl.errors import RemoteProtocolError
from synrepl.testing.network import MemoryEndpoint
from synrepl.transports.redis.address import RedisAddress

if TYPE_CHECKING:
    from tests.channel.simulation import ChannelSimulation


RETRY_SECONDS: Final = 0.3
LONGEST_LINE: Final = 200
"""Longer lines are none of the protocol between daemons."""


def _line(*words: str) -> bytes:
    return json.dumps(words).encode() + b"\n"


class UpEnd(Protocol):
    """A replica's end of a connection between daemons (`IChannelConversation`)."""

    transport: Any

    def __init__(self, daemon: "Daemon") -> None:
        self.is_full = False
        self.on_channel: Callable[[bytes], None] = lambda data: None
        self.on_space: Callable[[], None] = lambda: None
        self._daemon = daemon
        self._received = b""

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)
        self._daemon.upstream_found(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._daemon.upstream_lost(self)

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4])
            if len(self._received) < 4 + size:
                return
            message, self._received = self._received[4 : 4 + size], self._received[4 + size :]
            self.on_channel(message)

    def join_channel(self) -> None:
        """An array without items, in a line."""
        self.write(_line())

    def encode_published(self, publisher: str, channel: str, lines: Sequence[bytes]) -> bytes | None:
        """An array of three texts for each, in a line."""
        encoded = [_line(publisher, channel, line.decode()) for line in lines]
        return None if max(map(len, encoded)) > LONGEST_LINE else b"".join(encoded)

    def encode_lost(self, publisher: str) -> bytes | None:
        """An array of one text, in a line."""
        return _line(publisher)

    def write(self, data: bytes) -> None:
        """Send what was encoded."""
        self.transport.write(data)

    def pauseProducing(self) -> None:
        self.is_full = True

    def resumeProducing(self) -> None:
        self.is_full = False
        self.on_space()

    def stopProducing(self) -> None:
        pass


class DownEnd(Protocol):
    """An upstream's end of a connection between daemons."""

    transport: Any

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._received = b""
        self._downlink: ChannelDownlink | None = None
        self._is_full = False

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._downlink is not None:
            self._downlink.stop()
            self._downlink = None

    def dataReceived(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            match json.loads(line):
                case []:
                    self._start()
                case [publisher]:
                    assert self._downlink is not None
                    self._downlink.publisher_lost(publisher)
                case [publisher, channel, text]:
                    assert self._downlink is not None
                    try:
                        self._downlink.published(publisher, channel, text)
                    except RemoteProtocolError:
                        # The replica follows a former upstream, and closes a circle.
                        self.transport.abortConnection()
                        return

    def _start(self) -> None:
        channel = self._daemon.server.channel
        if channel is None:
            self.transport.abortConnection()
            return
        self._downlink = ChannelDownlink(
            channel,
            lambda message: self.transport.write(len(message).to_bytes(4) + message),
            name="a replica",
            owner="",
            refusal=lambda line: "",
            logger=LimitedLogger(Logger(), self._daemon.run.clock),
        )
        self._downlink.start(is_full=self._is_full)

    def pauseProducing(self) -> None:
        self._is_full = True
        if self._downlink is not None:
            self._downlink.pause()

    def resumeProducing(self) -> None:
        self._is_full = False
        if self._downlink is not None:
            self._downlink.resume()

    def stopProducing(self) -> None:
        pass


class Daemon:
    """A daemon with a RESP port at the address `name`, and a port for its replicas at `name` and a mark."""

    server: RespServer

    def __init__(self, run: "ChannelSimulation", name: str) -> None:
        self.name = name
        self.run = run
        self.is_running = False
        self.demotions = self.held_back = self.overflows = 0
        self._uplink: ChannelUplink | None = None
        self._up: UpEnd | None = None
        self._bridge: BridgeConnections | None = None

    def start(self) -> None:
        """Start in the role that it has by now."""
        self.is_running = True
        run = self.run
        metrics = Metrics(CollectorRegistry())
        self.server = RespServer(run.clock, keys=Keyring(), metrics=metrics)
        channel = ServedChannel(
            run.clock,
            "hs",
            is_ephemeral=lambda stream: stream == "typing",
            metrics=metrics,
            is_durable=run.is_stored if run.is_durable else None,
            only_durable=run.only_durable,
        )
        self.server.use(channel)
        self.take_role()
        run.network.listen(self.name, RespFactory(self.server))
        factory = Factory.forProtocol(lambda: DownEnd(self))
        factory.noisy = False
        run.network.listen(f"{self.name}!", factory)

    def take_role(self) -> None:
        """Take the lines of the channel into the log as primary, or follow the upstream."""
        channel = self.server.channel
        assert channel is not None
        if self is self.run.primary:
            if self._uplink is not None:
                self._uplink.stop()
                self._uplink = None
                self._hang_up()
            channel.use(ingest=self.run.ingest, is_caught_up=self.run.is_caught_up)
            if self.run.redis is not None and self._bridge is None:
                self._bridge = self._join_redis(channel)
            channel.ask()
        elif self._uplink is None:
            self._uplink = ChannelUplink(channel, self.run.clock, Metrics(CollectorRegistry()))
            channel.use(uplink=self._uplink)
            self._connect()
        else:
            self._hang_up()

    def stop(self) -> None:
        """End at once."""
        self.is_running = False
        channel = self.server.channel
        assert channel is not None
        self.demotions += channel.demotions
        self.held_back += channel.held_back
        if self._uplink is not None:
            self.overflows += self._uplink.overflows
        self._uplink = self._up = None
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            Deferred.fromCoroutine(bridge.stop())
        network = self.run.network
        for name in (self.name, f"{self.name}!", f"{self.name}?", f"{self.name}#"):
            network.stop_listening(name)
            for link in network.links_of(name):
                link.cut()
        channel.stop()

    def _join_redis(self, channel: ServedChannel) -> BridgeConnections:
        made = BridgeConnections(
            channel,
            self.run.clock,
            RedisAddress.parse("redis://redis:6379"),
            server_name="hs",
            instance=self.name,
            metrics=Metrics(CollectorRegistry()),
            endpoint=lambda host, port: MemoryEndpoint(self.run.network, f"{self.name}#", "redis"),
        )
        made.start()
        return made

    # -- the upstream --------------------------------------------------------------------------------------

    def upstream_found(self, end: UpEnd) -> None:
        """The connection to the upstream is there."""
        if self._uplink is None or not self.is_running or self._up is not None:
            end.transport.abortConnection()
            return
        self._up = end
        self._uplink.connected(end)

    def upstream_lost(self, end: UpEnd) -> None:
        """The connection to the upstream is lost: it is made again."""
        if end is not self._up:
            return
        self._up = None
        if self._uplink is not None:
            self._uplink.disconnected()
            self.run.clock.callLater(RETRY_SECONDS, self._connect)

    def _hang_up(self) -> None:
        if self._up is not None:
            self._up.transport.abortConnection()

    def _connect(self) -> None:
        if not self.is_running or self._uplink is None or self._up is not None:
            return
        factory = Factory.forProtocol(lambda: UpEnd(self))
        factory.noisy = False
        endpoint = MemoryEndpoint(self.run.network, f"{self.name}?", f"{self.run.upstream_of(self).name}!")
        endpoint.connect(factory).addErrback(self._not_connected)

    def _not_connected(self, reason: Failure) -> None:
        self.run.clock.callLater(RETRY_SECONDS, self._connect)
