"""A link to Redis, with real ones: the contract of tests/redis, and what the fake one would not know."""

from synrepl.transports.redis.address import RedisAddress
from tests.redis.contract import USER_IP, ClosedContract, FlowContract, LinkContract, OpenContract
from tests.redis.worlds import Recorder, rdata, refusal, stopped
from tests.servers.redis import RedisServer
from tests.trial.redis.worlds import RedisCase
from tests.trial.waiting import eventually


class TcpLinkTests(RedisCase, LinkContract, FlowContract, OpenContract):
    """By TCP."""


class UnixLinkTests(RedisCase, LinkContract):
    """By its socket."""

    kind = "unix"


class PasswordLinkTests(RedisCase, LinkContract, ClosedContract):
    """By TCP, with a password."""

    kind = "password"


class OldRedisTests(RedisCase):
    """A Redis that does not know AUTH."""

    arguments = ("--rename-command", "AUTH", "")

    async def test_a_password_that_redis_repeats_is_not_reported(self) -> None:
        """A command that it does not know it quotes, with what followed; so do Sentinels too old for AUTH."""
        secret = self.home / "password"
        secret.write_text("hush")
        address = RedisAddress.parse(f"{self.world.url}?password_file={secret}")

        why = await refusal(self.world, address=address)

        # Up to 6.2 Redis quotes it in backquotes, since 7.0 in single ones.
        self.assertRegex(why, r"Redis answers ERR unknown command [`']AUTH[`']$")


class FullRedisTests(RedisCase):
    """A Redis that lets in one client only."""

    arguments = ("--maxclients", "1")

    async def test_a_full_redis_is_reported(self) -> None:
        """On the real one: the fake one would say what we think that it says."""
        member = Recorder()
        link = self.world.link(member)

        link.start()
        await self.world.until(lambda: "unreachable" in member.told)
        await stopped(self.world, link.stop())

        self.assertIn("raise its maxclients", " ".join(member.whys))


class ReplicaTests(RedisCase):
    """A Redis and a replica of it."""

    async def test_what_is_published_at_a_replica_stays_there(self) -> None:
        """So the link says that it is one; what the master's publishers say is received."""
        master = self.world.server
        master.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        replica = RedisServer(arguments=["--replicaof", "127.0.0.1", str(master.port)])
        self.addCleanup(replica.remove)
        replica.start()
        await eventually(lambda: replica.command("ROLE")[3] == b"connected", "the replica follows")
        there, here = Recorder(), Recorder()
        at_master = self.world.link(there)
        at_replica = self.world.link(here, address=RedisAddress.parse(replica.url), instance="worker2")
        at_master.start()
        at_replica.start()
        await self.world.until(lambda: there.is_up() and here.is_up())

        self.assertEqual(
            ("", f"127.0.0.1:{master.port}"), (at_master.state().replica_of, at_replica.state().replica_of)
        )
        at_replica.write(rdata(1))
        await self.world.until(lambda: here.tokens == [1])
        at_master.write(rdata(2))
        await self.world.until(lambda: here.tokens == [1, 2])
        self.assertEqual([2], there.tokens)
        await stopped(self.world, at_master.stop())
        await stopped(self.world, at_replica.stop())


class RightsTests(RedisCase):
    """A Redis with users."""

    async def test_a_user_without_rights_is_told_which(self) -> None:
        """Of SUBSCRIBE at once; of PUBLISH when something is published, which must not vanish in silence."""
        path = self.home / "password"
        path.write_text("hush")
        server = self.world.server
        server.command("ACL", "SETUSER", "worker", "on", ">hush", "+ping", "+publish", "+subscribe")
        server.command("ACL", "SETUSER", "worker", "resetchannels", f"&{USER_IP}")
        member = Recorder()
        url = f"{self.world.url}?username=worker&password_file={path}"
        link = self.world.link(member, address=RedisAddress.parse(url))
        link.start()
        await self.world.until(lambda: "speaking" in member.told and "unreachable" in member.told)
        self.assertIn("SUBSCRIBE", member.whys[-1])
        link.write(rdata(1))
        await self.world.until(lambda: "mute" in member.told)
        self.assertIn("PUBLISH", " ".join(member.whys))
        server.command("ACL", "SETUSER", "worker", "allchannels")
        await self.world.until(member.is_up)
        link.write(rdata(2))
        await self.world.until(lambda: member.tokens == [2])
        await stopped(self.world, link.stop())


class AbsentRedisTests(RedisCase):
    """Addresses where there is none."""

    async def test_a_port_where_nothing_listens_is_reported(self) -> None:
        """The most usual trouble of all has the shortest text."""
        why = await refusal(self.world, address=RedisAddress.parse("redis://127.0.0.1:1"))

        self.assertEqual("127.0.0.1:1: connection refused", why)

    async def test_a_socket_that_is_not_there_is_reported(self) -> None:
        """By its path."""
        why = await refusal(self.world, address=RedisAddress.parse("redis+unix:///nowhere/redis.sock"))

        self.assertEqual("/nowhere/redis.sock: No such file or directory", why)
