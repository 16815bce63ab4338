"""A link to Redis: the same promises with the fake one and with real ones."""

import itertools
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, globalLogPublisher
from zope.interface import implementer

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.transports.redis import RedisLink
from synrepl.transports.redis.address import RedisAddress
from synrepl.wire.commands import FederationAck, Position, Server, UserIp
from synrepl.wire.declare import Command
from synrepl.wire.runs import Rows
from synrepl.wire.session import Keepalive
from tests.redis.worlds import SERVER, FakeWorld, RealWorld, Recorder, World, rdata

Story = Callable[[World], Coroutine[Any, Any, None]]
USER_IP = f"{SERVER}/USER_IP"


@pytest.fixture(params=["fake", "tcp", "unix", "password"])
def tell(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    """Runs a story in one of the worlds."""
    world = FakeWorld() if request.param == "fake" else RealWorld(request.param, tmp_path)
    return world.run


@pytest.fixture(params=["fake", "tcp"])
def tell_two(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    """Runs a story in the fake world and in one real one."""
    world = FakeWorld() if request.param == "fake" else RealWorld(request.param, tmp_path)
    return world.run


def test_it_hears_what_it_says_in_order(tell: Callable[[Story], None]) -> None:
    """Also in batches, in a long run of small writes, and on the channels that commands have."""

    async def story(world: World) -> None:
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

        assert list(range(1, 2001)) == member.tokens
        assert FederationAck(instance="w1", token=5) == member.commands[-2]
        assert len(member.batches) < 700, "what comes in one read is one batch"
        assert {"hearing", "speaking"} <= set(member.told)
        assert (True, True, 0, "") == (state.hearing, state.speaking, state.reconnects, state.why)
        assert state.address == world.address.public
        assert link.state().hearing is False

    tell(story)


def test_hearing_means_that_nothing_more_is_missed(tell: Callable[[Story], None]) -> None:
    """Whoever asks for positions before that would miss some."""
    published: list[int] = []

    async def story(world: World) -> None:
        class Publishing(Recorder):
            def hearing(self) -> None:
                super().hearing()
                published.append(world.publish(SERVER, rdata(1)))
                published.append(world.publish(USER_IP, rdata(2)))

        member = Publishing()
        link = world.link(member)
        link.start()
        await world.until(lambda: len(member.tokens) == 2)
        await stopped(world, link.stop())

        assert published == [1, 1]
        assert member.tokens == [1, 2]
        assert member.told.count("hearing") == 1

    tell(story)


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

    async def story(_: World) -> None:
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

    world.run(story)
    assert asked[0].split(b"\r\n")[2::2] == [b"SUBSCRIBE", USER_IP.encode(), SERVER.encode()]


def test_the_connections_have_names(tell: Callable[[Story], None]) -> None:
    """By which an operator finds them in CLIENT LIST."""

    async def story(world: World) -> None:
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        names = world.names()
        await stopped(world, link.stop())

        assert names == ["synrepl:worker1:publisher", "synrepl:worker1:subscriber"]

    tell(story)


def test_large_and_odd_payloads_arrive_as_they_are(tell: Callable[[Story], None]) -> None:
    """Bytes are bytes: what looks like a number is none, what is no text harms nobody."""
    seen: list[bytes] = []

    async def story(world: World) -> None:
        member = Recorder()
        link = world.link(member)
        receive = link._session.receive

        def recording(messages: Sequence[bytes], *, clean: bool = False) -> Any:
            seen.extend(messages)
            return receive(messages, clean=clean)

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

        assert sorted([*odd, large, rdata(8).rstrip()]) == sorted(seen)
        assert [payload for payload in seen if payload in odd] == odd
        assert link.state().messages_refused == 5
        assert {3, 7, 8} == set(member.tokens)

    tell(story)


@pytest.mark.parametrize(
    ("role", "told"),
    [("subscriber", ["deaf", "hearing"]), ("publisher", ["mute", "speaking"])],
)
def test_each_connection_comes_back_alone(tell: Callable[[Story], None], role: str, told: list[str]) -> None:
    """The other one is not to suffer for it."""

    async def story(world: World) -> None:
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

        assert member.told == told
        assert (1, "") == (state.reconnects, state.why)
        assert link.metrics.registry.get_sample_value("synrepl_reconnects_total") == 1
        assert link.metrics.registry.get_sample_value("synrepl_connections") == 0

    tell(story)


def test_a_killed_redis_is_found_again(tell: Callable[[Story], None]) -> None:
    """For ever, and at most 5 seconds after it is back."""

    async def story(world: World) -> None:
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

        assert member.tokens == [2]
        assert {"deaf", "mute"} <= set(member.told)
        assert (False, False) == (state.hearing, state.speaking)
        assert state.why

    tell(story)


def test_a_big_write_pauses_the_member(tell_two: Callable[[Story], None]) -> None:
    """Or what a slow Redis does not take would pile up here."""

    async def story(world: World) -> None:
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

        assert member.told == ["pause", "resume"]

    tell_two(story)


def test_a_stopped_redis_is_noticed(tell_two: Callable[[Story], None]) -> None:
    """Its connections stay open: only silence tells."""

    async def story(world: World) -> None:
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

        assert sorted(before) == ["hearing", "speaking"], "an idle Redis is no dead one"
        assert "it has said nothing for 0.4 seconds" in member.whys

    tell_two(story)


def test_reading_can_pause(tell_two: Callable[[Story], None]) -> None:
    """And a peer that we do not listen to is not taken for dead."""

    async def story(world: World) -> None:
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

        assert (paused, member.tokens) == ([], [1])
        assert "deaf" not in member.told

    tell_two(story)


def test_fail_drops_both_and_they_come_back(tell_two: Callable[[Story], None]) -> None:
    """Whatever was wrong is over with a new beginning, or it is said again."""

    async def story(world: World) -> None:
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)
        del member.told[:]
        link.fail("a gap that cannot be mended")
        assert member.told == [], "it is told in a turn of its own"
        await world.until(lambda: len(member.told) >= 4)
        await world.until(member.is_up)
        await stopped(world, link.stop())

        assert {"deaf", "mute", "hearing", "speaking"} == set(member.told)
        assert ["a gap that cannot be mended"] * 2 == member.whys

    tell_two(story)


def test_a_member_that_finds_fault_ends_the_connections(tell_two: Callable[[Story], None]) -> None:
    """With the rest of what came in that read."""

    async def story(world: World) -> None:
        member = Recorder()

        def refuse(commands: Sequence[Command | Rows]) -> None:
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

        assert "no such writer" in member.whys

    tell_two(story)


def test_only_what_belongs_there_is_sent() -> None:
    """A command that Redis does not carry is a bug here."""

    async def story(world: World) -> None:
        link = world.link(Recorder())
        link.send(Position(stream="events", instance="w1", prev_token=1, token=2))  # mute: dropped
        with pytest.raises(LocalProtocolError):
            link.send(Server(server_name="hs"))
        with pytest.raises(LocalProtocolError):
            world.link(Recorder(), hears=[])

    FakeWorld().run(story)


def test_stop_is_silent_at_any_time(tell: Callable[[Story], None]) -> None:
    """While connecting, while greeting, while waiting to try again, twice, and with something unsent."""

    async def story(world: World) -> None:
        for milliseconds in (0, 1, 2, 3, 5, 8, 20):
            member = Recorder()
            link = world.link(member)
            link.start()
            await world.wait(milliseconds / 1000)
            told = list(member.told)
            await stopped(world, link.stop())
            await world.wait(0.01)
            assert member.told == told
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

    tell(story)


async def stopped(world: World, ended: Deferred[None]) -> None:
    """Wait for a link to stop, on whatever clock."""
    done: list[object] = []
    ended.addBoth(done.append)
    await world.until(lambda: done)


def test_what_makes_no_sense_is_logged_once_a_second() -> None:
    """A neighbor with a bug must not fill the disk."""
    lines: list[str] = []

    @implementer(ILogObserver)
    def observe(event: Any) -> None:
        if "passed over" in (event.get("log_format") or ""):
            lines.append(f"{event['why']}{event['more']}")

    async def story(world: World) -> None:
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
        FakeWorld().run(story)
    finally:
        globalLogPublisher.removeObserver(observe)
    assert len(lines) == 2
    assert "99 more" in lines[1]


# Only on the fake clock: how long things take


def test_a_silent_redis_is_noticed_within_15_seconds() -> None:
    """Neither sooner, when it is idle for minutes, nor later."""

    async def story(world: World) -> None:
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
        assert "it has said nothing for 15 seconds" in member.whys

    FakeWorld().run(story)


def test_one_silent_connection_is_noticed_alone() -> None:
    """Half a connection can be lost, as when a firewall forgets it."""

    async def story(world: World) -> None:
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

    FakeWorld().run(story)


def test_a_redis_that_accepts_and_says_nothing_is_given_up_after_10_seconds() -> None:
    """An attempt has its limit, or one that hangs would be the last."""

    async def story(world: World) -> None:
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

    FakeWorld().run(story)


def attempts_in(world: FakeWorld, link: RedisLink, seconds: float) -> list[float]:
    """When the subscriber tried to connect in the time to come."""
    times: list[float] = []
    half = link._subscriber
    connect = half._connect

    def counted(attempt: Any) -> Any:
        times.append(world.clock.seconds())
        return connect(attempt)

    half._connect = counted  # type: ignore[method-assign]
    until = world.clock.seconds() + seconds
    while world.clock.seconds() < until:
        world.clock.advance(0.01)
    half._connect = connect  # type: ignore[method-assign]
    return times


def test_attempts_become_rarer_and_never_end() -> None:
    """At first soon, then every 5 seconds at most."""

    async def story(world: World) -> None:
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

    FakeWorld().run(story)


def test_a_redis_that_lets_in_and_drops_is_not_hammered() -> None:
    """A connection has not proved good by coming up."""

    async def story(world: World) -> None:
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

    FakeWorld().run(story)


@pytest.mark.parametrize("proof", ["established", "time"])
def test_after_a_good_connection_the_delay_is_small_again(proof: str) -> None:
    """Somebody said that it is good, or it has answered for a while."""

    async def story(world: World) -> None:
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

    FakeWorld().run(story)


def test_stop_waits_5_seconds_for_a_redis_that_takes_nothing() -> None:
    """Also when it is asked to stop twice."""

    async def story(world: World) -> None:
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

    FakeWorld().run(story)


@pytest.mark.parametrize("when", ["hearing", "speaking"])
def test_a_member_that_fails_is_connected_anew(when: str) -> None:
    """A bug in it is logged, and does not leave a connection that nobody watches."""

    async def story(world: World) -> None:
        class Failing(Recorder):
            def hearing(self) -> None:
                super().hearing()
                self.fail_once("hearing")

            def speaking(self) -> None:
                super().speaking()
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

    FakeWorld().run(story)


@pytest.mark.parametrize("word", ["deaf", "unreachable"])
def test_a_member_that_fails_on_bad_news_is_connected_anew(word: str) -> None:
    """Nobody but the link would ever try again."""

    class Failing(Recorder):
        def deaf(self, why: str) -> None:
            super().deaf(why)
            self.fail_at("deaf")

        def unreachable(self, why: str) -> None:
            super().unreachable(why)
            self.fail_at("unreachable")

        def fail_at(self, told: str) -> None:
            if told == word:
                raise ZeroDivisionError

    async def story(world: World) -> None:
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

    FakeWorld().run(story)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_published_while_it_hears_is_heard_once_and_in_order(seed: int) -> None:
    """Whatever becomes of the connections meanwhile, and however their bytes arrive."""
    chance = random.Random(seed)
    world = FakeWorld(delay=lambda: chance.random() * 0.01, piece=lambda size: chance.randint(1, size))
    periods: list[tuple[int, list[int | None]]] = []
    published = 0

    class Hearer(Recorder):
        def hearing(self) -> None:
            super().hearing()
            self.tokens = []
            periods.append((published, self.tokens))

    async def story(_: World) -> None:
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

    world.run(story)
    assert len(periods) > 1
    for before, tokens in periods:
        if tokens:
            first = tokens[0]
            assert first is not None
            assert first <= before + 1
            assert tokens == list(range(first, first + len(tokens)))


# What Redis may answer


def refusal(world: FakeWorld | RealWorld, **options: Any) -> str:
    """What the member is told when it cannot get in."""
    member = Recorder()

    async def story(world: World) -> None:
        link = world.link(member, **options)
        link.start()
        await world.until(lambda: member.told.count("unreachable") == 4)
        assert link.state().why == member.whys[-1]
        await stopped(world, link.stop())

    world.run(story)
    assert set(member.told) == {"unreachable"}
    assert len(set(member.whys)) == 1, member.whys
    return member.whys[0]


@pytest.mark.parametrize("kind", ["fake", "real"])
def test_passwords_that_are_missing_or_wrong_are_told(kind: str, tmp_path: Path) -> None:
    """And tried again: the file, or Redis, may be put right at any time."""
    wrong = tmp_path / "wrong"
    wrong.write_text("not it")

    def world(password: str) -> FakeWorld | RealWorld:
        return FakeWorld(password) if kind == "fake" else RealWorld(password, tmp_path)

    def address(found: FakeWorld | RealWorld, query: str = "") -> RedisAddress:
        port = found.server.port if isinstance(found, RealWorld) else 6379
        return RedisAddress.parse(f"redis://127.0.0.1:{port}{query}")

    closed = world("password")
    assert "wants a password" in refusal(closed, address=address(closed))
    closed = world("password")
    why = refusal(closed, address=address(closed, f"?password_file={wrong}"))
    assert "refuses the password" in why
    assert "not it" not in why
    opened = world("open")
    assert "has no password" in refusal(opened, address=address(opened, f"?password_file={wrong}"))
    opened = world("open")
    why = refusal(opened, address=address(opened, f"?password_file={tmp_path}/none"))
    assert why == f"cannot read the password file {tmp_path}/none: No such file or directory"


def test_a_password_can_be_put_right_without_a_restart(tmp_path: Path) -> None:
    """It is read at every attempt."""
    path = tmp_path / "password"
    path.write_text("old")

    async def story(world: World) -> None:
        member = Recorder()
        link = world.link(member, address=RedisAddress.parse(f"redis://redis?password_file={path}"))
        link.start()
        await world.until(lambda: "unreachable" in member.told)
        path.write_text("hush")
        await world.until(member.is_up)
        await stopped(world, link.stop())

    FakeWorld("password").run(story)


def test_a_password_that_redis_repeats_is_not_told(tmp_path: Path) -> None:
    """A command that it does not know it quotes, with what followed; so do Sentinels too old for AUTH."""
    world = RealWorld("tcp", tmp_path)
    world.server._arguments = ("--rename-command", "AUTH", "")
    secret = tmp_path / "password"
    secret.write_text("hush")
    address = RedisAddress.parse(f"{world.server.url}?password_file={secret}")

    why = refusal(world, address=address)

    assert why.endswith("Redis answers ERR unknown command `AUTH`")


def test_a_full_redis_is_told() -> None:
    """On the real one: the fake one would say what we think that it says."""
    world = RealWorld("tcp", Path())
    world.server._arguments = ("--maxclients", "1")
    member = Recorder()

    async def story(world: World) -> None:
        link = world.link(member)
        link.start()
        await world.until(lambda: "unreachable" in member.told)
        await stopped(world, link.stop())

    world.run(story)
    assert "raise its maxclients" in " ".join(member.whys)


def test_a_user_without_rights_is_told_which(tmp_path: Path) -> None:
    """Of SUBSCRIBE at once; of PUBLISH when something is published, which must not vanish in silence."""
    path = tmp_path / "password"
    path.write_text("hush")
    world = RealWorld("tcp", tmp_path)

    async def story(world: World) -> None:
        assert isinstance(world, RealWorld)
        world.server.command("ACL", "SETUSER", "worker", "on", ">hush", "+ping", "+publish", "+subscribe")
        world.server.command("ACL", "SETUSER", "worker", "resetchannels", f"&{USER_IP}")
        member = Recorder()
        url = f"{world.server.url}?username=worker&password_file={path}"
        link = world.link(member, address=RedisAddress.parse(url))
        link.start()
        await world.until(lambda: "speaking" in member.told and "unreachable" in member.told)
        assert "SUBSCRIBE" in member.whys[-1]
        link.write(rdata(1))
        await world.until(lambda: "mute" in member.told)
        assert "PUBLISH" in " ".join(member.whys)
        world.server.command("ACL", "SETUSER", "worker", "allchannels")
        await world.until(member.is_up)
        link.write(rdata(2))
        await world.until(lambda: member.tokens == [2])
        await stopped(world, link.stop())

    world.run(story)


def test_what_is_no_redis_is_told() -> None:
    """As an HTTP server on the port that was meant."""
    from twisted.internet.protocol import Factory, Protocol

    class Web(Protocol):
        def dataReceived(self, data: bytes) -> None:
            assert self.transport is not None
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            self.transport.loseConnection()

    world = FakeWorld()
    world.network.listen("redis", Factory.forProtocol(Web))

    assert "is no Redis" in refusal(world)


def test_tls_where_none_was_expected_is_told() -> None:
    """Its first bytes are those of an alert."""
    from twisted.internet.protocol import Factory, Protocol

    class Alert(Protocol):
        def dataReceived(self, data: bytes) -> None:
            assert self.transport is not None
            self.transport.write(b"\x15\x03\x01\x00\x02\x02\x46")

    world = FakeWorld()
    world.network.listen("redis", Factory.forProtocol(Alert))

    assert refusal(world) == "redis:6379: it speaks TLS: say rediss://"


def test_nothing_listens() -> None:
    """The most usual trouble of all has the shortest text."""
    world = RealWorld("tcp", Path())
    free = RedisAddress.parse("redis://127.0.0.1:1")
    assert refusal(world, address=free) == "127.0.0.1:1: connection refused"
    world = RealWorld("tcp", Path())
    gone = RedisAddress.parse("redis+unix:///nowhere/redis.sock")
    assert refusal(world, address=gone) == "/nowhere/redis.sock: No such file or directory"
