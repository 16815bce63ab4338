"""Bugs of streams that nobody keeps: typing and presence."""

from synrepl.errors import NeverAllocated
from synrepl.replication.serving.presence import EXPIRY_SECONDS
from synrepl.testing import Cluster
from synrepl.wire.dialect import CURRENT
from tests.replication.follower.test_strategy import Setup
from tests.replication.serving.test_strategy import client


def test_typing_that_restarts_lower_is_a_new_life() -> None:
    """Case 21, Synapse #4127 and #17252: after a restart, tokens of the typing stream started again lower.
    Rows were dropped.

    Here: the follower takes the lower position and every row after the restart. A wait for a token from
    before the restart fails at once instead of hanging.
    """
    setup = Setup(CURRENT, "typing").hears(
        "POSITION typing master 40 40", 'RDATA typing master 41 ["!r",["@a:hs"]]'
    )
    waits: list[object] = []
    setup.follower.wait_for("typing", {"master": 50}, 1000).addBoth(lambda end: waits.append(end.value))
    setup.reconnect()

    setup.hears("POSITION typing master 1 1", 'RDATA typing master 2 ["!r",["@b:hs"]]')

    assert [41, 2] == setup.tokens()
    assert {"master": 2} == setup.follower.positions()["typing"]
    (refused,) = waits
    assert isinstance(refused, NeverAllocated)


def test_users_stay_online_while_their_worker_lives() -> None:
    """Case 22, Synapse 2026 (USER_SYNC): USER_SYNC is sent only on changes. Users of a silent process stayed
    online.

    Here: any sign of life of a worker keeps its users online. They go offline after the worker has been
    silent for the documented time.
    """
    one = Cluster()
    seen: list[tuple[str, bool]] = []
    one.daemon.publisher.follower_commands.syncing.subscribers.append(
        lambda change: seen.append((change.user_id, change.is_syncing))
    )
    peer = client(one, "USER_SYNC w1 @a:hs start 1")

    for _ in range(int(EXPIRY_SECONDS) + 60):
        peer.says("PING 1")
        one.clock.advance(1)
    alive = list(seen)
    peer.drop()
    one.settle(1)
    dropped = list(seen)
    for _ in range(int(EXPIRY_SECONDS) + 60):
        one.clock.advance(1)

    assert [("@a:hs", True)] == alive == dropped
    assert [("@a:hs", True), ("@a:hs", False)] == seen
