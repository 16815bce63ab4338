"""What is read from a worker's caches is never older than the positions that it tells, whatever happens."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from twisted.internet.defer import CancelledError, Deferred

from synrepl.base.metrics import Metrics
from synrepl.errors import NotConnected
from synrepl.replication.follower.caches import Caches
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import Updates
from synrepl.streams.catalog import RECEIPTS, Receipt
from synrepl.testing import Cluster, MemoryPositions
from synrepl.wire.dialect import CURRENT
from tests.replication.follower.test_strategy import TABLE, Setup

KEYS = ["!a", "!b"]

UNREADABLE = '["get_topic"]'


class Database:
    """Versions of what is cached, and every fact that changed them."""

    def __init__(self) -> None:
        self.version = dict.fromkeys(KEYS, 0)
        self.facts: list[tuple[int, str, dict[str, int]]] = []

    def commit(self, row: str, keys: list[str]) -> None:
        """A fact with this row, which says that these keys have changed, is there from now on."""
        for key in keys:
            self.version[key] += 1
        self.facts.append((self.token + 1, row, {key: self.version[key] for key in keys}))

    @property
    def token(self) -> int:
        """Of the last fact."""
        return self.facts[-1][0] if self.facts else 0

    def lose(self, count: int) -> None:
        """A backup is restored: the last facts are gone, and what is computed now is of before them."""
        del self.facts[len(self.facts) - count :]
        for key in KEYS:
            self.version[key] += 1

    def required(self, key: str, position: int) -> int:
        """The version that was there at this position."""
        return max(
            (keys[key] for token, _, keys in self.facts if token <= position and key in keys), default=0
        )


class Reading(Setup):
    """A worker that reads through caches, and a master whose every move is up to chance."""

    def __init__(self, saved: bool) -> None:
        self.database = Database()
        self.sent = 0
        self.pauses: list[Deferred[None]] = []
        self.stale: list[str] = []
        self.caches = Caches()
        positions = MemoryPositions()
        if saved:
            positions.save({"caches": {"master": 0}})

        @self.caches.cached(tree=False)
        async def get_topic(room: str) -> int:
            await self.pause()
            version = self.database.version[room]
            await self.pause()
            return version

        self.get_topic = get_topic
        super().__init__(CURRENT, "push_rules", positions=positions, caches=self.caches)
        self.follower.on(TABLE["caches"])(self.busy)
        self.chance = random.Random(0)
        self.has_asked = False

    async def pause(self) -> None:
        """Wait, now and then, until `go_on`."""
        if self.chance.random() < 0.6:
            self.pauses.append(Deferred())
            await self.pauses[-1]

    async def busy(self, updates: Updates[Any]) -> None:
        """A subscriber."""
        await self.pause()

    @property
    def position(self) -> int:
        """What the worker tells."""
        return self.follower.positions().get("caches", {}).get("master", -1)

    # -- what can happen -----------------------------------------------------------------------------------

    def read(self) -> None:
        room = self.chance.choice(KEYS)
        position = self.position
        required = self.database.required(room, position)
        reading: Deferred[int] = Deferred.fromCoroutine(self.get_topic(room))

        def check(version: int) -> None:
            if version < required:
                self.stale.append(f"{room}: read {version}, which was {required} at {position}")

        reading.addCallback(check).addErrback(lambda failure: failure.trap(CancelledError))
        if self.chance.random() < 0.1:
            reading.cancel()

    def go_on(self) -> None:
        if self.pauses:
            self.pauses.pop(self.chance.randrange(len(self.pauses))).callback(None)

    def commit(self) -> None:
        """Unless the worker has yet to hear that history was lost: overtaken, that could not be seen."""
        if self.position > self.database.token:
            return
        room = self.chance.choice(KEYS)
        rows = [(f'["get_topic",["{room}"],1]', [room]), ('["get_topic",null,1]', KEYS), (UNREADABLE, KEYS)]
        self.database.commit(*self.chance.choice(rows))

    def send(self) -> None:
        """Rows, if the worker has been told where the stream stands."""
        if not self.has_asked:
            return
        self.hears(
            *[
                f"RDATA caches master {token} {row}"
                for token, row, _ in self.database.facts
                if token > self.sent
            ]
        )
        self.sent = self.database.token

    def tell(self) -> None:
        """Where the stream stands: after what is sent, or in its place."""
        at = self.database.token
        held = [(token, [row.encode()]) for token, row, _ in self.database.facts]
        self.fake_catch_up.facts["caches", "master"] = held
        self.sent, self.has_asked = at, True
        self.hears(f"POSITION caches master {at} {at}")

    def cut(self) -> None:
        self.has_asked = False
        self.reconnect()

    def lose(self) -> None:
        """History, and the connection with it."""
        self.database.lose(min(len(self.database.facts), self.chance.randint(1, 3)))
        self.sent = self.database.token
        self.cut()
        self.tell()

    def break_fetching(self) -> None:
        self.fake_catch_up.failures = [NotConnected("refused")] * self.chance.randint(1, 4)

    def sleep(self) -> None:
        self.wait(2)
        self.master.says("PING 1")


HAPPENINGS = [
    *[Reading.read] * 4, *[Reading.go_on] * 4, *[Reading.commit] * 2, *[Reading.send] * 3,
    Reading.tell, Reading.cut, Reading.lose, Reading.break_fetching, Reading.sleep,
]  # fmt: skip


class TestNeverOlder:
    """The promise: a read that begins while a position is told gives nothing from before it."""

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        seed=st.integers(0, 2**32),
        saved=st.booleans(),
        happenings=st.lists(st.sampled_from(HAPPENINGS), min_size=10, max_size=60),
    )
    def test_cached_values_are_never_stale_under_random_faults(
        self, seed: int, saved: bool, happenings: list[Any]
    ) -> None:
        """Cuts, gaps, lost history, rows that cannot be read, slow subscribers, broken catch-up."""
        setup = Reading(saved)
        setup.chance.seed(seed)

        for happen in happenings:
            happen(setup)
        while setup.pauses:
            setup.go_on()
            setup.wait(0.01)

        assert setup.stale == []

    @pytest.mark.parametrize("seed", range(40))
    def test_cached_values_are_never_stale_in_long_seeded_runs(self, seed: int) -> None:
        """The same from fixed seeds, so that no run is without long ones."""
        setup = Reading(saved=seed % 2 == 0)
        setup.chance.seed(seed)

        for happen in setup.chance.choices(HAPPENINGS, k=250):
            happen(setup)

        assert setup.stale == []
        assert setup.caches.caches["get_topic"].hits > 3


class TestSubscribersThatRead:
    """A subscriber computes from the fact that it is called with, as handlers of Synapse do."""

    def test_a_subscriber_reads_the_value_that_its_fact_brought(self) -> None:
        """Also one that is called again after a failure, and whoever reads after all of them."""
        vintage = Caches().vintage.extended("push worker")

        @vintage.implied("receipts", samples=[])
        def dropped_by(row: Receipt) -> Iterator[tuple[str, tuple[str, ...]]]:
            yield "get_last_read", (row.user_id,)

        caches = Caches(vintage=vintage)
        database = {"@a:hs": "$old"}
        get_last_read = caches.cached(name="get_last_read")(lambda user_id: database[user_id])
        failures = [OSError("the push gateway is away")]
        seen: list[str] = []
        follower = Follower(instance="pusher1", caches=caches)

        @follower.on(RECEIPTS)
        def push(updates: Updates[Receipt]) -> None:
            seen.append(get_last_read("@a:hs"))
            if failures:
                database["@a:hs"] = "$newest"
                raise failures.pop()

        cluster = Cluster()
        cluster.follower(follower)
        get_last_read("@a:hs")
        database["@a:hs"] = "$new"
        cluster.append("receipts", ["!r:hs", "m.read", "@a:hs", "$new", None, {}])
        cluster.settle()

        assert seen == ["$new", "$newest"]
        database["@a:hs"] = "$unannounced"
        assert get_last_read("@a:hs") == "$unannounced"

    def test_a_fact_counts_once_though_its_entries_are_dropped_twice(self) -> None:
        """In every counter of the caches."""
        caches = Caches()
        get_topic = caches.cached(name="get_topic")(lambda room: room)
        get_topic("!a")
        follower = Follower(instance="worker", caches=caches)
        follower.on(TABLE["caches"])(lambda updates: None)
        cluster = Cluster()
        cluster.follower(follower)
        before = caches.caches["get_topic"].invalidations

        cluster.append("caches", ["get_topic", ["!a"], 1])
        cluster.append("caches", ["get_nothing", ["!a", "!b"], 1])
        cluster.append("caches", ["get_topic", ["!a", "too", "many"], 1])

        assert caches.seen == {"get_topic": 2, "get_nothing": 1}
        assert caches.unknown == {"get_nothing": 1}
        counted = caches.caches["get_topic"]
        assert (counted.invalidations - before, counted.misshapen) == (2, 1)


class TestNumbers:
    """What the caches count, where an operator looks."""

    def scrape(self, metrics: Metrics) -> list[str]:
        lines = generate_latest(metrics.registry).decode().splitlines()
        return [line for line in lines if line.startswith("synrepl_cache")]

    def test_without_caches_nothing_is_reported_of_them(self) -> None:
        """A daemon has none."""
        assert self.scrape(Metrics(CollectorRegistry())) == []

    def test_the_numbers_are_read_when_they_are_asked_for(self) -> None:
        """Of every cache; names that nobody here knows are counted together, as they come from outside."""
        caches = Caches()

        @caches.cached(max_entries=2)
        def get_topic(room: str) -> str:
            return room

        metrics = Metrics(CollectorRegistry())
        metrics.watch_caches(caches)
        for room in ("!a", "!b", "!a", "!c"):
            get_topic(room)
        row = TABLE["caches"].decode(b'["get_topic",["!c"],1]', CURRENT)
        caches.apply("caches", [row, TABLE["caches"].decode(b'["get_nothing",null,1]', CURRENT)])

        assert self.scrape(metrics) == [
            'synrepl_cache_hits_total{cache="get_topic"} 1.0',
            'synrepl_cache_misses_total{cache="get_topic"} 3.0',
            'synrepl_cache_evictions_total{cache="get_topic"} 1.0',
            'synrepl_cache_invalidations_total{cache="get_topic"} 1.0',
            'synrepl_cache_entries{cache="get_topic"} 1.0',
            "synrepl_cache_unknown_invalidations_total 1.0",
        ]

    def test_whoever_waits_for_a_computation_waits_for_a_deferred(self) -> None:
        """And one that is cancelled hands over to the next."""
        caches = Caches()
        computing: list[Deferred[int]] = []

        @caches.cached()
        async def get_count(room: str) -> int:
            computing.append(Deferred())
            return await computing[-1]

        first = Deferred.fromCoroutine(get_count("!a"))
        second = Deferred.fromCoroutine(get_count("!a"))
        results: list[Any] = []
        first.addErrback(lambda failure: results.append(failure.type))
        second.addCallback(results.append)

        first.cancel()
        computing[-1].callback(7)

        assert results == [CancelledError, 7]
        assert len(computing) == 2
