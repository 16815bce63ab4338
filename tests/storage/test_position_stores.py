"""What every position store does, and what `SQLPositions` adds: effects and positions in one transaction."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from synrepl.base.interfaces import IPositionStore
from synrepl.errors import ConfigError
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import Updates
from synrepl.storage.position_files import FilePositions
from synrepl.storage.sql import Flavor
from synrepl.storage.sql_positions import SQLPositions
from synrepl.streams.catalog import PUSH_RULES, PushRules
from synrepl.testing import Cluster, MemoryPositions
from tests.postgres import new_database

POSITIONS = {"events": {"master": 5, "w1": 2**53}, "typing": {"master": 0}, "backfill": {"master": -7}}


class SQLWorld:
    """A database, and a new connection for each process."""

    def __init__(self, flavor: Flavor, path: Path) -> None:
        self.flavor: Flavor = flavor
        self.url = new_database() if flavor == "postgresql" else str(path / "worker.db")
        self.connections: list[Any] = []

    def connect(self) -> Any:
        made = psycopg.connect(self.url) if self.flavor == "postgresql" else sqlite3.connect(self.url)
        self.connections.append(made)
        return made

    def store(self, connection: Any = None, **options: Any) -> SQLPositions:
        return SQLPositions(connection or self.connect(), flavor=self.flavor, **options)

    def kill(self) -> None:
        """Close the connections of a process without a commit."""
        while self.connections:
            self.connections.pop().close()


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SQLWorld]:
    made = SQLWorld(request.param, tmp_path)
    yield made
    made.kill()


@pytest.fixture(params=["memory", "file", "sqlite", "postgresql"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], IPositionStore]]:
    """Opens the same store as the next process does."""
    memory = MemoryPositions()
    if request.param == "memory":
        yield lambda: memory
    elif request.param == "file":
        yield lambda: FilePositions(tmp_path / "state")
    else:
        world = SQLWorld(request.param, tmp_path)
        yield world.store
        world.kill()


def test_positions_are_loaded_by_the_next_process(reopen: Callable[[], IPositionStore]) -> None:
    """Whatever the store; nothing at first, then what was saved last."""
    first = reopen()
    assert first.load() == {}
    first.save(POSITIONS)
    assert first.load() == POSITIONS

    second = reopen()
    assert second.load() == POSITIONS
    fewer = {"events": {"master": 3}}
    second.save(fewer)

    assert reopen().load() == fewer


def test_followers_share_a_table_under_names_of_their_own(world: SQLWorld) -> None:
    """One table for all workers of a deployment."""
    a, b = world.store(name="a"), world.store(name="b")
    a.load()
    b.load()

    a.save({"events": {"master": 1}})
    b.save({"events": {"master": 2}})

    assert (a.load(), b.load()) == ({"events": {"master": 1}}, {"events": {"master": 2}})


def test_positions_are_written_in_a_transaction_of_the_caller(world: SQLWorld) -> None:
    """Such as one of an adbapi pool: nothing is stored unless it commits."""
    store, connection = world.store(), world.connect()
    store.load()

    store.write(connection.cursor(), {"events": {"master": 1}})
    connection.rollback()
    assert store.load() == {}
    store.write(connection.cursor(), {"events": {"master": 1}})
    connection.commit()

    assert store.load() == {"events": {"master": 1}}


class CountingWorker:
    """Counts the facts of users in the database of a world, as the process of a worker."""

    def __init__(self, world: SQLWorld, cluster: Cluster) -> None:
        self.connection = world.connect()
        self.fails = False
        positions = world.store(self.connection)
        self.connection.cursor().execute("CREATE TABLE IF NOT EXISTS counted (user_id TEXT)")
        follower = Follower(instance="counter", positions=positions, start="earliest")
        statement = "INSERT INTO counted VALUES (?)"
        if world.flavor == "postgresql":
            statement = statement.replace("?", "%s")

        @follower.on(PUSH_RULES)
        def count(updates: Updates[PushRules]) -> None:
            with positions.atomic() as cursor:
                for row in updates.rows:
                    cursor.execute(statement, (row.user_id,))
                if self.fails:
                    cursor.execute("SELECT nothing FROM nowhere")

        self.connected = cluster.follower(follower)


def counted(world: SQLWorld) -> list[str]:
    with closing(world.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT user_id FROM counted ORDER BY user_id")
        return [user_id for (user_id,) in cursor.fetchall()]


def test_effects_and_positions_are_committed_together(world: SQLWorld) -> None:
    """A kill loses both or neither, wherever it comes."""
    cluster = Cluster()
    worker = CountingWorker(world, cluster)
    cluster.append("push_rules", PushRules(user_id="@ada:hs"))
    cluster.daemon.append("push_rules", [[PushRules(user_id="@bob:hs")]])
    cluster.settle(0.05)  # applied, and not saved yet
    assert worker.connected.follower.positions() == {"push_rules": {"master": 2}}
    worker.connected.kill()
    world.kill()
    assert counted(world) == ["@ada:hs"]

    CountingWorker(world, cluster)
    cluster.settle()

    assert counted(world) == ["@ada:hs", "@bob:hs"]


def test_what_a_failed_subscriber_wrote_is_undone(world: SQLWorld) -> None:
    """It is called again with the whole fact; meanwhile another stream may save, which commits."""
    cluster = Cluster()
    worker = CountingWorker(world, cluster)
    cluster.append("push_rules", PushRules(user_id="@ada:hs"))
    worker.fails = True
    cluster.append("push_rules", PushRules(user_id="@bob:hs"))
    worker.connection.commit()
    assert counted(world) == ["@ada:hs"]

    worker.fails = False
    cluster.settle(10)

    assert counted(world) == ["@ada:hs", "@bob:hs"]


def test_a_batch_and_its_position_are_one_transaction(world: SQLWorld) -> None:
    """A failure undoes what it wrote, and a kill loses all of it or nothing."""
    cluster = Cluster()
    connection = world.connect()
    positions = world.store(connection)
    connection.cursor().execute("CREATE TABLE counted (user_id TEXT)")
    follower = Follower(instance="counter", positions=positions, start="earliest")
    statement = "INSERT INTO counted VALUES (?)"
    if world.flavor == "postgresql":
        statement = statement.replace("?", "%s")
    failures: list[Exception] = []

    @follower.on_batch(PUSH_RULES)
    def count(batch: Sequence[Updates[PushRules]]) -> None:
        with positions.atomic() as cursor:
            cursor.executemany(statement, [(row.user_id,) for updates in batch for row in updates.rows])
            if failures:
                raise failures.pop()

    worker = cluster.follower(follower)
    users = [f"@u{number}:hs" for number in range(4)]
    failures.append(OSError("away"))
    cluster.daemon.append("push_rules", [[PushRules(user_id=user)] for user in users[:2]])
    cluster.settle(0.05)
    assert failures == []
    connection.commit()
    assert counted(world) == []
    cluster.settle(10)
    assert counted(world) == users[:2]
    cluster.daemon.append("push_rules", [[PushRules(user_id=user)] for user in users[2:]])
    cluster.settle(0.05)  # applied, and not saved yet
    assert follower.positions() == {"push_rules": {"master": 4}}
    worker.kill()
    world.kill()

    assert counted(world) == users[:2]
    assert world.store().load()["push_rules"] == {"master": 2}


class FailingPositions(MemoryPositions):
    """A store whose database is locked a few times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def save(self, positions: dict[str, dict[str, int]]) -> None:
        if self.failures:
            self.failures -= 1
            raise sqlite3.OperationalError("database is locked")
        super().save(positions)


