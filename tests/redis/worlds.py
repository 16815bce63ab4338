"""Where the stories of links to Redis happen. Here with the fake one; tests/trial has real ones."""

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.base.metrics import Metrics
from synrepl.testing.heap_clock import HeapClock
from synrepl.testing.network import Network
from synrepl.transports.redis.address import RedisAddress
from synrepl.transports.redis.link import RedisLink
from synrepl.wire.commands import Rdata
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun
from tests.redis.fake_redis import FakeRedis

__all__ = ["SERVER", "FakeWorld", "Recorder", "Setup", "World", "rdata", "refusal", "stopped"]

SERVER = "hs.example"
T = TypeVar("T")


def rdata(token: int, size: int = 0) -> bytes:
    """A row, as a line with its end; `size` bytes longer than it need be."""
    return b'RDATA events w1 %d ["%d","%b"]\n' % (token, token, b"x" * size)


class Recorder:
    """A member that remembers what it was told. `tokens` are those of the rows, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.whys: list[str] = []
        self.commands: list[Command | RdataRun] = []
        self.tokens: list[int | None] = []
        self.batches: list[int] = []
        self.on_received: Callable[[Sequence[Command | RdataRun]], None] = lambda commands: None

    def subscriber_up(self) -> None:
        self.told.append("hearing")

    def subscriber_down(self, why: str) -> None:
        self.told.append("deaf")
        self.whys.append(why)

    def publisher_up(self) -> None:
        self.told.append("speaking")

    def publisher_down(self, why: str) -> None:
        self.told.append("mute")
        self.whys.append(why)

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        self.commands.extend(commands)
        self.batches.append(0)
        for command in commands:
            if isinstance(command, RdataRun):
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
    """Where a story happens. `url` is how Redis is reached without a password."""

    reactor: Any
    address: RedisAddress
    url: str

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


Setup = Callable[[World], Coroutine[Any, Any, None]]


async def stopped(world: World, ended: Deferred[None]) -> None:
    """Wait for a link to stop, on whatever clock."""
    done: list[object] = []
    ended.addBoth(done.append)
    await world.until(lambda: done)


async def refusal(world: World, **options: Any) -> str:
    """What the member of a link that cannot get in is told: always the same."""
    member = Recorder()
    link = world.link(member, **options)
    link.start()
    await world.until(lambda: member.told.count("unreachable") == 4)
    why = link.state().why
    await stopped(world, link.stop())
    assert set(member.told) == {"unreachable"}, member.told
    assert set(member.whys) == {why}, member.whys
    return why


class FakeWorld(World):
    """Run it with `run`: the story never really waits."""

    def __init__(self, kind: str = "fake", **network: Any) -> None:
        self.clock = self.reactor = HeapClock()
        self.network = Network(self.clock, **network)
        self.redis = FakeRedis(self.network, password="hush" if kind == "password" else None)
        self.url = "redis://redis"
        self.address = RedisAddress.parse(self.url)

    def run(self, setup: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        """Tell a story to its end, and give what it returns; nothing of it may be left."""
        ends: list[Any] = []
        Deferred.fromCoroutine(setup(self)).addBoth(ends.append)
        assert ends, "the story waited for something that never happened"
        if isinstance(ends[0], Failure):
            ends[0].raiseException()
        assert self.redis.connections == []
        assert [call for call in self.clock.getDelayedCalls() if call.active()] == []
        result: T = ends[0]
        return result

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
