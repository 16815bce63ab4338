"""A server, and one reader of its log behind each transport, on one network and one clock."""

from random import Random
from typing import Any, Final

from synrepl.replication.follower.updates import FollowerEvent
from synrepl.testing import FakeDaemon, FakeWorker, MemoryPositions, Network
from synrepl.testing.cluster import DirectCatchUp
from synrepl.testing.heap_clock import HeapClock
from synrepl.testing.network import MemoryLink
from tests.memory_engine import FaultyEngine
from tests.redis.daemon import RedisDaemon
from tests.redis.fake_redis import FakeRedis

__all__ = ["RedisPair", "TcpPair", "TransportPair"]

STREAM: Final = "to_device"


class TransportPair:
    """`server` writes, `reader` reads; `start` lets the reader connect.

    `malformed` is what no server sends, with a part of the reason that the reader states. `too_long` is more
    than the reader takes as one message. A reader that `has_history` also gets what is older than itself.
    """

    has_history = True

    malformed: tuple[bytes, str]
    too_long: tuple[bytes, str]

    def __init__(self, **network: Any) -> None:
        self.clock = HeapClock()
        self.network = Network(self.clock, **network)
        self.written = 0
        self.server: Any
        self.reader: Any

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.pump([0.001] * round(seconds * 1000))

    def write(self, count: int = 1, *, size: int = 1) -> None:
        """Commit facts of one row each, so many characters long."""
        rows = [[[f"@u{self.written + number}{'x' * size}"]] for number in range(count)]
        self.written += count
        done: list[Any] = []
        self.server.append(STREAM, rows).addBoth(done.append)
        for _ in range(100):
            if not done:
                self.wait(0.001)
        assert done, "the facts were not committed"

    def start(self) -> None:
        """Let the reader connect and catch up."""
        self.reader.start()
        self.wait(3)

    def leave(self) -> None:
        """Let the reader close its connections by itself."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the reader, then the server."""
        self.reader.kill()
        self.server.kill()

    def tokens(self) -> list[int]:
        """The tokens that the reader has, in its order."""
        return [fact.token for fact in self.reader.engine.facts if fact.rows != b"[]"]

    def expected(self) -> list[int]:
        """All tokens that were written."""
        return [fact.token for fact in self.server.engine.facts]

    def names(self) -> list[str]:
        """The names of those that are connected, as the server knows them."""
        raise NotImplementedError

    def why(self) -> str:
        """Why the last connection ended, as the reader states it."""
        raise NotImplementedError

    def links(self) -> list[MemoryLink]:
        """The connections on which the reader receives facts."""
        return self.network.links_of("reader")

    def outgoing(self) -> list[MemoryLink]:
        """The connections on which the server sends facts."""
        return self.links()

    def inject(self, data: bytes) -> None:
        """Send these bytes to the reader."""
        for link in self.links():
            link.server.write(data)


class TcpPair(TransportPair):
    """A follower over lines."""

    malformed = (b"FOO bar\n", "invalid command")
    too_long = (b"x" * 20_000, "Line length exceeded: a line has at most 16384 bytes")

    def __init__(self, **network: Any) -> None:
        super().__init__(**network)
        self.server = FakeDaemon(self.network, engine=FaultyEngine())
        self.server.start()
        self.wait(0.1)
        self.reader = FakeWorker(
            self.network, self.server, name="reader", positions=MemoryPositions(), start="earliest"
        )

    def tokens(self) -> list[int]:
        return [updates.token for updates in self.reader.applied]

    def names(self) -> list[str]:
        return [follower.name for follower in self.server.publisher.followers]

    def why(self) -> str:
        return _last_reason(self.reader.events)

    def leave(self) -> None:
        self.reader.stop()

    def stop(self) -> None:
        self.reader.stop()
        self.wait(0.01)
        self.server.kill()


class RedisPair(TransportPair):
    """A process on the channel of a homeserver; the server is another one."""

    has_history = False

    malformed = (b"?what\r\n", "the server is not Redis")
    too_long = (b"$99999999999999999999\r\n", "the server is not Redis")

    def __init__(self, **network: Any) -> None:
        super().__init__(**network)
        self.redis = self.make_channel()
        self.server = self.make_server()
        self.server.start()
        self.wait(3)
        catch_up = DirectCatchUp(self.server, self.clock, lambda: 0.001)
        self.reader = RedisDaemon(
            self.network, self.redis, name="reader", writes=(), peers={"server": catch_up}, chance=Random(2)
        )

    def make_channel(self) -> Any:
        """Make what the processes connect to."""
        return FakeRedis(self.network)

    def make_server(self) -> RedisDaemon:
        """Make the process that writes."""
        return RedisDaemon(
            self.network, self.redis, name="server", writes=[STREAM], peers={}, chance=Random(1)
        )

    def write(self, count: int = 1, *, size: int = 1) -> None:
        rows = [[[f"@u{self.written + number}{'x' * size}"]] for number in range(count)]
        self.written += count
        self.server.append(STREAM, rows, writer="server")
        self.wait(0.1)

    def names(self) -> list[str]:
        return sorted(one.name for one in self.redis.connections)

    def why(self) -> str:
        return _last_reason(self.reader.redis_side.events)

    def leave(self) -> None:
        self.reader.redis_side.link.stop()

    def links(self) -> list[MemoryLink]:
        subscribers = [one.transport for one in self.redis.of("reader:subscriber")]
        return [link for link in super().links() if link.server in subscribers]

    def outgoing(self) -> list[MemoryLink]:
        return self.network.links_of("server")


def _last_reason(events: list[FollowerEvent]) -> str:
    return [event.text for event in events if event.kind == "disconnected"][-1]
