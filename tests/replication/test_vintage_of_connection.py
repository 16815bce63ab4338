"""`Caches()` without a vintage drops what the release of its follower's connection does."""

import pytest
from twisted.internet.testing import MemoryReactorClock

import synrepl
from synrepl.ports.caches import Caches
from synrepl.replication.strategies import SHARED
from synrepl.testing import Cluster
from synrepl.wire.dialect import NEWEST
from tests.replication.test_ingester import Line


def caches_of(vintage: synrepl.Vintage | None = None) -> Caches:
    """Caches with one entry each, of a room, a host of it, or a user."""
    caches = Caches(vintage=vintage)
    for name in ("get_current_state_ids", "get_users_in_room"):
        caches.cached(name=name)(lambda room: room)("!r:hs")
    caches.cached(name="was_host_joined")(lambda room, host: room)("!r:hs", "hs")
    caches.cached(name="get_rooms_for_user_with_stream_ordering")(lambda user: user)("@a:hs")
    return caches


def kept(caches: Caches) -> set[str]:
    """The caches that still have their entry."""
    return {name for name, info in caches.caches.items() if info.entries}


@pytest.mark.parametrize("dialect", [synrepl.LEGACY, synrepl.MIDDLE, synrepl.CURRENT], ids=str)
def test_caches_follow_the_dialect_of_tcp(dialect: synrepl.Dialect) -> None:
    """A row about the state of a room, without and with members."""
    cluster, caches = Cluster(), caches_of()
    cluster.follower(synrepl.Follower(instance="worker", caches=caches), dialect=dialect)
    assert "caches" in caches.streams
    caches_kept = kept(caches)
    assert {"get_current_state_ids", "get_users_in_room"} <= caches_kept

    cluster.append("caches", ["cs_cache_fake", ["!r:hs"], 1])
    state_only = {"get_users_in_room"} if dialect == synrepl.CURRENT else set()
    assert state_only == kept(caches) & {"get_current_state_ids", "get_users_in_room"}

    cluster.append("caches", ["cs_cache_fake", ["!r:hs", "@a:hs"], 1])
    assert set() == kept(caches) - {"get_rooms_for_user_with_stream_ordering"}

    cluster.append("events", ["state", ["!r:hs", "m.room.member", "@a:hs", "$e"]])
    assert set() == kept(caches)


@pytest.mark.parametrize(("dialect", "name"), [(None, "any release"), (synrepl.CURRENT, "current")])
def test_caches_on_redis(dialect: synrepl.Dialect | None, name: str) -> None:
    """No member of a channel says its release: caches drop what any does, or what the given one does."""
    caches = caches_of()
    follower = synrepl.Follower(instance="worker", caches=caches)
    synrepl.connect(
        MemoryReactorClock(), "redis://127.0.0.1:6379", follower, server_name="hs", dialect=dialect
    )
    follower.server.connected(Line(), NEWEST, SHARED)

    assert name == caches.vintage.name


def test_a_vintage_that_drops_less_is_warned_of() -> None:
    """At the connection, with the cache and what drops it."""
    cluster, caches, texts = Cluster(), caches_of(synrepl.Vintage.of("1.163")), list[str]()
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
