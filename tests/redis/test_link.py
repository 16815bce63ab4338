"""A link to Redis, with the fake one. tests/trial/redis keeps the same contract with real ones."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import ILogObserver, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.base.limited_logger import MAX_LINES
from synrepl.base.metrics import Metrics
from synrepl.errors import LocalProtocolError
from synrepl.transports.redis.address import RedisAddress
from synrepl.transports.redis.connections import RedisRefused, explain, master_of_replica
from synrepl.transports.redis.link import RedisLink
from synrepl.wire.commands import Position, Server
from synrepl.wire.keepalive import KEEPALIVE
from tests.redis.contract import USER_IP, ClosedContract, FakeCase, FlowContract, LinkContract, OpenContract
from tests.redis.fake_redis import _Client
from tests.redis.worlds import SERVER, FakeWorld, Recorder, World, rdata, refusal, stopped


class FakeLinkTests(FakeCase, LinkContract, FlowContract, OpenContract):
    """A Redis that wants no password."""


class FakePasswordTests(FakeCase, ClosedContract):
    """A Redis that wants one."""

    kind = "password"


def test_hearing_waits_for_the_last_confirmation() -> None:
    """The bare channel is asked for last, and what comes on the others before that has to wait."""
    from twisted.internet.protocol import Factory, Protocol

    asked: list[bytes] = []
    subscribers: list[Protocol] = []

    class Slow(Protocol):
        def dataReceived(self, data: bytes) -> None:
            assert self.transport is not None
            if b"SUBSCRIBE" in data:
                asked.append(data)
                subscribers.append(self)
            else:
                self.transport.write(b"+OK\r\n")

    def say(*words: bytes) -> None:
        (subscriber,) = subscribers
        assert subscriber.transport is not None
        shown = [word if word.isdigit() else b"$%d\r\n%b" % (len(word), word) for word in words]
        items = [b":" + word if word.isdigit() else word for word in shown]
        subscriber.transport.write(b"*%d\r\n%b\r\n" % (len(items), b"\r\n".join(items)))

    world = FakeWorld()
    world.network.listen("redis", Factory.forProtocol(Slow))

    async def setup(_: World) -> None:
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(lambda: subscribers)
        say(b"subscribe", USER_IP.encode(), b"1")
        say(b"message", USER_IP.encode(), rdata(1).rstrip())
        await world.wait(1)
        before = (list(member.told), list(member.tokens))
        say(b"subscribe", SERVER.encode(), b"2")
        await world.until(lambda: member.tokens)
        await stopped(world, link.stop())

        assert before == (["speaking"], [])
        assert member.told == ["speaking", "hearing"]

    world.run(setup)
    assert asked[0].split(b"\r\n")[2::2] == [b"SUBSCRIBE", USER_IP.encode(), SERVER.encode()]


def test_a_command_that_ends_with_its_connection_is_refused() -> None:
    """txredisapi has an error of its own for that: ``synrepl inspect`` ended in a traceback."""
    from twisted.internet.protocol import Factory, Protocol

    world = FakeWorld()

    class Refusing(Protocol):
        """Answers one command with an error, and hangs up later."""

        has_answered = False

        def dataReceived(self, data: bytes) -> None:
            assert self.transport is not None
            if not self.has_answered:
                self.has_answered = True
                self.transport.write(b"-ERR x\r\n")
                world.clock.callLater(2, self.transport.loseConnection)

    world.network.listen("redis", Factory.forProtocol(Refusing))

    async def setup(_: World) -> None:
        failed: list[Failure] = []
        asked = Deferred.fromCoroutine(world.link(Recorder()).query("PUBSUB", "NUMSUB", "x"))
        asked.addErrback(failed.append)
        await world.until(lambda: failed)
        assert failed[0].check(RedisRefused), failed
        await world.wait(5)

    world.run(setup)


def test_commands_that_redis_does_not_carry_are_refused() -> None:
    """A command that Redis does not carry is a bug here."""

    async def setup(world: World) -> None:
        link = world.link(Recorder())
        link.send(Position(stream="events", instance="w1", prev_token=1, token=2))  # mute: dropped
        with pytest.raises(LocalProtocolError):
            link.send(Server(server_name="hs"))
        with pytest.raises(LocalProtocolError):
            world.link(Recorder(), hears=[])

    FakeWorld().run(setup)


def test_what_makes_no_sense_is_logged_ten_times_a_minute() -> None:
    """A neighbor with a bug must not fill the disk."""
    lines: list[str] = []

    @implementer(ILogObserver)
    def observe(event: Any) -> None:
        if "ignored a bad message" in (event.get("log_format") or ""):
            lines.append(event["log_format"])

    async def setup(world: World) -> None:
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        for _ in range(100):
            world.publish(SERVER, b"NONSENSE 1")
        await world.wait(1.5)
        world.publish(SERVER, b"NONSENSE 2")
        await world.wait(0.1)
        await stopped(world, link.stop())

        assert link.state().messages_refused == 101

    globalLogPublisher.addObserver(observe)
    try:
        FakeWorld().run(setup)
    finally:
        globalLogPublisher.removeObserver(observe)
    assert len(lines) == MAX_LINES + 1
    assert "minute: 91;" in lines[-1]


def test_what_makes_no_sense_costs_nothing_else_of_the_same_read() -> None:
    """The rows before it and after it may be of other neighbors."""

    async def setup(world: World) -> None:
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        link.on_messages([rdata(1).rstrip(), b"NONSENSE 1", rdata(2).rstrip()])
        await stopped(world, link.stop())

        assert member.tokens == [1, 2]
        assert link.state().messages_refused == 1

    FakeWorld().run(setup)


def test_a_replica_is_told_as_long_as_it_is_one() -> None:
    """What is published there does not reach the master's subscribers; no error tells (redis/redis#2942)."""
    lines: list[str] = []

    @implementer(ILogObserver)
    def observe(event: Any) -> None:
        if "is a replica of" in event.get("problem", ""):
            lines.append(event["problem"])

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        world.redis.is_master = False
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        at_start = link.state().replica_of
        world.cut("publisher")
        await world.wait(1)
        await world.until(member.is_up)
        again = link.state().replica_of
        world.redis.is_master = True
        await world.wait(6)
        promoted = link.state().replica_of
        world.redis.is_master = False
        await world.until(lambda: link.state().replica_of, "the demotion was not noticed")
        demoted = link.state().replica_of
        world.publish(SERVER, rdata(1).rstrip())
        await world.until(lambda: member.tokens)
        await stopped(world, link.stop())

        assert ("primary:6379", "primary:6379", "", "primary:6379") == (at_start, again, promoted, demoted)
        assert link.state().replica_of == ""

    globalLogPublisher.addObserver(observe)
    try:
        FakeWorld().run(setup)
    finally:
        globalLogPublisher.removeObserver(observe)
    assert len(lines) == 2  # not at each new connection
    assert "Redis at redis://redis is a replica of primary:6379: " in lines[0]


