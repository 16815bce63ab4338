"""Our daemon beside a whole homeserver of the newest release, on its Redis: it holds what was told there.

What was told is what the recorder heard, with no code of ours. What nobody could hear, the homeserver's own
processes say over HTTP, and only that can be fetched: rows that were superseded or deleted meanwhile (account
data, pushers, device lists, messages to devices, events of deleted rooms ...) are no longer told by anybody.
"""

import json
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop.drive import DRIVEN, Driver, Driving, drive
from tests.interop.harness import Program, peer_python
from tests.interop.homeserver import MAIN, PERSISTER, PROCESSES, WORKER, Homeserver
from tests.interop.logs import trouble_in
from tests.interop.observer import Observer
from tests.interop.recorder import Fact, Recorder, canonical, table
from tests.servers.redis import RedisServer

SERVER_NAME: Final = "hs.test"
EPHEMERAL: Final = frozenset({"typing", "presence", "presence_federation", "federation"})
"""Not in the changelog."""
SETTLE_SECONDS: Final = 60.0
RETURN_SECONDS: Final = 6.0
"""Who has lost Redis comes back within 5 s."""
SLACK_SECONDS: Final = 2.0
"""What was told so long before a kill may not be on disk; so long after a return it may be on its way."""
STEP_SECONDS: Final = 0.2

Rows = Counter[str]
Told = dict[tuple[str, int], Rows]
"""The rows of each token of each stream."""

pytestmark = pytest.mark.skipif(
    not peer_python("newest").exists()
    or "homeserver" not in os.environ.get("SYNREPL_INTEROP", "homeserver").split(),
    reason="the newest Synapse is not there, or not asked for; run scripts/interop homeserver",
)


# The homeserver


@dataclass
class Running:
    """A homeserver, and what has been heard of it since before it was started."""

    homeserver: Homeserver
    recorder: Recorder
    seeds: Iterator[int] = field(default_factory=lambda: iter(range(1, 1000)))

    def driver(self) -> Driver:
        """Users of their own."""
        driver = Driver(self.homeserver, next(self.seeds))
        driver.prepare()
        return driver

    def drive(self, rounds: int) -> Driver:
        """So many rounds."""
        return drive(self.homeserver, rounds, next(self.seeds))


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    redis = RedisServer()
    with redis, Recorder(redis.port, SERVER_NAME) as recorder:
        with Homeserver(SERVER_NAME, redis=redis) as homeserver:
            yield Running(homeserver, recorder)


# The daemon


@contextmanager
def observer(running: Running, folder: Path) -> Iterator[Observer]:
    """A daemon that hears everything from now on."""
    running.recorder.wait_until_quiet()
    mark = running.recorder.mark()
    with Observer(folder, running.homeserver) as daemon:
        # It has subscribed before it asks, and knows where the writers stand when they have answered.
        running.recorder.wait_for("REPLICATE", mark)
        running.recorder.wait_until_quiet()
        yield daemon


# What was told


def told_by(facts: Iterable[Fact], streams: Callable[[str], bool] = lambda stream: True) -> Told:
    """What somebody heard: a token that was told again, or by two writers, counts as one."""
    told: Told = {}
    for fact in facts:
        if streams(fact.stream):
            rows = Counter(fact.rows)
            told[fact.stream, fact.token] = told.get((fact.stream, fact.token), Counter()) | rows
    return told


def held_by(facts: Iterable[Fact]) -> Told:
    """What we tell: what is there twice counts as two."""
    held: Told = defaultdict(Counter)
    for fact in facts:
        if fact.rows:  # a log may also say that there is nothing up to here
            held[fact.stream, fact.token].update(fact.rows)
    return held


def is_kept(stream: str) -> bool:
    """Whether its facts are in the changelog."""
    return stream not in EPHEMERAL


def differences(wanted: Told, held: Told, told: Told | None = None) -> list[str]:
    """What is wanted and not held, and what is held more often than it was told (which is `wanted`, unless
    given)."""
    told = wanted if told is None else told
    found = []
    for (stream, token), rows in wanted.items():
        if lacking := rows - held.get((stream, token), Counter()):
            found.append(f"{stream} {token} is missing {list(lacking.elements())}")
    for (stream, token), rows in held.items():
        # Of what nobody heard we know only that it was there once.
        if surplus := rows - told.get((stream, token), Counter(set(rows))):
            found.append(f"{stream} {token} is repeated or wrong {list(surplus.elements())}")
    return found


