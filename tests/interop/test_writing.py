"""Our daemon among the real processes of a homeserver, as one that writes.

It is the only writer of `typing`, writes `caches` with ids of the homeserver's own sequence, and keeps a
stream that those processes do not know. What it tells is seen in what they answer their users.
"""

import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
import pytest
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from synrepl import IdStream, IdTable, InvalidationWriter, MultiWriterIdGenerator, transact
from tests.interop.client import Client, Refused
from tests.interop.harness import peer_python
from tests.interop.homeserver import MAIN, PERSISTER, PROCESSES, WORKER, Homeserver
from tests.interop.logs import trouble_in
from tests.interop.observer import Observer
from tests.interop.recorder import Recorder
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

SERVER_NAME: Final = "hs.test"
OURS: Final = "synrepl1"
"""Writes `typing`, and `caches` with ids of the sequence."""
STRANGER: Final = "synrepl2"
"""Writes `caches` with ids of its own."""
TOKEN_CACHE: Final = "get_user_by_access_token"
TABLE: Final = "cache_invalidation_stream_by_instance"
SEQUENCE: Final = "cache_invalidation_stream_seq"
PRIVATE: Final = "user_signature"
"""A stream that this release of Synapse no longer has."""
WAIT_SECONDS: Final = 20.0
STAY_SECONDS: Final = 2.0
"""How long something must not happen until we believe that it does not."""
STALL_SECONDS: Final = 5.0
STEP_SECONDS: Final = 0.1
OWN_IDS: Final = 20
"""More than a logout invalidates."""

T = TypeVar("T")

pytestmark = pytest.mark.skipif(
    not peer_python("newest").exists()
    or "homeserver" not in os.environ.get("SYNREPL_INTEROP", "homeserver").split(),
    reason="the newest Synapse is not there, or not asked for; run scripts/interop homeserver",
)


# Everything that runs


@dataclass
class Running:
    """A homeserver of which our daemon is a writer."""

    homeserver: Homeserver
    recorder: Recorder
    daemon: Observer
    invalidations: "Invalidations"

    def users(self, *names: str) -> list[Client]:
        """New ones."""
        return [Client.register(self.homeserver, name) for name in names]

    def cut_off(self, *names: str) -> None:
        """Close the connections over which these processes hear the others; they come back in a second."""
        redis, owners = self.homeserver.redis, self.homeserver.redis_clients()
        heard = [one["id"] for one in redis.clients() if one["sub"] != "0" and owners.get(one["id"]) in names]
        assert len(names) == len(heard)
        for client in heard:
            assert redis.kill_client(client)