def test_a_replica_in_a_cluster_passes_on_what_is_published() -> None:
    """All of its nodes do, whatever their role; seen with Redis 6.2."""

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        world.redis.is_cluster = True
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        world.redis.is_master = False
        await world.until(lambda: "mute" in member.told)
        await world.until(member.is_up)
        await world.wait(20)
        reconnects, found = link.state().reconnects, link.state().replica_of
        await stopped(world, link.stop())

        assert (1, "") == (reconnects, found)

    FakeWorld().run(setup)


@pytest.mark.parametrize("is_master", [True, None])
def test_a_redis_that_is_master_or_does_not_say_is_no_replica(is_master: bool | None) -> None:
    """ROLE is in @dangerous: many users may not ask, and work all the same."""

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        world.redis.is_master = is_master
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        await world.wait(20)
        told, found = list(member.told), link.state().replica_of
        await stopped(world, link.stop())

        assert (sorted(told), found) == (["hearing", "speaking"], "")

    FakeWorld().run(setup)


@pytest.mark.parametrize(
    ("reply", "master"),
    [
        ([b"slave", b"10.0.0.1", 6379, b"connected", 9], "10.0.0.1:6379"),
        ([b"replica", b"r\x1b\xff", 1], "r\\x1b\ufffd:1"),
        ([b"master", 0, []], ""),
        ([b"sentinel", [b"main"]], ""),
        ([b"slave", b"h"], ""),
        ([], ""),
        ("OK", ""),
        (None, ""),
    ],
)
def test_the_master_in_an_answer_to_role(reply: Any, master: str) -> None:
    """Whatever a server answers that is no Redis."""
    assert master == master_of_replica(reply)


