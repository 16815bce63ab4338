"""`Caches()` without a vintage drops what the release of its follower's connection does."""

import pytest
from twisted.internet.testing import MemoryReactorClock

import synrepl
from synrepl.replication.follower.caches import Caches
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent
from synrepl.replication.strategies import SHARED
from synrepl.streams.catalog import THREAD_SUBSCRIPTIONS
from synrepl.testing import Cluster
from synrepl.wire.dialect import CURRENT, NEWEST, Dialect
from tests.ingest.test_ingester import Line


class RoomCaches(Caches):
    """Caches of a room, a host of it and a user."""

    def __init__(self, vintage: synrepl.Vintage | None = None) -> None:
        super().__init__(vintage=vintage)
        of_one = ("get_current_state_ids", "get_users_in_room", "get_rooms_for_user_with_stream_ordering")
        self._of_one = [self.cached(name=name)(lambda key: key) for name in of_one]
        self._of_host = self.cached(name="was_host_joined")(lambda room, host: room)

    def fill(self) -> None:
        """Look up an entry of each."""
        for cached, key in zip(self._of_one, ("!r:hs", "!r:hs", "@a:hs"), strict=True):
            cached(key)
        self._of_host("!r:hs", "hs")


def kept(caches: Caches) -> set[str]:
    """The caches that still have their entry."""
    return {name for name, info in caches.caches.items() if info.entries}


ROOMS = "get_rooms_for_user_with_stream_ordering"
ALL = {
    "get_current_state_ids", "get_users_in_room", "was_host_joined", ROOMS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "kept_by_state", "kept_by_members"),
    [
        (synrepl.LEGACY, {"was_host_joined", ROOMS}, {ROOMS}),
        (synrepl.MIDDLE, {"was_host_joined", ROOMS}, {ROOMS}),
        # It has neither of the other two, and drops them for facts of another release.
        (synrepl.CURRENT, {"was_host_joined", "get_users_in_room", ROOMS}, {ROOMS}),
        (synrepl.Dialect.parse("1.80"), {"was_host_joined", "get_users_in_room", ROOMS}, set()),
    ],
    ids=["legacy", "middle", "current", "1.80"],  # sets have another text in each process
)
def test_caches_follow_the_dialect_of_tcp(
    dialect: synrepl.Dialect, kept_by_state: set[str], kept_by_members: set[str]
) -> None:
    """A row about the state of a room, without and with members; then a row of the state itself."""
    cluster, caches = Cluster(), RoomCaches()
    cluster.follower(synrepl.Follower(instance="worker", caches=caches), dialect=dialect)
    caches.fill()
    assert ALL == kept(caches)

    cluster.append("caches", ["cs_cache_fake", ["!r:hs"], 1])
    assert kept_by_state == kept(caches)

    cluster.append("caches", ["cs_cache_fake", ["!r:hs", "@a:hs"], 1])
    assert kept_by_members == kept(caches)

    cluster.append("events", ["state", ["!r:hs", "m.room.member", "@a:hs", "$e"]])
    assert set() == kept(caches)


@pytest.mark.parametrize(("dialect", "name"), [(None, "any release"), (synrepl.CURRENT, "current")])
def test_caches_on_redis(dialect: synrepl.Dialect | None, name: str) -> None:
    """No member of a channel says its release: caches drop what any does, or what the given one does."""
    caches = RoomCaches()
    follower = synrepl.Follower(instance="worker", caches=caches)
    synrepl.connect(
        MemoryReactorClock(), "redis://127.0.0.1:6379", follower, server_name="hs", dialect=dialect
    )
    follower.server.connected(Line(), NEWEST, SHARED)

    assert name == caches.vintage.name


def test_a_vintage_that_drops_less_is_warned_of() -> None:
    """At the connection, with the cache and what drops it."""
    cluster, caches, texts = Cluster(), RoomCaches(synrepl.Vintage.of("1.163")), list[str]()
    follower = synrepl.Follower(instance="worker", caches=caches)
    follower.on_event(lambda event: texts.append(event.text) if event.kind == "error" else None)
    cluster.follower(follower, dialect=synrepl.LEGACY)

    assert texts[0] == (
        "the cache get_current_state_ids may be stale: for cs_cache_fake the vintage 1.163 drops less of it"
        " than Synapse legacy, which this connection speaks; leave the vintage out, or change a copy of"
        " synrepl.Vintage.of(...)"
    )
    assert {"get_current_state_ids", "get_users_in_room", "was_host_joined"} <= {
        text.split()[2] for text in texts
    }
    assert "1.163" == caches.vintage.name


@pytest.mark.parametrize("dialect", [CURRENT, NEWEST])
def test_a_stream_that_the_release_lacks_is_reported(dialect: Dialect) -> None:
    """A connection speaks 1.66 if nothing is said, and nothing of later streams comes over it."""
    cluster = Cluster()
    follower = Follower(instance="w1")
    events: list[FollowerEvent] = []
    follower.on_event(events.append)
    follower.on(THREAD_SUBSCRIPTIONS)(lambda updates: None)

    cluster.follower(follower, dialect=dialect)
    cluster.settle(2)

    said = [event.text for event in events if event.kind == "error"]
    assert len(said) == (dialect is CURRENT)
    assert all("which has no stream thread_subscriptions" in text for text in said)
