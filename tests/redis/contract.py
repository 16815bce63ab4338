"""What a link to Redis promises, with the fake one and with real ones alike.

A case brings the world: under pytest `FakeCase`, under trial the one with real servers.
"""

import shutil
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.trial.unittest import SynchronousTestCase

from synrepl.errors import RemoteProtocolError
from synrepl.transports.redis.address import RedisAddress
from synrepl.wire.commands import FederationAck, UserIp
from synrepl.wire.grammar import Command
from synrepl.wire.keepalive import Keepalive
from synrepl.wire.rdata_runs import RdataRun
from tests.redis.worlds import SERVER, FakeWorld, Recorder, Setup, World, rdata, refusal, stopped

if TYPE_CHECKING:
    Case = SynchronousTestCase
else:
    # Not a test itself: the case with the world brings that.
    Case = object

__all__ = ["USER_IP", "ClosedContract", "FakeCase", "FlowContract", "LinkContract", "OpenContract"]

USER_IP = f"{SERVER}/USER_IP"


class Contract(Case):
    """Stories for a case that knows a world to tell them in. `home` is a directory for their files."""

    home: Path

    def tell(self, setup: Setup) -> Any:
        """Run the story in the case's world; what is returned is what the test returns."""
        raise NotImplementedError


def setup(test: Callable[[Any, World], Coroutine[Any, Any, None]]) -> Callable[[Any], Any]:
    """A test that its case tells in the world of the case."""

    @wraps(test)
    def tell(self: Contract) -> Any:
        return self.tell(partial(test, self))

    return tell


class FakeCase(SynchronousTestCase):
    """With the fake Redis, on a fake clock. `kind` is that of a `FakeWorld`."""

    kind = "fake"

    def setUp(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="synrepl-redis-"))
        self.addCleanup(shutil.rmtree, self.home)

    def tell(self, setup: Setup) -> None:
        """Run it to its end; nothing of it may be left."""
        FakeWorld(self.kind).run(setup)