class Invalidations:
    """What a process of ours, beside the homeserver, does in its database: a program of one thread."""

    def __init__(self, url: str, instance: str) -> None:
        self._connection = psycopg.connect(url)
        stream = IdStream(
            name="caches", sequence=SEQUENCE, tables=(IdTable(name=TABLE),), writers=(instance,)
        )
        self._ids = MultiWriterIdGenerator(
            self, stream, instance=instance, flavor="postgresql", clock=Clock()
        )
        self._writer = InvalidationWriter(self._ids, seconds=time.time)
        _result(ensureDeferred(self._ids.start()))

    def runInteraction(self, work: Callable[..., T], /, *args: Any) -> "Deferred[T]":
        """It is its own pool: the transaction is over when this returns."""
        try:
            with closing(self._connection.cursor()) as cursor:
                result = work(cursor, *args)
            self._connection.commit()
        except Exception as error:
            self._connection.rollback()
            return fail(error)
        return succeed(result)

    def change(self, statement: str, *values: object, cache: str, keys: tuple[str, ...]) -> None:
        """Do this, and say in the same transaction which entry of a cache it makes wrong."""

        def work(transaction: Any) -> None:
            with self._writer.within(transaction) as changes:
                transaction.execute(statement, values)
                changes.invalidate(cache, keys)

        _result(transact(self, work))

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Read, or change something and tell nobody."""

        def work(cursor: Any) -> list[tuple[Any, ...]]:
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description is not None else []

        return _result(self.runInteraction(work))

    def close(self) -> None:
        """Let the connection go."""
        self._connection.close()


def _result(done: "Deferred[T]") -> T:
    """What it came to, as nothing here waits."""
    results: list[Any] = []
    done.addBoth(results.append)
    if isinstance(results[0], Failure):
        results[0].raiseException()
    found: T = results[0]
    return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    http_port = free_port()
    redis = RedisServer()
    with redis, Recorder(redis.port, SERVER_NAME) as recorder:
        with Homeserver(
            SERVER_NAME, redis=redis, others={OURS: http_port}, writers={"typing": OURS}
        ) as homeserver:
            with closing(Invalidations(homeserver.database, OURS)) as invalidations:
                # A stream whose writer has no position yet is not followed from its table.
                invalidations.change("SELECT 1", cache="no_such_cache", keys=("",))
                with Observer(
                    tmp_path_factory.mktemp(OURS),
                    homeserver,
                    name=OURS,
                    http_port=http_port,
                    redis_writes="typing,caches",
                    tables_database=homeserver.database,
                    table_streams=[
                        {
                            "stream": "caches",
                            "table": TABLE,
                            "row": ["cache_func", "keys", "invalidation_ts"],
                            "sequence": SEQUENCE,
                            "writers": [OURS],
                        }
                    ],
                ) as daemon:
                    recorder.wait_for("POSITION", containing=f"typing {OURS}")
                    daemon.append(PRIVATE, [["@private:hs.test"]])
                    recorder.wait_until_quiet()
                    yield Running(homeserver, recorder, daemon, invalidations)


@contextmanager
def undisturbed(running: Running, *, is_cut: bool = False) -> Iterator[None]:
    """The real processes keep their connections to Redis, unless those are cut, and complain of nothing."""
    homeserver = running.homeserver
    # One for what each hears, and one for what it says.
    connections = Counter(dict.fromkeys(PROCESSES, 2))
    eventually(lambda: Counter(homeserver.redis_clients().values()) == connections, "all are connected")
    marks = {name: len(homeserver.log(name)) for name in PROCESSES}
    clients = homeserver.redis_clients()
    yield
    said = {name: list(trouble_in(homeserver.log(name)[mark:])) for name, mark in marks.items()}
    assert {name: lines for name, lines in said.items() if lines} == {}
    if not is_cut:
        assert clients == homeserver.redis_clients()
    assert told_by_us(running.recorder) <= {"typing", "caches"}


def told_by_us(recorder: Recorder) -> set[str]:
    """The streams that our daemons have named on the channel so far, by their facts or positions."""
    said = [message.payload.split(" ") for message in recorder.messages()]
    return {words[1] for words in said if words[0] in ("RDATA", "POSITION") and words[2] in (OURS, STRANGER)}


def eventually(look: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Return once it is so, or fail."""
    until = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < until, f"not within {seconds:g} s: {what}"
        time.sleep(STEP_SECONDS)


def stays(look: Callable[[], bool], what: str) -> None:
    """Return when it has been so for a while, or fail."""
    until = time.monotonic() + STAY_SECONDS
    while time.monotonic() < until:
        assert look(), f"no longer: {what}"
        time.sleep(STEP_SECONDS)


# Typing


class Room:
    """A room with a user who watches it on two workers, and whoever else is said to type there."""

    def __init__(self, running: Running, name: str) -> None:
        self.typist, self.watcher = running.users(f"typist-{name}", f"watcher-{name}")
        self.id = self.typist.create_room(preset="public_chat")
        self.watcher.join(self.id)
        self._daemon = running.daemon
        self._shown: dict[str, list[str]] = {}
        for at in (WORKER, PERSISTER):
            self.watcher.sync(at)

    def tell(self, *users: str) -> int:
        """Have our daemon say who types: the token that this was given."""
        tokens: list[int] = self._daemon.append("typing", [[self.id, list(users)]])["tokens"]
        return tokens[-1]

    def shown(self, at: str) -> list[str]:
        """Who types, as this worker shows the watcher."""
        room = self.watcher.sync(at).get("rooms", {}).get("join", {}).get(self.id, {})
        for event in room.get("ephemeral", {}).get("events", []):
            if event["type"] == "m.typing":
                self._shown[at] = event["content"]["user_ids"]
        return self._shown.get(at, [])

    def wait_until_shown(self, *users: str) -> None:
        """Until both workers show that just these type."""
        for at in (WORKER, PERSISTER):
            eventually(partial(self._shows, at, list(users)), f"{at} shows {users}")

    def _shows(self, at: str, users: list[str]) -> bool:
        return self.shown(at) == users


