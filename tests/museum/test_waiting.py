"""Bugs of waiting for a position."""

from tests.replication.follower.test_apply_queue import Waiting
from tests.replication.follower.test_strategy import to_device
from tests.replication.test_invalidating import CachedFollower


def test_a_stream_that_rarely_moves_stalls_nobody() -> None:
    """Case 16, Synapse #15136 and #15150: waits on a stream that rarely moved took their full 5 seconds.

    Here: a POSITION without rows wakes the waiter in the same turn of the event loop. A token that is
    reached already is not waited for.
    """
    setup = Waiting().hears("POSITION to_device master 5 5")
    at = setup.clock.seconds()
    setup.begin("reached", master=5)
    setup.begin("soon", master=8)
    before = setup.names()

    setup.hears("POSITION to_device master 5 8")

    assert (["reached"], ["reached", "soon"]) == (before, setup.names())
    assert setup.clock.seconds() - at < 1
    assert not setup.has_rest()


def test_the_position_moves_after_the_caches() -> None:
    """Case 17, Synapse #14723: a waiter was woken after the rows, but before caches were invalidated.

    Here: caches, then subscribers, then caches again, then the position, then waiters, for each fact.
    """
    told = CachedFollower(saved=1, waits=[2]).hears("POSITION to_device master 1 1")
    told.since()

    told.hears(f"RDATA to_device master 2 {to_device(2)}")

    assert ["caches", "subscriber", "again", "position", "waiter"] == [what for what, _ in told.since()]