class LinkContract(Contract):
    """What holds however Redis is reached."""

    @setup
    async def test_it_hears_what_it_says_in_order(self, world: World) -> None:
        """Also in batches, in a long run of small writes, and on the channels that commands have."""
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        for token in range(1, 501):
            link.write(rdata(token))
        link.write(b"".join(rdata(token) for token in range(501, 2001)))
        await world.until(lambda: len(member.tokens) == 2000, "rows are missing")
        link.send(FederationAck(instance="w1", token=5))
        link.send(UserIp(user_id="@a:hs", seen=["t", "1.2.3.4", "ua", None, 1]))
        await world.until(lambda: isinstance(member.commands[-1], UserIp))
        state = link.state()
        await stopped(world, link.stop())

        self.assertEqual(list(range(1, 2001)), member.tokens)
        self.assertEqual(FederationAck(instance="w1", token=5), member.commands[-2])
        self.assertLess(len(member.batches), 700, "what comes in one read is one batch")
        self.assertLessEqual({"hearing", "speaking"}, set(member.told))
        self.assertEqual(
            (True, True, 0, ""), (state.subscribed, state.publishing, state.reconnects, state.why)
        )
        self.assertEqual(world.address.public, state.address)
        self.assertIs(False, link.state().subscribed)

    @setup
    async def test_hearing_means_that_nothing_more_is_missed(self, world: World) -> None:
        """Whoever asks for positions before that would miss some."""
        published: list[int] = []

        class Publishing(Recorder):
            def subscriber_up(self) -> None:
                super().subscriber_up()
                published.append(world.publish(SERVER, rdata(1)))
                published.append(world.publish(USER_IP, rdata(2)))

        member = Publishing()
        link = world.link(member)
        link.start()
        await world.until(lambda: len(member.tokens) == 2)
        await stopped(world, link.stop())

        self.assertEqual([1, 1], published)
        self.assertEqual([1, 2], member.tokens)
        self.assertEqual(1, member.told.count("hearing"))

    @setup
    async def test_the_connections_have_names(self, world: World) -> None:
        """By which an operator finds them in CLIENT LIST."""
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        names = world.names()
        await stopped(world, link.stop())

        self.assertEqual(["synrepl:worker1:publisher", "synrepl:worker1:subscriber"], names)

    @setup
    async def test_large_and_odd_payloads_arrive_as_they_are(self, world: World) -> None:
        """Bytes are bytes: what looks like a number is none, what is no text harms nobody."""
        seen: list[bytes] = []
        member = Recorder()
        link = world.link(member)
        receive = link._session.receive

        def recording(messages: Sequence[bytes]) -> Any:
            seen.extend(messages)
            return receive(messages)

        link._session.receive = recording  # type: ignore[method-assign,assignment]
        link.start()
        await world.until(member.is_up)
        odd = [b"1", b"-2.5", b"", b"\xff\xfe", b"a\r\nb", b"nan", 'RDATA events w1 3 ["ä"]'.encode()]
        for payload in odd:
            world.publish(SERVER, payload)
        large = rdata(7, 300_000).rstrip()
        link.write(large + b"\n")
        world.publish(SERVER, rdata(8).rstrip())
        await world.until(lambda: 8 in member.tokens and 7 in member.tokens)
        await stopped(world, link.stop())

        self.assertEqual(sorted([*odd, large, rdata(8).rstrip()]), sorted(seen))
        self.assertEqual(odd, [payload for payload in seen if payload in odd])
        self.assertEqual(5, link.state().messages_refused)
        self.assertEqual({3, 7, 8}, set(member.tokens))

    @setup
    async def test_the_subscriber_comes_back_alone(self, world: World) -> None:
        """The publisher is not to suffer for it."""
        await self.comes_back_alone(world, "subscriber", ["deaf", "hearing"])

    @setup
    async def test_the_publisher_comes_back_alone(self, world: World) -> None:
        """The subscriber is not to suffer for it."""
        await self.comes_back_alone(world, "publisher", ["mute", "speaking"])

    async def comes_back_alone(self, world: World, role: str, told: list[str]) -> None:
        """Cut the connection of this role: the member is told so much, and no more."""
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        del member.told[:]
        world.cut(role)
        await world.until(lambda: len(member.told) == 2)
        link.write(rdata(1))
        await world.until(lambda: member.tokens == [1])
        state = link.state()
        await stopped(world, link.stop())

        self.assertEqual(told, member.told)
        self.assertEqual((1, ""), (state.reconnects, state.why))
        self.assertEqual(1, link.metrics.reconnects.value)
        self.assertEqual(0, link.metrics.connections.value)

    @setup
    async def test_a_killed_redis_is_found_again(self, world: World) -> None:
        """For ever, and at most 5 seconds after it is back."""
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        world.kill()
        await world.until(lambda: member.told.count("unreachable") >= 2)
        link.write(rdata(1))  # dropped: nobody is there
        state = link.state()
        world.restart()
        await world.until(member.is_up)
        link.write(rdata(2))
        await world.until(lambda: member.tokens)
        await stopped(world, link.stop())

        self.assertEqual([2], member.tokens)
        self.assertLessEqual({"deaf", "mute"}, set(member.told))
        self.assertEqual((False, False), (state.subscribed, state.publishing))
        self.assertTrue(state.why)

    @setup
    async def test_stop_is_silent_at_any_time(self, world: World) -> None:
        """While connecting, while greeting, while waiting to try again, twice, and with something unsent."""
        for milliseconds in (0, 1, 2, 3, 5, 8, 20):
            member = Recorder()
            link = world.link(member)
            link.start()
            await world.wait(milliseconds / 1000)
            told = list(member.told)
            await stopped(world, link.stop())
            await world.wait(0.01)
            self.assertEqual(told, member.told)
        await stopped(world, link.stop())

        listener = Recorder()
        hearing = world.link(listener, instance="listener")
        hearing.start()
        await world.until(listener.is_up)
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        link.write(b"".join(rdata(token, 500) for token in range(1, 1001)))
        await stopped(world, link.stop())
        await world.until(lambda: len(listener.tokens) == 1000, "what was written is sent first")
        await stopped(world, hearing.stop())

        world.kill()
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(lambda: "unreachable" in member.told)
        await stopped(world, link.stop())