def served(daemon: Observer) -> int:
    """How many pages of missed rows it was asked for."""
    metric = r'^synrepl_catch_up_requests_total\{direction="in"\} (\S+)$'
    found = re.search(metric, daemon.get("/metrics"), re.MULTILINE)
    return int(float(found[1])) if found is not None else 0


def test_typing_that_we_write_is_shown(running: Running) -> None:
    """The workers show their users who types, as our daemon says it, and when nobody does any more."""
    with undisturbed(running):
        room = Room(running, "shown")
        mark = running.recorder.mark()

        token = room.tell(room.typist.user)
        room.wait_until_shown(room.typist.user)
        room.tell()
        room.wait_until_shown()

        told = [fact for fact in running.recorder.facts(mark) if fact.stream == "typing"]
        assert [(OURS, token), (OURS, token + 1)] == [(fact.writer, fact.token) for fact in told]


def test_typing_missed_by_the_workers_is_fetched_from_us(running: Running) -> None:
    """Who was cut off from Redis asks our daemon over HTTP, as it would ask any other worker."""
    with undisturbed(running, is_cut=True):
        room = Room(running, "missed")
        room.tell(room.typist.user)
        room.wait_until_shown(room.typist.user)
        asked, mark = served(running.daemon), running.recorder.mark()

        running.cut_off(*PROCESSES)
        room.tell()
        room.tell("@missed:hs.test")

        room.wait_until_shown("@missed:hs.test")
        eventually(lambda: served(running.daemon) >= asked + len(PROCESSES), "everybody has asked")
        assert len(PROCESSES) == len(running.recorder.messages(mark, "REPLICATE"))


def test_typing_told_while_there_is_no_redis_is_fetched_from_us(running: Running) -> None:
    """Our daemon takes it in all the same, and says where it stands when Redis is back."""
    redis, recorder = running.homeserver.redis, running.recorder
    with undisturbed(running, is_cut=True):
        room = Room(running, "no-redis")
        asked, subscriptions = served(running.daemon), recorder.subscriptions

        redis.kill()
        room.tell("@lost:hs.test")
        room.tell(room.typist.user)
        redis.start()
        recorder.wait_for_subscription(subscriptions + 1)

        room.wait_until_shown(room.typist.user)
        eventually(lambda: served(running.daemon) >= asked + len(PROCESSES), "everybody has asked")


def test_typing_begins_again_with_our_daemon(running: Running) -> None:
    """It is kept in memory only: after a crash of ours the workers go on from the beginning with us.

    A device that begins to sync is shown all. One that goes on is not shown what came before it asked again,
    as after the restart of a writer of Synapse's own.
    """
    with undisturbed(running):
        room = Room(running, "again")
        assert room.tell(room.typist.user) > 1
        room.wait_until_shown(room.typist.user)
        mark = running.recorder.mark()

        running.daemon.kill()
        running.daemon.start()
        running.recorder.wait_for("POSITION", mark, containing=f"typing {OURS}")
        first = room.tell("@anew:hs.test")

        assert 1 == first
        goes_on, room.watcher = room.watcher, room.watcher.log_in("ANEW")
        room.wait_until_shown("@anew:hs.test")
        room.watcher = goes_on
        for at in (WORKER, PERSISTER):
            room.shown(at)
        room.tell("@more:hs.test")
        room.wait_until_shown("@more:hs.test")


# Invalidations


