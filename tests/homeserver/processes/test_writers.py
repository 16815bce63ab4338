"""Writers of one table in several processes, a daemon that follows the table, and its followers: through
kills of all of them, and of PostgreSQL.

What followers have at the end is what the table has: each fact once, each writer's in order. To who knows no
writers nothing comes after what has a higher id.
"""

import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Self

import psycopg
import pytest

from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.writers import WriterState, read_writers
from synrepl.streams.digest import EMPTY, verify
from tests.homeserver.processes.receipts_writer import STREAM, WRITERS
from tests.processes.channel import status
from tests.processes.loading import (
    LONG,
    PATIENCE_SECONDS,
    Asker,
    Known,
    Recorder,
    Refused,
    Unanswered,
    changelog,
    drawn_seed,
    ids_of,
    report,
    size,
)
from tests.servers.postgres import PostgresServer
from tests.service.processes import Daemon, Process

KILLS = size(6, 120)
STOPS = size(1, 6)
"""How often PostgreSQL is ended in each way."""
LIFE_SECONDS = size(2, 20) / 10
"""How long it may be until somebody is killed."""
STEP_SECONDS: Final = 0.02
NUMBERS_A_LIFE: Final = 10**7


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """It is stopped and started, never for good."""
    with PostgresServer() as server:
        yield server


def poll(is_so: Callable[[], object], what: str, *, seconds: float = PATIENCE_SECONDS) -> float:
    """Wait until it is so; gives how long that took."""
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < seconds, what
        time.sleep(STEP_SECONDS)
    return time.monotonic() - begun


class Writer:
    """The writer of one name: its process, and the next after each kill."""

    def __init__(self, url: str, name: str, folder: Path, mode: str) -> None:
        self.name = name
        self._url = url
        self._folder = folder
        self._path = folder / f"{name}.committed"
        self._path.touch()
        self.lives: list[Process] = []
        self.start(mode)

    @property
    def process(self) -> Process:
        """The one that lives, or lived last."""
        return self.lives[-1]

    def start(self, mode: str = "load") -> None:
        """Start it, and do not wait for it."""
        first = ((WRITERS.index(self.name) + 1) * 1000 + len(self.lives)) * NUMBERS_A_LIFE
        program = ("-m", "tests.homeserver.processes.receipts_writer", self._url, self.name)
        self.lives.append(Process(*program, str(self._path), str(first), mode, cwd=self._folder))

    def restart(self, mode: str = "load") -> None:
        """Kill it, and start it again."""
        self.process.kill()
        self.start(mode)

    def committed(self) -> list[int]:
        """The numbers of the facts whose commit it was told of."""
        # What comes after the last end of line was being written when it was killed.
        return [int(line) for line in self._path.read_bytes().rpartition(b"\n")[0].split()]


