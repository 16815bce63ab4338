"""The same story with a fake Redis on a fake clock, and with a real one in a real reactor."""

import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.ports.metrics import Metrics
from synrepl.testing.fake_redis import FakeRedis
from synrepl.testing.network import Network
from synrepl.testing.redis import RedisServer
from synrepl.transports.redis import RedisLink
from synrepl.transports.redis.address import RedisAddress
from synrepl.wire.commands import Rdata
from synrepl.wire.declare import Command
from synrepl.wire.runs import Rows
from tests.storage.reactors import eventually, in_reactor

__all__ = ["FakeWorld", "RealWorld", "Recorder", "World", "rdata"]

SERVER = "hs.example"


def rdata(token: int, size: int = 0) -> bytes:
    """A row, as a line with its end; `size` bytes longer than it need be."""
    return b'RDATA events w1 %d ["%d","%b"]\n' % (token, token, b"x" * size)


class Recorder:
    """A member that remembers what it was told. `tokens` are those of the rows, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.whys: list[str] = []
        self.commands: list[Command | Rows] = []
        self.tokens: list[int | None] = []
        self.batches: list[int] = []
        self.on_received: Callable[[Sequence[Command | Rows]], None] = lambda commands: None

    def hearing(self) -> None:
        self.told.append("hearing")

    def deaf(self, why: str) -> None:
        self.told.append("deaf")
        self.whys.append(why)

    def speaking(self) -> None:
        self.told.append("speaking")

    def mute(self, why: str) -> None:
        self.told.append("mute")
        self.whys.append(why)

    def received(self, commands: Sequence[Command | Rows]) -> None:
        self.commands.extend(commands)
        self.batches.append(0)
        for command in commands:
            if isinstance(command, Rows):
                self.batches[-1] += len(command.rows)
                self.tokens.extend(command.tokens)
            else:
                self.batches[-1] += 1
                self.tokens += [command.token] if isinstance(command, Rdata) else []
        self.on_received(commands)

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    def unreachable(self, why: str) -> None:
        self.told.append("unreachable")
        self.whys.append(why)

    def is_up(self) -> bool:
        """Whether it hears and speaks, as far as it was told."""
        last = {"hearing": "", "speaking": ""}
        for word in self.told:
            if word in ("hearing", "deaf"):
                last["hearing"] = word
            if word in ("speaking", "mute"):
                last["speaking"] = word
        return last == {"hearing": "hearing", "speaking": "speaking"}


class World:
    """Where a story happens."""

    reactor: Any
    address: RedisAddress

    def link(self, member: Any, **options: Any) -> RedisLink:
        """A link to the Redis of this world."""
        values: dict[str, Any] = {
            "server_name": SERVER,
            "instance": "worker1",
            "metrics": Metrics(CollectorRegistry()),
            "chance": random.Random(1),
            **self.usual(),
        }
        values.update(options)
        return RedisLink(self.reactor, values.pop("address", self.address), member, **values)

    def usual(self) -> dict[str, Any]:
        return {}

    async def until(self, is_so: Callable[[], object], what: str = "it never came") -> None:
        raise NotImplementedError

    async def wait(self, seconds: float) -> None:
        """Let some time pass."""
        raise NotImplementedError

    def publish(self, channel: str, payload: bytes) -> int:
        raise NotImplementedError

    def cut(self, role: str) -> None:
        """Cut the one connection of this role."""
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        raise NotImplementedError

    def stall(self) -> None:
        raise NotImplementedError

    def go_on(self) -> None:
        raise NotImplementedError

    def names(self) -> list[str]:
        """The names of all connections."""
        raise NotImplementedError


class FakeWorld(World):
    """Run it with `run`: the story never really waits."""

    def __init__(self, kind: str = "fake", **network: Any) -> None:
        self.clock = self.reactor = Clock()
        self.network = Network(self.clock, **network)
        self.redis = FakeRedis(self.network, password="hush" if kind == "password" else None)
        self.address = RedisAddress.parse("redis://redis")

    def run(self, story: Callable[["World"], Coroutine[Any, Any, None]]) -> None:
        ends: list[Any] = []
        Deferred.fromCoroutine(story(self)).addBoth(ends.append)
        assert ends, "the story waited for something that never happened"
        if ends[0] is not None:
            ends[0].raiseException()
        assert self.redis.connections == []
        assert [call for call in self.clock.getDelayedCalls() if call.active()] == []

    def usual(self) -> dict[str, Any]:
        return {"endpoint": lambda host, port: self.redis.endpoint("worker1")}

    async def until(self, is_so: Callable[[], object], what: str = "it never came") -> None:
        for _ in range(100_000):
            if is_so():
                return
            self.clock.advance(0.001)
        raise AssertionError(what)

    async def wait(self, seconds: float) -> None:
        until = self.clock.seconds() + seconds
        while self.clock.seconds() < until:
            self.clock.advance(0.001)

    def publish(self, channel: str, payload: bytes) -> int:
        return self.redis.publish(channel, payload)

    def cut(self, role: str) -> None:
        assert self.redis.cut(role) == 1

    def kill(self) -> None:
        self.redis.kill()

    def restart(self) -> None:
        self.redis.start()

    def stall(self) -> None:
        self.redis.stall()

    def go_on(self) -> None:
        self.redis.go_on()

    def names(self) -> list[str]:
        return sorted(one.name for one in self.redis.connections)


class RealWorld(World):
    """A redis-server, reached by TCP, by its socket, or with a password."""

    def __init__(self, kind: str, home: Path) -> None:
        self.server = RedisServer(password="hush" if kind == "password" else None)
        url = f"redis+unix://{self.server.socket}" if kind == "unix" else ""
        if kind == "password":
            path = home / "password"
            path.write_text("hush\n")
            url = f"redis://127.0.0.1:{self.server.port}?password_file={path}"
        self._url = url

    def run(self, story: Callable[["World"], Coroutine[Any, Any, None]]) -> None:
        async def told(reactor: Any) -> None:
            self.reactor = reactor
            await story(self)

        with self.server:
            self.address = RedisAddress.parse(self._url or self.server.url)
            in_reactor(told, seconds=30)

    async def until(self, is_so: Callable[[], object], what: str = "it never came") -> None:
        await eventually(self.reactor, is_so, what)

    async def wait(self, seconds: float) -> None:
        until = self.reactor.seconds() + seconds
        await eventually(self.reactor, lambda: self.reactor.seconds() >= until, "time stands still")

    def publish(self, channel: str, payload: bytes) -> int:
        return int(self.server.command("PUBLISH", channel, payload))

    def cut(self, role: str) -> None:
        (found,) = [client for client in self.server.clients() if client["name"].endswith(f":{role}")]
        assert self.server.kill_client(found["id"])

    def kill(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        self.server.start()

    def stall(self) -> None:
        self.server.pause()

    def go_on(self) -> None:
        self.server.go_on()

    def names(self) -> list[str]:
        return sorted(client["name"] for client in self.server.clients())