class Device:
    """A device whose token a worker has in its cache."""

    def __init__(self, running: Running, name: str) -> None:
        self.client = running.users(name)[0].log_in("DEVICE")
        self._invalidations = running.invalidations
        for at in (WORKER, PERSISTER):
            assert self.is_known(at)
            assert not self.is_guest(at)

    def is_guest(self, at: str) -> bool:
        """What this worker believes."""
        return bool(self.client.who_am_i(at)["is_guest"])

    def is_known(self, at: str) -> bool:
        """Whether this worker still takes the token."""
        try:
            self.client.who_am_i(at)
        except Refused as refused:
            if refused.code != 401:
                raise
            return False
        return True

    def wait_until(self, look: Callable[[str], bool], what: str) -> None:
        """Until both workers have come to it."""
        for at in (WORKER, PERSISTER):
            eventually(partial(look, at), f"{at} {what}")

    def wait_until_forgotten(self) -> None:
        """Until no worker takes the token any more."""
        self.wait_until(lambda at: not self.is_known(at), "has forgotten the token")

    def wait_until_guest(self, is_guest: bool) -> None:
        """Until both workers believe it, or no longer do."""
        self.wait_until(lambda at: self.is_guest(at) == is_guest, "has the new row")


def shared_ids(running: Running, after: int = 0) -> dict[int, set[str]]:
    """Tokens of `caches` that more than one writer told."""
    writers = defaultdict(set)
    for fact in running.recorder.facts(after):
        if fact.stream == "caches":
            writers[fact.token].add(fact.writer)
    return {token: names for token, names in writers.items() if len(names) > 1}


def last_id(running: Running) -> int:
    """The last one that the sequence gave."""
    last: int = running.invalidations.ask(f"SELECT last_value FROM {SEQUENCE}")[0][0]
    return last


@pytest.mark.story
def test_invalidations_that_we_write_are_applied(running: Running) -> None:
    """A row changed behind the homeserver's back is seen once we say so, with an id of the shared sequence;
    the real processes' own invalidations go on."""
    with undisturbed(running):
        recorder, invalidations = running.recorder, running.invalidations
        device = Device(running, "changed")
        statement = "UPDATE users SET is_guest = %s WHERE name = %s"
        mark = recorder.mark()

        invalidations.ask(statement, 1, device.client.user)
        stays(lambda: not any(map(device.is_guest, (WORKER, PERSISTER))), "the old row is in the cache")
        for number in range(3):
            value, at = (number + 1) % 2, last_id(running)
            invalidations.change(
                statement, value, device.client.user, cache=TOKEN_CACHE, keys=(device.client.token,)
            )
            device.wait_until_guest(bool(value))
            told = [fact for fact in recorder.facts(mark) if (fact.stream, fact.writer) == ("caches", OURS)]
            assert at < told[-1].token <= last_id(running)
            # The others' next ids come after ours, and are no less theirs for that.
            passing = Device(running, f"passing{number}")
            passing.client.log_out()
            passing.wait_until_forgotten()

        assert {} == shared_ids(running, mark)
        rows = invalidations.ask(f"SELECT stream_id FROM {TABLE} WHERE instance_name = %s", OURS)
        assert [fact.token for fact in told] == [token for (token,) in sorted(rows)][-3:]


def test_invalidations_missed_by_a_worker_are_read_from_the_table(running: Running) -> None:
    """Who was cut off from Redis hears where our daemon stands, and finds in the database what that means.

    Two of them: a single one is taken for known, whoever wrote it, when another process says first that it is
    at this id, which then is next to the last one known.
    """
    with undisturbed(running, is_cut=True):
        device = Device(running, "missed-caches")
        running.cut_off(WORKER)
        for statement in ("SELECT %s", "UPDATE users SET is_guest = 1 WHERE name = %s"):
            running.invalidations.change(
                statement, device.client.user, cache=TOKEN_CACHE, keys=(device.client.token,)
            )
        device.wait_until_guest(True)