# Only on the fake clock: how long things take


def test_a_silent_redis_is_noticed_within_15_seconds() -> None:
    """Neither sooner, when it is idle for minutes, nor later."""

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        await world.wait(120)
        assert member.is_up()
        begun = world.clock.seconds()
        world.stall()
        await world.until(lambda: {"deaf", "mute"} <= set(member.told))
        noticed = world.clock.seconds() - begun
        await stopped(world, link.stop())

        assert 10 <= noticed <= 15.1
        assert "no data from Redis for 15 seconds" in member.whys

    FakeWorld().run(setup)


def test_one_silent_connection_is_noticed_alone() -> None:
    """Half a connection can be lost, as when a firewall forgets it."""

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        world.redis.stall("subscriber")
        await world.wait(16)
        assert "deaf" in member.told
        assert "mute" not in member.told
        world.go_on()
        await world.until(member.is_up)
        await stopped(world, link.stop())

    FakeWorld().run(setup)


def test_a_redis_that_accepts_and_says_nothing_is_given_up_after_10_seconds() -> None:
    """An attempt has its limit, or one that hangs would be the last."""

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        world.stall()
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.wait(9.9)
        assert member.told == []
        await world.wait(0.2)
        assert member.told == ["unreachable", "unreachable"]
        await stopped(world, link.stop())

        assert member.whys[0] == "redis:6379: no answer within 10 seconds"

    FakeWorld().run(setup)


def attempts_in(world: FakeWorld, link: RedisLink, seconds: float) -> list[float]:
    """When the subscriber tried to connect in the time to come."""
    times: list[float] = []
    timer = link._subscriber._timer
    connect = timer._work

    def counted() -> None:
        times.append(world.clock.seconds())
        connect()

    timer._work = counted
    until = world.clock.seconds() + seconds
    while world.clock.seconds() < until:
        world.clock.advance(0.01)
    timer._work = connect
    return times


def test_attempts_become_rarer_and_never_end() -> None:
    """At first soon, then every 5 seconds at most."""

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        world.kill()
        link = world.link(Recorder())
        link.start()
        times = attempts_in(world, link, 600)
        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        await stopped(world, link.stop())

        assert times[0] <= 0.25
        assert max(waits) <= 5.1
        assert len(waits) > 100
        assert len({round(wait, 2) for wait in waits[-50:]}) > 10, "they are spread"

    FakeWorld().run(setup)


def test_a_redis_that_lets_in_and_drops_is_not_hammered() -> None:
    """A connection has not proved good by coming up."""

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        member = Recorder()
        link = world.link(member)

        def drop() -> None:
            world.redis.cut()
            timers.append(world.clock.callLater(0.1, drop))

        timers = [world.clock.callLater(0.1, drop)]
        link.start()
        times = attempts_in(world, link, 60)
        timers[-1].cancel()
        await stopped(world, link.stop())

        assert "hearing" in member.told
        assert len(times) < 30

    FakeWorld().run(setup)