class FlowContract(Contract):
    """What holds when somebody is slow or silent, or finds fault."""

    @setup
    async def test_a_big_write_pauses_the_member(self, world: World) -> None:
        """Or what a slow Redis does not take would pile up here."""
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        del member.told[:]
        world.stall()
        link.write(b"".join(rdata(token, 1000) for token in range(1, 20_001)))
        await world.until(lambda: "pause" in member.told)
        world.go_on()
        await world.until(lambda: len(member.tokens) == 20_000)
        await world.until(lambda: "resume" in member.told)
        await stopped(world, link.stop())

        self.assertEqual(["pause", "resume"], member.told)

    @setup
    async def test_a_stopped_redis_is_noticed(self, world: World) -> None:
        """Its connections stay open: only silence tells."""
        member = Recorder()
        link = world.link(member, keepalive=Keepalive(ping_seconds=0.1, timeout_seconds=0.4))
        link.start()
        await world.until(member.is_up)
        await world.wait(1)
        before = list(member.told)
        world.stall()
        await world.until(lambda: {"deaf", "mute"} <= set(member.told))
        world.go_on()
        await world.until(member.is_up)
        await stopped(world, link.stop())

        self.assertEqual(["hearing", "speaking"], sorted(before), "an idle Redis is no dead one")
        self.assertIn("no data from Redis for 0.4 seconds", member.whys)

    @setup
    async def test_reading_can_pause(self, world: World) -> None:
        """And a peer that we do not listen to is not taken for dead."""
        member = Recorder()
        link = world.link(member, keepalive=Keepalive(ping_seconds=0.05, timeout_seconds=0.2))
        link.start()
        await world.until(member.is_up)
        link.pause_reading()
        world.publish(SERVER, rdata(1))
        await world.wait(0.6)
        paused = list(member.tokens)
        link.resume_reading()
        await world.until(lambda: member.tokens)
        await stopped(world, link.stop())

        self.assertEqual(([], [1]), (paused, member.tokens))
        self.assertNotIn("deaf", member.told)

    @setup
    async def test_fail_drops_both_and_they_come_back(self, world: World) -> None:
        """Whatever was wrong is over with a new beginning, or it is said again."""
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        del member.told[:]
        link.fail("a gap that cannot be mended")
        self.assertEqual([], member.told, "it is told in a turn of its own")
        await world.until(lambda: len(member.told) >= 4)
        await world.until(member.is_up)
        await stopped(world, link.stop())

        self.assertEqual({"deaf", "mute", "hearing", "speaking"}, set(member.told))
        self.assertEqual(["a gap that cannot be mended"] * 2, member.whys)

    @setup
    async def test_a_member_that_finds_fault_ends_the_connections(self, world: World) -> None:
        """With the rest of what came in that read."""
        member = Recorder()

        def refuse(commands: Sequence[Command | RdataRun]) -> None:
            member.on_received = lambda commands: None
            raise RemoteProtocolError("no such writer")

        member.on_received = refuse
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        world.publish(SERVER, rdata(1))
        await world.until(lambda: "deaf" in member.told)
        await world.until(member.is_up)
        await stopped(world, link.stop())

        self.assertIn("no such writer", member.whys)


class ClosedContract(Contract):
    """A Redis that requires a password. The link says what is wrong, and tries again."""

    @setup
    async def test_a_missing_password_is_told(self, world: World) -> None:
        """Nobody has named a file."""
        why = await refusal(world, address=RedisAddress.parse(world.url))

        self.assertIn("requires a password", why)

    @setup
    async def test_a_wrong_password_is_told(self, world: World) -> None:
        """But not shown."""
        path = self.home / "password"
        path.write_text("not it")

        why = await refusal(world, address=RedisAddress.parse(f"{world.url}?password_file={path}"))

        self.assertIn("refuses the password", why)
        self.assertNotIn("not it", why)


class OpenContract(Contract):
    """A Redis without a password, of which somebody thinks that it has one."""

    @setup
    async def test_a_password_too_many_is_told(self, world: World) -> None:
        """Redis would let in anybody: the operator has to hear of it."""
        path = self.home / "password"
        path.write_text("not it")

        why = await refusal(world, address=RedisAddress.parse(f"{world.url}?password_file={path}"))

        self.assertIn("has no password", why)

    @setup
    async def test_a_password_file_that_is_missing_is_told(self, world: World) -> None:
        """By its name."""
        path = self.home / "none"

        why = await refusal(world, address=RedisAddress.parse(f"{world.url}?password_file={path}"))

        self.assertEqual(f"cannot read the password file {path}: No such file or directory", why)