def test_a_stream_of_our_own_stays_with_us(running: Running) -> None:
    """The daemon keeps it, and answers for it; the channel never hears of it, whoever asks there."""
    daemon, recorder = running.daemon, running.recorder
    with undisturbed(running):
        before, mark = len(daemon.rows(PRIVATE, OURS)), recorder.mark()
        daemon.append(PRIVATE, [["@private:hs.test"]], [["@private:hs.test"]])
        running.homeserver.redis.command("PUBLISH", SERVER_NAME, "REPLICATE ")
        for stream in ("typing", "caches"):
            recorder.wait_for("POSITION", mark, containing=f" {stream} {OURS} ")
        daemon.append(PRIVATE, [["@private:hs.test"]])
        recorder.wait_until_quiet()

        assert before + 3 == len(daemon.rows(PRIVATE, OURS))
        assert {"typing", "caches"} == told_by_us(recorder)
        assert not [message for message in recorder.messages() if PRIVATE in message.payload]


# What does not work


def has_invalidation(daemon: Observer, *keys: str) -> bool:
    """Whether it holds one with these keys, for its followers."""
    rows = [json.loads(row) for fact in daemon.changelog() if fact.stream == "caches" for row in fact.rows]
    return list(keys) in [row[1] for row in rows]


def test_others_invalidations_are_held_after_a_hole(running: Running) -> None:
    """An id that was rolled back does not keep the daemon from what real processes invalidate after it."""
    running.invalidations.ask("SELECT nextval(%s)", SEQUENCE)
    passing = Device(running, "after-a-hole")

    passing.client.log_out()

    passing.wait_until_forgotten()
    held = partial(has_invalidation, running.daemon, passing.client.token)
    eventually(held, "the daemon holds it", STALL_SECONDS)


def test_others_invalidations_are_held_however_late_they_are_committed(running: Running) -> None:
    """An id of a real process below ours may be committed after it; the daemon holds it all the same."""
    with psycopg.connect(running.homeserver.database) as late:
        row = late.execute(
            f"INSERT INTO {TABLE} (stream_id, instance_name, cache_func, keys)"
            f" VALUES (nextval('{SEQUENCE}'), '{WORKER}', 'no_such_cache', '{{late}}') RETURNING stream_id"
        ).fetchone()
        assert row is not None
        running.invalidations.change("SELECT 1", cache="no_such_cache", keys=("ours",))
        eventually(partial(has_invalidation, running.daemon, "ours"), "the daemon holds ours")
    # The worker tells it as soon as it is committed.
    told = f'RDATA caches {WORKER} {row[0]} ["no_such_cache",["late"],1]'
    running.homeserver.redis.command("PUBLISH", running.homeserver.server_name, told)

    held = partial(has_invalidation, running.daemon, "late")
    eventually(held, "the daemon holds the late one", STALL_SECONDS)


# What is dangerous


def test_ids_of_our_own_silence_real_invalidations(running: Running, tmp_path: Path) -> None:
    """Why invalidations beside real processes need ids of their sequence: real ones that are given a number
    which we told before are told too late or never, and a device that logged out is let in for good."""
    homeserver, recorder, invalidations = running.homeserver, running.recorder, running.invalidations
    with undisturbed(running):
        with Observer(tmp_path, homeserver, name=STRANGER, redis_writes="caches") as stranger:
            recorder.wait_for("POSITION", containing=f" caches {STRANGER} ")
            recorder.wait_until_quiet()
            device, later = Device(running, "logs-out"), Device(running, "logs-out-later")
            mark = recorder.mark()

            rows = [[["no_such_cache", [str(number)], number]] for number in range(OWN_IDS)]
            ours = stranger.append("caches", *rows)["tokens"]
            recorder.wait_for("RDATA", mark, containing=f"caches {STRANGER} {ours[-1]} ")
            device.client.log_out()

            stays(lambda: all(map(device.is_known, (WORKER, PERSISTER))), "the device is let in")
            written = invalidations.ask(
                f"SELECT stream_id FROM {TABLE} WHERE cache_func = %s AND keys = %s AND instance_name = %s",
                *(TOKEN_CACHE, [device.client.token], MAIN),
            )
            assert len(written) == 1
            assert written[0][0] in ours
            # Beyond our numbers all is well, but for what was not told.
            while last_id(running) < ours[-1]:
                invalidations.ask("SELECT nextval(%s)", SEQUENCE)
            later.client.log_out()
            later.wait_until_forgotten()
            assert all(map(device.is_known, (WORKER, PERSISTER)))