def until_none(look: Callable[[], list[str]], seconds: float = SETTLE_SECONDS) -> None:
    """Return once there are no differences, or fail with those that stay."""
    until = time.monotonic() + seconds
    while found := look():
        assert time.monotonic() < until, f"{len(found)} differences:\n" + "\n".join(found[:20])
        time.sleep(STEP_SECONDS)


def assert_holds(daemon: Observer, wanted: Told, told: Told | None = None) -> None:
    """At rest the daemon's changelog, and its pages of rows, hold what is wanted, and nothing twice."""
    until_none(lambda: differences(wanted, held_by(daemon.changelog()), told))

    changelog = daemon.changelog()
    paged = [
        fact
        for stream, writer in sorted({(fact.stream, fact.writer) for fact in changelog})
        for fact in daemon.rows(stream, writer)
    ]

    assert held_by(changelog) == held_by(paged)


def standing(recorder: Recorder, upto: int | None = None) -> dict[tuple[str, str], int]:
    """Where each writer of each stream was last heard to stand."""
    stands: dict[tuple[str, str], int] = {}
    for message in recorder.messages()[:upto]:
        match message.payload.split(" ", 5):
            case ["RDATA", stream, writer, token, *_] if token != "batch":
                stands[stream, writer] = int(token)
            case ["POSITION", stream, writer, _, token]:
                stands[stream, writer] = int(token)
    return stands


def said_over_http(running: Running, since: int) -> Told:
    """What the homeserver's processes say was written between this mark and now, heard by anybody or not."""
    before = standing(running.recorder, since)
    now = standing(running.recorder)
    facts = []
    for (stream, writer), upto in now.items():
        # A process tells only its own rows of its own streams; ours tells none.
        if is_kept(stream) and writer in running.homeserver.processes:
            rows: dict[int, list[str]] = defaultdict(list)
            for token, row in running.homeserver.rows(stream, writer, before.get((stream, writer), 0), upto):
                if token <= upto:
                    rows[token].append(canonical(row))
            facts += [Fact(stream, writer, token, tuple(texts)) for token, texts in rows.items()]
    return told_by(facts)


# What followers of the daemon were told


def is_part(part: Any, whole: Any) -> bool:
    """Whether a row in the shape of an older release says nothing else than the newest one, in that order."""
    if not (isinstance(part, list) and isinstance(whole, list)):
        return bool(part == whole)
    rest = iter(whole)
    return all(item is None or any(is_part(item, other) for other in rest) for item in part)


def unheard(told: Told, follower: Program) -> list[str]:
    """What a follower of the daemon lacks of this, or was told otherwise, or twice; of streams it knows."""
    known = {event["stream"] for event in follower.all("position")}
    heard: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for event in follower.all("rdata"):
        heard[event["stream"], event["token"]] += event["rows"]
    found = []
    for (stream, token), rows in told.items():
        left = [json.loads(row) for row in rows.elements()]
        if stream not in known:
            continue
        for row in heard.get((stream, token), []):
            like = next((one for one in left if is_part(row, one)), None)
            if like is None:
                found.append(f"{stream} {token} is repeated or wrong {row}")
            else:
                left.remove(like)
        if left:
            found.append(f"{stream} {token} is missing {left}")
    return found


# The homeserver alone


def test_the_homeserver_alone(running: Running) -> None:
    """Every stream that can have rows has them, of every writer; HTTP tells nothing else; no complaints."""
    running.recorder.wait_until_quiet()
    mark = running.recorder.mark()
    running.drive(6)
    running.recorder.wait_until_quiet()

    facts = running.recorder.facts(mark)
    told = told_by(facts, is_kept)
    publish(table(facts))

    assert {fact.stream for fact in facts} >= DRIVEN
    for stream, writers in {
        "caches": {MAIN, PERSISTER, WORKER},
        "device_lists": {MAIN, WORKER},
        "events": {PERSISTER, WORKER},
        "receipts": {PERSISTER, WORKER},
        "thread_subscriptions": {PERSISTER, WORKER},
    }.items():
        assert {fact.writer for fact in facts if fact.stream == stream} == writers, stream
    assert differences(said_over_http(running, mark), told, told) == []
    assert complaints(running.homeserver) == {}