class Reader:
    """A follower: its process, and the next after each kill, and all that they told."""

    def __init__(self, *program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self.lives: list[Recorder] = []
        self.start()

    def start(self) -> None:
        self.lives.append(Recorder(*self._program, cwd=self._folder))

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.lives[-1].kill()
        self.start()

    @property
    def facts(self) -> list[Known]:
        """Everything that was told."""
        return [fact for life in self.lives for fact in life.facts]

    def wait_for(self, numbers: set[int], what: str) -> None:
        """Until it has all of these."""
        missing = numbers - {fact.number for life in self.lives[:-1] for fact in life.facts}
        last, looked = self.lives[-1], 0

        def is_all_there() -> bool:
            nonlocal looked
            missing.difference_update(fact.number for fact in last.facts[looked:])
            looked = len(last.facts)
            return not missing

        try:
            last.wait_until(is_all_there, what)
        except AssertionError as error:
            raise AssertionError(f"{len(missing)} missing, as {sorted(missing)[:5]}: {error}") from None


class Homeserver:
    """A database with a table of receipts, three writers, a daemon that follows the table, two followers.

    One follower is a worker that keeps its positions with its effects and speaks the current dialect, one is
    `synrepl tail --state` in the legacy dialect.
    """

    def __init__(
        self, server: PostgresServer, folder: Path, *, is_log_in_postgres: bool, mode: str = "load"
    ) -> None:
        self.url = server.new_database()
        self._folder = folder
        with psycopg.connect(self.url) as database:
            cursor = database.cursor()
            IdDatabase(STREAM, "postgresql").create(cursor)
            cursor.execute(
                "CREATE TABLE receipts_linearized (stream_id BIGINT NOT NULL, instance_name TEXT,"
                " room_id TEXT, user_id TEXT, event_id TEXT, data TEXT)"
            )
            cursor.execute("CREATE INDEX ON receipts_linearized (stream_id)")
        receipts = {
            "stream": "receipts",
            "table": "receipts_linearized",
            "row": ["room_id", {"value": "m.read"}, "user_id", "event_id", None, {"json": "data"}],
            "sequence": STREAM.sequence,
            "writers": list(WRITERS),
            "start": "earliest",
        }
        config = folder / "synrepl.yaml"
        config.write_text(json.dumps({"table_streams": [receipts], "tables_database": self.url}))
        self._options: tuple[str, ...] = ("--config", str(config))
        if is_log_in_postgres:
            self._options += ("--database", self.url)
        self.writers = [Writer(self.url, name, folder, mode) for name in WRITERS]
        self.readers: list[Reader] = []
        self._daemons: list[Daemon] = []
        try:
            self._daemons.append(Daemon(folder, options=self._options))
        except BaseException:
            self.close()
            raise
        follow, http = self.daemon.follow, self.daemon.url
        self.effects = folder / "worker.db"
        tail = ("-m", "synrepl", "tail", follow, "--http", http, "--dialect", "legacy", "--from", "earliest")
        self.worker = Reader("-m", "tests.processes.worker", follow, http, str(self.effects), folder=folder)
        self.tail = Reader(*tail, "--stream", "receipts", "--state", str(folder / "state"), folder=folder)
        self.readers = [self.worker, self.tail]

    def close(self) -> None:
        """End everything."""
        for reader in self.readers:
            reader.lives[-1].kill()
        for daemon in self._daemons[-1:]:
            daemon.kill()
        for writer in self.writers:
            writer.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def daemon(self) -> Daemon:
        """The one that lives, or lived last."""
        return self._daemons[-1]

    def restart_daemon(self) -> None:
        """Kill it, and start it again at the same ports."""
        self.daemon.kill()
        port, http_port = (int(at.rsplit(":", 1)[1]) for at in (self.daemon.follow, self.daemon.url))
        self._daemons.append(Daemon(self._folder, port=port, http_port=http_port, options=self._options))

    def wait_for_load(self) -> None:
        """Until every writer has committed something."""
        for writer in self.writers:
            writer.process.wait_for("ready:")
            poll(writer.committed, f"{writer.name} commits something")

    def wait_until_all_go_on(self) -> float:
        """Until every writer has committed something more, and both followers have had it; gives how long
        that took.
        """
        begun = time.monotonic()
        before = {writer.name: len(writer.committed()) for writer in self.writers}
        numbers = set()
        for writer in self.writers:
            poll(lambda: len(writer.committed()) > before[writer.name], f"{writer.name} goes on")  # noqa: B023
            numbers.add(writer.committed()[before[writer.name]])
        for reader in self.readers:
            reader.wait_for(numbers, "what was written since")
        return time.monotonic() - begun

    def ask(self, work: Callable[[Any], Any]) -> Any:
        """Something of the database."""
        with psycopg.connect(self.url) as database:
            return work(database.cursor())

    def state_of(self, writer: str) -> WriterState | None:
        """What a writer tells of itself."""
        states: list[WriterState] = self.ask(read_writers)
        return next((state for state in states if state.writer == writer), None)

    def daemon_position(self, writer: str) -> int:
        """How far the daemon says that this writer is."""
        try:
            with Asker(self.daemon.url) as asker:
                answer = json.loads(
                    asker.ask("GET", f"/v1/streams/receipts/rows?writer={writer}&from=10000000")
                )
        except (Refused, Unanswered):
            return 0
        found: int = answer["upto"]
        return found

    def table(self) -> list[Known]:
        """The facts that are committed, in order of their ids. Asserts that each is whole, and there once."""
        rows = self.ask(
            lambda cursor: cursor.execute(
                "SELECT stream_id, instance_name, user_id, count(*) FROM receipts_linearized"
                " GROUP BY 1, 2, 3 ORDER BY stream_id"
            ).fetchall()
        )
        facts = [Known("receipts", writer, token, ids_of(user)[0]) for token, writer, user, _ in rows]
        assert len({fact.token for fact in facts}) == len(facts), "two facts have one id"
        assert len({fact.number for fact in facts}) == len(facts), "a fact has two ids"
        for fact, (*_, count) in zip(facts, rows, strict=True):
            assert count == (3 if fact.number % 10 == 0 else 1), fact
        return facts

    def check(self) -> int:
        """End the writers, wait until all have all, and compare; gives how many facts there are."""
        for writer in self.writers:
            writer.process.kill()
        poll(lambda: not self._under_way(), "what dead writers have under way ends")
        table = self.table()
        numbers = {fact.number for fact in table}
        for writer in self.writers:
            lost = set(writer.committed()) - numbers
            assert not lost, f"the database lost what {writer.name} was told is committed: {sorted(lost)[:5]}"
        # Nobody writes, so nobody sees to it that ids of the dead are passed: new processes do, by starting.
        for writer in self.writers:
            writer.start("idle")
        self.tail.wait_for(numbers, f"all {len(numbers)} facts")
        # Killed after an effect, before it told of it, the worker never tells of that one.
        poll(lambda: len(self._effects()) >= len(numbers), f"all {len(numbers)} facts at the worker")

        self._check_log(table)
        self._check_worker(table)
        self._check_tail(table)
        for reader in self.readers:
            for life in reader.lives:
                assert life.trouble == []
        for process in [*self._daemons, *(life for writer in self.writers for life in writer.lives)]:
            assert [line for line in process.lines if "Unhandled" in line or "fault" in line] == []
        return len(table)

    def _under_way(self) -> list[Any]:
        """Backends of writers that have not ended."""
        found: list[Any] = self.ask(
            lambda cursor: cursor.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'"
                " AND application_name = '' AND pid <> pg_backend_pid()"
            ).fetchall()
        )
        return found

    def _check_log(self, table: list[Known]) -> None:
        """What was published: nothing of a writer may come after what has a higher id, or below the lowest
        position of all."""
        kept = list(changelog(self.daemon.url))
        assert verify(kept, EMPTY) is None
        facts = [fact for fact in kept if fact.rows != b"[]"]
        positions: dict[str, int] = {}
        for fact in kept:
            assert fact.prev_token == positions.get(fact.writer, 0), "a writer's facts are out of order"
            if fact.rows != b"[]" and len(positions) == len(WRITERS):
                assert fact.token > min(positions.values()), "the linear position passed an unfinished id"
            positions[fact.writer] = fact.token
        found = [Known(f.stream, f.writer, f.token, ids_of(f.rows.decode())[0]) for f in facts]
        assert sorted(found, key=lambda fact: fact.token) == table
        assert {fact.epoch for fact in kept} == {1}

    def _effects(self) -> list[Known]:
        """What the worker did, in its order."""
        with closing(sqlite3.connect(self.effects)) as database:
            effects = database.execute("SELECT stream, writer, token, rows FROM effects ORDER BY rowid")
            return [Known(stream, writer, token, ids_of(rows)[0]) for stream, writer, token, rows in effects]

    def _check_worker(self, table: list[Known]) -> None:
        found = self._effects()
        assert sorted(found) == sorted(table), "not each fact once at the worker"
        _check_order(found)

    def _check_tail(self, table: list[Known]) -> None:
        """It may repeat after a kill, never within a life; and it does not know of writers."""
        places = {(fact.token, fact.number) for fact in table}
        for life in self.tail.lives:
            told = [(fact.token, fact.number) for fact in life.facts]
            assert told == sorted(set(told)), "not in order, or not once, at the tail"
            assert set(told) <= places
        assert {(fact.token, fact.number) for fact in self.tail.facts} == places