def test_a_refused_publish_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is lost: the member must learn that it has to be published again."""

    async def setup(world: World) -> None:
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(lambda: {"hearing", "speaking"} <= set(member.told))
        answer = _Client._answer
        monkeypatch.setattr(
            _Client,
            "_answer",
            lambda client, command, words: (
                b"-OOM command not allowed\r\n" if command == b"PUBLISH" else answer(client, command, words)
            ),
        )
        link.write(rdata(1))
        await world.until(lambda: "mute" in member.told)
        await stopped(world, link.stop())

        assert "OOM" in member.whys[0]

    FakeWorld().run(setup)


@pytest.mark.parametrize("proof", ["established", "time"])
def test_after_a_good_connection_the_delay_is_small_again(proof: str) -> None:
    """Somebody said that it is good, or it has answered for a while."""

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        world.kill()
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.wait(30)
        world.restart()
        await world.until(member.is_up)
        if proof == "established":
            link.established()
        else:
            await world.wait(12)
        world.redis.cut()
        times = attempts_in(world, link, 0.3)
        await stopped(world, link.stop())

        assert len(times) == 1

    FakeWorld().run(setup)


def test_stop_waits_5_seconds_for_a_redis_that_takes_nothing() -> None:
    """Also when it is asked to stop twice."""

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        world.stall()
        link.write(rdata(1))
        begun = world.clock.seconds()
        again = [link.stop(), link.stop()]
        for ended in again:
            await stopped(world, ended)
        taken = world.clock.seconds() - begun

        assert 5 <= taken < 5.1
        assert member.tokens == []

    FakeWorld().run(setup)


@pytest.mark.parametrize("when", ["hearing", "speaking"])
def test_a_member_that_fails_is_connected_anew(when: str) -> None:
    """A bug in it is logged, and does not leave a connection that nobody watches."""

    async def setup(world: World) -> None:
        class Failing(Recorder):
            def subscriber_up(self) -> None:
                super().subscriber_up()
                self.fail_once("hearing")

            def publisher_up(self) -> None:
                super().publisher_up()
                self.fail_once("speaking")

            def fail_once(self, word: str) -> None:
                if word == when and self.told.count(word) == 1:
                    raise ZeroDivisionError

        member = Failing()
        link = world.link(member)
        link.start()
        await world.until(lambda: member.told.count(when) == 2)
        await world.until(member.is_up)
        await world.wait(10)
        names = world.names()
        await stopped(world, link.stop())

        assert len(names) == 2
        assert member.told.count(when) == 2

    FakeWorld().run(setup)


@pytest.mark.parametrize("word", ["deaf", "unreachable"])
def test_a_member_that_fails_on_bad_news_is_connected_anew(word: str) -> None:
    """Nobody but the link would ever try again."""

    class Failing(Recorder):
        def subscriber_down(self, why: str) -> None:
            super().subscriber_down(why)
            self.fail_at("deaf")

        def unreachable(self, why: str) -> None:
            super().unreachable(why)
            self.fail_at("unreachable")

        def fail_at(self, told: str) -> None:
            if told == word:
                raise ZeroDivisionError

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        member = Failing()
        link = world.link(member)
        if word == "unreachable":
            world.kill()
            link.start()
            await world.until(lambda: member.told.count("unreachable") == 2)
            world.restart()
        else:
            link.start()
            await world.until(member.is_up)
            with pytest.raises(ZeroDivisionError):
                world.cut("subscriber")
        await world.until(member.is_up)
        await stopped(world, link.stop())

        assert word in member.told

    FakeWorld().run(setup)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_published_while_it_hears_is_heard_once_and_in_order(seed: int) -> None:
    """Whatever becomes of the connections meanwhile, and however their bytes arrive."""
    chance = random.Random(seed)
    world = FakeWorld(delay=lambda: chance.random() * 0.01, piece=lambda size: chance.randint(1, size))
    periods: list[tuple[int, list[int | None]]] = []
    published = 0

    class Hearer(Recorder):
        def subscriber_up(self) -> None:
            super().subscriber_up()
            self.tokens = []
            periods.append((published, self.tokens))

    async def setup(_: World) -> None:
        nonlocal published
        member = Hearer()
        link = world.link(member)
        link.start()
        actions: list[Callable[[], object]] = [
            world.redis.cut,
            lambda: world.redis.cut("subscriber"),
            lambda: world.redis.stall("subscriber"),
            world.redis.stall,
            world.redis.go_on,
            world.redis.kill,
            world.redis.start,
            world.redis.start,
            world.redis.go_on,
            link.pause_reading,
            link.resume_reading,
            lambda: link.fail("a reason"),
            link.established,
        ]
        for _step in range(300):
            if chance.random() < 0.1:
                chance.choice(actions)()
            for _message in range(chance.randint(0, 20)):
                published += 1
                world.publish(SERVER, rdata(published).rstrip())
            # In small steps: a fake clock that jumps lets only one piece of data through.
            for _small in range(chance.choice([1, 5, 50, 400])):
                world.clock.advance(0.005)
        link.resume_reading()
        world.redis.start()
        world.redis.go_on()
        await world.until(member.is_up)
        published += 1
        world.publish(SERVER, rdata(published).rstrip())
        await world.until(lambda: member.tokens and member.tokens[-1] == published)
        await stopped(world, link.stop())

        hears = [word for word in member.told if word in ("hearing", "deaf")]
        speaks = [word for word in member.told if word in ("speaking", "mute")]
        assert hears[::2] == ["hearing"] * len(hears[::2])
        assert hears[1::2] == ["deaf"] * len(hears[1::2])
        assert speaks[::2] == ["speaking"] * len(speaks[::2])
        assert speaks[1::2] == ["mute"] * len(speaks[1::2])

    world.run(setup)
    assert len(periods) > 1
    for before, tokens in periods:
        if tokens:
            first = tokens[0]
            assert first is not None
            assert first <= before + 1
            assert tokens == list(range(first, first + len(tokens)))


# What Redis may answer


def test_a_password_can_be_put_right_without_a_restart(tmp_path: Path) -> None:
    """It is read at every attempt."""
    path = tmp_path / "password"
    path.write_text("old")

    async def setup(world: World) -> None:
        member = Recorder()
        link = world.link(member, address=RedisAddress.parse(f"redis://redis?password_file={path}"))
        link.start()
        await world.until(lambda: "unreachable" in member.told)
        path.write_text("hush")
        await world.until(member.is_up)
        await stopped(world, link.stop())

    FakeWorld("password").run(setup)


def test_a_server_that_is_no_redis_is_reported() -> None:
    """As an HTTP server on the port that was meant."""
    from twisted.internet.protocol import Factory, Protocol

    class Web(Protocol):
        def dataReceived(self, data: bytes) -> None:
            assert self.transport is not None
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            self.transport.loseConnection()

    world = FakeWorld()
    world.network.listen("redis", Factory.forProtocol(Web))

    assert "is not Redis" in world.run(refusal)


def test_a_server_that_announces_a_reply_without_bounds_is_left() -> None:
    """Thirteen bytes made the parser allocate sixteen gigabytes, and ended the daemon."""
    from twisted.internet.protocol import Factory, Protocol

    class Hostile(Protocol):
        def dataReceived(self, data: bytes) -> None:
            assert self.transport is not None
            self.transport.write(b"*2147483647\r\n")

    world = FakeWorld()
    world.network.listen("redis", Factory.forProtocol(Hostile))

    assert "a reply has 2147483647 items" in world.run(refusal)


def test_tls_where_none_was_expected_is_reported() -> None:
    """Its first bytes are those of an alert."""
    from twisted.internet.protocol import Factory, Protocol

    class Alert(Protocol):
        def dataReceived(self, data: bytes) -> None:
            assert self.transport is not None
            self.transport.write(b"\x15\x03\x01\x00\x02\x02\x46")

    world = FakeWorld()
    world.network.listen("redis", Factory.forProtocol(Alert))

    assert (
        world.run(refusal) == "redis:6379: the server speaks TLS: use rediss://, or tls=true with Sentinels"
    )


def test_a_publisher_that_leaves_reads_the_replies_to_its_last_messages() -> None:
    """A close with unread replies may lose messages."""
    from synrepl.transports.redis.connections import PublisherConnection

    clock = Clock()
    link = SimpleNamespace(
        clock=clock,
        metrics=Metrics(CollectorRegistry()),
        keepalive=KEEPALIVE,
        address=RedisAddress.parse("redis://redis"),
        member=SimpleNamespace(publisher_up=lambda: None),
    )
    connection, transport = PublisherConnection(cast(Any, link)), StringTransport()
    connection.makeConnection(transport)
    connection.start_watching()
    connection.publish(b"*3\r\n$7\r\nPUBLISH\r\n$2\r\nhs\r\n$", b"REPLICATE\nPING\n")
    connection.close()
    connection.dataReceived(b":1\r\n")
    assert not transport.disconnecting

    connection.dataReceived(b":1\r\n")

    assert transport.disconnecting


@pytest.mark.parametrize(
    ("refusal", "command", "right"),
    [
        # redis/redis#13074: users who may read, or subscribe, and no more
        ("NOPERM this user has no permissions to run the 'publish' command", "PUBLISH", "USER +publish ("),
        # redis/redis#12418, redis/redis-py#2707: since Redis 7 all commands are not all channels
        (
            "NOPERM this user has no permissions to access one of the channels used as arguments",
            "SUBSCRIBE",
            "not allow this user SUBSCRIBE on this channel: grant it with ACL SETUSER USER &* (",
        ),
        ("NOPERM No permissions to access a channel", "SUBSCRIBE", "USER &* ("),
        (
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "GET",
            "USER ~* (",
        ),
    ],
)
def test_what_a_user_of_redis_lacks_is_told(refusal: str, command: str, right: str) -> None:
    """With what grants it."""
    assert right in explain(refusal, command=command)
