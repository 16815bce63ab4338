"""Bugs of the shared channel."""

import pytest

from synrepl.streams.writer import Writer
from tests.redis.worlds import FakeWorld, Recorder, World, stopped
from tests.replication.test_daemon_member import REPLICATE, Setup


def test_replicate_waits_for_the_subscription() -> None:
    """Case 1, Synapse #7427: REPLICATE was sent before Redis had confirmed SUBSCRIBE. Answers were missed.

    Here: a process sends REPLICATE only after SUBSCRIBE is confirmed, so it misses no POSITION.
    """
    setup = Setup(up=False)
    setup.member.publisher_up()
    before = setup.told()

    setup.member.subscriber_up()
    asked = setup.told()
    setup.says("POSITION events w1 5 5")

    assert ([], [REPLICATE]) == (before, asked)
    assert {"w1": 5} == setup.follower.positions()["events"]


def test_a_writer_that_reconnects_announces_its_positions() -> None:
    """Case 2, Synapse #7482: the main process reconnected to Redis without a restart, and REPLICATE was not
    sent again.

    Here: a writer announces its positions by itself after each reconnect, so the others see the gap.
    """
    setup = Setup()
    setup.append("@a:hs")
    setup.told()

    setup.member.publisher_down("connection lost")
    setup.append("@b:hs")
    lost = setup.told()
    setup.member.publisher_up()

    assert [] == lost
    assert "POSITION to_device us 2 2" in setup.told()


@pytest.mark.parametrize(("role", "sign"), [("publisher", "mute"), ("subscriber", "deaf")])
def test_each_of_two_connections_is_monitored(role: str, sign: str) -> None:
    """Case 3, Synapse #9010: the sending socket was dead and the receiving one alive. This was not detected.

    Here: each connection has its own timeout. A silent one is replaced within 15 seconds; the other stays.
    """

    async def setup(world: World) -> None:
        assert isinstance(world, FakeWorld)
        member = Recorder()
        link = world.link(member)
        link.start()
        await world.until(member.is_up)

        world.redis.stall(role)
        await world.wait(15.1)
        noticed = [word for word in member.told if word in ("deaf", "mute")]
        world.go_on()
        await world.until(member.is_up)
        await stopped(world, link.stop())

        assert [sign] == noticed

    FakeWorld().run(setup)


def test_positions_of_caches_are_not_echoed() -> None:
    """Case 20, Synapse #16557: every worker echoed each POSITION of the caches stream. Traffic multiplied.

    Here: a process announces positions of its own writers only, whatever it receives.
    """
    setup = Setup(writes=[Writer("to_device", "us")])

    for token in range(5, 15):
        setup.says(f"POSITION caches w1 {token} {token}", f"POSITION caches w2 {token} {token}")
        setup.wait(1)

    assert [] == setup.told()