def _check_order(facts: list[Known]) -> None:
    tokens: dict[str, int] = {}
    for fact in facts:
        assert fact.token > tokens.get(fact.writer, 0), f"{fact} is out of order"
        tokens[fact.writer] = fact.token


@pytest.mark.parametrize("log", ["sqlite", "postgresql"])
def test_everybody_is_killed_and_nothing_is_lost(server: PostgresServer, tmp_path: Path, log: str) -> None:
    """Writers, the daemon and followers, at any moment under load."""
    seed = drawn_seed()
    chance = random.Random(seed)
    begun = time.monotonic()
    try:
        with Homeserver(server, tmp_path, is_log_in_postgres=log == "postgresql") as all_of_it:
            all_of_it.wait_for_load()
            restarts: list[Callable[[], None]] = [
                *(writer.restart for writer in all_of_it.writers),
                *(reader.restart for reader in all_of_it.readers),
                all_of_it.restart_daemon,
            ]
            # Everybody's turn comes, in the order of chance.
            order = [one for _ in range(KILLS // len(restarts) + 1) for one in chance.sample(restarts, 6)]
            for restart in order[:KILLS]:
                time.sleep(chance.random() * LIFE_SECONDS)
                restart()
            all_of_it.wait_until_all_go_on()
            facts = all_of_it.check()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    report(f"writers, log in {log}: {KILLS} kills, {facts} facts, {time.monotonic() - begun:.1f} s")


def test_a_stuck_writer_is_named_and_a_dead_one_released(server: PostgresServer, tmp_path: Path) -> None:
    """What it has unfinished holds up its own facts, and who knows no writers. Whose it is must be seen; and
    its end frees them."""
    with Homeserver(server, tmp_path, is_log_in_postgres=False, mode="trickle") as all_of_it:
        all_of_it.wait_for_load()
        stuck, *others = all_of_it.writers
        stuck.restart("stuck")
        stuck.process.wait_for("ready:")

        def is_told() -> bool:
            state = all_of_it.state_of(stuck.name)
            return state is not None and state.owner == "the stuck job"

        poll(is_told, "it tells that it is stuck")
        state = all_of_it.state_of(stuck.name)
        assert state is not None
        assert state.oldest_id is not None
        assert state.oldest_since is not None
        assert 0 <= state.told_at - state.oldest_since < 5
        assert state.unfinished == 1
        held = state.oldest_id
        before = {writer.name: len(writer.committed()) for writer in others}
        for writer in others:
            poll(lambda: len(writer.committed()) > before[writer.name] + 10, "others write on")  # noqa: B023
        numbers = {writer.committed()[-1] for writer in others}
        all_of_it.worker.wait_for(numbers, "the facts of the others")
        assert all_of_it.daemon_position(stuck.name) < held
        assert all(all_of_it.daemon_position(writer.name) > held for writer in others)
        assert all(fact.token < held for fact in all_of_it.tail.facts)
        assert status(all_of_it.daemon.url)["tables"][0]["held_by"] == [stuck.name]

        stuck.process.kill()
        killed_at = time.monotonic()
        for reader in all_of_it.readers:
            reader.wait_for(numbers, "what was held up")
        took = time.monotonic() - killed_at
        assert (gone := all_of_it.state_of(stuck.name)) is not None
        assert (gone.process, gone.owner) == ("", None)
    report(f"a dead writer's ids are released after {took:.1f} s")


@pytest.mark.parametrize("log", ["sqlite", "postgresql"])
def test_postgresql_goes_away_and_comes_back(server: PostgresServer, tmp_path: Path, log: str) -> None:
    """However it ends: nobody needs to restart anything, and what was told to be committed is there."""
    seed = drawn_seed()
    chance = random.Random(seed)
    ways: list[tuple[str, Callable[[], None]]] = [
        ("stopped", lambda: server.stop("fast")),
        ("stopped at once", lambda: server.stop("immediate")),
        ("killed", server.kill),
    ]
    if not LONG:
        ways = ways[:2] if log == "sqlite" else ways[2:]
    told = []
    try:
        with Homeserver(server, tmp_path, is_log_in_postgres=log == "postgresql") as all_of_it:
            all_of_it.wait_for_load()
            all_of_it.wait_until_all_go_on()
            pids = [all_of_it.daemon.pid, *(writer.process.pid for writer in all_of_it.writers)]
            for name, end in ways * STOPS:
                time.sleep(chance.random() * LIFE_SECONDS)
                end()
                time.sleep(chance.random() * LIFE_SECONDS)
                server.start()
                told.append(f"{name} {all_of_it.wait_until_all_go_on():.1f} s")
            assert pids == [all_of_it.daemon.pid, *(writer.process.pid for writer in all_of_it.writers)]
            facts = all_of_it.check()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        server.start()
    report(f"PostgreSQL, log in {log}: all go on after: {', '.join(told)}; {facts} facts")
