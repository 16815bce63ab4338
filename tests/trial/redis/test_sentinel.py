"""Redis behind a real Sentinel: the new master is found after a failover."""

from synrepl.transports.redis.address import RedisAddress
from tests.redis.worlds import Recorder, rdata, stopped
from tests.servers.redis import RedisServer, SentinelServer
from tests.trial.redis.worlds import RedisCase
from tests.trial.waiting import eventually


class FailoverTests(RedisCase):
    """A master without a password, a replica, and a Sentinel."""

    password: str | None = None

    async def test_a_failover_is_found(self) -> None:
        """The master is killed; the replica becomes master; what is published there is heard."""
        world, password = self.world, self.password
        secret = self.home / "secret"
        secret.write_text(password or "")
        master = world.server
        # What a failover needs to be quick, and a replica to be known to the Sentinel at once.
        master.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        arguments = ["--replicaof", "127.0.0.1", str(master.port)]
        replica = RedisServer(password=password, arguments=arguments)
        self.addCleanup(replica.remove)
        replica.start()
        sentinel = SentinelServer(master, down_seconds=0.3, password=password, master_password=password)
        self.addCleanup(sentinel.remove)
        sentinel.start()
        await eventually(
            lambda: (
                sentinel.command("SENTINEL", "replicas", sentinel.service)
                and replica.command("ROLE")[3] == b"connected"
            ),
            "the Sentinel knows the replica",
        )
        # The first Sentinel is gone, as one of several may be.
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/{sentinel.service}"
        if password:
            url += f"?password_file={secret}&sentinel_password_file={secret}"
        member = Recorder()
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


class FailoverWithPasswordTests(FailoverTests):
    """All of them want one password."""

    kind = "password"
    password = "hush"