def test_a_save_that_fails_is_reported_and_repeated() -> None:
    """Also if no fact follows, with which the next save would come."""
    cluster = Cluster()
    positions = FailingPositions(failures=3)
    follower = Follower(instance="counter", positions=positions, start="earliest")
    follower.on(PUSH_RULES)(lambda updates: None)
    errors: list[str] = []
    follower.on_event(lambda event: errors.append(event.text) if event.kind == "error" else None)
    worker = cluster.follower(follower)

    cluster.append("push_rules", PushRules(user_id="@ada:hs"))
    cluster.settle(5)

    assert positions.saved["push_rules"] == {"master": 1}
    assert worker.links()
    assert set(errors) == {"the position store failed: OperationalError('database is locked')"}
    assert len(errors) == 3


def test_a_last_save_that_fails_is_an_error() -> None:
    """Nothing would repeat it."""
    cluster = Cluster()
    follower = Follower(instance="counter", positions=FailingPositions(failures=1000), start="earliest")
    follower.on(PUSH_RULES)(lambda updates: None)
    cluster.follower(follower)

    with pytest.raises(sqlite3.OperationalError):
        follower.stop()


async def coroutine(updates: Updates[PushRules]) -> None:
    """A subscriber that may be half done when positions are saved."""


class AsyncCallable:
    """Another one."""

    async def __call__(self, updates: Updates[PushRules]) -> None:
        """Do nothing."""


def test_a_coroutine_subscriber_is_refused_where_effects_share_the_transaction() -> None:
    """`save` would commit one half of what it does."""
    with closing(sqlite3.connect(":memory:")) as connection:
        follower = Follower(instance="counter", positions=SQLPositions(connection))
        subscriber: Any
        for subscriber in (coroutine, AsyncCallable()):
            with pytest.raises(ConfigError, match=r"is a coroutine function: .* use a plain function"):
                follower.on(PUSH_RULES)(subscriber)
            with pytest.raises(ConfigError, match="is a coroutine function"):
                follower.on_everything(subscriber)
            with pytest.raises(ConfigError, match="is a coroutine function"):
                follower.on_batch(PUSH_RULES)(subscriber)

        Follower(instance="counter", positions=SQLPositions(connection, is_shared=False)).on(PUSH_RULES)(
            coroutine
        )


def test_a_connection_that_commits_each_statement_is_refused(world: SQLWorld) -> None:
    """Effects would be committed without their positions."""
    options: dict[str, Any] = {"isolation_level": None} if world.flavor == "sqlite" else {"autocommit": True}
    driver: Any = sqlite3 if world.flavor == "sqlite" else psycopg
    with closing(driver.connect(world.url, **options)) as connection:
        with pytest.raises(ConfigError, match="turn autocommit off"):
            world.store(connection)

        store = world.store(connection, is_shared=False)
        assert store.load() == {}
        store.save(POSITIONS)
        assert store.load() == POSITIONS


def test_a_table_needs_the_name_of_one() -> None:
    """It becomes part of SQL."""
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(ConfigError, match="not the name"):
        SQLPositions(connection, table="a; DROP TABLE b")
