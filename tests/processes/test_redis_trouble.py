"""Daemons on one Redis through all that can happen to it and to them: at rest, all have all, once."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.processes.channel import Fact, Tail, ascends, compact, eventually, redis_of
from tests.processes.deployment import Deployment, Load, rows_of
from tests.processes.loading import LONG, drawn_seed, report, size

WRITES: Final = {"alpha": "receipts,to_device,caches", "beta": "events,device_lists,caches", "observer": ""}
TROUBLES: Final = 100


class World:
    """A deployment, its load, and the followers of its observer."""

    def __init__(self, folder: Path, stack: ExitStack, *, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.deployment = stack.enter_context(Deployment(folder, WRITES))
        self.load = Load(self.deployment, seed=seed)
        observer = self.deployment.daemons["observer"]
        self.tails = [
            stack.enter_context(Tail(observer, dialect, "--from", "earliest", cwd=folder))
            for dialect in ("current", "legacy")
        ]
        for tail in self.tails:
            tail.wait_for_line('"server"')
        self.happened: list[str] = []

    # -- what can happen -----------------------------------------------------------------------------------

    def redis_is_killed(self) -> None:
        """A crash of Redis, and a moment without it."""
        self.deployment.redis.kill()
        self.load.pass_seconds(self.chance.uniform(0, 1.5))
        self.deployment.redis.start()

    def redis_is_stopped(self, seconds: float = 3.0) -> None:
        """Redis answers nobody for a while, with all connections open."""
        self.deployment.redis.pause()
        self.load.pass_seconds(seconds)
        self.deployment.redis.go_on()

    def redis_hangs(self) -> None:
        """As above, for longer than a silent connection is borne."""
        self.redis_is_stopped(20.0)

    def cut(self, name: str, role: str) -> None:
        """One connection of one daemon is closed by Redis."""
        redis = self.deployment.redis
        found = [client["id"] for client in redis.clients() if client["name"] == f"synrepl:{name}:{role}"]
        assert len(found) <= 1, f"{name} has {len(found)} connections as {role}"
        for one in found:
            redis.kill_client(one)

    def a_subscriber_is_cut(self) -> None:
        """Somebody hears nothing until it is back."""
        self.cut(self.chance.choice(sorted(WRITES)), "subscriber")

    def a_publisher_is_cut(self) -> None:
        """Somebody tells nothing until it is back."""
        self.cut(self.chance.choice(sorted(WRITES)), "publisher")

    def all_are_cut(self) -> None:
        """Each connection, one by one."""
        for name in WRITES:
            for role in ("subscriber", "publisher"):
                self.cut(name, role)
                self.load.pass_seconds(self.chance.uniform(0, 0.3))

    def _dies(self, name: str) -> None:
        self.deployment.kill(name)
        self.load.pass_seconds(self.chance.uniform(0, 1.0))
        self.deployment.start(name)

    def a_writer_dies(self) -> None:
        """A writer crashes, and comes back."""
        self._dies(self.chance.choice(["alpha", "beta"]))

    def the_observer_dies(self) -> None:
        """Who listens crashes, and comes back."""
        self._dies("observer")

    # -- at rest -------------------------------------------------------------------------------------------

    def go_through(self, trouble: Callable[[], None]) -> None:
        """Let it happen under load; then all have all."""
        self.happened.append(trouble.__name__)
        with self.load:
            self.load.wait_for(30)
            trouble()
            self.load.pass_seconds(self.chance.uniform(0, 1.0))
        try:
            self.rests()
        except AssertionError as error:
            error.add_note(f"seed {self.seed}, after {self.happened}\n{self.deployment.describe()}")
            raise

    def rests(self) -> None:
        """Everybody has what the writers wrote, each fact once, in the order of its writer."""
        expected = self.deployment.everything()
        assert max(expected.values()) == 1
        acknowledged = Counter(
            Fact(stream, writer, token, compact(rows_of(stream, number)))
            for number, (stream, writer, token) in self.load.acknowledged.items()
        )
        assert acknowledged == expected, "what was acknowledged is what the writers have"
        for name, daemon in self.deployment.daemons.items():
            read = self.deployment.kept[name].read
            eventually(
                lambda: not expected - Counter(read()),  # noqa: B023
                lambda: f"all facts at {name}; missing {_kinds(expected - Counter(read()))}",  # noqa: B023
            )
            had = read()
            assert Counter(had) - expected == Counter(), f"too much at {name}"
            assert ascends(had) == [], name
            eventually(
                lambda: (gaps := self.deployment.gaps(name))["detected"] == gaps["repaired"],  # noqa: B023
                lambda: f"repaired gaps at {name}: {self.deployment.gaps(name)}",  # noqa: B023
            )
            assert self.deployment.gaps(name)["lost"] == 0, name
            said = redis_of(daemon.url)
            assert (said["gaps"], said["lost"]) == ([], []), name
        for tail in self.tails:
            self._tail_rests(tail, expected)

    @staticmethod
    def _tail_rests(tail: Tail, expected: Counter[Fact]) -> None:
        # Releases without writers have one position of a stream. Which of several writers' facts they lack
        # cannot be known from it: caches are looked at elsewhere.
        is_old = tail.dialect == "legacy"
        facts = [fact for fact in expected.elements() if not is_old or fact.stream != "caches"]
        eventually(
            lambda: not _lacks(tail, facts),
            lambda: f"{len(facts)} facts at {tail.dialect}; it lacks {_lacks(tail, facts)}",
        )
        told = [fact for fact in tail.told if not is_old or fact.stream != "caches"]
        if is_old:
            # It knows of no writers, and of fewer fields.
            wanted, had = (Counter((fact.stream, fact.token) for fact in one) for one in (facts, told))
            assert wanted == had, (wanted - had, had - wanted)
        else:
            first = Counter((fact.stream, fact.writer, fact.token) for fact in tail.told)
            assert first == Counter((fact.stream, fact.writer, fact.token) for fact in facts)
            assert ascends(tail.told) == []


def _kinds(facts: Counter[Fact]) -> dict[tuple[str, str], int]:
    return dict(Counter((fact.stream, fact.writer) for fact in facts))


def _lacks(tail: Tail, facts: Sequence[Fact]) -> list[tuple[str, int]]:
    wanted, had = (Counter((fact.stream, fact.token) for fact in one) for one in (facts, tail.told))
    return sorted((wanted - had).elements())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two writers and an observer with two followers, at work."""
    with ExitStack() as stack:
        yield World(tmp_path, stack, seed=drawn_seed())


def test_everything_arrives_through_trouble_of_every_kind(world: World) -> None:
    """Redis or any process may crash, hang or be cut off: nothing is lost, nothing comes twice."""
    troubles: Sequence[Callable[[], None]] = (
        world.a_subscriber_is_cut,
        world.redis_is_killed,
        world.a_publisher_is_cut,
        world.redis_is_stopped,
        world.a_writer_dies,
        world.all_are_cut,
        world.the_observer_dies,
        world.redis_is_killed,
    )
    if LONG:
        troubles = [world.chance.choice([*troubles, world.redis_hangs]) for _ in range(TROUBLES)]
    for trouble in troubles:
        world.go_through(trouble)
    report(f"redis: {len(world.happened)} troubles, {len(world.load.acknowledged)} facts")


def test_a_redis_that_hangs_is_left_and_found_again(world: World) -> None:
    """20 seconds without a word are more than a connection is given; meanwhile nothing may be lost."""
    world.go_through(world.redis_hangs)

    said = redis_of(world.deployment.daemons["observer"].url)
    assert said["reconnects"] >= size(1, 1)
