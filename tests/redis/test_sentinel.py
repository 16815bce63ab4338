"""Redis behind Sentinels: the master is found, and found again when it is another one.

With fake ones; tests/trial/redis has a real failover.
"""

from typing import Any

from synrepl.testing.network import MemoryEndpoint
from synrepl.transports.redis.address import RedisAddress
from tests.redis.fake_redis import FakeRedis
from tests.redis.worlds import FakeWorld, Recorder, World, stopped


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

    async def setup(_: World) -> None:
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

    world.run(setup)


def test_a_demoted_master_is_not_taken() -> None:
    """Until a Sentinel names the new one, or it is the master again."""
    world, _, options = sentinel_world()
    world.redis.is_master = False

    async def setup(_: World) -> None:
        member = Recorder()
        link = world.link(member, **options)
        link.start()
        await world.wait(5)
        assert set(member.told) == {"unreachable"}
        assert member.whys[-1] == "redis:6379: this server is not the master but a slave"
        world.redis.is_master = True
        await world.until(member.is_up)
        await stopped(world, link.stop())

    world.run(setup)


def test_a_master_that_is_demoted_is_left() -> None:
    """Sentinel closes its clients' connections; a REPLICAOF by hand closes none."""
    world, _, options = sentinel_world()

    async def setup(_: World) -> None:
        member = Recorder()
        link = world.link(member, **options)
        link.start()
        await world.until(member.is_up)
        world.redis.is_master = False
        await world.until(lambda: "mute" in member.told)
        assert member.whys[0] == "the server has become a replica of primary:6379"
        world.redis.is_master = True
        await world.until(member.is_up)
        await stopped(world, link.stop())

    world.run(setup)


def test_the_error_lists_the_answer_of_each_sentinel() -> None:
    """Or nobody could tell a wrong name from a network that is down."""
    world, first, options = sentinel_world()
    first.kill()
    options["address"] = RedisAddress.parse("redis+sentinel://s1,s2/other")

    async def setup(_: World) -> None:
        member = Recorder()
        link = world.link(member, **options)
        link.start()
        await world.until(lambda: "unreachable" in member.told)
        await stopped(world, link.stop())

        assert member.whys[0] == (
            "no Sentinel knows the master: s1:26379: connection refused;"
            " s2:26379: it does not know the service other"
        )

    world.run(setup)