def publish(text: str) -> None:
    """Show the table, and keep it where SYNREPL_INTEROP_TABLE says."""
    print(f"\n{text}")
    if path := os.environ.get("SYNREPL_INTEROP_TABLE"):
        Path(path).write_text(text)


def complaints(homeserver: Homeserver, after: dict[str, int] | None = None) -> dict[str, list[str]]:
    """What its processes complained of, after these many characters of their logs."""
    marks = after if after is not None else dict.fromkeys(homeserver.processes, 0)
    found = {name: list(trouble_in(homeserver.log(name)[mark:])) for name, mark in marks.items()}
    return {name: lines for name, lines in found.items() if lines}


# The daemon beside it from the beginning


@dataclass
class Beside:
    """What happened while the daemon was there, at rest."""

    daemon: Observer
    followers: dict[str, Program]
    facts: list[Fact]
    complaints: dict[str, list[str]]


@pytest.fixture(scope="module")
def beside(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    homeserver, recorder = running.homeserver, running.recorder
    logs = {name: len(homeserver.log(name)) for name in PROCESSES}
    with ExitStack() as stack:
        daemon = stack.enter_context(observer(running, tmp_path_factory.mktemp("beside")))
        followers = {dialect: stack.enter_context(daemon.tail(dialect)) for dialect in ("current", "legacy")}
        for follower in followers.values():
            follower.expect("position", stream="account_data")
        mark = recorder.mark()
        running.drive(8)
        recorder.wait_until_quiet()
        yield Beside(daemon, followers, recorder.facts(mark), complaints(homeserver, logs))


@pytest.mark.story
def test_the_log_holds_what_was_told(beside: Beside) -> None:
    """Every row that was told over Redis, once, whoever told it and however often."""
    assert_holds(beside.daemon, told_by(beside.facts, is_kept))


@pytest.mark.story
def test_the_log_names_who_told_it(beside: Beside) -> None:
    """The writer of a fact in the log is one of those who told it."""
    assert_holds(beside.daemon, told_by(beside.facts, is_kept))
    writers = defaultdict(set)
    for fact in beside.facts:
        writers[fact.stream, fact.token].add(fact.writer)

    assert [
        fact
        for fact in beside.daemon.changelog()
        if fact.rows and fact.writer not in writers.get((fact.stream, fact.token), {fact.writer})
    ] == []


@pytest.mark.story
def test_a_current_follower_of_the_daemon_was_told_the_same(beside: Beside) -> None:
    """Every row of the streams that its release knows, typing and presence among them, in its own shape."""
    follower = beside.followers["current"]

    until_none(lambda: unheard(told_by(beside.facts), follower))

    assert [] == follower.all("error") + follower.all("disconnected")


@pytest.mark.story
def test_a_legacy_follower_of_the_daemon_was_told_the_same(beside: Beside) -> None:
    """Likewise, though its rows name no writer, and of several the one further on may be told first."""
    follower = beside.followers["legacy"]

    until_none(lambda: unheard(told_by(beside.facts), follower))

    assert [] == follower.all("error") + follower.all("disconnected")


@pytest.mark.story
def test_the_homeserver_has_nothing_to_complain_of(beside: Beside) -> None:
    """No error, and no warning about replication, is in the logs of its processes."""
    assert {} == beside.complaints


@pytest.mark.story
def test_no_gaps_were_seen(beside: Beside) -> None:
    """Nothing was lost, so nothing was fetched, and nothing is given up."""
    daemon = beside.daemon

    assert daemon.metric("synrepl_gaps_lost_total") == 0
    assert daemon.metric("synrepl_gaps_detected_total") == daemon.metric("synrepl_gaps_repaired_total")


def test_commands_of_a_follower_reach_the_homeserver_once(beside: Beside, running: Running) -> None:
    """Who syncs where, who is up, who asked from where: in the newest form, and never around in circles."""
    recorder = running.recorder
    mark = recorder.mark()
    syncs = "USER_SYNC tests @nobody:hs.test"
    is_up = "REMOTE_SERVER_UP up.test"
    asked = 'USER_IP @nobody:hs.test ["token","127.0.0.1","tests","PHONE",1700000000000]'
    wanted = {  # what the follower says, and what the homeserver hears
        "USER_SYNC": (f"{syncs} start 1700000000000", f"{syncs} None start 1700000000000"),
        "REMOTE_SERVER_UP": (is_up, is_up),
        "USER_IP": (asked, asked),
    }
    with socket.create_connection(("127.0.0.1", beside.daemon.port), 10) as follower:
        lines = ["NAME tests", "REPLICATE", *(said for said, _ in wanted.values())]
        follower.sendall("".join(line + "\n" for line in lines).encode())
        for name in wanted:
            recorder.wait_for(name, mark)
        recorder.wait_until_quiet()
        time.sleep(1)  # long enough for an echo to come around
        heard = recorder.messages(mark)

    # Of the tests before this one users may still be on their way out.
    ours = [message for message in heard if "@user" not in message.payload]
    for name, (_, told) in wanted.items():
        assert [told] == [message.payload for message in ours if message.words[0] == name]
    assert {f"{SERVER_NAME}/USER_IP"} == {one.channel for one in heard if one.words[0] == "USER_IP"}


# Trouble, while users go on


@pytest.mark.story
def test_the_daemon_is_killed_and_restarted(running: Running, tmp_path: Path) -> None:
    """What was told in its absence is fetched from whoever wrote it."""
    recorder = running.recorder
    with observer(running, tmp_path) as daemon:
        mark = recorder.mark()
        with Driving(running.driver()) as driving:
            driving.wait_for_rounds(2)
            gone = time.monotonic()
            daemon.kill()
            driving.wait_for_rounds(2)
            restart = recorder.mark()
            daemon.start()
            back = recorder.wait_for("REPLICATE", restart).at
            driving.wait_for_rounds(2)
        assert_converged(running, daemon, mark, gone, back)

        assert daemon.metric("synrepl_gaps_detected_total") > 0


def test_a_worker_is_restarted(running: Running, tmp_path: Path) -> None:
    """The one that writes the most, in order; its streams in memory begin again."""
    with observer(running, tmp_path) as daemon:
        mark = running.recorder.mark()
        with Driving(running.driver()) as driving:
            driving.wait_for_rounds(2)
            running.homeserver.restart(WORKER)
            driving.wait_for_rounds(2)
        assert_converged(running, daemon, mark)


def test_redis_is_killed_and_restarted(running: Running, tmp_path: Path) -> None:
    """What nobody could be told is fetched from whoever wrote it."""
    redis, recorder = running.homeserver.redis, running.recorder
    with observer(running, tmp_path) as daemon:
        mark, subscriptions = recorder.mark(), recorder.subscriptions
        others = running.drive(1)
        with Driving(running.driver()) as driving:
            driving.wait_for_rounds(2)
            gone, restart = time.monotonic(), recorder.mark()
            redis.kill()
            others.round_without_redis()
            redis.start()
            recorder.wait_for_subscription(subscriptions + 1)
            driving.wait_for_rounds(3)
        # Ours asks like the others do.
        until_none(
            lambda: (
                []
                if len(recorder.messages(restart, "REPLICATE")) > len(PROCESSES)
                else ["not everybody has come back"]
            )
        )
        back = recorder.messages(restart, "REPLICATE")[-1].at
        assert_converged(running, daemon, mark, gone, back)

        assert daemon.metric("synrepl_gaps_detected_total") > 0


def assert_converged(
    running: Running, daemon: Observer, mark: int, gone: float | None = None, back: float | None = None
) -> None:
    """At rest the daemon holds all that it can, once; what was missing was fetched.

    It could not hear what was told between `gone` and `back`.
    """
    recorder = running.recorder
    recorder.wait_until_quiet(RETURN_SECONDS)
    facts = recorder.facts(mark)
    wanted = told_by(
        (
            fact
            for fact in facts
            if gone is None or back is None or not gone - SLACK_SECONDS < fact.at < back + SLACK_SECONDS
        ),
        is_kept,
    )
    for key, rows in said_over_http(running, mark).items():
        wanted[key] = wanted.get(key, Counter()) | rows

    assert_holds(daemon, wanted, told_by(facts, is_kept))

    assert daemon.metric("synrepl_gaps_lost_total") == 0
    assert daemon.metric("synrepl_gaps_detected_total") == daemon.metric("synrepl_gaps_repaired_total")
