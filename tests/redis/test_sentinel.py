"""Redis behind Sentinels: the master is found, and found again when it is another one."""

from pathlib import Path
from typing import Any

import pytest

from synrepl.testing.fake_redis import FakeRedis
from synrepl.testing.network import MemoryEndpoint
from synrepl.testing.redis import RedisServer, SentinelServer
from synrepl.transports.redis.address import RedisAddress
from tests.redis.test_link import stopped
from tests.redis.worlds import FakeWorld, RealWorld, Recorder, World, rdata
from tests.storage.reactors import eventually


@pytest.mark.parametrize("password", [None, "hush"])
def test_a_failover_is_found(tmp_path: Path, password: str | None) -> None:
    """The master is killed; the replica becomes master; what is published there is heard."""
    world = RealWorld("password" if password else "tcp", tmp_path)
    member = Recorder()
    secret = tmp_path / "secret"
    secret.write_text(password or "")

    async def story(world: World) -> None:
        assert isinstance(world, RealWorld)
        master = world.server
        arguments = ["--replicaof", "127.0.0.1", str(master.port)]
        # What a failover needs to be quick, and a replica to be known to the Sentinel at once.
        master.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        with (
            RedisServer(password=password, arguments=arguments) as replica,
            SentinelServer(master, down_seconds=0.3, password=password, master_password=password) as sentinel,
        ):
            await eventually(
                world.reactor,
                lambda: (
                    sentinel.command("SENTINEL", "replicas", sentinel.service)
                    and replica.command("ROLE")[3] == b"connected"
                ),
                "the replica is not there",
            )
            # The first Sentinel is gone, as one of several may be.
            url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/{sentinel.service}"
            if password:
                url += f"?password_file={secret}&sentinel_password_file={secret}"
            link = world.link(member, address=RedisAddress.parse(url))
            link.start()
            await world.until(member.is_up)
            link.write(rdata(1))
            await world.until(lambda: member.tokens == [1])
            master.kill()
            await world.until(lambda: {"deaf", "mute"} <= set(member.told))
            await world.until(member.is_up, f"the new master was not found: {member.whys}")
            replica.command("PUBLISH", "hs.example", rdata(2).rstrip())
            await world.until(lambda: member.tokens == [1, 2])
            await stopped(world, link.stop())

    world.run(story)


def sentinel_world() -> tuple[FakeWorld, FakeRedis, dict[str, Any]]:
    """A master, and two Sentinels called `s1` and `s2`, on a fake clock."""
    world = FakeWorld()
    first = FakeRedis(world.network, "s1:26379", masters={"main": ("redis", 6379)})
    FakeRedis(world.network, "s2:26379", masters={"main": ("redis", 6379)})

    def endpoint(host: str, port: int) -> MemoryEndpoint:
        address = host if host == "redis" else f"{host}:{port}"
        return MemoryEndpoint(world.network, "worker1", address)

    address = RedisAddress.parse("redis+sentinel://s1,s2/main")
    return world, first, {"address": address, "endpoint": endpoint}


def test_a_sentinel_that_hangs_does_not_keep_us_from_the_next() -> None:
    """It costs 3 seconds, and once only."""
    world, first, options = sentinel_world()
    first.stall()

    async def story(_: World) -> None:
        member = Recorder()
        link = world.link(member, **options)
        link.start()
        await world.until(member.is_up)
        assert 3 <= world.clock.seconds() < 3.1
        world.redis.cut()
        await world.wait(0.3)
        assert member.is_up()
        await stopped(world, link.stop())
        first.go_on()

    world.run(story)


def test_a_demoted_master_is_not_taken() -> None:
    """Until a Sentinel names the new one, or it is the master again."""
    world, _, options = sentinel_world()
    world.redis.is_master = False

    async def story(_: World) -> None:
        member = Recorder()
        link = world.link(member, **options)
        link.start()
        await world.wait(5)
        assert set(member.told) == {"unreachable"}
        assert member.whys[-1] == "redis:6379: it is not the master now, but a slave"
        world.redis.is_master = True
        await world.until(member.is_up)
        await stopped(world, link.stop())

    world.run(story)


def test_what_every_sentinel_said_is_told() -> None:
    """Or nobody could tell a wrong name from a network that is down."""
    world, first, options = sentinel_world()
    first.kill()
    options["address"] = RedisAddress.parse("redis+sentinel://s1,s2/other")

    async def story(_: World) -> None:
        member = Recorder()
        link = world.link(member, **options)
        link.start()
        await world.until(lambda: "unreachable" in member.told)
        await stopped(world, link.stop())

        assert member.whys[0] == (
            "no Sentinel knows the master: s1:26379: connection refused; s2:26379: it knows no other"
        )

    world.run(story)
